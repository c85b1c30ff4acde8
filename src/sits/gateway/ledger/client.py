"""The client: keeps a process's book in touch with its authority, and lets requests wait for a lease.

Rules: one question is under way at a time; what comes up meanwhile goes into the next one, so a busy authority gets fewer, larger
questions.  A request waits only when its lease is short, first come first served, for `wait_ns` (twice that when nothing was heard
at all), and is refused at once when the authority has nothing and no other holder has anything to spare.  An authority that does not answer is asked
again after pauses that double up to a second; meanwhile the book does as the configuration says.

Requests wait for plain futures, so they may wait outside of a task.

Deliberately absent: who carries questions and answers; `ask` is given.
"""

import asyncio
from collections.abc import Awaitable, Callable

from sits.core.decision import Decision
from sits.core.errors import SitsError
from sits.core.fleet_quota import Outage
from sits.core.ports import World
from sits.core.units import SECOND
from sits.gateway.ledger.book import Book
from sits.gateway.ledger.line import Line, Slots
from sits.gateway.ledger.messages import Answer, LeaseAsk, LeaseDown

WAITING_MAX = 1024
ANSWER_NS = 2 * SECOND
"""How long an answer may take before the authority counts as down."""

QUIET_NS = SECOND
"""The pause of a process that has nothing to report."""

CLOSING_ROUNDS = 64
NEVER = -1


class _Waiter:
    """A request that waits for a lease."""

    __slots__ = (
        "future",
        "input_tokens",
        "output_tokens",
        "queued",
        "request_id",
        "since",
        "slots",
        "timer",
        "told",
    )

    def __init__(
        self,
        future: "asyncio.Future[Decision]",
        request_id: str,
        slots: Slots,
        input_tokens: int,
        output_tokens: int,
        told: Decision,
        since: int,
    ) -> None:
        self.future = future
        self.since = since
        self.request_id = request_id
        self.slots = slots
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.told = told
        self.queued: list[tuple[Line, int]] = []
        self.timer: asyncio.TimerHandle | None = None


class Client:
    """Talks for one book.

    Args:
        world: clock.
        book: whose requests; ask: carries a question to the authority and its answer back.
        report_ns: pause between reports; wait_ns: how long a request waits at most.

    Attributes:
        why_down: what the authority, or the way to it, said when it failed last.
        counts: questions, outages (times it went down), and requests that waited.

    """

    def __init__(
        self,
        world: World,
        book: Book,
        ask: Callable[[LeaseAsk], Awaitable[Answer]],
        *,
        report_ns: int,
        wait_ns: int,
    ) -> None:
        self.book = book
        self.why_down = ""
        self.counts = dict.fromkeys(("questions", "outages", "waited"), 0)
        self._world = world
        self._ask = ask
        self._report_ns = report_ns
        self._wait_ns = wait_ns
        self._pause_ns = report_ns
        self._waiting: dict[_Waiter, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._woken = False
        self._answers = 0
        self._closing = False
        book.wake = self.wake

    def start(self) -> None:
        """Begin to report, on the running loop; the first request that waits does so too."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._stopped)

    def _stopped(self, task: "asyncio.Task[None]") -> None:
        """A bug is told, and reporting goes on: without it every lease would run out."""
        if task.cancelled() or self._closing:
            return
        self._task = None
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "bug in the ledger's client", "exception": task.exception()})
        loop.call_later(QUIET_NS / SECOND, self._restart)

    def _restart(self) -> None:
        if not self._closing:
            self.start()

    def adopt(self, report_ns: int, wait_ns: int, on_outage: Outage) -> None:
        """Go by a new configuration."""
        self._report_ns, self._wait_ns = report_ns, wait_ns
        self._pause_ns = max(report_ns, self._pause_ns) if self.book.down else report_ns
        self.book.on_outage = on_outage

    async def close(self) -> None:
        """Report all that is settled and give back all that is not needed."""
        self._closing = True
        if self._task is not None:
            self._ring()
            self._task.cancel()  # whoever carries questions may swallow it; then the flag ends the loop
            await asyncio.gather(self._task, return_exceptions=True)
        lines = self.book.lines
        lines.give_all_back()
        for _ in range(CLOSING_ROUNDS):
            question = lines.ask(self._world.now_ns())
            if question is None or not await self._exchange(question):
                break
        for waiter in list(self._waiting):
            self._end(waiter, _refused("closing"))

    def wake(self) -> None:
        """Something should be asked for at once."""
        self._woken = True
        if not self.book.down:
            self._ring()

    def wait(
        self,
        request_id: str,
        slots: Slots,
        input_tokens: int,
        output_tokens: int,
        told: Decision,
    ) -> "asyncio.Future[Decision]":
        """Wait for a lease after `book.reserve` said `short`; the decision that ends it is never `short`."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(
            loop.create_future(), request_id, slots, input_tokens, output_tokens, told, self._answers
        )
        waiter.future.add_done_callback(lambda _: self._leave(waiter))
        if len(self._waiting) >= WAITING_MAX:
            waiter.future.set_result(_refused("too_many_waiting"))
            return waiter.future
        self.start()
        self.counts["waited"] += 1
        self._waiting[waiter] = None
        waiter.timer = loop.call_later(self._wait_ns / SECOND, self._give_up, waiter)
        self._queue(waiter)
        self.wake()
        return waiter.future

    def _ring(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _run(self) -> None:
        while not self._closing:
            self._woken = False
            now_ns = self._world.now_ns()
            self.book.expire(now_ns)
            if self.book.down:  # a question about nothing: what is in hand stays here
                question: LeaseAsk | None = LeaseAsk(self.book.lines.holder, now_ns)
            else:
                question = self.book.lines.ask(now_ns)
            if question is None:
                await self._pause(self._report_ns if self.book.lines.active else QUIET_NS)
                continue
            answered = await self._exchange(question)
            served = self._serve()
            if not answered or (question.lines and not served and not self.book.lines.more):
                await self._pause(self._pause_ns)

    async def _exchange(self, question: LeaseAsk) -> bool:
        """Whether there was an answer; the book has it then."""
        self.counts["questions"] += 1
        try:
            async with asyncio.timeout(ANSWER_NS / SECOND):
                answer = await self._ask(question)
        except TimeoutError:
            return self._fail(f"no answer within {ANSWER_NS / SECOND:g} s")
        except (OSError, SitsError) as error:
            return self._fail(str(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001  (the last fence: a bug on the way must not end all reporting)
            context = {"message": "bug while asking the ledger", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            return self._fail(type(error).__name__)
        if isinstance(answer, LeaseDown):
            return self._fail(answer.why)
        self.book.down = False
        self._answers += 1
        self._pause_ns = self._report_ns
        self.book.lines.hear(answer, self._world.now_ns())
        return True

    def _fail(self, why: str) -> bool:
        self.counts["outages"] += not self.book.down
        self.book.down = True
        self.why_down = why
        self._pause_ns = min(SECOND, 2 * self._pause_ns)
        return False

    async def _pause(self, ns: int) -> None:
        if self._closing or (self._woken and not self.book.down):
            return
        loop = asyncio.get_running_loop()
        self._wakeup = loop.create_future()
        timer = loop.call_later(ns / SECOND, self._ring)
        try:
            await self._wakeup
        finally:
            timer.cancel()
            self._wakeup = None

    def _queue(self, waiter: _Waiter) -> None:
        for slot in waiter.slots:
            line = self.book.lines.current(slot, self._world.now_ns())
            if line is not None:
                cost = line.meter.cost(waiter.input_tokens, waiter.output_tokens)
                line.waits.append(cost)
                waiter.queued.append((line, cost))

    def _unqueue(self, waiter: _Waiter) -> None:
        for line, cost in waiter.queued:
            line.waits.remove(cost)
        waiter.queued.clear()

    def _serve(self) -> int:
        """Try again for everybody who waits, in order; how many need not wait any longer."""
        served = 0
        for waiter in list(self._waiting):
            spared = any(line.elsewhere > 0 for line, _ in waiter.queued)
            self._unqueue(waiter)
            waiter.told = self.book.reserve(
                waiter.request_id,
                waiter.slots,
                waiter.input_tokens,
                waiter.output_tokens,
                self._world.now_ns(),
            )
            if waiter.told.outcome == "short" or (waiter.told.outcome == "refused_quota" and spared):
                self._queue(waiter)
            else:
                self._end(waiter, waiter.told)
                served += 1
        return served

    def _give_up(self, waiter: _Waiter) -> None:
        """Its time is over; once more as long when no answer came at all, for then it may be we who were not let run."""
        told = waiter.told
        if waiter.since == self._answers and not self.book.down:
            waiter.since = NEVER
            loop = asyncio.get_running_loop()
            waiter.timer = loop.call_later(self._wait_ns / SECOND, self._give_up, waiter)
            return
        self._end(waiter, _refused("slow") if told.outcome == "short" else told)

    def _end(self, waiter: _Waiter, decision: Decision) -> None:
        self._leave(waiter)
        if not waiter.future.done():
            waiter.future.set_result(decision)

    def _leave(self, waiter: _Waiter) -> None:
        self._waiting.pop(waiter, None)
        self._unqueue(waiter)
        if waiter.timer is not None:
            waiter.timer.cancel()


def _refused(why: str) -> Decision:
    return Decision(policy="quota", outcome="refused_ledger", reasons={"why": why})
