"""The link from host to device: always slow (memory of the wrong NUMA node), or slow at times (dips).

Bandwidth of a step = `copy_bytes / copy_ns`, taken only from copies of at least `LEAST_BYTES` (smaller ones
measure latency).  An engine's *typical* bandwidth is the `TYPICAL` quantile of its steps': what the link
gives when nothing disturbs it.

*numa_remote*: typical bandwidth under `REMOTE_SHARE` of what the fleet file says memory of the GPU's own node
gives, and no more than memory of the other node would (`FASTER` a little), unless the file itself places the two
apart: between both figures it may as well be the latency of many small copies.  Accounted: what the bytes of each step between `queued` and the request's end take at the typical bandwidth
beyond what they take at the local one.  What is slower still than memory of the other node gives (`link.remote`)
has another reason (a latency a copy, a dip) and is not accounted.
*pcie_dips*: steps under `DIP_SHARE` of typical; depth is how far their median lies below, duty their share of
samples.  Accounted: their copy time beyond `bytes / typical`.  A copy that is longer than a dip averages over dips
and calm, so the depth is that of copies, and the link's own dips are deeper.

Where too few copies tell, either says so, but only if all copies together take enough of the tail to matter.

Deliberately absent: why a link dips (contention, replay, power); bandwidth of device-to-device links.
"""

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.core.fleet import Node
from sits.diagnose.causes.case import Case, unknown
from sits.diagnose.columns import Bools, Floats
from sits.diagnose.resample import quantile
from sits.diagnose.steps import StepTime

LAYER = "infrastructure"
LEAST_BYTES = 2**20
LEAST_COPIES = 20
TYPICAL = 0.9
REMOTE_SHARE = 0.75
FASTER = 1.1
DIP_SHARE = 0.9
DIP_DUTY = 0.01
"""Fewer slow copies than this are no pattern."""


def _bandwidth(line: StepTime) -> tuple[Floats, Bools]:
    """Bytes/ns (= GB/s) of each step, and which steps copied enough to tell."""
    nbytes, ns = line.column("copy_bytes"), line.column("copy_ns")
    told = (nbytes >= LEAST_BYTES) & (ns > 0)
    return np.where(told, nbytes / np.maximum(ns, 1.0), 0.0), told


def _typical(line: StepTime) -> float:
    """Undisturbed bandwidth in GB/s; 0 when fewer than `LEAST_COPIES` steps tell."""
    rate, told = _bandwidth(line)
    return quantile(np.sort(rate[told]), TYPICAL) if told.sum() >= LEAST_COPIES else 0.0


def numa_remote(case: Case) -> Finding | None:
    """Find engines whose copies run at less than the local bandwidth of their node."""
    cause, question = "numa_remote", "Whether copies cross NUMA nodes is not known."
    if case.fleet is None:
        if _copies_matter_not(case):
            return None
        return unknown(cause, LAYER, question, "no fleet file: the local bandwidth of the link is not known")
    judged = {name: (_typical(line), _node(case, name)) for name, line in case.lines.items()}
    known = {name: (rate, node) for name, (rate, node) in judged.items() if rate > 0 and node is not None}
    if not known:
        if _copies_matter_not(case):
            return None
        return unknown(
            cause, LAYER, question, f"no engine with a node and {LEAST_COPIES} copies of 1 MiB or more"
        )
    lost = {name: max(0.0, 1.0 - rate / (node.link.local / 1e9)) for name, (rate, node) in known.items()}
    slow = {
        name: share
        for name, share in lost.items()
        if share > 1.0 - REMOTE_SHARE and _like_remote(case, name, *known[name])
    }
    if not slow:
        return None
    taken = {id(case.lines[name]): _further_away(case.lines[name], *known[name]) for name in slow}
    wasted = case.in_engine(lambda line: {"copy": taken.get(id(line), 0.0)})
    worst = max(slow, key=lambda name: (slow[name], name))
    rate, node = known[worst]
    note = f"{worst}; remote would be {node.link.remote / 1e9:g} GB/s" + _placement(case, worst, node)
    evidence = (
        Evidence("remote_engines", float(len(slow)), 0.0, "engines", f"of {len(known)} whose copies tell"),
        Evidence("copy_gbytes_per_s", rate, node.link.local / 1e9, "GB/s", note),
    )
    return case.claim(
        cause,
        LAYER,
        wasted,
        "Copies to the device run far below the node's local bandwidth; a tail request loses {ms} to that.",
        evidence,
        tuple(change for name in slow for change in _move(case, name, known[name][1])),
        fault=True,
    )


def _further_away(line: StepTime, typical: float, node: Node) -> Floats:
    """Share of each step's copy time that its bytes would not take from local memory; `typical` in GB/s."""
    local, remote = node.link.local / 1e9, node.link.remote / 1e9
    rate = max(typical, min(remote, local))
    lost = line.column("copy_bytes") * max(0.0, 1.0 / rate - 1.0 / local)
    return np.clip(lost / np.maximum(line.column("copy_ns"), 1.0), 0.0, 1.0)


def _copies_matter_not(case: Case) -> bool:
    """Whether all copies together take so little of the tail that no fault of the link could be a cause."""
    copying = np.sum(list(case.in_engine(lambda _: {"copy": 1.0}).values()), axis=0)
    return bool(case.lines) and not case.matters(case.effect(copying).high)


def _node(case: Case, engine: str) -> Node | None:
    wanted = getattr(case.engine_config(engine), "node", "")
    nodes = case.fleet.nodes if case.fleet else ()
    return next((node for node in nodes if node.name == wanted), None)


def _placed(case: Case, engine: str, node: Node) -> tuple[int, int] | None:
    """NUMA node of the engine's host memory, and of its first GPU."""
    config = case.engine_config(engine)
    gpus = getattr(config, "gpus", ())
    if not gpus or not 0 <= gpus[0] < len(node.gpu_numa):
        return None
    return int(getattr(config, "cpu_numa", 0)), node.gpu_numa[gpus[0]]


def _like_remote(case: Case, engine: str, typical: float, node: Node) -> bool:
    placed = _placed(case, engine, node)
    apart = placed is not None and placed[0] != placed[1]
    return apart or typical <= FASTER * node.link.remote / 1e9


def _placement(case: Case, engine: str, node: Node) -> str:
    placed = _placed(case, engine, node)
    return f"; host memory on NUMA node {placed[0]}, GPU on {placed[1]}" if placed else ""


def _move(case: Case, engine: str, node: Node) -> tuple[Change, ...]:
    placed = _placed(case, engine, node)
    if placed is None or placed[0] == placed[1]:
        return ()
    why = "host memory on the GPU's own NUMA node"
    return (Change(f"engines.{engine}.cpu_numa", str(placed[0]), str(placed[1]), why),)


def pcie_dips(case: Case) -> Finding | None:
    """Find copies that run far below the engine's own typical bandwidth."""
    cause = "pcie_dips"
    typical = {name: rate for name, line in case.lines.items() if (rate := _typical(line)) > 0}
    if not typical:
        if _copies_matter_not(case):
            return None
        why = f"no engine with {LEAST_COPIES} copies of 1 MiB or more"
        return unknown(cause, LAYER, "Whether the host link dips is not known.", why)
    wasted = case.in_engine(lambda line: {"copy": _dip_rate(line)})
    rates = {name: _bandwidth(case.lines[name]) for name in typical}
    relative = np.concatenate([rate[told] / typical[name] for name, (rate, told) in rates.items()])
    dips = relative < DIP_SHARE
    if dips.mean() < DIP_DUTY:
        return None
    depth = 1.0 - float(np.median(relative[dips]))
    evidence: tuple[Evidence, ...] = (
        Evidence("dip_depth", depth, 0.0, "share", "of the typical bandwidth, lost in the median dip"),
        Evidence("dip_duty", float(dips.mean()), 0.0, "share", "of steps with copies"),
        Evidence("copy_gbytes_per_s", max(typical.values()), None, "GB/s", "typical"),
    )
    _, sampled = case.signal("link_bandwidth_gbytes_per_s")
    sampled = sampled[sampled > 0]
    if len(sampled) >= LEAST_COPIES:
        low = sampled < DIP_SHARE * quantile(np.sort(sampled), TYPICAL)
        evidence += (
            Evidence("link_signal_dip_duty", float(low.mean()), 0.0, "share", "of link_bandwidth samples"),
        )
    return case.claim(
        cause,
        LAYER,
        wasted,
        f"Copies to the device lose {depth:.0%} of the link's bandwidth at times; a tail request loses {{ms}} to that.",
        evidence,
        fault=True,
    )


def _dip_rate(line: StepTime) -> Floats:
    """Share of each step's copy time that its dip made."""
    typical = _typical(line)
    rate, told = _bandwidth(line)
    if typical <= 0:
        return np.zeros(len(rate))
    return np.where(told & (rate < DIP_SHARE * typical), 1.0 - rate / typical, 0.0)
