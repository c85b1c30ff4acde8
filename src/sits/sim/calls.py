"""A batching window and an engine that batches by call, on a clock that jumps: what a policy would have done.

Arrivals come as given.  The window is the real one (`policy.window`, `policy.pace`); each time it sends, that is one call of k items,
which takes fixed + item * k.  Two kinds of engine:

- `by_call` runs one call after the other, in order.
- `gathers` queues what it is sent and, each time it is free, takes up to `max_batch` of it as its next batch: a server with
  a dynamic batcher of its own.

Rules: same arrivals, same configuration: same nanoseconds; at one instant calls end first, then requests arrive, then windows end.

Deliberately absent: noise in the times of calls, and engines that run several calls at once.
"""

from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.fleet_window import Window
from sits.policy.pace import Pace
from sits.policy.window import FEEDBACK_NS

Kind = Literal["by_call", "gathers"]
NEVER_NS = 2**62
SEEN_MOST = 512
"""Answers the feedback looks at, the newest of its five seconds."""


class Replayed(msgspec.Struct, frozen=True):
    """What became of each request, in order of arrival, and of the engine.

    Attributes:
        waited_ns: in the window; latency_ns: from arrival to answer.
        sizes: items of each batch the engine ran.
        busy_ns: what the engine worked; span_ns: from the first arrival to the last answer.

    """

    waited_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    sizes: NDArray[np.int64]
    busy_ns: int
    span_ns: int

    @property
    def per_s(self) -> float:
        """Answers a second."""
        return len(self.latency_ns) / self.span_ns * 1e9

    @property
    def batch_mean(self) -> float:
        """Mean items of a batch."""
        return float(self.sizes.mean())

    @property
    def busy(self) -> float:
        """Share of the time in which the engine worked."""
        return self.busy_ns / self.span_ns

    def latency(self, share: float) -> float:
        """A quantile of the latency, ns."""
        return float(np.quantile(self.latency_ns, share))


class _Engine:
    """Runs batches of items (their numbers) one after the other; `ends_ns` is when the running one ends."""

    def __init__(self, kind: Kind, fixed_ns: int, item_ns: int, max_batch: int) -> None:
        self.kind, self.fixed_ns, self.item_ns, self.max_batch = kind, fixed_ns, item_ns, max_batch
        self.queue: deque[list[int]] = deque()
        self.running: list[int] = []
        self.ends_ns, self.busy_ns = NEVER_NS, 0
        self.sizes: list[int] = []

    def send(self, items: list[int], now_ns: int) -> None:
        if self.kind == "gathers":
            self.queue.extend([item] for item in items)
        else:
            self.queue.append(items)
        if not self.running:
            self.begin(now_ns)

    def begin(self, now_ns: int) -> None:
        self.running, self.ends_ns = [], NEVER_NS
        if not self.queue:
            return
        self.running = list(self.queue.popleft())
        while self.kind == "gathers" and self.queue and len(self.running) < self.max_batch:
            self.running += self.queue.popleft()
        took_ns = self.fixed_ns + self.item_ns * len(self.running)
        self.ends_ns = now_ns + took_ns
        self.busy_ns += took_ns
        self.sizes.append(len(self.running))


def replay(
    arrivals_ns: Sequence[int],
    config: Window,
    *,
    fixed_ns: int,
    item_ns: int,
    objective_ns: int,
    kind: Kind = "by_call",
    pace: Pace | None = None,
) -> Replayed:
    """Send `arrivals_ns`, which ascend, through a window to an engine; `pace` replaces what the window learns by."""
    pace = pace or Pace(config, objective_ns)
    engine = _Engine(kind, fixed_ns, item_ns, config.max_batch)
    n = len(arrivals_ns)
    sent, answered = np.zeros(n, np.int64), np.zeros(n, np.int64)
    waiting: list[int] = []
    calls: dict[
        int, list[int]
    ] = {}  # item -> of its call: items not answered, items, when sent (-1: others were under way)
    seen: deque[int] = deque(maxlen=SEEN_MOST)
    under_way = length_ns = at = 0
    due_ns = NEVER_NS
    look_ns = (arrivals_ns[0] if n else 0) + FEEDBACK_NS
    while at < n or waiting or engine.running:
        arrival_ns = arrivals_ns[at] if at < n else NEVER_NS
        now_ns = min(arrival_ns, due_ns, engine.ends_ns)
        if pace.takes_feedback and now_ns >= look_ns:
            look_ns = now_ns + FEEDBACK_NS
            if seen:
                _look(pace, list(seen), arrivals_ns, sent, answered)
                seen.clear()
        if engine.ends_ns == now_ns:
            done = engine.running
            answered[done] = now_ns
            seen.extend(done)
            under_way -= len(done)
            for item in done:
                call = calls.pop(item)
                call[0] -= 1
                if not call[0] and call[2] >= 0:
                    pace.call.took(call[1], now_ns - call[2])
            engine.begin(now_ns)
        elif arrival_ns == now_ns:
            if not waiting:
                length_ns = pace.length_ns
            pace.arrived(now_ns)
            waiting.append(at)
            at += 1
        if not waiting:
            continue
        due_ns = pace.until_ns(length_ns, len(waiting), arrivals_ns[waiting[0]], under_way, 0)
        if due_ns <= now_ns:
            sent[waiting] = now_ns
            call = [len(waiting), len(waiting), -1 if under_way else now_ns]
            calls.update(dict.fromkeys(waiting, call))
            under_way += len(waiting)
            engine.send(waiting, now_ns)
            waiting, due_ns = [], NEVER_NS
    arrived = np.asarray(arrivals_ns, np.int64)
    span_ns = int(answered.max() - arrived[0]) if n else 1
    return Replayed(
        sent - arrived, answered - arrived, np.array(engine.sizes, np.int64), engine.busy_ns, max(1, span_ns)
    )


def _look(
    pace: Pace,
    seen: list[int],
    arrivals_ns: Sequence[int],
    sent: NDArray[np.int64],
    answered: NDArray[np.int64],
) -> None:
    arrived = np.array([arrivals_ns[i] for i in seen])
    whole, waited = answered[seen] - arrived, sent[seen] - arrived
    pace.saw_p99(float(np.quantile(whole, 0.99)), float(np.quantile(waited, 0.99)))
