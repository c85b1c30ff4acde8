"""What quotas cost: a request its reservation and settlement, the keeper a question, and the disk a grant.

Prints CPU ns of a call, best of several rounds.  `dict` is one dict insertion and its removal, the yardstick: on a machine that is busy or slow
read the ratios to it.  Bars: reserve and settle together <= 1500 ns for one balance and for two.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from redis_server import COMMAND, RedisServer
from sits.core.caller import Caller
from sits.core.fleet_quota import Quota, QuotaMatch, RedisLedger
from sits.core.units import SECOND
from sits.gateway.ledger.authority import Accounts
from sits.gateway.ledger.book import Book
from sits.gateway.ledger.client import Client
from sits.gateway.ledger.embedded import Embedded
from sits.gateway.ledger.lines import Lines
from sits.gateway.ledger.messages import LeaseAsk, decode_answer, decode_ask, encode
from sits.gateway.ledger.quotas import Quotas
from sits.gateway.ledger.redis_ledger import Redis
from sits.policy.lease import AskLine
from sits.world import RealWorld

ROUNDS, CALLS = 25, 5000
CALLER = Caller(tenant="acme", team="web", key_id="ci")
LARGE = 10**15
QUOTAS = {
    1: (Quota(name="day", match=QuotaMatch(tenant="acme"), tokens=LARGE, per="1d"),),
    2: (
        Quota(name="day", match=QuotaMatch(tenant="acme"), tokens=LARGE, per="1d"),
        Quota(name="key", each=("key",), tokens=LARGE, per="1d"),
    ),
    4: (
        Quota(name="day", match=QuotaMatch(tenant="acme"), tokens=LARGE, requests=LARGE, per="1d"),
        Quota(name="key", each=("key",), tokens=LARGE, requests=LARGE, per="1d"),
    ),
}


class Hot:
    """A process whose leases are large enough for the whole measurement."""

    def __init__(self, balances: int) -> None:
        self.accounts = Accounts(10 * SECOND)
        self.lines = Lines("gw", 0)
        book = Book(self.lines)
        client = Client(RealWorld(), book, self._nobody, report_ns=SECOND, wait_ns=SECOND)
        self.quotas = Quotas(QUOTAS[balances], client)
        self.now_ns = 20_000 * 86_400 * SECOND
        self.quotas.reserve("first", CALLER, "m", 1, 1, self.now_ns)
        for line in list(self.lines._active):
            line.block = LARGE // 10
        question = self.lines.ask(self.now_ns)
        assert question is not None
        self.lines.hear(self.accounts.answer(question, self.now_ns)[0], self.now_ns)

    async def _nobody(self, _: LeaseAsk) -> None:
        raise OSError

    def requests(self) -> float:
        """CPU ns of one request's reservation and settlement."""
        quotas, best = self.quotas, float("inf")
        reserve, settle, now_ns = quotas.reserve, quotas.settle, self.now_ns
        for turn in range(ROUNDS):
            ids = [f"{turn:08x}{i:024x}" for i in range(CALLS)]
            start = time.process_time_ns()
            for request in ids:
                reserve(request, CALLER, "m", 1000, 256, now_ns)
                settle(request, 990, 120, 400)
            best = min(best, (time.process_time_ns() - start) / CALLS)
            told = reserve("again", CALLER, "m", 1, 1, now_ns)
            assert told.outcome == "reserved", told
            quotas.void("again")
            quotas.book._closed.clear()
        return best

    def headers(self) -> float:
        """CPU ns of the `x-ratelimit-*` headers of one answer."""
        best = float("inf")
        for _ in range(ROUNDS):
            start = time.process_time_ns()
            for _ in range(CALLS):
                self.quotas.headers(CALLER, "m", self.now_ns)
            best = min(best, (time.process_time_ns() - start) / CALLS)
        return best


def yardstick() -> float:
    """CPU ns of one dict insertion and removal."""
    best, kept = float("inf"), dict.fromkeys(range(1000), 0)
    for turn in range(ROUNDS):
        ids = [f"{turn:08x}{i:024x}" for i in range(CALLS)]
        start = time.process_time_ns()
        for request in ids:
            kept[request] = 1
            kept.pop(request)
        best = min(best, (time.process_time_ns() - start) / CALLS)
    return best


def question(seq: int, lines: int) -> bytes:
    """A worker's usual report: that many balances, each with something new."""
    return encode(
        LeaseAsk(
            "gw",
            seq,
            tuple(
                AskLine(
                    f"key|tokens|1d|key=k{i}",
                    20_000,
                    86_400 * SECOND,
                    LARGE,
                    i,
                    seq,
                    0,
                    seq,
                    0,
                    9,
                    0,
                    seq % 2,
                )
                for i in range(lines)
            ),
        )
    )


def answers(lines: int) -> float:
    """CPU ns a line of the keeper: bytes in, settled, lent, written down, bytes out."""
    accounts, best = Accounts(10 * SECOND), float("inf")
    for turn in range(ROUNDS):
        asked = [question(turn * 100 + i + 1, lines) for i in range(50)]
        start = time.process_time_ns()
        for data in asked:
            answer, _ = accounts.answer(decode_ask(data), 20_000 * 86_400 * SECOND + turn)
            encode(answer)
            encode(accounts.drain())
        best = min(best, (time.process_time_ns() - start) / 50 / lines)
    return best


async def round_trips(ledger: Embedded | Redis, count: int) -> list[float]:
    """Milliseconds of `count` questions that are granted something, one after the other."""
    took = []
    for seq in range(1, count + 1):
        line = AskLine("q|tokens|total", 0, 0, LARGE, 1, seq, 0, 0, 0, 0, 1, 1)
        start = time.perf_counter_ns()
        answer = await ledger.answer(LeaseAsk("gw", seq, (line,)))
        took.append((time.perf_counter_ns() - start) / 1e6)
        assert decode_answer(encode(answer)) == answer
    await ledger.close()
    return took


def show_times(name: str, took: list[float]) -> None:
    """Median and the slowest of a hundred."""
    print(
        f"{name:44} P50 {statistics.median(took):7.2f} ms   P99 {statistics.quantiles(took, n=100)[98]:7.2f} ms"
    )


def main() -> None:
    """Measure and print."""
    unit = yardstick()
    print(f"{'dict: one insertion and its removal':44} {unit:7.0f} ns")
    for balances in QUOTAS:
        hot = Hot(balances)
        cost = hot.requests()
        print(f"{f'reserve + settle, {balances} balances':44} {cost:7.0f} ns   {cost / unit:5.1f} x dict")
        if balances == 1:
            cost = hot.headers()
            print(f"{'headers of an answer':44} {cost:7.0f} ns   {cost / unit:5.1f} x dict")
    for lines in (1, 100):
        cost = answers(lines)
        print(f"{f'keeper, a line of a question of {lines}':44} {cost:7.0f} ns   {cost / unit:5.1f} x dict")
    for sync in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            ledger = Embedded(RealWorld(), 10 * SECOND, Path(directory), sync=sync)
            show_times(
                f"a grant, written{' and synced' if sync else ''}", asyncio.run(round_trips(ledger, 200))
            )
    if COMMAND:
        server = RedisServer()
        show_times(
            f"a grant of {COMMAND} (socket file)",
            asyncio.run(_redis_trips(server.url)),
        )
        server.close()


async def _redis_trips(url: str) -> list[float]:
    return await round_trips(Redis(RedisLedger(url=url)), 200)


if __name__ == "__main__":
    main()
