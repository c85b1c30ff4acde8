"""Adapters that are loaded again and again, because the slots on the device are fewer than the adapters in use.

The first load of each adapter on each engine has to be; every further one is a *reload*.  Looked at where
reloads are at least `RELOADS_PER_REQUEST`.  Accounted to a request: of the copy time between `queued` and its
end, what steps with loads take above the engine's median copy, times the reloads' share of the loads.
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
    adapter = case.column("adapter").astype(str)
    needed = {name: len(set(adapter[(case.engine == name) & (adapter != "")])) for name in case.lines}
    loads = {name: float(line.column("adapter_loads").sum()) for name, line in case.lines.items()}
    again = {name: max(0.0, loads[name] - needed[name]) for name in case.lines}
    per_request = sum(again.values()) / case.n
    if per_request < RELOADS_PER_REQUEST:
        return None
    start, end = case.engine_window()
    share = np.array([again[name] / loads[name] if loads.get(name) else 0.0 for name in case.engine])
    spent = case.overlap(start, end, lambda line: {"copy": _loading(line)}) * share
    slots = sorted({str(e.lora.max_loras) for e in case.emulated()}) or ["unknown"]
    return case.claim(
        ID,
        LAYER,
        spent,
        "Adapters are evicted and loaded again; a tail request spends {ms} in steps that reload them.",
        (
            Evidence(
                "reloads_per_request", per_request, 0.0, "1/request", "loads beyond the first of each adapter"
            ),
            Evidence(
                "adapters_per_engine", float(max(needed.values())), None, "adapters", "in use on one engine"
            ),
            Evidence(
                "adapter_loads", sum(loads.values()), float(sum(needed.values())), "loads", "needed at least"
            ),
        ),
        (
            Change(
                "engines.*.lora.max_loras",
                ", ".join(slots),
                str(max(needed.values())),
                "a slot for each in use",
            ),
            Change(
                "policy.route.adapter_affinity", _affinity(case), "1", "send an adapter where it already is"
            ),
        ),
    )


def _affinity(case: Case) -> str:
    return f"{case.fleet.policy.route.adapter_affinity:g}" if case.fleet else "unknown"


def _loading(line: StepTime) -> Floats:
    """Share of each step's copy time that its adapter loads took."""
    loads = line.column("adapter_loads") > 0
    usual = float(np.median(line.copy_ns[~loads])) if (~loads).any() else 0.0
    return np.where(loads, np.maximum(line.copy_ns - usual, 0.0) / np.maximum(line.copy_ns, 1.0), 0.0)
