"""Predictions as numbers with their definitions: many passes of a calibrated engine over the same requests, summed up.

    a request's prediction     the median of the passes
    a quantile's prediction    the median over the passes of the quantile of each pass's requests: what so many requests will measure.  Of all
                               passes' requests together it would be another figure: the P99 of ten requests is near to their largest,
                               and seldom as large as the P99 of thousands
    its range                  5th to 95th percentile of the quantile over passes in which the machine's speed is drawn too, from the
                               spread its runs had while recorded; wider on both sides by as much as nine in ten measured figures of
                               runs left out while fitting lay outside of that: where one run's measured quantile should lie

The last step is conformalised quantile regression (Romano, Patterson and Candes 2019): right on average over runs like those recorded.

Every prediction carries the definitions of its metrics, what was assumed, and a warning for whatever lies outside what the model has seen.

Deliberately absent: printing, and reading files.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.asked import Asked
from sits.bench.foretell import Loop, Pass, foretell
from sits.bench.loop_guess import LoopGuess, guess_loop
from sits.predict.burstiness import burstiness
from sits.predict.fit_limits import LIMITS
from sits.predict.fit_model import FittedEngine
from sits.world import stream_generator

Floats = NDArray[np.float64]
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
SHARES = (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99))
DEFINITIONS = {
    "ttft_ms": "time to first token: from the request being sent to its first token at the caller, front end and queue included; ms",
    "tpot_ms": "time per output token: (last token - first token) / (output tokens - 1), so without the first; none for one token; ms",
    "e2e_ms": "end to end: from the request being sent to the end of its answer at the caller; ms",
    "p50..p99": "quantiles over the run's requests (linear between order statistics), the median over the passes; mean likewise",
    "low, high": "5th to 95th percentile over passes with the machine's speed drawn from its spread while recorded, widened by what runs left out of the fit lay outside of that: where one run should lie",
}
PASSES, PASSES_LEAST, T_MOST = 16, 4, 6.0
REQUESTS_MANY = 3000
"""Above so many requests fewer passes do: each says more."""
Progress = Callable[..., None]


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over the requests of a run, with the range of each figure."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    low: dict[str, float]
    high: dict[str, float]


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction of one run: a row a request in order of arrival (NaN: refused, or no such figure), and quantiles.

    `arrivals` is the burstiness of the arrivals given, None in a closed loop, which makes its own.
    """

    run: str
    asked: Asked
    loop: Loop | None
    ttft_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    quantiles: dict[str, Quantiles]
    all_passes: dict[str, Floats]
    refused: int
    span_s: float
    requests_per_s: float
    output_tokens_per_s: float
    largest_batch: int | None
    kv_used_most: float | None
    preemptions: float
    passes: int
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]
    arrivals: Any


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """How to predict: `loop` auto, open or closed (with `users`, `think_ms`), passes (0: by the number of requests), seed, and prefix hits.

    `prefix_hits` is a share of requests, for files that tell none; None takes what the calibration saw under such a load.
    """

    loop: str = "auto"
    users: int = 0
    think_ms: float = 0.0
    passes: int = 0
    seed: int = 0
    prefix_hits: float | None = None
    level: float = 1.0


def predict(
    model: FittedEngine, asked: Asked, wanted: Wanted | None = None, progress: Progress = lambda *_a: None
) -> Predicted:
    """Predict one run."""
    wanted = wanted or Wanted()
    assumed = list(model.assumed)
    loop, guessed = _loop(model, asked, wanted)
    if guessed is not None:
        assumed.append(guessed.sentence())
    share, where = _hits(model, loop, wanted)
    if asked.cached_tokens is None and model.limits.prefix_caching:
        assumed.append(_prefix_sentence(share, where))
    plain, drawn = [], []
    passes = wanted.passes or passes_for(len(asked))
    # Another run of the same kind: its level is Student's, for spread and mean come from so few runs.
    runs = len(model.steps.levels)
    spreads = np.array([model.steps.level_spread(), model.front.level_spread]) * math.sqrt(1 + 1 / runs)
    for turn in range(passes):
        progress(f"predicting {asked.run or 'the requests'}", turn, passes)
        rng = stream_generator(wanted.seed, f"predict/{asked.run}/{turn}")
        cached = _cached(model, asked, share, rng)
        plain.append(
            foretell(
                model,
                asked,
                level=wanted.level,
                front_level=wanted.level,
                loop=loop,
                rng=rng,
                cached_tokens=cached,
            )
        )
        level, front = wanted.level * np.exp(
            spreads * np.clip(rng.standard_t(max(1, runs - 1), 2), -T_MOST, T_MOST)
        )
        drawn.append(
            foretell(
                model,
                asked,
                level=float(level),
                front_level=float(front),
                loop=loop,
                rng=rng,
                cached_tokens=cached,
            )
        )
    warnings = told_of(asked, plain) + _beyond(model, asked, plain)
    if model.held_out is None:
        warnings.append("no run was left out while fitting: whether ranges are wide enough is not known")
    wider = model.held_out.beyond if model.held_out else {}
    return summed(asked, loop, plain, drawn, assumed, warnings, wider)


def passes_for(requests: int) -> int:
    """How many passes, unless told.

    >>> [passes_for(n) for n in (1, 3000, 6000, 100_000)]
    [16, 16, 8, 4]
    """
    return max(PASSES_LEAST, min(PASSES, PASSES * REQUESTS_MANY // requests))


def _loop(model: FittedEngine, asked: Asked, wanted: Wanted) -> tuple[Loop | None, LoopGuess | None]:
    if wanted.users:
        return Loop(users=wanted.users, think_ms=wanted.think_ms), None
    guessed = guess_loop(model, asked) if wanted.loop == "auto" else None
    return (Loop(users=guessed.users) if guessed else None), guessed


def _hits(model: FittedEngine, loop: Loop | None, wanted: Wanted) -> tuple[float, str]:
    """Share of requests that hit the prefix cache where the file tells none, and how that is known."""
    if wanted.prefix_hits is not None:
        return wanted.prefix_hits, "as told"
    kind = "open arrivals" if loop is None else "closed loops"
    seen = model.prefix.open if loop is None else model.prefix.closed
    return (
        (0.0, f"the calibration saw no {kind}") if seen is None else (seen, f"as in the calibration's {kind}")
    )


def _prefix_sentence(share: float, where: str) -> str:
    if share == 0:
        return f"no request finds its prompt in the prefix cache ({where}); give cached_tokens for each request, or --prefix-hits"
    return (
        f"{share:.0%} of the requests of more than one block find all whole blocks of their prompt in the prefix cache ({where}); "
        "give cached_tokens for each request, or --prefix-hits"
    )


def _cached(
    model: FittedEngine, asked: Asked, share: float, rng: np.random.Generator
) -> NDArray[np.int64] | None:
    """Prefix hits drawn for requests whose file tells none: all whole blocks but the one with the last token, or nothing."""
    if asked.cached_tokens is not None:
        return asked.cached_tokens
    if not model.limits.prefix_caching or share <= 0:
        return None
    size = model.limits.block_size.value
    hits = rng.random(len(asked)) < share
    return np.where(hits, (asked.prompt_tokens - 1) // size * size, 0)


def summed(
    asked: Asked,
    loop: Loop | None,
    plain: Sequence[Pass],
    drawn: Sequence[Pass],
    assumed: Sequence[str],
    warnings: Sequence[str],
    wider: Mapping[str, float] = MappingProxyType({}),
) -> Predicted:
    """Passes summed up; without `drawn` ones nothing is known of ranges.  `wider`: log ratio by metric, of both ends of its ranges."""
    refused = np.isnan(plain[0].e2e_ms)
    span = float(
        np.median([np.nanmax(one.arrival_ms + one.e2e_ms) if not refused.all() else np.nan for one in plain])
    )
    done = asked.output_tokens[~refused].sum()
    arrivals = None if loop is not None or len(asked) < 2 else burstiness(asked.arrival_ms / 1e3)
    rows = {name: _medians([getattr(one, name) for one in plain]) for name in METRICS}
    return Predicted(
        run=asked.run,
        asked=asked,
        loop=loop,
        **rows,
        quantiles={name: _quantiles(name, plain, drawn, wider.get(name, 0.0)) for name in METRICS},
        all_passes={name: np.concatenate([getattr(one, name) for one in plain]) for name in METRICS},
        refused=int(refused.sum()),
        span_s=span / 1e3,
        requests_per_s=float((~refused).sum() / span * 1e3) if span > 0 else 0.0,
        output_tokens_per_s=float(done / span * 1e3) if span > 0 else 0.0,
        largest_batch=max(one.largest_batch for one in plain) or None,
        kv_used_most=max(one.kv_used_most for one in plain) or None,
        preemptions=float(np.mean([one.preemptions for one in plain])),
        passes=len(plain),
        assumed=tuple(assumed),
        warnings=tuple(warnings),
        arrivals=arrivals,
    )


def _medians(columns: Sequence[Floats]) -> Floats:
    table = np.vstack(columns)
    known = np.isfinite(table).any(axis=0)
    out = np.full(table.shape[1], np.nan)
    if known.any():
        out[known] = np.nanmedian(table[:, known], axis=0)
    return out


def figures(values: Floats) -> dict[str, float]:
    """Mean and quantiles of what is known; NaN when nothing is."""
    known = values[np.isfinite(values)]
    if not len(known):
        return dict.fromkeys(("mean", *(name for name, _ in SHARES)), float("nan"))
    return {"mean": float(known.mean())} | {name: float(np.percentile(known, at)) for name, at in SHARES}


def usual(columns: Sequence[Floats]) -> dict[str, float]:
    """Each figure's median over passes, a column each: what one run will measure.

    >>> usual([np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([9.0, 9.0])])["mean"]
    3.5
    """
    each = [figures(column) for column in columns]
    return {key: float(np.median([one[key] for one in each])) for key in each[0]}


def _quantiles(name: str, plain: Sequence[Pass], drawn: Sequence[Pass], wider: float) -> Quantiles:
    middle = usual([getattr(one, name) for one in plain])
    single = [figures(getattr(one, name)) for one in drawn]
    low, high = (
        {key: float(np.percentile([one[key] for one in single], at)) * math.exp(by) for key in middle}
        if single
        else {}
        for at, by in ((5, -wider), (95, wider))
    )
    return Quantiles(**middle, low=low, high=high)


def told_of(asked: Asked, plain: Sequence[Pass]) -> list[str]:
    """Warnings that need no calibration: failed and refused requests, and a pool that is full."""
    said = []
    if asked.failed:
        said.append(
            f"{asked.failed} requests are marked as failed in the file, or have no output token, and are left out"
        )
    refused = int(np.isnan(plain[0].e2e_ms).sum())
    if refused:
        said.append(f"{refused} requests can never be served: more KV blocks than the pool has")
    if sum(one.preemptions for one in plain):
        said.append("the KV pool is full at times: preemptions decide the tail")
    return said


def _beyond(model: FittedEngine, asked: Asked, plain: Sequence[Pass]) -> list[str]:
    """Warnings of whatever lies outside of what the model has seen."""
    said = []
    for name, values, seen in (
        ("prompts", asked.prompt_tokens, model.prompt_tokens),
        ("answers", asked.output_tokens, model.output_tokens),
    ):
        out = int(((values < seen.low) | (values > seen.high)).sum())
        if out:
            said.append(
                f"{out} of {len(asked)} {name} have lengths outside the {seen.low:g} to {seen.high:g} tokens the model was fitted on: extrapolated"
            )
    in_flight = max(int(one.in_flight.max()) + 1 for one in plain)
    for text, value, seen in (
        ("requests in flight", in_flight, model.in_flight),
        ("requests in a batch", max(one.largest_batch for one in plain), model.batch),
    ):
        if value > seen.high:
            said.append(f"up to {value} {text}, the model has seen {seen.high:g}: extrapolated")
    return said


def engine_of(model: FittedEngine) -> dict[str, Any]:
    """What a document says of a calibrated engine."""
    return {
        "fitted_on": msgspec.to_builtins(model.fitted_on),
        "limits": {name: msgspec.to_builtins(getattr(model.limits, name)) for name in LIMITS},
        "held_out": msgspec.to_builtins(model.held_out),
    }


def document(engine: dict[str, Any], predictions: Sequence[Predicted]) -> dict[str, Any]:
    """All predictions as one JSON-ready object; requests in the order of their file."""
    rows: list[tuple[int, dict[str, Any]]] = []
    for one in predictions:
        for i, name in enumerate(one.asked.ids):
            row: dict[str, Any] = {"id": name, **({"run": one.run} if one.run else {})}
            row |= {
                "prompt_tokens": int(one.asked.prompt_tokens[i]),
                "output_tokens": int(one.asked.output_tokens[i]),
            }
            row |= {metric: _number(getattr(one, metric)[i]) for metric in METRICS}
            rows.append((int(one.asked.places[i]), row))
    passes = min(one.passes for one in predictions)
    pooled = {
        metric: _rounded(usual([_pooled(predictions, metric, turn) for turn in range(passes)]))
        for metric in METRICS
    }
    whole = (
        {name: _quantiles_of(one) for name, one in predictions[0].quantiles.items()}
        if len(predictions) == 1
        else pooled
    )
    return {
        "kind": "sits-prediction",
        "version": 1,
        "engine": engine,
        "definitions": DEFINITIONS,
        "quantiles": whole,
        "runs": [_run_document(one) for one in predictions],
        "requests": [row for _, row in sorted(rows, key=lambda pair: pair[0])],
    }


def _pooled(predictions: Sequence[Predicted], metric: str, turn: int) -> Floats:
    """One pass of all runs together."""
    return np.concatenate([one.all_passes[metric].reshape(one.passes, -1)[turn] for one in predictions])


def _run_document(one: Predicted) -> dict[str, Any]:
    return {
        "run": one.run,
        "requests": len(one.asked),
        "refused": one.refused,
        "loop": None if one.loop is None else msgspec.to_builtins(one.loop),
        "quantiles": {name: _quantiles_of(figure) for name, figure in one.quantiles.items()},
        "span_s": _number(one.span_s),
        "requests_per_s": _number(one.requests_per_s),
        "output_tokens_per_s": _number(one.output_tokens_per_s),
        "largest_batch": one.largest_batch,
        "kv_used_most": None if one.kv_used_most is None else _number(one.kv_used_most),
        "preemptions": one.preemptions,
        "passes": one.passes,
        "assumed": list(one.assumed),
        "warnings": list(one.warnings),
        "arrivals": None if one.arrivals is None else msgspec.to_builtins(one.arrivals),
    }


def _quantiles_of(one: Quantiles) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(one)
    return {
        key: _rounded(value) if isinstance(value, dict) else _number(value) for key, value in built.items()
    }


def _rounded(values: dict[str, float]) -> dict[str, float | None]:
    return {key: _number(value) for key, value in values.items()}


def _number(value: float) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None
