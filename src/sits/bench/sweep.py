"""Capacity by simulation: one workload on every point of a grid of replicas x GPUs each x window x scheduler limits.

A point is run by the compiled engine model, one engine a replica, for each seed:

- requests go to the replica with the least estimated work (prompt tokens and *expected* answers, drained as time passes;
  true answer lengths are not looked at), as a router that counts tokens in flight would send them;
- a window holds a replica's requests from the first that waits until it closes or holds `WINDOW_BATCH`;
- times count from arrival at the gateway, so a window's waiting is in them;
- step times carry the noise of their fit, from a stream of the seed and the replica's number.

`keeps_up`: at some moment of the last fifth of the arrivals no more than `WAITING_SHARE` of the run's requests waited to be scheduled.  A
queue that keeps up empties now and then, bursts or not; of one that grows, quantiles say how long the run was rather than how good
the point is.

What a point cannot be (a model that does not fit, a GPU count without figures) is a result too, with its reason.

Deliberately absent: keeping results (`sweep_store`), where points run (`sweep_engines`), and which are good (`sweep_front`).
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits import __version__
from sits.bench.arrivals import Gamma
from sits.bench.lengths import AZURE_CONVERSATION_ANSWER, AZURE_CONVERSATION_PROMPT
from sits.bench.sweep_memory import LINK
from sits.bench.windows import superposed
from sits.core.errors import ConfigError
from sits.core.fleet import Memory, Model
from sits.core.units import SECOND
from sits.predict.derive import derive_steptime
from sits.predict.kv import capacity_blocks
from sits.predict.prepare import Rank
from sits.predict.steptime import StepTime, step_time_us
from sits.sim.model import simulate
from sits.sim.spec import EngineSpec
from sits.world import stream_generator

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
WINDOW_BATCH = 64
WAITING_SHARE = 0.01
DECODE_BATCH = 64
"""Sequences in a step when the router estimates what an answer's token costs."""


class Point(msgspec.Struct, frozen=True, order=True):
    """One configuration of the grid."""

    replicas: int
    tp: int
    window_ns: int
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def gpus(self) -> int:
        """GPUs it takes."""
        return self.replicas * self.tp

    @property
    def key(self) -> str:
        """Its name in a results file."""
        return (
            f"{self.replicas}x{self.tp}/{self.window_ns}ns/{self.max_num_seqs}/{self.max_num_batched_tokens}"
        )


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """What all points have in common: the model and its GPUs, the requests, the objectives.

    Attributes:
        kv_blocks: blocks the engine itself told, by tensor-parallel degree; others come from the formula.
        rate, cv: requests a second and the CV of their gaps (1 = Poisson); of a trace, the rate it is superposed to, or 0.
        trace: a file of arrivals and lengths; empty = gamma gaps and lengths of the Azure conversation trace.
        requests, seeds: requests of a run, and runs.
        ttft_slo_ns, tpot_slo_ns: objectives of a request; 0 = none.

    """

    model: Model
    gpu: str
    gpu_memory: int
    memory: Memory = Memory()
    kv_blocks: dict[int, int] = {}
    block_size: int = 16
    rate: float = 1.0
    cv: float = 1.0
    trace: str = ""
    requests: int = 2000
    seeds: int = 3
    seed: int = 0
    max_tokens: int = 8192
    ttft_slo_ns: int = 0
    tpot_slo_ns: int = 0

    def digest(self) -> str:
        """What results depend on besides the point; a trace by its size and time of change."""
        from hashlib import blake2b  # noqa: PLC0415

        seen = Path(self.trace).stat() if self.trace else None
        about = [__version__, self, (seen.st_size, seen.st_mtime_ns) if seen else None]
        return blake2b(msgspec.json.encode(about), digest_size=8).hexdigest()


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a point.  Quantiles are of all seeds pooled; `*_range` the least and most of single seeds.

    Attributes:
        refused: why the point cannot be; then nothing else is told.
        ttft, tpot, e2e: P50 and P99, ns.  TPOT is (last - first token) / (output - 1) of a request.
        good: share of requests within all objectives; without objectives, those that were answered.
        good_per_s: good requests a second; output_per_s: output tokens a second; both over the whole run.
        gpu_hours_per_million: GPU hours for a million output tokens.
        never_fit: requests no replica could ever hold.
        assumed: what the figures rest on.

    """

    refused: str = ""
    ttft_ns: tuple[float, float] = (0.0, 0.0)
    tpot_ns: tuple[float, float] = (0.0, 0.0)
    e2e_ns: tuple[float, float] = (0.0, 0.0)
    ttft_range: tuple[float, float] = (0.0, 0.0)
    tpot_range: tuple[float, float] = (0.0, 0.0)
    good: float = 0.0
    good_per_s: float = 0.0
    output_per_s: float = 0.0
    gpu_hours_per_million: float = 0.0
    keeps_up: bool = False
    preemptions: int = 0
    never_fit: int = 0
    assumed: tuple[str, ...] = ()


def grid(
    replicas: Sequence[int],
    tps: Sequence[int],
    windows: Sequence[int],
    seqs: Sequence[int],
    tokens: Sequence[int],
) -> list[Point]:
    """Every combination, the smallest first.

    >>> [point.key for point in grid([2, 1], [1], [0], [8], [512])]
    ['1x1/0ns/8/512', '2x1/0ns/8/512']
    """
    return sorted({
        Point(r, tp, window, seq, token)
        for r in replicas for tp in tps for window in windows for seq in seqs for token in tokens
    })  # fmt: skip


@lru_cache(maxsize=8)
def _requests(sweep_json: bytes, number: int) -> tuple[Ints, Ints, Ints]:
    """Arrivals in ns, prompts and answers of one seed; kept, because every point asks for the same."""
    sweep = msgspec.json.decode(sweep_json, type=Sweep)
    if sweep.trace:
        from sits.bench.traces import read_trace  # noqa: PLC0415

        trace = read_trace(sweep.trace)
        times = trace.arrival_s
        copies = 1
        if sweep.rate and len(times) > 1:
            copies = max(1, round(sweep.rate * float(times[-1]) / (len(times) - 1)))
        order = np.argsort(
            np.concatenate([(times + times[-1] * i / copies) % max(times[-1], 1e-9) for i in range(copies)]),
            kind="stable",
        )
        arrivals = superposed(times, copies) if copies > 1 else times
        prompt, output = (
            np.tile(column, copies)[order] for column in (trace.prompt_tokens, trace.output_tokens)
        )
        if copies == 1:
            prompt, output = trace.prompt_tokens, trace.output_tokens
        kept = slice(0, sweep.requests)
        arrivals_ns = np.rint(arrivals[kept] * SECOND).astype(np.int64)
        prompt, output = prompt[kept], output[kept]
    else:
        seed = sweep.seed + number
        gaps = Gamma(rate=sweep.rate, cv=sweep.cv).gaps_s(
            stream_generator(seed, "sweep-arrivals"), sweep.requests
        )
        arrivals_ns = np.rint(np.cumsum(gaps) * SECOND).astype(np.int64)
        prompt = AZURE_CONVERSATION_PROMPT.draw(stream_generator(seed, "sweep-prompts"), sweep.requests)
        output = AZURE_CONVERSATION_ANSWER.draw(stream_generator(seed, "sweep-answers"), sweep.requests)
    output = np.clip(output, 1, max(1, sweep.max_tokens - 1))
    return arrivals_ns, np.clip(prompt, 1, sweep.max_tokens - output), output


def arrivals_of(sweep: Sweep) -> Floats:
    """Arrivals of the first seed, in seconds: what a burstiness report is about."""
    return _requests(msgspec.json.encode(sweep), 0)[0] / SECOND


def spec_of(sweep: Sweep, point: Point) -> tuple[EngineSpec, tuple[str, ...]]:
    """The engine of one replica, and what its figures assume.

    Raises:
        ConfigError: the model does not fit, or nobody profiled that GPU or degree.

    """
    step = derive_steptime(sweep.model, sweep.gpu, point.tp)
    told = sweep.kv_blocks.get(point.tp, 0)
    capacity = capacity_blocks(
        sweep.model,
        gpu_memory=sweep.gpu_memory,
        memory=msgspec.structs.replace(sweep.memory, kv_blocks=told),
        block_size=sweep.block_size,
        tp=point.tp,
    )
    spec = EngineSpec(
        step=step,
        ranks=(Rank(bandwidth=LINK),) * point.tp,
        block_size=sweep.block_size,
        blocks=capacity.blocks,
        max_num_seqs=point.max_num_seqs,
        max_num_batched_tokens=point.max_num_batched_tokens,
    )
    said = f"{capacity.blocks:,} KV blocks a replica, by {'the engine' if told else 'formula'}"
    return spec, (f"step times: {step.source}", said, *capacity.assumed)


def windowed(arrivals_ns: Ints, window_ns: int, most: int = WINDOW_BATCH) -> Ints:
    """When requests leave a window that opens with the first that waits and closes after `window_ns`, or full.

    >>> windowed(np.array([0, 3, 9, 12, 13]), 10).tolist(), windowed(np.array([0, 3, 9]), 10, most=2).tolist()
    ([10, 10, 10, 22, 22], [3, 3, 19])
    """
    if window_ns <= 0:
        return arrivals_ns
    out = arrivals_ns.copy()
    at, count = 0, len(out)
    while at < count:
        closes = int(arrivals_ns[at]) + window_ns
        end = min(at + most, int(np.searchsorted(arrivals_ns, closes, side="right")))
        out[at:end] = arrivals_ns[end - 1] if end - at == most else closes
        at = end
    return out


def assigned(arrivals_ns: Ints, work_ns: Floats, replicas: int) -> Ints:
    """The replica of each request: the one with the least estimated work left, the first of equals.

    >>> assigned(np.array([0, 0, 0, 100]), np.array([50.0, 10.0, 10.0, 1.0]), 2).tolist()
    [0, 1, 1, 0]
    """
    free = [0.0] * replicas
    chosen = []
    for at, work in zip(arrivals_ns.tolist(), work_ns.tolist(), strict=True):
        left = [max(0.0, until - at) for until in free]
        replica = left.index(min(left))
        free[replica] = at + left[replica] + work
        chosen.append(replica)
    return np.array(chosen, np.int64)


def _work_ns(step: StepTime, point: Point, prompt: Ints, expected_output: float) -> Floats:
    """Estimated engine time of each request: its prompt in a full step, its expected answer in a batch."""
    budget, seqs = point.max_num_batched_tokens, min(DECODE_BATCH, point.max_num_seqs)
    whole = step_time_us(step, tokens=budget, seqs_emitting=1, prefill_chunks=[(budget, 0)], eager=True)
    batch = step_time_us(step, tokens=seqs, seqs_emitting=seqs, decode_kv=[1024] * seqs)
    return np.asarray((prompt * (whole / budget) + expected_output * (batch / seqs)) * 1000.0, np.float64)


def run_point(sweep: Sweep, point: Point) -> Result:
    """Simulate one point; a function of its arguments."""
    try:
        spec, assumed = spec_of(sweep, point)
    except ConfigError as error:
        return Result(refused=str(error))
    encoded = msgspec.json.encode(sweep)
    runs = [
        _run(sweep, point, spec, *_requests(encoded, number), number)
        for number in range(1 if sweep.trace else sweep.seeds)
    ]
    ttft, tpot, e2e = (np.concatenate([run[name] for run in runs]) for name in ("ttft", "tpot", "e2e"))
    if not len(ttft):
        return Result(refused="no request of the workload fits into a replica", assumed=assumed)
    good = sum(int(run["good"].sum()) for run in runs)
    span_s = sum(run["span_ns"] for run in runs) / SECOND
    output = sum(run["output"] for run in runs)
    return Result(
        ttft_ns=_quantiles(ttft),
        tpot_ns=_quantiles(tpot),
        e2e_ns=_quantiles(e2e),
        ttft_range=_range([run["ttft"] for run in runs]),
        tpot_range=_range([run["tpot"] for run in runs]),
        good=good / sum(run["asked"] for run in runs),
        good_per_s=good / span_s,
        output_per_s=output / span_s,
        gpu_hours_per_million=point.gpus * span_s / 3600 / output * 1e6,
        keeps_up=all(run["keeps_up"] for run in runs),
        preemptions=sum(run["preemptions"] for run in runs),
        never_fit=sum(run["never_fit"] for run in runs),
        assumed=assumed,
    )


def _run(
    sweep: Sweep, point: Point, spec: EngineSpec, arrivals: Ints, prompt: Ints, output: Ints, number: int
) -> dict[str, Any]:
    """One seed on all replicas."""
    chosen = assigned(
        arrivals,
        _work_ns(derive_steptime(sweep.model, sweep.gpu, point.tp), point, prompt, float(output.mean())),
        point.replicas,
    )
    first, last, queued, scheduled = (np.full(len(arrivals), -1, np.int64) for _ in range(4))
    preemptions = 0
    for replica in range(point.replicas):
        mine = np.flatnonzero(chosen == replica)
        rng = stream_generator(sweep.seed + number, f"sweep-noise-{replica}")
        seen = simulate(
            windowed(arrivals[mine], point.window_ns), prompt[mine], output[mine], None, spec, rng
        )
        first[mine], last[mine] = seen.first_token_ns, seen.last_token_ns
        queued[mine], scheduled[mine] = seen.queued_ns, seen.scheduled_ns
        preemptions += int(seen.preemptions[seen.preemptions > 0].sum())
    ran = last >= 0
    ttft, e2e = (first - arrivals)[ran], (last - arrivals)[ran]
    several = output[ran] > 1
    tpot = (last - first)[ran] / np.maximum(1, output[ran] - 1)
    good = np.ones(int(ran.sum()), bool)
    if sweep.ttft_slo_ns:
        good &= ttft <= sweep.ttft_slo_ns
    if sweep.tpot_slo_ns:
        good &= ~several | (tpot <= sweep.tpot_slo_ns)
    return {
        "ttft": ttft.astype(np.float64),
        "tpot": tpot[several],
        "e2e": e2e.astype(np.float64),
        "good": good,
        "asked": len(arrivals),
        "span_ns": max(1, int(last.max(initial=0)) - int(arrivals[0])),
        "output": int(output[ran].sum()),
        "keeps_up": _empties(queued[ran], scheduled[ran]),
        "preemptions": preemptions,
        "never_fit": int((~ran).sum()),
    }


def _empties(queued_ns: Ints, scheduled_ns: Ints) -> bool:
    """Whether the queue was all but empty at some moment of the last fifth of the requests."""
    joined, left = np.sort(queued_ns), np.sort(scheduled_ns)
    late = joined[len(joined) - max(1, len(joined) // 5) :]
    waiting = np.searchsorted(joined, late, side="left") - np.searchsorted(left, late, side="right")
    return bool(
        waiting.min(initial=0 if not len(late) else len(joined)) <= max(1.0, WAITING_SHARE * len(joined))
    )


def _quantiles(values: Floats) -> tuple[float, float]:
    if not len(values):
        return 0.0, 0.0
    middle, high = np.quantile(values, [0.5, 0.99], method="higher")
    return float(middle), float(high)


def _range(runs: Sequence[Floats]) -> tuple[float, float]:
    highs = [_quantiles(values)[1] for values in runs]
    return min(highs), max(highs)
