"""A calibrated engine serving requests in virtual time: the scheduler of `sits.sim`, the fitted laws of `sits.predict`.

One pass goes from event to event.  A request arrives, waits for the front end's turn (`FrontLaw`), is seen by the engine when its loop
looks, between two steps, and is scheduled by the engine model.  Each step lasts

    level * [ factor * law(step) + d * cached tokens of the running requests + e * (prompt tokens x cached ones) + pause ] + beyond

with `factor` and `beyond` what recorded steps left over: slow factors drawn in stretches of `STRETCH` steps as they followed each other, so
that a slow second stays one, times what a single step added.  First and last token reach the caller after the front end's way out.

Closed loop: `users` callers, each sends its next request `think_ms` after its last answer ended; arrivals are then made here.

Rules: the same seed gives the same times; what a request costs beyond its uncached tokens is only the KV that they (in the step it starts in) and its decodes read.
Prefix hits are given (`cached_tokens`), not found out: their blocks are taken to be in the pool already.

Deliberately absent: choosing seeds, quantiles, and what to call good (`predictions`).
"""

import heapq
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.asked import Asked
from sits.core.errors import ConfigError
from sits.predict.fit_model import FittedEngine
from sits.predict.fit_steps import StepLaw
from sits.sim.forecast import engine
from sits.sim.model import EngineModel
from sits.sim.spec import EngineSpec, refusal

STRETCH = 400
Floats = NDArray[np.float64]


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """A closed loop: so many callers, and how long each thinks."""

    users: int
    think_ms: float = 0.0


class Pass(NamedTuple):
    """One pass: times in ms, NaN for a request that could never fit; `outside_ms` is arrival to pick-up and the first token's way out."""

    arrival_ms: Floats
    ttft_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    outside_ms: Floats
    in_flight: NDArray[np.int64]
    largest_batch: int
    kv_used_most: float
    preemptions: int


def spec_of(model: FittedEngine) -> EngineSpec:
    """The engine model's record of a calibrated engine; the calibrated pauses are added here and not there."""
    limits = model.limits
    return engine(
        model.step_time(),
        blocks=limits.blocks.value,
        block_size=limits.block_size.value,
        max_num_seqs=limits.max_num_seqs.value,
        max_num_batched_tokens=limits.max_num_batched_tokens.value,
        prefix_caching=False,
    )


TIME_MOST_MS = 8e12
"""Two hundred and fifty years: the simulator counts ns of 64 bits."""


class _Noise:
    """What steps leave over: slow factors in stretches as recorded, and what a single step adds; all means without dice."""

    def __init__(self, law: StepLaw, rng: np.random.Generator | None) -> None:
        self.slow, self.kinds, self.rng = law.slow, (law.decode, law.mixed), rng
        self.at = self.left = 0
        self.means = [(float(np.mean(kind.factor)), float(np.mean(kind.beyond_ms))) for kind in self.kinds]

    def draw(self, mixed: bool) -> tuple[float, float]:
        """The factor of a step and the ms beyond."""
        if self.rng is None:
            return self.means[mixed]
        if not self.left:
            self.at, self.left = int(self.rng.integers(len(self.slow))), STRETCH
        self.left -= 1
        self.at = (self.at + 1) % len(self.slow)
        kind = self.kinds[mixed]
        row = int(self.rng.random() * len(kind.factor))
        return self.slow[self.at] * kind.factor[row], kind.beyond_ms[row]


class _Outside:
    """The front end's draws, one bin after load."""

    def __init__(self, model: FittedEngine, level: float, rng: np.random.Generator | None) -> None:
        self.law, self.level = model.front, level
        self.rng = rng
        self.rows = [np.c_[b.enter_ms, b.first_ms, b.last_ms, b.end_ms] for b in self.law.bins]
        self.cumulated = [np.cumsum(b.weight) / np.sum(b.weight) for b in self.law.bins]

    def draw(self, in_flight: int) -> tuple[float, float, float, float]:
        """Enter, first, last, end; the medians without dice."""
        place = self.law.bin_of(in_flight)
        hop = self.law.bins[place].hop_ms
        if self.rng is None:
            enter, first, last, end = np.median(self.rows[place], axis=0)
        else:
            row = int(np.searchsorted(self.cumulated[place], self.rng.random()))
            enter, first, last, end = self.rows[place][min(row, len(self.rows[place]) - 1)]
        out = (max(0.0, float(value)) * self.level for value in (enter, first + hop, last + hop, end))
        return next(out), next(out), next(out), next(out)


def foretell(
    model: FittedEngine,
    asked: Asked,
    *,
    level: float = 1.0,
    front_level: float = 1.0,
    loop: Loop | None = None,
    rng: np.random.Generator | None = None,
    cached_tokens: NDArray[np.int64] | None = None,
) -> Pass:
    """One pass over `asked`; without `rng` every draw is the mean (steps) or the median (front end)."""
    return _Pass(model, asked, (level, front_level), loop, rng, cached_tokens).run()


class _Pass:
    """The state of one pass."""

    def __init__(
        self,
        model: FittedEngine,
        asked: Asked,
        levels: tuple[float, float],
        loop: Loop | None,
        rng: np.random.Generator | None,
        cached: NDArray[np.int64] | None,
    ) -> None:
        if loop is not None and loop.users < 1:
            raise ConfigError(
                f"{loop.users} users ask nothing", field="users", value=loop.users, hint="at least 1"
            )
        count = len(asked)
        self.asked, self.loop, self.level = asked, loop, levels[0]
        self.law = model.steps
        found = cached if cached is not None else asked.cached_tokens
        self.cached = (found if found is not None else np.zeros(count, np.int64)).tolist()
        self.prompt = asked.prompt_tokens.tolist()
        self.output = asked.output_tokens.tolist()
        self.engine: EngineModel[int] = EngineModel(spec_of(model))
        self.noise = _Noise(model.steps, rng)
        self.outside = _Outside(model, levels[1], rng)
        self.serial_ms = model.front.serial_ms * levels[1]
        self.arrival = np.full(count, np.nan)
        self.first = np.full(count, np.nan)
        self.last = np.full(count, np.nan)
        self.end = np.full(count, np.nan)
        self.apart = np.full(count, np.nan)
        self.in_flight = np.zeros(count, np.int64)
        self.draws: dict[int, tuple[float, float, float, float]] = {}
        self.coming: list[tuple[float, int]] = []
        self.entering: list[tuple[float, int]] = []
        self.ends: list[float] = []
        self.server_free = 0.0
        self.asked_next = 0
        self.largest = self.preemptions = self.kv_most = 0

    def run(self) -> Pass:
        self._open()
        now = 0.0
        cached_running = 0
        engine, law = self.engine, self.law
        while True:
            self._take(now)
            if not len(engine):
                then = self._next_event()
                if then is None:
                    break
                now = max(now, then)
                continue
            if not now < TIME_MOST_MS:
                raise ConfigError(
                    f"the answers take longer than {TIME_MOST_MS / 1e3:.0e} s",
                    field="arrival_s",
                    value=now / 1e3,
                    hint="look at the units of arrivals, --think and --level",
                )
            result: Any = engine.step(round(now * 1e6), emitted=False)
            mixed = result.prefill_tokens > 0
            factor, beyond = self.noise.draw(mixed)
            device = result.duration_ns / 1e6 * factor
            looked_at = 0
            for name in result.started:
                cached_running += self.cached[name]
                looked_at += self.cached[name] * (self.prompt[name] - self.cached[name])
            pause = law.pause_ms + law.pause_decode_ms * result.running + law.pause_mixed_ms * mixed
            cached = law.kv_token_ms * cached_running + law.prompt_kv_ms * looked_at
            now += self.level * (device + cached + pause) + beyond
            for name in result.first:
                self._first(name, now)
            for name in result.finished:
                cached_running -= self.cached[name]
                self._finish(name, now)
            self.largest = max(self.largest, result.running)
            self.kv_most = max(self.kv_most, result.kv_used)
            self.preemptions += result.preempted
        return self._result()

    def _open(self) -> None:
        if self.loop is None:
            self.coming = [(float(at), i) for i, at in enumerate(self.asked.arrival_ms)]
            self.asked_next = len(self.coming)
        else:
            while self.asked_next < min(self.loop.users, len(self.prompt)):
                self._send(0.0)
        heapq.heapify(self.coming)

    def _send(self, at_ms: float) -> None:
        if self.asked_next < len(self.prompt):
            heapq.heappush(self.coming, (at_ms, self.asked_next))
            self.asked_next += 1

    def _take(self, now: float) -> None:
        """Let come and enter what has come and entered by `now`."""
        while self.coming and self.coming[0][0] <= now:
            self._arrive(*heapq.heappop(self.coming))
        while self.entering and self.entering[0][0] <= now:
            _, name = heapq.heappop(self.entering)
            self.apart[name] = now - self.arrival[name]
            self.engine.add(name, self.prompt[name] - self.cached[name], self.output[name])

    def _arrive(self, at_ms: float, name: int) -> None:
        self.arrival[name] = at_ms
        while self.ends and self.ends[0] <= at_ms:
            heapq.heappop(self.ends)
        unfinished = len(self.entering) + len(self.engine) + len(self.ends)
        self.in_flight[name] = unfinished
        draw = self.draws[name] = self.outside.draw(unfinished)
        self.server_free = max(self.server_free, at_ms) + self.serial_ms
        if self._fits(name):
            heapq.heappush(self.entering, (max(at_ms, self.server_free + draw[0]), name))

    def _fits(self, name: int) -> bool:
        return not refusal(self.engine.spec, self.prompt[name], self.output[name], False)

    def _next_event(self) -> float | None:
        events = [heap[0][0] for heap in (self.coming, self.entering) if heap]
        return min(events) if events else None

    def _first(self, name: int, now: float) -> None:
        self.first[name] = now + self.draws[name][1]
        self.apart[name] += self.draws[name][1]

    def _finish(self, name: int, now: float) -> None:
        _, first, last, end = self.draws[name]
        self.last[name] = max(now + (first if self.output[name] == 1 else last), self.first[name])
        self.end[name] = self.last[name] + end
        heapq.heappush(self.ends, float(self.end[name]))
        if self.loop is not None:
            self._send(float(self.end[name]) + self.loop.think_ms)

    def _result(self) -> Pass:
        output = np.maximum(2, np.array(self.output))
        tpot = (self.last - self.first) / (output - 1)
        tpot[np.array(self.output) < 2] = np.nan
        return Pass(
            self.arrival,
            self.first - self.arrival,
            tpot,
            self.end - self.arrival,
            self.apart,
            self.in_flight,
            self.largest,
            self.kv_most / self.engine.spec.blocks,
            self.preemptions,
        )
