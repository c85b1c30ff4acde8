"""Adapters that are loaded again and again, because the slots on the device are fewer than the adapters in use.

The first load of each adapter on each engine has to be; every further one is a *reload*.  A table may hold
several runs, each of which starts with empty slots, so first loads are counted for each `run_id`.  Looked at
where reloads are at least `RELOADS_PER_REQUEST`.  Accounted to a request: of the copy time between `queued` and
its end, what steps with loads take above the engine's median copy, times the reloads' share of the loads.
"""

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.diagnose.causes.case import Case, unknown
from sits.diagnose.columns import Floats
from sits.diagnose.steps import StepTime

ID, LAYER = "adapter_thrash", "infrastructure"
RELOADS_PER_REQUEST = 0.05


def adapter_thrash(case: Case) -> Finding | None:
    """Find adapter loads that more slots would have saved."""
    if not case.lines:
        return unknown(ID, LAYER, "Whether adapters thrash is not known.", "no step rows were recorded")
    used = _used(case)
    needed = {name: sum(map(len, runs.values())) for name, runs in used.items()}
    most = max(len(adapters) for runs in used.values() for adapters in runs.values())
    loads = {name: float(line.column("adapter_loads").sum()) for name, line in case.lines.items()}
    again = {name: max(0.0, loads[name] - needed[name]) for name in case.lines}
    per_request = sum(again.values()) / case.n
    if per_request < RELOADS_PER_REQUEST:
        return None
    share = np.array([again[name] / loads[name] if loads.get(name) else 0.0 for name in case.engine])
    copying = case.in_engine(lambda line: {"copy": _loading(line)})
    slots = sorted({str(e.lora.max_loras) for e in case.emulated()}) or ["unknown"]
    return case.claim(
        ID,
        LAYER,
        {name: ns * share for name, ns in copying.items()},
        "Adapters are evicted and loaded again; a tail request spends {ms} in steps that reload them.",
        (
            Evidence(
                "reloads_per_request", per_request, 0.0, "1/request", "loads beyond the first of each adapter"
            ),
            Evidence("adapters_per_engine", float(most), None, "adapters", "in use on one engine in one run"),
            Evidence(
                "adapter_loads", sum(loads.values()), float(sum(needed.values())), "loads", "needed at least"
            ),
        ),
        (
            Change(
                "engines.*.lora.max_loras",
                ", ".join(slots),
                str(most),
                "a slot for each in use",
            ),
            Change(
                "policy.route.adapter_affinity", _affinity(case), "1", "send an adapter where it already is"
            ),
        ),
    )


def _used(case: Case) -> dict[str, dict[str, set[str]]]:
    """Adapters that requests named, by engine and run; all requests count, completed or not."""
    found: dict[str, dict[str, set[str]]] = {name: {"": set()} for name in case.lines}
    engines, adapters = case.requests["engine"].tolist(), case.requests["adapter"].tolist()
    runs = case.requests["run_id"].tolist() if "run_id" in case.requests else [""] * len(engines)
    for engine, run, adapter in zip(engines, runs, adapters, strict=True):
        if adapter and engine in found:
            found[engine].setdefault(run, set()).add(adapter)
    return found


def _affinity(case: Case) -> str:
    return f"{case.fleet.policy.route.adapter_affinity:g}" if case.fleet else "unknown"


def _loading(line: StepTime) -> Floats:
    """Share of each step's copy time that its adapter loads took."""
    loads = line.column("adapter_loads") > 0
    usual = float(np.median(line.copy_ns[~loads])) if (~loads).any() else 0.0
    return np.where(loads, np.maximum(line.copy_ns - usual, 0.0) / np.maximum(line.copy_ns, 1.0), 0.0)
