"""How well a calibrated model predicts runs it was not fitted to, beside what the same run varies by itself.

    fold          a part of the runs is left out, the model is fitted to the others, the left-out runs are predicted from what they asked
    error         predicted figure / measured figure - 1
    its interval  5th to 95th percentile of the error when the measured requests are resampled in stretches (moving blocks of about n^(1/3):
                  neighbours share a queue, so single requests would make the interval too short)
    covered       whether the measured figure lies in the range that the prediction itself states
    beyond        how far outside of its range a measured figure lies, as a log ratio, below 0 inside; of a metric's figures the value that nine in ten
                  do not exceed, counted as one run more (the next one), is by how much a checked model's ranges are widened

Folds interleave the runs in order of time, so that each leaves out loads from all over the recording.  A closed loop is predicted as a closed
loop of its users; open arrivals are taken as sent.  Prefix hits are told, as they belong to what was asked.

Deliberately absent: any choice made by looking at these errors.
"""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.calibrating import asked_of, calibrate
from sits.bench.predictions import METRICS, SHARES, Predicted, Wanted, figures, predict
from sits.bench.recording import Recording, Run
from sits.core.errors import ConfigError
from sits.predict.fit_model import FittedEngine, HeldOut
from sits.world import stream_generator

Floats = NDArray[np.float64]
Progress = Callable[..., None]
FIGURES = ("mean", "p50", "p90", "p99")
RESAMPLES = 400
FOLDS = 5
IN_RANGE = 0.9
TINIEST_MS = 1e-6


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one run: measured, predicted with the range stated, and the error with its interval."""

    run: str
    metric: str
    figure: str
    requests: int
    measured: float
    predicted: float
    range_low: float
    range_high: float
    error: float
    error_low: float
    error_high: float

    @property
    def covered(self) -> bool:
        """Whether the measured figure lies in the stated range."""
        return self.range_low <= self.measured <= self.range_high

    @property
    def beyond(self) -> float:
        """Log ratio by which the measured figure is outside of its range; below 0 inside."""
        low, measured, high = (
            max(one, TINIEST_MS) for one in (self.range_low, self.measured, self.range_high)
        )
        return math.log(max(low / measured, measured / high))


class RequestErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Single requests of one run: median |error|, and rank correlation of predicted with measured."""

    run: str
    metric: str
    median_error: float
    correlation: float


def measured_of(run: Run) -> dict[str, Floats]:
    """The measured columns of the three metrics."""
    return {"ttft_ms": run.first_ms, "tpot_ms": run.tpot_ms, "e2e_ms": run.end_ms}


def wanted_for(run: Run, seed: int, passes: int) -> Wanted:
    """How a recorded run is predicted: its own loop."""
    return Wanted(loop="open", users=run.users, seed=seed, passes=passes)


def compare(predicted: Predicted, run: Run, seed: int = 0) -> list[Compared]:
    """Every figure of a prediction against the run it is of."""
    rng = stream_generator(seed, f"accuracy/{run.name}")
    compared = []
    for metric, values in measured_of(run).items():
        known = values[np.isfinite(values)]
        if not len(known):
            continue
        real = figures(known)
        drawn = _resampled(known, rng)
        quantiles = predicted.quantiles[metric]
        for figure in FIGURES:
            mine = getattr(quantiles, figure)
            errors = mine / drawn[figure] - 1
            compared.append(
                Compared(
                    run=run.name,
                    metric=metric,
                    figure=figure,
                    requests=len(known),
                    measured=real[figure],
                    predicted=mine,
                    range_low=quantiles.low[figure],
                    range_high=quantiles.high[figure],
                    error=mine / real[figure] - 1,
                    error_low=float(np.percentile(errors, 5)),
                    error_high=float(np.percentile(errors, 95)),
                )
            )
    return compared


def _resampled(values: Floats, rng: np.random.Generator) -> dict[str, Floats]:
    """Each figure of `RESAMPLES` series of moving blocks, as many values as there are."""
    size = max(1, round(len(values) ** (1 / 3)))
    starts = rng.integers(0, len(values) - size + 1, (RESAMPLES, -(-len(values) // size)))
    drawn = values[(starts[:, :, None] + np.arange(size)).reshape(RESAMPLES, -1)[:, : len(values)]]
    quantiles = np.percentile(drawn, [at for _, at in SHARES], axis=1)
    return {"mean": drawn.mean(axis=1)} | {name: quantiles[i] for i, (name, _) in enumerate(SHARES)}


def request_errors(predicted: Predicted, run: Run) -> list[RequestErrors]:
    """Errors of single requests; requests are in order of being sent on both sides."""
    found = []
    for metric, values in measured_of(run).items():
        mine = getattr(predicted, metric)
        both = np.isfinite(values) & np.isfinite(mine) & (values > 0)
        if both.sum() < 5:
            continue
        ranks = [np.argsort(np.argsort(x[both])).astype(float) for x in (mine, values)]
        found.append(
            RequestErrors(
                run=run.name,
                metric=metric,
                median_error=float(np.median(np.abs(mine[both] / values[both] - 1))),
                correlation=float(np.corrcoef(ranks[0], ranks[1])[0, 1]),
            )
        )
    return found


def folds(runs: Sequence[Run], count: int = FOLDS) -> list[list[str]]:
    """The names of the runs each fold leaves out."""
    count = min(count, len(runs))
    return [[run.name for run in runs[i::count]] for i in range(count)]


def held_out(
    recording: Recording,
    count: int = FOLDS,
    *,
    seed: int = 0,
    passes: int = 10,
    progress: Progress = lambda *_a: None,
    fit: Callable[[Recording], FittedEngine] = calibrate,
) -> tuple[list[Compared], list[RequestErrors]]:
    """Leave out each fold in turn and predict it.

    Raises:
        ConfigError: there is only one run, so nothing can be left out.

    """
    if len(recording.runs) < 2:
        raise ConfigError(
            f"{recording.source} holds one run: nothing can be left out", field="runs", value=1,
            hint="record at least two runs, better five at several loads",
        )  # fmt: skip
    compared: list[Compared] = []
    single: list[RequestErrors] = []
    parts = folds(recording.runs, count)
    for turn, left_out in enumerate(parts):
        progress("leaving out runs and predicting them", turn, len(parts))
        model = fit(recording.only({run.name for run in recording.runs} - set(left_out)))
        rows, errors = transferred(model, recording.only(set(left_out)), seed=seed, passes=passes)
        compared += rows
        single += errors
    return compared, single


def checked(
    recording: Recording,
    *,
    seed: int = 0,
    passes: int = 10,
    progress: Progress = lambda *_a: None,
    fit: Callable[[Recording], FittedEngine] = calibrate,
) -> FittedEngine:
    """A model with what was found by leaving out runs of the same recording; of one run, or where nothing can be left out, without.

    Raises:
        ConfigError: the recording cannot carry a fit.

    """
    model = fit(recording)
    if len(recording.runs) < 2:
        return model
    compared, _ = held_out(recording, seed=seed, passes=passes, progress=progress, fit=fit)
    return msgspec.structs.replace(model, held_out=summary(compared))


def transferred(
    model: FittedEngine, recording: Recording, *, seed: int = 0, passes: int = 10
) -> tuple[list[Compared], list[RequestErrors]]:
    """Predict every run of a recording with a model fitted to another."""
    compared: list[Compared] = []
    single: list[RequestErrors] = []
    for run in recording.runs:
        predicted = predict(model, asked_of(run), wanted_for(run, seed, passes))
        compared += compare(predicted, run, seed)
        single += request_errors(predicted, run)
    return compared, single


def summary(compared: Sequence[Compared]) -> HeldOut:
    """Median and 90th percentile of |error| by metric and figure, and the share of figures inside their stated range."""
    medians: dict[str, dict[str, float]] = {}
    worst: dict[str, dict[str, float]] = {}
    for metric in METRICS:
        for figure in FIGURES:
            errors = [abs(one.error) for one in compared if one.metric == metric and one.figure == figure]
            if errors:
                medians.setdefault(metric, {})[figure] = round(float(np.median(errors)), 4)
                worst.setdefault(metric, {})[figure] = round(float(np.percentile(errors, 90)), 4)
    return HeldOut(
        runs=len({one.run for one in compared}),
        median=medians,
        p90=worst,
        covered=round(float(np.mean([one.covered for one in compared])), 3) if compared else 0.0,
        beyond={metric: _beyond([one for one in compared if one.metric == metric]) for metric in medians},
    )


def _beyond(rows: Sequence[Compared]) -> float:
    """What nine in ten do not exceed: the ceil(0.9 (1 + 1/runs) n)-th smallest of n, their largest where there are too few."""
    ascending = sorted(row.beyond for row in rows)
    runs = len({row.run for row in rows})
    place = min(len(ascending), math.ceil(IN_RANGE * (1 + 1 / runs) * len(ascending)))
    return round(max(0.0, ascending[place - 1]), 4)
