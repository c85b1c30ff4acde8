"""Recordings of vLLM on real GPUs, and what a layer profile predicts for them.

A recording is 300 requests with the times the engine gave them, and the arguments and KV blocks it said it had (LLMServingSim,
`bench/examples`, MIT).  The prediction has the recorded arrivals and lengths, the profile of the GPU, what the engine says of
itself, and one figure that no layer table holds: the host's time for a step that holds prefill.

That figure is calibrated on the first `CALIBRATED` requests of one recording, by their TTFT; what it is judged by is everything.

Deliberately absent: the text of the prompts.  It is not in the recordings, so prefixes that prompts shared are not known.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.predict.engine_facts import EngineFacts, read_facts
from sits.predict.profile import Profile
from sits.sim.forecast import engine, forecast
from sits.sim.spec import EngineSpec

Floats = NDArray[np.float64]

CALIBRATED = 40
HOST_GRID_US = tuple(range(0, 41_000, 1_000))
STATISTICS = ("mean", "P50", "P90", "P99")
METRICS = ("TTFT", "TPOT", "E2E")


class Recording(NamedTuple):
    """One run: arrival order, times in seconds."""

    name: str
    facts: EngineFacts
    arrivals_ns: NDArray[np.int64]
    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    measured: dict[str, Floats]


def load(folder: Path, name: str, given: dict[str, Any] | None = None) -> Recording:
    """The recording `FOLDER/NAME__requests.csv.gz` and `NAME__meta.json`; `given` are figures its record lacks."""
    import duckdb  # noqa: PLC0415  (only who loads a recording pays for it)

    with duckdb.connect() as db:
        rows = db.read_csv(str(folder / f"{name}__requests.csv.gz")).order("arrival_time").fetchnumpy()
    meta = json.loads((folder / f"{name}__meta.json").read_text(encoding="utf-8"))
    arrival, first, last = (rows[c] for c in ("arrival_time", "first_token_ts", "last_token_ts"))
    outputs = rows["output_toks"].astype(np.int64)
    measured = {
        "TTFT": first - arrival,
        "TPOT": (last - first) / (outputs - 1),
        "E2E": last - arrival,
    }
    return Recording(
        name,
        read_facts(config=meta, given=given),
        np.round(arrival * 1e9).astype(np.int64),
        rows["input_toks"].astype(np.int64),
        outputs,
        measured,
    )


def predict(
    recording: Recording, profile: Profile, spec: EngineSpec | None = None, count: int | None = None
) -> dict[str, Floats]:
    """TTFT, TPOT and E2E of the first `count` requests (all when None), seconds."""
    wanted = slice(count)
    done = forecast(
        spec or engine(profile, **recording.facts.arguments()),
        recording.arrivals_ns[wanted],
        recording.prompts[wanted],
        recording.outputs[wanted],
    )
    return {"TTFT": done.ttft_ns / 1e9, "TPOT": done.tpot_ns / 1e9, "E2E": done.e2e_ns / 1e9}


def calibrate_host(recording: Recording, profile: Profile) -> Profile:
    """`profile` with the host time of a step that holds prefill: least mean error of the first requests' TTFT.

    The very first request is left out: an engine's first step is like no other.
    """
    mine = slice(1, CALIBRATED)

    def off(host_us: int) -> float:
        tried = msgspec.structs.replace(profile, eager_us=float(host_us))
        # First come, first served: who comes later hardly changes the TTFT of who came before, and need not be run.
        ttft = predict(recording, tried, count=CALIBRATED)["TTFT"]
        return float(np.abs(ttft - recording.measured["TTFT"][:CALIBRATED])[mine].mean())

    return msgspec.structs.replace(profile, eager_us=float(min(HOST_GRID_US, key=off)))


def statistics(values: Floats) -> Floats:
    """Mean, P50, P90 and P99."""
    return np.array([values.mean(), *np.percentile(values, [50, 90, 99])])


def errors(recording: Recording, predicted: dict[str, Floats]) -> dict[str, Floats]:
    """Predicted over measured, less one: of `STATISTICS`, for each metric."""
    return {
        metric: statistics(predicted[metric]) / statistics(recording.measured[metric]) - 1.0
        for metric in METRICS
    }
