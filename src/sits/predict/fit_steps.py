"""The step-time law of one engine, fitted to the log of its own steps.

    t = level(run) * [ base + mixed when it prefills + a * prompt tokens + b * prompt chunks + c * decodes + d * KV tokens read
                       + e * (prompt tokens x tokens in front of them) ]

The last is attention of prefill: a prompt whose beginning lies in the prefix cache is short to compute but still looks at all of it.

All coefficients are zero or more (Lawson and Hanson 1974), the misfit is relative, and a step far from the law counts less
(weight 1.5 s / |log residual|, s the robust spread), so that a stall does not bend the law.  `level` is the machine's speed
while that run was recorded: one factor a run, because hosts change speed from run to run and the shape must not be fitted to that.  A run's own median
is half believed while the shape is fitted (`BELIEVED`): believed wholly, what more load costs is taken for a slow run, and the other way round.

What is left over is kept, not averaged away, in two parts: `slow`, the mean log residual of the steps around each step (`AROUND`), in the order
recorded, for a machine's slow seconds last; and what a single step adds, a factor (at most `STALL`) and, for a stall, the ms beyond it.
A simulation that draws stretches of the first and single ones of the second has the tail and the memory of the real engine.

The books: every token but the first of a request is made by one step, so over a run

    sum of the requests' times from first to last token = sum over steps of decodes * (elapsed + pause)

which gives the mean pause between steps exactly, without any step's start time (`pause_means`).

Deliberately absent: reading files, and requests (`frontend` knows the time outside the engine's core).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sits.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

COEFFICIENTS = (
    "base_ms",
    "mixed_ms",
    "prompt_token_ms",
    "chunk_ms",
    "decode_ms",
    "kv_token_ms",
    "prompt_kv_ms",
)
STEPS_LEAST = 30
STALL = 2.0
ROUNDS = 25
BELIEVED = 0.5
AROUND = 21
SLOW_MOST, SINGLE_MOST = 4000, 1500
"""Slow factors, and residuals of each kind of step, kept at most."""


class StepLog(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one run, in order; columns of equal length.

    `chunks` and `prompt_tokens` are what was prefilled, `decodes` the requests that decoded, `elapsed_ms` the step's time, `kv_tokens` the
    KV tokens the decodes read (NaN when not known), `prompt_kv` the sum over chunks of `q * (context + q / 2)` for q prompt tokens with `context`
    in front of them; None: nobody knows, then no prompt has any before it and a step's are equal.
    """

    run: str
    chunks: "Floats"
    prompt_tokens: "Floats"
    decodes: "Floats"
    elapsed_ms: "Floats"
    kv_tokens: "Floats"
    prompt_kv: "Floats | None" = None

    def __len__(self) -> int:
        return len(self.elapsed_ms)


class Residuals(msgspec.Struct, frozen=True, kw_only=True):
    """What single steps of one kind leave over: factors (at most `STALL`) and the ms of stalls beyond, row by row."""

    factor: tuple[float, ...]
    beyond_ms: tuple[float, ...]


class StepLaw(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted law; times in ms at level 1.

    Attributes:
        base_ms, mixed_ms, prompt_token_ms, chunk_ms, decode_ms, kv_token_ms, prompt_kv_ms: the coefficients of the module's formula.
        pause_ms, pause_decode_ms, pause_mixed_ms: pause between steps, fixed, for each running request, and when the step prefills.
        levels: the speed of the machine in each run; 1.1 is ten percent slower than the model.
        slow: slow factors, in the order recorded.
        decode, mixed: what single steps leave over, those that only decode, and those that prefill.
        steps, median_error: steps fitted; median |error| of one step, each run at its own level.

    """

    base_ms: float
    mixed_ms: float
    prompt_token_ms: float
    chunk_ms: float
    decode_ms: float
    kv_token_ms: float
    pause_ms: float
    pause_decode_ms: float
    pause_mixed_ms: float
    levels: dict[str, float]
    slow: tuple[float, ...]
    decode: Residuals
    mixed: Residuals
    steps: int
    median_error: float
    prompt_kv_ms: float = 0.0

    def level_spread(self) -> float:
        """Standard deviation of the runs' log levels: how unequal the machine was while recorded."""
        return float(np.std(np.log(list(self.levels.values())), ddof=1)) if len(self.levels) > 1 else 0.0


def fit_steps(logs: Sequence[StepLog], weights: Sequence[float]) -> StepLaw:
    """Fit the law to the steps of several runs; `weights` say how much each run counts.  Pauses stay 0: see `with_pauses`.

    Raises:
        ConfigError: too few steps, or no step that only decodes, to fit a law.

    """
    total = sum(len(log) for log in logs)
    decoding = sum(int((log.chunks == 0).sum()) for log in logs)
    if total < STEPS_LEAST or decoding < STEPS_LEAST // 2:
        raise ConfigError(
            f"{total} engine steps, {decoding} of them without a prompt: too few to fit a law",
            field="steps",
            value=total,
            hint=f"record at least {STEPS_LEAST} steps under load, more is better: a minute at several loads",
        )
    x = np.vstack([_features(log) for log in logs])
    y = np.concatenate([log.elapsed_ms for log in logs])
    run = np.repeat(np.arange(len(logs)), [len(log) for log in logs])
    weight = np.asarray(weights, float)[run]
    levels = np.ones(len(logs))
    for _ in range(ROUNDS):
        coefficients = _robust(x, y / levels[run] ** BELIEVED, weight)
        law_ms = x @ coefficients
        ratio = np.log(y / law_ms)
        new = np.exp([np.median(ratio[run == i]) for i in range(len(logs))])
        done = float(np.abs(np.log(new / levels)).max()) < 1e-4
        levels = new
        if done:
            break
    usual = float((weight * law_ms * levels[run]).sum() / (weight * law_ms).sum())
    coefficients, levels = coefficients * usual, levels / usual
    law_ms = (x @ coefficients) * levels[run]
    mixes = x[:, 1] > 0
    slow = _slow(np.log(y / law_ms), run)
    # Drawn for any step, so its mean counts each step by its time.
    slow /= float((law_ms * slow).sum() / law_ms.sum())
    decode, mixed = (_single(y, law_ms * slow, which) for which in (~mixes, mixes))
    return StepLaw(
        **dict(zip(COEFFICIENTS, (float(c) for c in coefficients), strict=True)),
        pause_ms=0.0,
        pause_decode_ms=0.0,
        pause_mixed_ms=0.0,
        levels={log.run: float(level) for log, level in zip(logs, levels, strict=True)},
        slow=tuple(np.round(slow[_kept(len(slow), SLOW_MOST)], 4).tolist()),
        decode=decode,
        mixed=mixed if mixed.factor else decode,
        steps=total,
        median_error=float(np.median(np.abs(law_ms / y - 1))),
    )


def law_ms(law: StepLaw, log: StepLog) -> "Floats":
    """What the law says of steps at level 1, with the mean of what single steps add."""
    coefficients = np.array([getattr(law, name) for name in COEFFICIENTS])
    kinds = [
        (float(np.mean(kind.factor)), float(np.mean(kind.beyond_ms))) for kind in (law.decode, law.mixed)
    ]
    (factor, beyond), (mixed_factor, mixed_beyond) = kinds
    mixes = log.chunks > 0
    mean: Floats = _features(log) @ coefficients * np.where(mixes, mixed_factor, factor)
    return mean + np.where(mixes, mixed_beyond, beyond)


def _features(log: StepLog) -> "Floats":
    mixes = (log.chunks > 0).astype(float)
    kv = np.where(np.isfinite(log.kv_tokens), log.kv_tokens, 0.0)
    seen = log.prompt_tokens**2 / np.maximum(1.0, log.chunks) / 2 if log.prompt_kv is None else log.prompt_kv
    columns: Floats = np.c_[np.ones(len(log)), mixes, log.prompt_tokens, log.chunks, log.decodes, kv, seen]
    return columns


def _robust(x: "Floats", y: "Floats", weight: "Floats") -> "Floats":
    from scipy.optimize import nnls  # noqa: PLC0415  # heavy; only a fit needs it

    share = np.sqrt(weight / weight.max())
    w = share / y
    scale = np.maximum(np.abs(x).max(axis=0), 1e-12)
    for _ in range(ROUNDS):
        found: Floats = nnls((x / scale) * w[:, None], y * w)[0] / scale
        law = np.maximum(x @ found, 1e-9)
        left = np.abs(np.log(y / law))
        spread = max(1.4826 * float(np.median(left)), 1e-6)
        w = share * np.sqrt(np.minimum(1.0, 1.5 * spread / np.maximum(left, 1e-12))) / law
    return found


def _slow(left: "Floats", run: "NDArray[np.int64]") -> "Floats":
    """The factor of the steps around each step of its run, one stall counted as `STALL` at most."""
    slow = np.empty(len(left))
    for one in np.unique(run):
        mine = np.clip(left[run == one], -np.log(STALL), np.log(STALL))
        width = min(AROUND, len(mine))
        around = np.convolve(mine, np.ones(width), "same") / np.convolve(
            np.ones(len(mine)), np.ones(width), "same"
        )
        slow[run == one] = np.exp(around)
    return slow


def _kept(count: int, most: int) -> "NDArray[np.bool_]":
    """Which of `count` residuals are kept: all, or every n-th stretch of a hundred; whole stretches, for their order matters."""
    kept: NDArray[np.bool_] = (np.arange(count) // 100) % max(1, -(-count // most)) == 0
    return kept


def _single(y: "Floats", law_ms: "Floats", which: "NDArray[np.bool_]") -> Residuals:
    """What single steps leave over; factors are scaled so that the sum of all times is kept."""
    y, law_ms = y[which], law_ms[which]
    if not len(y):
        return Residuals(factor=(), beyond_ms=())
    factor = np.minimum(y / law_ms, STALL)
    beyond = np.maximum(0.0, y - STALL * law_ms)
    scale = (y.sum() - beyond.sum()) / (law_ms.sum() * factor.mean())
    chosen = _kept(len(y), SINGLE_MOST)
    return Residuals(
        factor=tuple(np.round(factor[chosen] * scale, 4).tolist()),
        beyond_ms=tuple(np.round(beyond[chosen], 2).tolist()),
    )


class RunBooks(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run: the requests' time from first to last token, summed, and the tokens made in it; and the same for first tokens.

    `first_ms` sums the requests' time from being scheduled to their first token (NaN when the engine does not tell).
    """

    generation_ms: float
    tokens: float
    first_ms: float
    requests: float


def pause_means(log: StepLog, books: RunBooks) -> tuple[float, float, float, float]:
    """`(mean pause ms, mean decodes, share of steps that prefill, weight)` of a run, averaged over tokens; NaN without tokens.

    >>> log = StepLog(run="r", chunks=np.array([1.0, 0, 0]), prompt_tokens=np.array([8.0, 0, 0]), decodes=np.array([0.0, 1, 1]),
    ...     elapsed_ms=np.array([20.0, 10, 12]), kv_tokens=np.zeros(3))
    >>> pause_means(log, RunBooks(generation_ms=25.0, tokens=2, first_ms=21.0, requests=1))
    (1.5, 1.0, 0.0, 2.0)
    """
    made = float(log.decodes.sum())
    if made <= 0 or abs(made - books.tokens) > 0.05 * max(made, books.tokens):
        return (float("nan"),) * 4  # the log and the requests are not of the same steps
    busy = float((log.decodes * log.elapsed_ms).sum())
    mixes = float((log.decodes * (log.chunks > 0)).sum()) / made
    return (books.generation_ms - busy) / made, float((log.decodes**2).sum()) / made, mixes, made


def with_pauses(law: StepLaw, logs: Sequence[StepLog], books: Sequence[RunBooks]) -> StepLaw:
    """The law with the pauses between steps, fitted to the books of the runs by non-negative least squares."""
    from scipy.optimize import nnls  # noqa: PLC0415

    rows, pauses, weights = [], [], []
    for log, book in zip(logs, books, strict=True):
        mean, decodes, mixes, weight = pause_means(log, book)
        if np.isfinite(mean):
            rows.append((1.0, decodes, mixes))
            pauses.append(max(0.0, mean) / law.levels[log.run])
            weights.append(np.sqrt(weight))
        chunks = float(log.chunks.sum())
        if np.isfinite(book.first_ms) and book.requests and abs(chunks - book.requests) < 0.05 * chunks + 1:
            busy = float((log.chunks * log.elapsed_ms).sum()) / chunks
            rows.append((1.0, float((log.chunks * (log.decodes + log.chunks)).sum()) / chunks, 1.0))
            pauses.append(max(0.0, book.first_ms / book.requests - busy) / law.levels[log.run])
            weights.append(np.sqrt(chunks))
    if not rows:
        return law
    w = np.asarray(weights)
    found, _ = nnls(np.asarray(rows) * w[:, None], np.asarray(pauses) * w)
    names = ("pause_ms", "pause_decode_ms", "pause_mixed_ms")
    return msgspec.structs.replace(law, **dict(zip(names, (round(float(v), 5) for v in found), strict=True)))
