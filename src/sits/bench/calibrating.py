"""From a recording to a model: limits, step-time law, pauses, front end, in this order, each from what the engine and its callers told.

Newer runs count more, because hosts drift: a run's weight halves with every `half_life` of the recording's span before its newest run.

The one figure that needs the simulator is `hop_ms`, the part of the way out that is common to all requests: with others in flight a
request's unexplained time is pick-up plus way out, and only a simulation tells how long pick-up takes.  So the calibration runs are
simulated with their own arrivals, each at its own level, and `hop_ms` of each load is what the median lacks; never less than nothing.

Deliberately absent: choosing anything by how well it predicts; held-out errors are `sits.bench.accuracy`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.asked import Asked
from sits.bench.foretell import foretell
from sits.bench.recording import Recording, Run
from sits.bench.step_requests import prompt_kv
from sits.core.errors import ConfigError
from sits.predict.fit_limits import Limit, Limits, Seen, limits
from sits.predict.fit_model import FittedEngine, FittedOn, PrefixHits, Range
from sits.predict.fit_steps import RunBooks, StepLaw, StepLog, fit_steps, with_pauses
from sits.predict.frontend import NOTHING, FrontLaw, FrontTimes, Outside, fit_front
from sits.world import stream_generator

Progress = Callable[..., None]
HALF_LIFE = 0.5
MATCHINGS = 3
ROWS_LEAST = 20


def calibrate(
    recording: Recording,
    *,
    given: Mapping[str, Limit] | None = None,
    prefix_caching: bool | None = None,
    half_life: float = HALF_LIFE,
    seed: int = 0,
    progress: Progress = lambda *_a: None,
) -> FittedEngine:
    """Fit a model to a recording; `given` limits are the engine's or the user's word and go first.

    Raises:
        ConfigError: the recording cannot carry a fit, or a limit is neither given nor told.

    """
    runs = recording.runs
    if not runs:
        raise ConfigError("no run to fit", field="runs", hint="record at least one minute under load")
    progress("reading the engine's limits")
    found = limits(seen_of(recording), dict(given or {}), prefix_caching)
    weights = run_weights(runs, half_life)
    logs = [steps_of(run, found) for run in runs]
    progress("fitting the step-time law")
    law = with_pauses(fit_steps(logs, weights), logs, [_books(run) for run in runs])
    front = fit_front([_front_times(run, weight) for run, weight in zip(runs, weights, strict=True)])
    model = FittedEngine(
        fitted_on=_fitted_on(recording),
        limits=found,
        steps=law,
        front=front,
        prefix=prefix_hits(runs, found),
        prompt_tokens=_range([run.prompt_tokens for run in runs]),
        output_tokens=_range([run.output_tokens for run in runs]),
        batch=_range([log.decodes + log.chunks for log in logs]),
        in_flight=_range([_front_times(run, 1.0).in_flight() + 1 for run in runs]),
        rate_per_s=_range([np.array([_rate(run)]) for run in runs]),
        assumed=(*recording.left_out, *_assumed(runs, found, law)),
    )
    return _with_hops(model, runs, seed, progress)


def limits_of(recording: Recording) -> Limits:
    """The limits as the recording alone tells them."""
    return limits(seen_of(recording), {})


def run_weights(runs: Sequence[Run], half_life: float) -> list[float]:
    """How much each run counts: 1 for the newest, half of it `half_life` spans before."""
    starts = np.array([run.start_s for run in runs])
    span = float(starts.max() - starts.min())
    if span <= 0 or half_life <= 0:
        return [1.0] * len(runs)
    return [float(w) for w in 0.5 ** ((starts.max() - starts) / (half_life * span))]


def seen_of(recording: Recording) -> Seen:
    """What the recording shows of the engine's limits."""
    runs, scrapes = recording.runs, recording.scrapes
    return Seen(
        batch=np.concatenate([run.steps.chunks + run.steps.decodes for run in runs]),
        tokens=np.concatenate([run.steps.prompt_tokens + run.steps.decodes for run in runs]),
        running=scrapes.running,
        waiting=scrapes.waiting,
        usage=scrapes.usage,
        hits=tuple(int(hit) for run in runs for hit in run.cached_tokens if hit),
        held=sum(float(np.nansum(run.kv_used[run.steps.decodes > 0])) for run in runs),
        lengths=np.concatenate([np.c_[run.prompt_tokens, run.output_tokens - 1] for run in runs]),
    )


def steps_of(run: Run, found: Limits) -> StepLog:
    """The steps with the KV tokens their decodes read, from the blocks in use (the last one of each request is half full on average), and what their prompts see."""
    size = found.block_size.value
    log = run.steps
    tokens = (
        run.kv_used * found.blocks.value * size - size / 2 * (log.chunks + log.decodes) - log.prompt_tokens
    )
    return msgspec.structs.replace(
        log,
        kv_tokens=np.where(log.decodes > 0, np.maximum(0.0, tokens), 0.0),
        prompt_kv=prompt_kv(log.chunks, log.prompt_tokens, run.prompt_tokens, run.cached_tokens),
    )


def _books(run: Run) -> RunBooks:
    """Times between first and last token: the engine's own, or the caller's where the engine tells none."""
    generation = np.where(np.isfinite(run.generation_ms), run.generation_ms, run.last_ms - run.first_ms)
    return RunBooks(
        generation_ms=float(np.nansum(generation)),
        tokens=float((run.output_tokens - 1).sum()),
        first_ms=float(run.prefill_ms.sum()),
        requests=float(len(run)),
    )


def _front_times(run: Run, weight: float) -> FrontTimes:
    return FrontTimes(
        sent_ms=run.sent_ms,
        gone_ms=run.sent_ms + np.where(np.isfinite(run.end_ms), run.end_ms, 0.0),
        headers_ms=run.headers_ms,
        first_ms=run.first_ms,
        last_ms=run.last_ms,
        end_ms=run.end_ms,
        queue_ms=run.queue_ms,
        prefill_ms=run.prefill_ms,
        generation_ms=run.generation_ms,
        weight=weight,
    )


def prefix_hits(runs: Sequence[Run], found: Limits) -> PrefixHits:
    """Share of prompt tokens that came from the prefix cache, and shares of requests of more than one block that hit it."""
    cached = sum(int(run.cached_tokens.sum()) for run in runs)
    asked = sum(int(run.prompt_tokens.sum()) for run in runs)
    return PrefixHits(
        tokens=round(cached / asked, 4),
        closed=_hit_share([run for run in runs if run.users], found.block_size.value),
        open=_hit_share([run for run in runs if not run.users], found.block_size.value),
    )


def _hit_share(runs: Sequence[Run], block: int) -> float | None:
    hits = [run.cached_tokens[run.prompt_tokens > block] > 0 for run in runs]
    able = sum(map(len, hits))
    return round(float(sum(one.sum() for one in hits) / able), 4) if able else None


def _fitted_on(recording: Recording) -> FittedOn:
    runs = recording.runs
    foreign = [run.foreign_cores for run in runs if np.isfinite(run.foreign_cores)]
    return FittedOn(
        source=recording.source,
        runs=tuple(run.name for run in runs),
        requests=sum(len(run) for run in runs),
        steps=sum(len(run.steps) for run in runs),
        failed=sum(run.failed for run in runs),
        span_s=round(runs[-1].start_s - runs[0].start_s, 1),
        foreign_cores=round(float(np.mean(foreign)), 3) if foreign else None,
    )


def _range(columns: "Sequence[NDArray[Any]]") -> Range:
    values = np.concatenate([np.asarray(column, float) for column in columns])
    return Range(low=round(float(values.min()), 3), high=round(float(values.max()), 3))


def _rate(run: Run) -> float:
    span = float(run.sent_ms.max() - run.sent_ms.min())
    return (len(run) - 1) / span * 1e3 if span > 0 else 0.0


def _assumed(runs: Sequence[Run], found: Limits, law: StepLaw) -> list[str]:
    said = found.assumed()
    if not any(np.isfinite(run.kv_used).any() for run in runs):
        said.append("the step log tells no KV usage: the cost of KV read by decodes is taken to be none")
    if not _engine_times(runs):
        said.append(
            "the engine's own queue and prefill times (server_metrics) or the headers' times are not recorded: the time outside of the engine's core "
            "is taken to be what the median time to first token lacks in simulation where seats were free, the same for all requests of a load"
        )
    if not law.pause_ms and not law.pause_decode_ms:
        said.append("pauses between steps could not be told from the requests' times: taken to be none")
    return said


def asked_of(run: Run) -> Asked:
    """What a recorded run asked: the columns a prediction may see, and no measured one."""
    return Asked(
        run=run.name,
        ids=run.ids,
        places=np.arange(len(run)),
        arrival_ms=run.sent_ms - run.sent_ms.min(),
        prompt_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens,
        cached_tokens=run.cached_tokens,
    )


def _with_hops(model: FittedEngine, runs: Sequence[Run], seed: int, progress: Progress) -> FittedEngine:
    """The model with `hop_ms` of each busy load: what the median of the unexplained time lacks in simulation.

    Without the engine's own times it is what the whole time to first token lacks, and only loads that find a seat tell it.
    """
    if model.front == NOTHING:
        return model
    told = _engine_times(runs)
    measured = [run.first_ms - run.queue_ms - run.prefill_ms if told else run.first_ms for run in runs]
    loads = [_front_times(run, 1.0).in_flight() for run in runs]
    seats = model.limits.max_num_seqs.value
    counted = (1, int(model.in_flight.high)) if told else (0, seats - 1)
    for turn in range(MATCHINGS):
        simulated = []
        for place, run in enumerate(runs):
            progress("matching the way out", turn * len(runs) + place, MATCHINGS * len(runs))
            rng = stream_generator(seed, f"calibrate/{run.name}")
            level = model.steps.levels[run.name]
            one = foretell(model, asked_of(run), level=level, rng=rng)
            simulated.append(one.outside_ms if told else one.ttft_ms)
        model = msgspec.structs.replace(
            model, front=_hopped(model.front, loads, measured, simulated, counted)
        )
    return model


def _engine_times(runs: Sequence[Run]) -> bool:
    """Whether any run tells what the engine itself measured, so that the front end can be told apart."""
    return any(_front_times(run, 1.0).known().any() for run in runs)


def _hopped(
    front: FrontLaw,
    loads: "Sequence[NDArray[np.int64]]",
    measured: "Sequence[NDArray[np.float64]]",
    simulated: "Sequence[NDArray[np.float64]]",
    counted: tuple[int, int],
) -> FrontLaw:
    """`counted` are the loads, in requests in flight, that tell something; others have what the load before them has."""
    places = np.array([front.bin_of(int(n)) for load in loads for n in load])
    real, mine = np.concatenate(measured), np.concatenate(simulated)
    load = np.concatenate(loads)
    busy = (load >= counted[0]) & (load <= counted[1])
    bins: list[Outside] = []
    for place, one in enumerate(front.bins):
        which = (places == place) & np.isfinite(real) & np.isfinite(mine) & busy
        if which.sum() < ROWS_LEAST:
            before = bins[-1].hop_ms if bins and one.in_flight_min > counted[1] else one.hop_ms
            bins.append(msgspec.structs.replace(one, hop_ms=before))
            continue
        lacking = float(np.median(real[which]) - np.median(mine[which]))
        bins.append(msgspec.structs.replace(one, hop_ms=round(max(0.0, one.hop_ms + lacking), 3)))
    return msgspec.structs.replace(front, bins=tuple(bins))
