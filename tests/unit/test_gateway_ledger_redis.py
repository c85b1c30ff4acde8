"""Many gateways on one real Redis: the script agrees with the arithmetic, and processes that are killed exceed nothing."""

import asyncio
import os
import signal

import pytest

from redis_server import a_redis
from sits.core.caller import Caller
from sits.core.decision import Decision
from sits.core.errors import ConfigError
from sits.core.fleet_quota import Quota, RedisLedger
from sits.core.units import SECOND
from sits.gateway.ledger import redis_ledger
from sits.gateway.ledger.book import Book
from sits.gateway.ledger.client import Client
from sits.gateway.ledger.gifts import Gift
from sits.gateway.ledger.lines import Lines
from sits.gateway.ledger.messages import LeaseAsk, LeaseDown
from sits.gateway.ledger.quotas import Quotas
from sits.gateway.ledger.redis_ledger import US, Redis
from sits.policy import lease as arithmetic
from sits.policy.lease import Account, AskLine
from sits.world import RealWorld, stream_generator

SOAK = 50 if os.environ.get("SITS_SOAK") else 1
pytestmark = pytest.mark.timeout(3600 if SOAK > 1 else 120)
TTL = 10 * SECOND
LIMIT = 60_000
QUOTA = Quota(name="q", tokens=LIMIT, per="total")
ACCOUNT = "q|tokens|total"
SHORT = Decision(policy="quota", outcome="short")


@pytest.fixture(scope="module")
def shared():
    server = a_redis()
    yield server
    server.close()


@pytest.fixture
def prefix(request):
    return f"t:{abs(hash(request.node.name))}"


def authority(server, prefix, now_us=0):
    return Redis(RedisLedger(url=server.url, prefix=prefix), now_us=now_us)


def run(main):
    return asyncio.run(main())


def question(seq=1, used=0, need=0, holder="gw", per_ns=0, window=0, amount=0):
    line = AskLine(ACCOUNT, window, per_ns, LIMIT, 1, seq, 0, used, 0, 0, need, amount or need)
    return LeaseAsk(holder, 1, (line,))


@pytest.mark.parametrize("seed", range(3))
def test_the_script_and_the_arithmetic_agree_on_every_step(shared, prefix, seed):
    """The same random steps, repetitions and pauses of every length among them, played to both."""
    dice = stream_generator(seed, "script")

    def number(end):
        return int(dice.integers(end))

    async def main():
        now_us = 4_100_000_000_000_000 + number(10**6)  # the year 2099: Redis forgets no window meanwhile
        ledger = authority(shared, f"{prefix}{seed}", now_us)
        windows = {0: Account(), now_us // 60_000_000: Account(), now_us // 60_000_000 + 1: Account()}
        holders = ["a", "b", "b.1", "c"]
        seqs, past = {}, []
        for _ in range(250 * SOAK):
            now_us += (0, 1, 1000, 10**6, 6 * 10**6, 10**7, 10**11)[min(6, number(40))]
            ledger.now_us = now_us
            window = list(windows)[number(3)]
            per_ns = 60 * SECOND if window else 0
            account = windows[window]
            move = number(20)
            if move == 0:
                gift = Gift(
                    name=f"g{number(3)}",
                    account=ACCOUNT,
                    window=window,
                    per_ns=per_ns,
                    limit=100,
                    amount=number(99),
                )
                if not account.limit:
                    continue
                await ledger.give(gift)
                account.gifts.setdefault(gift.name, gift.amount)
            elif move == 1:
                holder = holders[number(4)]
                await ledger.release(holder)
                for found in windows.values():
                    arithmetic.release(found, holder, now_us * US)
            else:
                holder, life = holders[number(4)], 1 + number(2)
                key = (holder, life, window)
                if past and move == 2:
                    holder, line = past[number(len(past))]
                    window, account = line.window, windows[line.window]
                else:
                    seqs[key] = seqs.get(key, 0) + number(3)
                    lease = account.leases.get(f"{holder}.{life}", arithmetic.Lease())
                    line = AskLine(
                        account=ACCOUNT,
                        window=window,
                        per_ns=per_ns,
                        limit=(1000, 1000, 2**53 - 10**6, 700)[number(4)],
                        life=life,
                        seq=seqs[key],
                        granted=lease.granted,
                        used=lease.used + number(60),
                        returned=lease.returned + number(20),
                        reserved=number(50),
                        need=number(200) * number(2),
                        want=number(400),
                    )
                    past.append((holder, line))
                told = (await ledger.answer(LeaseAsk(holder, 5, (line,)))).lines[0]
                assert told == arithmetic.ask(account, holder, line, now_us * US, TTL)
            await _same(ledger, windows, now_us)
        await ledger.close()

    run(main)


async def _same(ledger, windows, now_us):
    rows = {row.window: row.balance for row in await ledger.rows()}
    for window, account in windows.items():
        wanted = arithmetic.balance(account, now_us * US)
        if window in rows:
            assert rows[window] == wanted
        else:
            assert wanted.settled == wanted.granted == 0


def test_numbers_stay_whole_up_to_the_largest_limit(shared, prefix):
    async def main():
        ledger = authority(shared, prefix)
        most = 2**53 - 1
        line = AskLine(ACCOUNT, 0, 0, most, 1, 1, 0, 0, 0, 0, most, most)
        assert (await ledger.answer(LeaseAsk("gw", 1, (line,)))).lines[0].granted == most
        line = AskLine(ACCOUNT, 0, 0, most, 1, 2, most, most - 1, 0, 0, 0, 0)
        assert (await ledger.answer(LeaseAsk("gw", 1, (line,)))).lines[0].used == most - 1
        (row,) = await ledger.rows()
        assert (row.balance.settled, row.balance.leased) == (most - 1, 1)
        await ledger.close()

    run(main)


def test_a_script_that_redis_lost_is_loaded_again(shared, prefix):
    async def main():
        ledger = authority(shared, prefix)
        await ledger.answer(question(need=5))
        await ledger._redis.script_flush()
        assert (await ledger.answer(question(2, need=5))).lines[0].granted == 10
        await ledger.close()

    run(main)


def test_windows_expire_and_total_stays(shared, prefix):
    async def main():
        ledger = authority(shared, prefix)
        now_ns = await ledger._now_us() * US
        per_ns = 60 * SECOND
        await ledger.answer(question(need=5))
        await ledger.answer(question(need=5, per_ns=per_ns, window=now_ns // per_ns))
        keys = {key: await ledger._redis.pttl(key) async for key in ledger._redis.scan_iter(f"{prefix}:*")}
        windowed = [ttl for key, ttl in keys.items() if not key.endswith(b":0")]
        assert min(keys.values()) == -1
        assert len(windowed) == 1
        assert 3_600_000 <= windowed[0] <= 3_660_000
        await ledger.close()

    run(main)


def test_a_redis_that_is_away_is_an_outage_and_comes_back():
    server = a_redis(append=True)

    async def main():
        ledger = authority(server, "t")
        assert (await ledger.answer(question(need=100))).lines[0].granted == 100
        await ledger.answer(question(2, used=70))
        server.stop()
        down = await ledger.answer(question(3, used=80, need=10))
        assert isinstance(down, LeaseDown)
        assert down.why.startswith("Redis: ")
        await ledger.release("gw")  # nothing to do but wait for the lease's end
        server.begin()
        told = await ledger.answer(question(4, used=80, need=10))
        assert (told.lines[0].granted, told.lines[0].used) == (110, 80)
        await ledger.release("gw")
        (row,) = await ledger.rows()
        assert (row.balance.settled, row.balance.leased, row.balance.expired) == (80, 0, 30)
        await ledger.close()

    try:
        run(main)
    finally:
        server.close()


def test_a_wrong_password_is_an_outage_that_says_so():
    server = a_redis()

    async def main():
        ledger = authority(server, "t")
        await ledger._redis.config_set("requirepass", "right")
        await ledger.close()
        for password, known in (("", False), ("wrong", False), ("right", True)):
            ledger = Redis(RedisLedger(url=server.url), password=password)
            told = await ledger.answer(question(need=1))
            assert isinstance(told, LeaseDown) is not known
            assert known or "password" in told.why.lower() or "auth" in told.why.lower()
            await ledger.close()

    try:
        run(main)
    finally:
        server.close()


def test_without_redis_py_the_way_out_is_named(monkeypatch):
    import builtins

    real = builtins.__import__

    def missing(name, *more):
        if name.partition(".")[0] == "redis":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"sitsctl\[redis\]"):
        Redis(RedisLedger(url="redis://x"))


def test_the_constants_of_the_script_are_those_of_the_arithmetic():
    named = f"{arithmetic.SCARCE_NS // US}, {arithmetic.FORGET_NS // US}, {arithmetic.EARLY_NS // US}, {arithmetic.SHARE}"
    assert f"scarce_us, forget_us, early_us, share = {named}\n" in redis_ledger.LUA


# ---- processes


def _be_gateway(url, prefix, name, out, ready, go):
    """A gateway process: as many requests at once as it can, until it is refused for good or killed."""

    async def main():
        world, dice = RealWorld(), stream_generator(0, name)
        ledger = Redis(RedisLedger(url=url, prefix=prefix, lease=SECOND))
        book = Book(Lines(name, world.wall_ns() - world.now_ns()))
        client = Client(world, book, ledger.answer, report_ns=SECOND // 50, wait_ns=SECOND // 4)
        quotas = Quotas([QUOTA], client)
        await quotas.wait(SHORT, "first", Caller(), "m", 1, 1)
        quotas.settle("first", 1, 0)
        os.write(out, b"1\n")
        os.write(ready, b"!")
        os.read(go, 1)  # all go on together
        refused = 0

        async def caller(number):
            nonlocal refused
            for step in range(10_000):
                request, tokens = f"{number}-{step}", int(dice.integers(1, 100))
                told = quotas.reserve(request, Caller(), "m", tokens, tokens, world.now_ns())
                if told.outcome == "short":
                    told = await quotas.wait(told, request, Caller(), "m", tokens, tokens)
                if told.outcome == "reserved":
                    await asyncio.sleep(0)
                    os.write(out, f"{tokens}\n".encode())
                    quotas.settle(request, tokens, 0)
                else:
                    refused += 1
                    if refused > 40:
                        return
                await asyncio.sleep(0)

        await asyncio.gather(*(caller(number) for number in range(8)))
        await client.close()
        await ledger.close()
        os.write(out, b"done\n")
        os._exit(0)

    asyncio.run(main())


def _gateways(url, prefix, count):
    """`count` gateways as child processes, begun together: `(pid, pipe)` of each."""
    (ready_read, ready_write), (go_read, go_write) = os.pipe(), os.pipe()
    children = []
    for number in range(count):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _be_gateway(url, prefix, f"gw{number}", write, ready_write, go_read)
            finally:
                os._exit(1)
        os.close(write)
        children.append((pid, read))
    for _ in range(count):
        os.read(ready_read, 1)
    os.write(go_write, b"!" * count)
    for end in (ready_read, ready_write, go_read, go_write):
        os.close(end)
    return children


def _finish(children):
    """What each gateway used, as it said itself, and whether it came to its end."""
    told = []
    for pid, read in children:
        with os.fdopen(read, "rb") as pipe:
            lines = pipe.read().split()
        os.waitpid(pid, 0)
        told.append((sum(int(line) for line in lines if line != b"done"), b"done" in lines))
    return told


async def _balance(server, prefix):
    ledger = authority(server, prefix)
    (row,) = await ledger.rows()
    await ledger.close()
    return row.balance


def test_two_gateways_share_one_limit_to_the_token(shared, prefix):
    told = _finish(_gateways(shared.url, prefix, 2))
    b = run(lambda: _balance(shared, prefix))
    assert [done for _, done in told] == [True, True]
    used = sum(tokens for tokens, _ in told)
    assert (b.settled, b.reserved, b.leased, b.debt, b.expired) == (used, 0, 0, 0, 0)
    assert LIMIT - 200 < used <= LIMIT, "all of it, to within one request, and no more"
    assert min(tokens for tokens, _ in told) > 100


@pytest.mark.parametrize("seed", range(3 * SOAK))
def test_a_gateway_killed_under_load_exceeds_the_limit_by_no_more_than_its_leases(shared, prefix, seed):
    dice = stream_generator(seed, "when")
    children = _gateways(shared.url, f"{prefix}{seed}", 2)
    victim, read = children[0]
    enough, seen = int(dice.integers(1, 3000)), b""
    while len(seen) < enough and (more := os.read(read, 512)):
        seen += more
    os.kill(victim, signal.SIGKILL)
    killed, survived = _finish([(victim, read), children[1]])
    used = sum(int(line) for line in seen.split()[:-1]) + killed[0]
    used += survived[0]
    b = run(lambda: _balance(shared, f"{prefix}{seed}"))
    assert survived[1], "the other one goes on to the end of the quota"
    assert b.granted + b.debt == b.settled + b.reserved + b.leased + b.free
    assert b.settled <= used + 200  # the pipe may end in the middle of a line
    assert used <= b.settled + b.reserved + b.leased + b.expired
    assert used <= LIMIT + b.expired
