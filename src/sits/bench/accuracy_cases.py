"""The cases of the accuracy page: what a model is fitted to and what it has to predict, over the recordings of one engine.

    loads left out       within one recording, each part of its runs by the others
    other lengths        fitted to fixed shapes and fixed batches, to predict mixed lengths; and the other way round
    other arrivals       fitted to closed loops, to predict Poisson arrivals; and the other way round
    later                fitted to the earlier half, to predict the later half: the machine has moved meanwhile
    not told             loads left out, without being told which prompts the prefix cache holds

Each model is checked by leaving out runs of what it is fitted to, as `sitsctl calibrate` does, so ranges are those a user is told; what a model is
judged by never tuned it.

And two yardsticks: what the same run varies by itself, and a step-time law of three parameters.

Deliberately absent: figures of GPUs (they have recordings and scripts of their own), and any case left out for its result.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.accuracy import (
    Compared,
    RequestErrors,
    checked,
    compare,
    folds,
    held_out,
    transferred,
    wanted_for,
)
from sits.bench.calibrating import asked_of, calibrate, limits_of, steps_of
from sits.bench.lines import objects
from sits.bench.predictions import predict
from sits.bench.recording import Recording, read_recording
from sits.predict.fit_steps import StepLog, fit_steps, law_ms

Floats = NDArray[np.float64]
Progress = Callable[..., None]
CLOSED, POISSON, TINY = "small-closed", "small-poisson", "tiny-closed"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One case: fitted to what, predicted what, and how that came out."""

    title: str
    fitted_to: str
    predicted: str
    rows: tuple[Compared, ...]
    requests: tuple[RequestErrors, ...]


class StepError(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of runs left out: median |error| of one step, and mean over runs of the |error| of their sum, of the law and of three parameters."""

    recording: str
    law_median: float
    law_total: float
    plain_median: float
    plain_total: float


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """One run repeated: smallest, median and largest of a figure over the repetitions."""

    figure: str
    runs: int
    low: float
    middle: float
    high: float


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """All of the page's figures."""

    cases: tuple[Case, ...]
    steps: tuple[StepError, ...]
    repeated: tuple[Repeated, ...]
    drift: tuple[tuple[str, float, float, float, float], ...]


def examine(folder: Path, passes: int, progress: Progress) -> Accuracy:
    """Work out every case over the recordings in `folder`."""
    recordings = {name: read_recording(folder / name) for name in (CLOSED, POISSON, TINY)}
    cases = []
    for number, (title, fitted_to, predicted, work) in enumerate(_plan(recordings, passes)):
        progress(f"case {number + 1}: {title}, {predicted}")
        rows, single = work()
        cases.append(
            Case(
                title=title,
                fitted_to=fitted_to,
                predicted=predicted,
                rows=tuple(rows),
                requests=tuple(single),
            )
        )
    progress("steps")
    return Accuracy(
        cases=tuple(cases),
        steps=tuple(step_errors(recording) for recording in recordings.values()),
        repeated=tuple(repetitions(folder / "same_run_repeated.jsonl")),
        drift=tuple(drift(recordings[POISSON], passes)),
    )


Result = tuple[list[Compared], list[RequestErrors]]
Planned = tuple[str, str, str, Callable[[], Result]]


def _plan(recordings: dict[str, Recording], passes: int) -> list[Planned]:
    plan: list[Planned] = []
    for name, recording in recordings.items():
        plan.append(("loads left out", f"the other runs of {name}", name, _left_out(recording, passes)))
    for name in (CLOSED, TINY):
        fixed, mixed = _halves(recordings[name], lambda run: not run.startswith("closed"))
        plan.append(
            (
                "other lengths",
                f"fixed shapes of {name}",
                f"mixed lengths of {name}",
                _moved(fixed, mixed, passes),
            )
        )
        plan.append(
            (
                "other lengths",
                f"mixed lengths of {name}",
                f"fixed shapes of {name}",
                _moved(mixed, fixed, passes),
            )
        )
    closed, poisson = recordings[CLOSED], recordings[POISSON]
    plan.append(("other arrivals", CLOSED, POISSON, _moved(closed, poisson, passes)))
    loads, _ = _halves(closed, lambda run: run.startswith("closed"))
    plan.append(("other arrivals", POISSON, f"mixed lengths of {CLOSED}", _moved(poisson, loads, passes)))
    for name, recording in recordings.items():
        runs = recording.runs
        early = {run.name for run in runs[: len(runs) // 2]}
        first, second = _halves(recording, early.__contains__)
        plan.append(
            ("later", f"earlier half of {name}", f"later half of {name}", _moved(first, second, passes))
        )
    plan += [
        (
            "not told",
            f"the other runs of {name}",
            f"{name}, prefix hits not told",
            _untold(recordings[name], passes),
        )
        for name in (CLOSED, TINY)
    ]
    return plan


def _halves(recording: Recording, first: Callable[[str], bool]) -> tuple[Recording, Recording]:
    names = {run.name for run in recording.runs}
    chosen = {name for name in names if first(name)}
    return recording.only(chosen), recording.only(names - chosen)


def _left_out(recording: Recording, passes: int) -> Callable[[], Result]:
    return lambda: held_out(recording, passes=passes, fit=partial(checked, passes=passes))


def _moved(fitted: Recording, predicted: Recording, passes: int) -> Callable[[], Result]:
    return lambda: transferred(checked(fitted, passes=passes), predicted, passes=passes)


def _untold(recording: Recording, passes: int) -> Callable[[], Result]:
    def work() -> Result:
        rows: list[Compared] = []
        for left_out in folds(recording.runs):
            others = {run.name for run in recording.runs} - set(left_out)
            model = checked(recording.only(others), passes=passes)
            for run in recording.only(set(left_out)).runs:
                asked = msgspec.structs.replace(asked_of(run), cached_tokens=None)
                rows += compare(predict(model, asked, wanted_for(run, 0, passes)), run)
        return rows, []

    return work


def step_errors(recording: Recording) -> StepError:
    """Each run's steps by the law fitted to the other runs, and by `a + b * prompt tokens + c * decodes` fitted to the same."""
    found = limits_of(recording)
    logs = [steps_of(run, found) for run in recording.runs]
    laws, plain, real = [], [], []
    for i, log in enumerate(logs):
        others = logs[:i] + logs[i + 1 :]
        law = fit_steps(others, [1.0] * len(others))
        laws.append(law_ms(law, log))
        x = np.vstack([_plain(one) for one in others])
        coefficients = np.linalg.lstsq(x, np.concatenate([one.elapsed_ms for one in others]), rcond=None)[0]
        plain.append(_plain(log) @ coefficients)
        real.append(log.elapsed_ms)
    measured = np.concatenate(real)
    single = [float(np.median(np.abs(np.concatenate(mine) / measured - 1))) for mine in (laws, plain)]
    sums = [
        float(
            np.mean([abs(one.sum() / log.elapsed_ms.sum() - 1) for one, log in zip(mine, logs, strict=True)])
        )
        for mine in (laws, plain)
    ]
    return StepError(
        recording=recording.source,
        law_median=single[0],
        law_total=sums[0],
        plain_median=single[1],
        plain_total=sums[1],
    )


def _plain(log: StepLog) -> Floats:
    columns: Floats = np.c_[np.ones(len(log)), log.prompt_tokens, log.decodes]
    return columns


def repetitions(path: Path) -> list[Repeated]:
    """What one closed loop of 16 users gave when it was run again on the same engine, compiled, within the same hour."""
    runs = [line for _, line in objects(path) if line["name"] == "closed-c16-cal"]
    found = []
    for figure in ("req_per_s", "ttft_ms_p50", "tpot_ms_p50", "e2e_ms_p50"):
        values = sorted(float(run[figure]) for run in runs)
        found.append(
            Repeated(
                figure=figure,
                runs=len(values),
                low=values[0],
                middle=values[len(values) // 2],
                high=values[-1],
            )
        )
    return found


def drift(recording: Recording, passes: int) -> list[tuple[str, float, float, float, float]]:
    """What a tenth of speed does: measured TTFT P50 of each run, and predicted by all of them at level 0.9, 1 and 1.1; ms."""
    model = calibrate(recording)
    rows = []
    for run in recording.runs:
        wanted = wanted_for(run, 0, passes)
        predicted = [
            predict(model, asked_of(run), msgspec.structs.replace(wanted, level=level))
            .quantiles["ttft_ms"]
            .p50
            for level in (0.9, 1.0, 1.1)
        ]
        rows.append((run.name, float(np.median(run.first_ms)), *predicted))
    return rows  # type: ignore[return-value]


def by_case(cases: Sequence[Case], title: str) -> list[Case]:
    """The cases of one kind."""
    return [case for case in cases if case.title == title]
