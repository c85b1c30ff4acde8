"""The write-ahead file: torn, damaged, full, owned, grown; and processes that are killed while they write it."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sits.core.caller import Caller
from sits.core.errors import ConfigError
from sits.core.fleet_quota import Quota
from sits.core.units import SECOND
from sits.gateway.ledger import journal as journal_module
from sits.gateway.ledger.authority import Accounts
from sits.gateway.ledger.book import Book
from sits.gateway.ledger.client import Client
from sits.gateway.ledger.embedded import Embedded
from sits.gateway.ledger.gifts import FOLDER, Gift, leave_gift
from sits.gateway.ledger.journal import Journal, files_of, frame, parse
from sits.gateway.ledger.lines import Lines
from sits.gateway.ledger.messages import LeaseAsk, LeaseDown, decode_answer, decode_ask, encode
from sits.gateway.ledger.quotas import Quotas
from sits.policy.lease import AskLine
from sits.policy.quota import compile_quotas
from sits.world import RealWorld, stream_generator

TTL = 10 * SECOND
LIMIT = 50_000
QUOTA = Quota(name="q", tokens=LIMIT, per="total")
ACCOUNT = "q|tokens|total"


def want(holder="gw", seq=1, used=0, amount=10, account=ACCOUNT):
    line = AskLine(account, 0, 0, LIMIT, 1, seq, 0, used, 0, 0, amount, amount)
    return LeaseAsk(holder, 1, (line,))


def frames_of(count):
    """`count` frames as a running ledger writes them, and the state after each."""
    accounts = Accounts(TTL)
    data, states, safe = b"", [], 0
    for i in range(count):
        accounts.answer(want(f"gw{i % 3}", seq=i + 1, used=7 * i), SECOND * 1000 + i)
        data += frame(accounts.drain(), safe)
        safe = len(data) if i % 2 else safe
        states.append((len(data), accounts.rows(SECOND * 1000 + i)))
    return data, states


def rows_of(records, at_ns=SECOND * 1000 + 99):
    accounts = Accounts(TTL)
    accounts.load(records)
    return accounts.rows(at_ns)


def test_a_file_cut_anywhere_gives_the_last_whole_frame():
    data, states = frames_of(12)
    for cut in range(len(data) + 1):
        if any(end <= cut for end, _ in states):
            good, wanted = max((end, rows) for end, rows in states if end <= cut)
        else:
            good, wanted = 0, []
        records, read = parse(data[:cut], Path("x.wal"))
        assert read == good
        assert rows_of(records) == wanted


def test_any_damage_is_cut_or_refused_and_never_believed():
    data, states = frames_of(8)
    wanted = dict(states) | {0: []}
    believed = 0
    for at in range(0, len(data), 3):
        bad = bytearray(data)
        bad[at] ^= 0x41
        with contextlib.suppress(ConfigError):
            records, read = parse(bytes(bad), Path("x.wal"))
            assert read <= at, "the damaged frame is not read"
            assert rows_of(records) == wanted[read]
            believed += 1
    assert believed
    assert believed < len(data) // 3 // 2, "damage of what was safely written is an error"


def test_reading_twice_changes_nothing():
    records, _ = parse(frames_of(9)[0], Path("x.wal"))
    assert rows_of([*records, *records]) == rows_of(records)


def run(main):
    return asyncio.run(main())


def test_what_was_answered_is_there_after_a_restart(tmp_path):
    async def main():
        first = Embedded(RealWorld(), TTL, tmp_path)
        await first.answer(want(amount=100))
        await first.answer(want(seq=2, used=60, amount=0))
        await first.close()
        second = Embedded(RealWorld(), TTL, tmp_path)
        (row,) = second.rows()
        assert (row.balance.settled, row.balance.leased, row.balance.free) == (60, 40, LIMIT - 100)
        await second.close()
        assert len(files_of(tmp_path)) == 1

    run(main)


def test_a_grant_waits_for_the_disk_and_many_wait_together(tmp_path, monkeypatch):
    async def main():
        ledger = Embedded(RealWorld(), TTL, tmp_path)
        gate, syncs, began = asyncio.Event(), [], threading.Event()
        loop = asyncio.get_running_loop()
        real = Journal.sync

        def sync(journal):
            syncs.append(journal.written)
            began.set()
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
            real(journal)

        monkeypatch.setattr(Journal, "sync", sync)
        asked = [asyncio.ensure_future(ledger.answer(want(f"gw{i}"))) for i in range(50)]
        await asyncio.to_thread(began.wait)
        assert not any(task.done() for task in asked), "nobody hears of a grant that a power cut could undo"
        gate.set()
        answers = await asyncio.gather(*asked)
        assert {answer.lines[0].granted for answer in answers} == {10}
        assert len(syncs) <= 2, "fifty grants, one or two syncs"
        monkeypatch.undo()
        await ledger.close()

    run(main)


def test_without_sync_nothing_waits_and_kill_loses_nothing(tmp_path, monkeypatch):
    async def main():
        ledger = Embedded(RealWorld(), TTL, tmp_path, sync=False)
        monkeypatch.setattr(os, "fdatasync", None)
        await ledger.answer(want(amount=100))
        records, _ = parse(files_of(tmp_path)[-1][1].read_bytes(), tmp_path)
        assert rows_of(records, RealWorld().wall_ns())[0].balance.leased == 100

    run(main)


@pytest.mark.parametrize("where", ["write", "sync"])
def test_a_disk_that_fails_is_an_outage_and_then_goes_on(tmp_path, monkeypatch, where):
    async def main():
        ledger = Embedded(RealWorld(), TTL, tmp_path)
        assert (await ledger.answer(want(amount=100))).lines[0].granted == 100

        def fail(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr(
                journal_module if where == "write" else os,
                "_write" if where == "write" else "fdatasync",
                fail,
            )
            told = await ledger.answer(want(seq=2, amount=50))
            assert isinstance(told, LeaseDown)
            assert "No space left" in told.why
        told = await ledger.answer(want(seq=3, amount=50))
        assert told.lines[0].granted >= 150
        await ledger.close()
        (row,) = rows_of(parse(files_of(tmp_path)[-1][1].read_bytes(), tmp_path)[0], RealWorld().wall_ns())
        assert row.balance.leased == told.lines[0].granted

    run(main)


def test_a_file_grows_no_further_than_its_state_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 4000)

    class Clock(RealWorld):
        ticks = 10**6 * SECOND

        def wall_ns(self):
            self.ticks += SECOND // 2
            return self.ticks

    async def main():
        ledger = Embedded(Clock(), TTL, tmp_path, sync=False)
        for seq in range(1, 800):
            await ledger.answer(want(seq=seq, used=seq, amount=2))
        before = ledger.rows()[0].balance
        await ledger.close()
        ((number, path),) = files_of(tmp_path)
        assert number > 5
        assert path.stat().st_size < 10_000
        again = Embedded(Clock(), TTL, tmp_path)
        assert again.rows()[0].balance.settled == before.settled == 799
        await again.close()

    run(main)


def test_windows_that_are_over_leave_the_file(tmp_path):
    class Clock(RealWorld):
        at = 10**6 * SECOND

        def wall_ns(self):
            return self.at

    async def main():
        clock = Clock()
        ledger = Embedded(clock, TTL, tmp_path, sync=False)
        for window in range(10):
            clock.at = (20_000 + window) * 60 * SECOND
            line = AskLine("m|tokens|1m", 20_000 + window, 60 * SECOND, 100, 1, 1, 0, 0, 0, 0, 5, 5)
            await ledger.answer(LeaseAsk("gw", 1, (line,)))
        assert [row.window for row in ledger.rows()] == [20_008, 20_009]
        await ledger.close()
        again = Embedded(clock, TTL, tmp_path)
        assert [row.window for row in again.rows()] == [20_008, 20_009]
        await again.close()

    run(main)


def test_a_half_written_new_file_is_no_file(tmp_path):
    async def main():
        ledger = Embedded(RealWorld(), TTL, tmp_path)
        await ledger.answer(want(amount=100))
        await ledger.close()
        (tmp_path / "ledger.new").write_bytes(b"SLJ1 half")
        again = Embedded(RealWorld(), TTL, tmp_path)
        assert again.rows()[0].balance.leased == 100
        await again.close()

    run(main)


def test_two_gateways_do_not_share_a_directory(tmp_path):
    held = Journal(tmp_path)
    code = "import sys; from pathlib import Path; from sits.gateway.ledger.journal import Journal; Journal(Path(sys.argv[1]))"
    shown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "belongs to a running gateway" in shown.stderr
    held.close()
    shown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr


def test_a_gift_counts_once_and_what_is_no_gift_is_set_aside(tmp_path):
    gift = Gift(name="g1", account=ACCOUNT, window=0, per_ns=0, limit=LIMIT, amount=500)

    async def main():
        leave_gift(tmp_path, gift)
        (tmp_path / FOLDER / "bad.json").write_text('{"name": 1}')
        ledger = Embedded(RealWorld(), TTL, tmp_path)
        await ledger.answer(want())
        assert ledger.rows()[0].balance.granted == LIMIT + 500
        assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["bad.bad"]
        await ledger.close()
        leave_gift(tmp_path, gift)  # as if the gateway had died before it removed the file
        again = Embedded(RealWorld(), TTL, tmp_path)
        await again.answer(want(seq=2))
        assert again.rows()[0].balance.granted == LIMIT + 500
        await again.close()

    run(main)


# ---- kill -9


def _be_authority(end, directory):
    """A keeper: reads questions, writes answers, until it is killed."""

    async def main():
        ledger = Embedded(RealWorld(), TTL, directory)
        loop = asyncio.get_running_loop()
        end.setblocking(False)
        while True:
            data = await loop.sock_recv(end, 65_536)
            if not data:
                return
            await loop.sock_sendall(end, encode(await ledger.answer(decode_ask(data))))

    asyncio.run(main())


def _fork(work, *arguments):
    """A child that runs `work`; killed or not, it never comes back here."""
    pid = os.fork()
    if pid == 0:
        try:
            work(*arguments)
        finally:
            os._exit(1)
    return pid


class Keeper:
    """An authority in a process of its own."""

    def __init__(self, directory):
        self.directory = directory
        self.begin()

    def begin(self):
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = _fork(self._child, theirs)
        theirs.close()

    def _child(self, theirs):
        self.end.close()
        _be_authority(theirs, self.directory)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.end.close()


def test_an_authority_killed_again_and_again_settles_to_the_token(tmp_path):
    """The holder lives, its keeper is killed at any point of its work: nothing is lost, nothing granted twice."""
    dice = stream_generator(5, "kill")
    world = RealWorld()
    book = Book(Lines("gw", world.wall_ns() - world.now_ns()))
    slots = book.lines.slots(compile_quotas([QUOTA]), Caller(), "m")
    keeper, kills, used, let_in = Keeper(tmp_path), 0, 0, 0
    for step in range(300):
        request, tokens = f"r{step}", int(dice.integers(1, 400))
        told = book.reserve(request, slots, tokens, 0, world.now_ns())
        slots.all[0].line.waits[:] = [tokens] if told.outcome == "short" else []
        question = book.lines.ask(world.now_ns())
        if question is not None:
            keeper.end.send(encode(question))
            if dice.random() < 0.1:
                for _ in range(int(dice.integers(0, 30_000))):
                    pass  # any point of its work
                keeper.kill()
                kills += 1
                keeper.begin()
                keeper.end.send(encode(question))
            book.lines.hear(decode_answer(keeper.end.recv(65_536)), world.now_ns())
            slots.all[0].line.waits.clear()
        if told.outcome == "short":
            told = book.reserve(request, slots, tokens, 0, world.now_ns())
        if told.outcome == "reserved":
            let_in += 1
            took = int(dice.integers(0, tokens + 1))
            book.settle(request, took, 0)
            used += took
    book.lines.give_all_back()
    while (question := book.lines.ask(world.now_ns())) is not None:
        keeper.end.send(encode(question))
        book.lines.hear(decode_answer(keeper.end.recv(65_536)), world.now_ns())
    keeper.kill()
    (row,) = rows_of(parse(files_of(tmp_path)[-1][1].read_bytes(), tmp_path)[0], world.wall_ns())
    b = row.balance
    assert kills >= 15
    assert let_in >= 100
    assert (b.settled, b.reserved, b.leased, b.expired) == (used, 0, 0, 0)
    assert b.free - b.debt == LIMIT - used


def _live(directory, out, holder, seed):
    """A whole gateway: keeper and worker in one process, telling the pipe what it was granted and what it used."""

    async def main():
        world, dice = RealWorld(), stream_generator(seed, "life")
        ledger = Embedded(world, TTL, directory)

        async def ask(question):
            answer = await ledger.answer(question)
            for line in getattr(answer, "lines", ()):
                os.write(out, f"G {holder}.{line.life} {line.granted} {line.used}\n".encode())
            return answer

        book = Book(Lines(holder, world.wall_ns() - world.now_ns()))
        client = Client(world, book, ask, report_ns=SECOND // 100, wait_ns=SECOND // 50)
        quotas = Quotas([QUOTA], client)
        client.start()
        refused = 0
        for step in range(100_000):
            request, tokens = f"r{step}", int(dice.integers(1, 60))
            told = quotas.reserve(request, Caller(), "m", tokens, 0, world.now_ns())
            if told.outcome == "short":
                told = await quotas.wait(told, request, Caller(), "m", tokens, 0)
            if told.outcome == "reserved":
                os.write(out, f"U {tokens}\n".encode())
                quotas.settle(request, tokens, 0)
            else:
                refused += 1
            if refused > 20:
                return
            await asyncio.sleep(0)

    asyncio.run(main())


def test_gateways_killed_again_and_again_exceed_the_limit_by_no_more_than_their_leases(tmp_path):
    dice = stream_generator(7, "lives")
    used, told_used, lives = 0, {}, 0
    granted = {}
    for life in range(12):
        read, write = os.pipe()
        pid = _fork(_live, tmp_path, write, f"gw{life}", life)
        os.close(write)
        said = b""
        enough = int(dice.integers(10, 400))
        while said.count(b"\n") < enough and (more := os.read(read, 4096)):
            said += more
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(read, 65_536):
            said += more
        os.close(read)
        lives += 1
        for words in (line.split() for line in said.decode().splitlines()):
            if words[0] == "U":
                used += int(words[1])
            else:
                granted[words[1]] = max(granted.get(words[1], 0), int(words[2]))
                told_used[words[1]] = max(told_used.get(words[1], 0), int(words[3]))
        accounts = Accounts(TTL)
        accounts.load(parse(files_of(tmp_path)[-1][1].read_bytes(), tmp_path)[0])
        leases = accounts._accounts[ACCOUNT, 0].leases
        for name, amount in granted.items():
            assert leases[name].granted >= amount, "what was told as granted is in the file"
            assert leases[name].used >= told_used[name], "what was told as settled is in the file"
        now_ns = RealWorld().wall_ns()
        b = accounts.rows(now_ns)[0].balance
        assert b.granted + b.debt == b.settled + b.reserved + b.leased + b.free
        assert b.settled <= used
        assert used <= b.settled + b.reserved + b.leased + b.expired, (
            "what is unaccounted for is within the leases"
        )
        assert used <= LIMIT + b.expired
    assert lives == 12
    assert used > LIMIT // 2
