"""Predictions for a GPU whose layer tables are known: the same figures as for a calibrated engine, from a profile instead of a recording.

One pass of the compiled simulator, mean times: no noise, no front end, no range.  Everything that decides capacity is told, nothing is guessed;
what the tables leave out (host time, the way to the engine and back) is said with the result.

Deliberately absent: closed loops, and prefix hits.
"""

from pathlib import Path
from typing import Any

import numpy as np

from sits.bench.asked import Asked
from sits.bench.foretell import Pass
from sits.bench.predictions import Predicted, summed, told_of
from sits.core.errors import ConfigError
from sits.predict.engine_facts import REQUIRED, EngineFacts
from sits.predict.profile import HOST_PREFILL_US, Profile, load_profile
from sits.sim.forecast import engine, forecast
from sits.sim.spec import EngineSpec

ASSUMED = (
    "mean step times: no stalls, no noise, so tails are those of the load alone",
    "the front end (HTTP, tokenizing, hops between processes) takes no time; calibrate from logs to have it",
    "no request shares a prefix with another",
)

HOST_ASSUMED = f"""the host takes {HOST_PREFILL_US / 1000:.0f} ms for a step with prefill, which count as far as they outlast the step \
before (one recorded host; docs/accuracy-gpu.md)"""


def profiled_engine(
    path: Path,
    layers: int,
    facts: EngineFacts,
    *,
    overhead_us: float = 0.0,
    prefill_us: float | None = None,
    async_scheduling: bool = False,
) -> tuple[Profile, EngineSpec]:
    """The engine of a profile, with its limits as told.

    `overhead_us` is the host's time of any step, `prefill_us` what one with prefill needs on top; None assumes it where it is hidden behind
    the step before.

    Raises:
        ConfigError: a limit is not told, or the tables cannot be used.

    """
    missing = [name for name in REQUIRED if getattr(facts, name) is None]
    if missing:
        raise ConfigError(
            f"a profile does not say {', '.join(missing)}",
            field=missing[0],
            hint=f"give --metrics FILE, --engine-log FILE or --set {missing[0]}=N",
        )
    told = facts.arguments()
    ahead = async_scheduling or told["async_scheduling"]
    assumed_us = HOST_PREFILL_US if ahead else 0.0
    profile = load_profile(
        path, layers, overhead_us=overhead_us, eager_us=assumed_us if prefill_us is None else prefill_us
    )
    return profile, engine(profile, **{**told, "async_scheduling": ahead})


def predict_profiled(
    spec: EngineSpec, facts: EngineFacts, asked: Asked, *, host_told: bool = False
) -> Predicted:
    """Predict one run on such an engine; `host_told`: the host's time for prefill was given, not assumed."""
    arrivals = np.round(asked.arrival_ms * 1e6).astype(np.int64)
    done = forecast(spec, arrivals, asked.prompt_tokens, asked.output_tokens)
    served = done.e2e_ns >= 0
    one = Pass(
        asked.arrival_ms,
        np.where(served, done.ttft_ns / 1e6, np.nan),
        done.tpot_ns / 1e6,
        np.where(served, done.e2e_ns / 1e6, np.nan),
        np.full(len(asked), np.nan),
        np.zeros(len(asked), np.int64),
        0,
        0.0,
        int(done.preemptions[done.preemptions > 0].sum()),
    )
    host = (HOST_ASSUMED,) if spec.async_scheduling and not host_told else ()
    return summed(asked, None, [one], [], (*facts.assumed, *ASSUMED, *host), told_of(asked, [one]))


def described(profile: Profile, spec: EngineSpec, facts: EngineFacts) -> dict[str, Any]:
    """What a document says of such an engine."""
    told = {name: getattr(facts, name) for name in REQUIRED}
    return {
        "profile": profile.source,
        "limits": {
            name: {"value": fact.value, "source": fact.source, "sure": True} for name, fact in told.items()
        },
        "overhead_us": profile.overhead_us,
        "overhead_prefill_us": profile.eager_us,
        "host_prefill_us": profile.eager_us,
        "async_scheduling": spec.async_scheduling,
    }
