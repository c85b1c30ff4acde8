"""A synthetic report to draw and to break: an incident of the usual size, with made-up figures.

Nothing here is a measurement.  The figures only have the shapes that real ones have (stages add up to the
total, shares of a band to one, offered = the sum of the outcomes), so that the page can be judged by eye.
"""

import math
from typing import Any

import msgspec
import numpy as np

from sits.core.breakpoints import BREAKPOINTS
from sits.core.finding import Change, Evidence, Finding, Interval
from sits.core.fleet import (
    Adapters,
    EmulatedEngine,
    Fleet,
    Gateway,
    Link,
    Lora,
    Memory,
    Model,
    Node,
    OpenAIEngine,
    Policies,
    Route,
    Scheduler,
    Window,
)
from sits.core.report import (
    Ablation,
    Account,
    Band,
    Bar,
    Cell,
    Group,
    HeatMap,
    LatencySummary,
    Matrix,
    Note,
    Report,
    Series,
    Side,
    StageShare,
    Waterfall,
)
from sits.world import stream_generator

LAYER = {b.stage: b.layer for b in BREAKPOINTS[1:]}


def around(value: float, spread: float) -> Interval:
    """An interval of plus/minus `spread`."""
    return Interval(value, value - spread, value + spread)


def fleet(*, fixed: bool) -> Fleet:
    """Two nodes of eight A100, four engines of four GPUs; `fixed` is the repaired configuration."""
    node = {
        "gpu": "A100-SXM4-80GB",
        "gpus": 8,
        "gpu_numa": (0, 0, 0, 0, 1, 1, 1, 1),
        "gpu_memory": 80 * 2**30,
        "link": Link(local=24e9, remote=11e9),
    }
    engines = tuple(
        EmulatedEngine(
            name=f"e{index}",
            node=f"a100-{index // 2 + 1}",
            gpus=(0, 1, 2, 3) if index % 2 == 0 else (4, 5, 6, 7),
            model="llama-70b",
            adapters=("support",),
            cpu_numa=(index % 2) if fixed else 0,
            scheduler=Scheduler(
                max_num_batched_tokens=2048 if fixed else 16384,
                enable_chunked_prefill=fixed,
                long_prefill_token_threshold=1024 if fixed else 0,
            ),
            memory=Memory(gpu_memory_utilization=0.92 if fixed else 0.72),
            lora=Lora(max_loras=8 if fixed else 4),
        )
        for index in range(4)
    )
    return Fleet(
        name="incident",
        gateway=Gateway(workers=4 if fixed else 1),
        policy=Policies(
            window=Window(kind="none") if fixed else Window(kind="fixed", base=100_000_000),
            route=Route(kind="least_tokens" if fixed else "round_robin"),
        ),
        nodes=(Node(name="a100-1", **node), Node(name="a100-2", **node)),
        models=(
            Model(
                name="llama-70b",
                layers=80,
                hidden=8192,
                heads=64,
                kv_heads=8,
                head_dim=128,
                intermediate=28672,
                vocab=128256,
                weights=140 * 10**9,
            ),
        ),
        adapters=(Adapters(name="support", model="llama-70b", count=24),),
        engines=engines,
    )


def live_fleet() -> Fleet:
    """What a live service looks like: engines by URL, nothing known about nodes."""
    return Fleet(
        name="live",
        engines=(
            OpenAIEngine(name="vllm-a", url="http://10.0.0.5:8000", models=("llama-8b",)),
            OpenAIEngine(name="vllm-b", url="http://10.0.0.6:8000", models=("llama-8b",), region="eu"),
        ),
    )


def _waterfall(
    label: str, stages: dict[str, float], facts: dict[str, str], exact: dict[str, str]
) -> Waterfall:
    bars, at = [], 0.0
    for stage, duration in stages.items():
        layer = LAYER.get(stage, "unattributed")
        bars.append(Bar(stage, layer, at, duration, exact.get(stage, "measured")))
        at += duration
    return Waterfall(request_id=facts.pop("id"), label=label, total_ms=at, bars=tuple(bars), facts=facts)


SLOW = {
    "parse": 0.9, "authorize": 3.1, "route": 186.0, "admit_window": 97.4, "to_engine": 4.2, "tokenize": 11.8,
    "enqueue": 1.3, "engine_queue": 903.6, "kv_allocate": 241.7, "kv_restore": 168.4,
    "unattributed (kv_ready..inputs_copied)": 61.3, "graph_choose": 0.6, "attention_prep": 2.9,
    "collective_sync": 7.7, "launch": 1.1, "prefill": 618.2,
}  # fmt: skip
NORMAL = {
    "parse": 0.3, "authorize": 0.4, "route": 4.1, "admit_window": 52.0, "to_engine": 1.0, "tokenize": 6.3,
    "enqueue": 0.4, "engine_queue": 38.6, "kv_allocate": 0.3, "kv_restore": 3.2, "batch_build": 1.9,
    "input_copy": 8.9, "graph_choose": 0.1, "attention_prep": 0.7, "collective_sync": 0.9, "launch": 0.2,
    "prefill": 171.9, "decode": 5210.0, "send": 0.6,
}  # fmt: skip


def _stages() -> tuple[StageShare, ...]:
    rest = {
        "parse": 0.4, "authorize": 0.6, "route": 14.0, "admit_window": 51.2, "to_engine": 1.1, "tokenize": 6.0,
        "enqueue": 0.4, "engine_queue": 61.0, "kv_allocate": 4.8, "kv_restore": 6.1, "batch_build": 2.0,
        "input_copy": 9.4, "graph_choose": 0.1, "attention_prep": 0.7, "collective_sync": 1.0, "launch": 0.2,
        "prefill": 188.0,
    }  # fmt: skip
    tail = {
        "parse": 0.8, "authorize": 1.9, "route": 231.0, "admit_window": 98.0, "to_engine": 3.0, "tokenize": 9.9,
        "enqueue": 1.0, "engine_queue": 1012.0, "kv_allocate": 262.0, "kv_restore": 139.0, "batch_build": 4.1,
        "input_copy": 58.0, "graph_choose": 0.1, "attention_prep": 1.6, "collective_sync": 4.0, "launch": 0.2,
        "prefill": 571.0,
    }  # fmt: skip
    exact = {"kv_allocate": "derived", "input_copy": "sampled", "graph_choose": "missing"}
    return tuple(
        StageShare(
            stage,
            LAYER[stage],
            rest[stage],
            tail[stage],
            around(tail[stage] - rest[stage], 0.02 + 0.09 * (tail[stage] - rest[stage])),
            exact.get(stage, "measured"),
        )
        for stage in rest
    )


def _series(*, fixed: bool) -> tuple[Series, ...]:
    rng = stream_generator(7 if fixed else 6, "synthetic")
    t = np.arange(0.0, 600.0, 5.0)
    burst = sum(np.exp(-(((t - at) / wide) ** 2)) for at, wide in ((140, 28), (330, 45), (505, 22)))
    out: list[Series] = []

    def add(name: str, unit: str, source: str, value: Any) -> None:
        out.append(
            Series(name, unit, source, tuple(t.tolist()), tuple(float(v) for v in np.maximum(value, 0.0)))
        )

    calm = 0.35 if fixed else 1.0
    add("ttft_p99", "ms", "gateway", 420 + 1850 * burst * calm * 0.9 + rng.normal(0, 45, t.size))
    for engine in range(4):
        skew = 1.0 if fixed else (0.6, 1.3, 0.8, 1.4)[engine]
        noise = rng.normal(0, 1.2, t.size)
        add("requests_waiting", "requests", f"e{engine}", 2 + 46 * burst * skew * calm * 0.7 + noise)
        add(
            "kv_usage",
            "share",
            f"e{engine}",
            np.minimum(1.0, 0.42 + 0.6 * burst * skew * (0.55 if fixed else 1)),
        )
    for engine in range(4):
        full = 24.0 if fixed or engine % 2 == 0 else 11.0
        dip = np.where((t % 45 < 6) & (burst > 0.3), 0.58, 1.0)
        add("link_bandwidth_gbytes_per_s", "GB/s", f"e{engine}", full * dip + rng.normal(0, 0.2, t.size))
    add(
        "gateway_cpu_share",
        "share",
        "gateway",
        np.minimum(1.0, (0.2 + 0.9 * burst) * (0.3 if fixed else 1.0)),
    )
    add(
        "arrivals_per_s",
        "requests/s",
        "workload",
        18 + 70 * burst + stream_generator(5, "a").normal(0, 3, t.size),
    )
    return tuple(out)


def _matrix() -> Matrix:
    planes = ("model", "framework", "infrastructure", "unattributed")
    bands = (
        Band("below P50", 0.0, 318.0, 9_996),
        Band("P50 – P90", 318.0, 742.0, 7_997),
        Band("P90 – P99", 742.0, 2_312.0, 1_799),
        Band("above P99", 2_312.0, 4_105.0, 200),
    )
    shares = (
        (0.58, 0.33, 0.07, 0.02),
        (0.47, 0.41, 0.09, 0.03),
        (0.31, 0.52, 0.14, 0.03),
        (0.24, 0.58, 0.15, 0.03),
    )
    mean = (246.0, 468.0, 1190.0, 2730.0)
    cells = tuple(
        Cell(band.name, plane, around(share, 0.006 + 0.02 * share), share * mean[row])
        for row, band in enumerate(bands)
        for plane, share in zip(planes, shares[row], strict=True)
    )
    return Matrix(planes, bands, cells)


def _spectrum() -> HeatMap:
    x = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    y = (0, 16, 32, 64, 128, 256, 512, 1024)

    def counts(mx: float, my: float, total: float) -> tuple[tuple[float, ...], ...]:
        raw = [
            [math.exp(-((col - mx) ** 2) / 3.2 - ((row - my) ** 2) / 2.8) for row in range(len(y) - 1)]
            for col in range(len(x) - 1)
        ]
        scale = total / sum(map(sum, raw))
        return tuple(tuple(float(round(v * scale)) for v in line) for line in raw)

    return HeatMap(
        "prompt tokens",
        "output tokens",
        tuple(map(float, x)),
        tuple(map(float, y)),
        slow=counts(5.9, 3.4, 200),
        rest=counts(3.4, 3.1, 19_792),
    )


CHANGES = (
    Change(
        "policy.window.kind",
        "fixed",
        "none",
        "a continuous-batching engine already batches; the window only waits",
    ),
    Change(
        "engines.*.scheduler.enable_chunked_prefill",
        "false",
        "true",
        "a long prompt no longer blocks the step",
    ),
    Change("engines.*.scheduler.max_num_batched_tokens", "16384", "2048", "bounds one step to about 190 ms"),
    Change("engines.*.memory.gpu_memory_utilization", "72%", "92%", "4.1 times the KV blocks"),
    Change("engines.{e1,e3}.cpu_numa", "0", "1", "host buffers on the NUMA node of the engine's own GPUs"),
    Change("engines.*.lora.max_loras", "4", "8", "fewer adapter loads over a link that dips"),
    Change("gateway.workers", "1", "4", "one worker was busy 98 % of the burst"),
    Change("policy.route.kind", "round_robin", "least_tokens", "bursts no longer pile up on one engine"),
)


def _findings() -> tuple[Finding, ...]:
    return (
        Finding(
            id="head_of_line_prefill",
            claim="Long prompts run their whole prefill in one step, and every request behind them waits for it.",
            layer="framework",
            severity="alarm",
            effect_ms=around(688.0, 74.0),
            evidence=(
                Evidence("step duration P99", 1480.0, 190.0, "ms", "reference: a step of 2,048 tokens"),
                Evidence("requests behind a step > 1 s", 0.87, 0.04, "share", "slowest 1 % against the rest"),
            ),
            changes=CHANGES[1:3],
        ),
        Finding(
            id="kv_pressure",
            claim="The KV pool is too small for the bursts: requests are preempted and computed twice.",
            layer="framework",
            severity="alarm",
            effect_ms=around(402.0, 61.0),
            evidence=(
                Evidence("steps with denied blocks", 0.46, 0.4, "share", "threshold"),
                Evidence("preemptions", 1.9, 0.0, "per s"),
                Evidence("recomputed tokens", 0.21, None, "share of scheduled"),
            ),
            changes=CHANGES[3:4],
        ),
        Finding(
            id="gateway_saturated",
            claim="The single gateway worker has no idle time during bursts.",
            layer="infrastructure",
            severity="warning",
            effect_ms=around(171.0, 38.0),
            evidence=(Evidence("gateway CPU during bursts", 0.98, 0.75, "share", "threshold"),),
            changes=CHANGES[6:7],
        ),
        Finding(
            id="remote_numa",
            claim="Engines e1 and e3 copy from the other NUMA node's memory, at less than half the bandwidth.",
            layer="infrastructure",
            effect_ms=around(96.0, 21.0),
            evidence=(Evidence("host to device", 11.0, 24.0, "GB/s", "reference: same NUMA node"),),
            changes=CHANGES[4:5],
        ),
        Finding(
            id="fixed_window",
            claim="The batching window holds every request for up to 100 ms before an engine that batches by itself.",
            layer="framework",
            effect_ms=around(49.0, 4.0),
            evidence=(Evidence("mean wait in the window", 51.2, 0.0, "ms"),),
            changes=CHANGES[0:1],
        ),
        Finding(
            id="graph_miss",
            claim="Batches above the largest captured graph run eagerly.",
            layer="framework",
            severity="info",
            inconclusive="only 11 steps of 18,402 were larger than 256; too few to estimate an effect",
        ),
    )


def _ablation() -> tuple[Ablation, ...]:
    bad = 2312.0
    rows = [Ablation("none", "As it was", around(bad, 118.0))]
    fixes = (
        ("chunked_prefill", "Bound the prefill of a step", 604.0, 71.0, 512.0),
        ("kv_pool", "Give the KV pool the memory it needs", 398.0, 66.0, 243.0),
        ("gateway_workers", "Four gateway workers", 163.0, 41.0, 181.0),
        ("numa", "Pin engines to their GPUs' NUMA node", 88.0, 24.0, 61.0),
        ("least_tokens", "Route by tokens in flight", 71.0, 52.0, 94.0),
        ("no_window", "No batching window", 49.0, 5.0, 52.0),
    )
    rows += [
        Ablation(
            id_, name, around(bad - saved, 100.0), around(saved, spread), around(897.0 + lost, 80.0),
            around(lost, spread), "" if id_ != "least_tokens" else "helps only while one engine is behind",
        )
        for id_, name, saved, spread, lost in fixes
    ]  # fmt: skip
    rows.append(Ablation("all", "All six together", around(897.0, 44.0), around(1415.0, 109.0)))
    return tuple(rows)


def side(label: str, p99: float, spread: float, *, fixed: bool) -> Side:
    """One side of the comparison."""
    return Side(
        label=label,
        latency=LatencySummary(
            "ttft", 19_992, p99 * 0.18, p99 * 0.14, p99 * 0.47, around(p99, spread), p99 * 1.77
        ),
        others=(LatencySummary("e2e", 19_992, 5600.0, 4900.0, 9100.0, around(8100 + p99, 300.0), 21_400.0),),
        account=Account(20_000, 19_992, 0, 3, 5, 0) if not fixed else Account(20_000, 19_997, 0, 3, 0, 0),
        series=_series(fixed=fixed),
        fleet=fleet(fixed=fixed),
        config_digest="9f2c41d07be3" if not fixed else "41b7a90cc25d",
    )


def synthetic_report(**replaced: Any) -> Report:
    """The whole page; keyword arguments replace fields of it."""
    exact = {
        "kv_allocate": "derived",
        "launch": "sampled",
        "unattributed (kv_ready..inputs_copied)": "missing",
    }
    report = Report(
        kind="reproduce",
        title="The 2300-ms incident",
        headline="P99 time to first token fell from 2,312 ms to 897 ms: long prefills and a starved KV pool made the tail.",
        objective_metric="ttft",
        objective_ms=1200.0,
        seed=1,
        repetitions=10,
        before=side("before", 2312.0, 118.0, fixed=False),
        after=side("after", 897.0, 44.0, fixed=True),
        saved=next(row.saved for row in _ablation() if row.id == "all"),
        verified=True,
        stages=_stages(),
        waterfalls=(
            _waterfall("near P99 of TTFT", dict(SLOW), {"id": "r-01734", "engine": "e1", "adapter": "support-17", "prompt_tokens": "412", "preemptions": "1"}, exact),
            _waterfall("near the median of TTFT", dict(NORMAL), {"id": "r-00952", "engine": "e0", "adapter": "support-2", "prompt_tokens": "388"}, {}),
        ),
        matrix=_matrix(),
        spectrum=_spectrum(),
        findings=_findings(),
        ablation=_ablation(),
        changes=CHANGES,
        notes=(
            Note("Definition of P99", "Over all requests of all repetitions, from schedule: a request that could not be sent in time counts from when it should have been."),
            Note("Assumption", "Step times come from coefficients fitted to measured A100 runs; held-out error 4 % for prefill and 7 % for decode."),
            Note("Doubt", "The PCIe dip is injected as measured in one fleet; its length varies more in the field than here."),
        ),
        facts={"requests": 20_000, "virtual time": "600 s", "arrival CV": 12.8},
    )  # fmt: skip
    return msgspec.structs.replace(report, **replaced)


def why_report() -> Report:
    """What `why` knows: one side, no changed configuration, no ablation."""
    whole = synthetic_report()
    before = msgspec.structs.replace(whole.before, fleet=live_fleet(), label="last 15 min")
    return synthetic_report(
        kind="why",
        title="Last 15 minutes",
        headline="P99 time to first token was 2,312 ms against 1,200 ms: the engine queue holds most of it.",
        before=before,
        after=None,
        verified=None,
        ablation=(),
        changes=(),
        spectrum=None,
        repetitions=1,
        who=(
            Group("engine", "v0", 248, 930, 22, 3, 25, 1344.8, 111.2, {"model": "tiny"}),
            Group("tenant", "acme", 40, 930, 18, 0, 25, 1412.0, None),
        ),
    )


def empty_report() -> Report:
    """A run that saw nothing: every optional part absent, every figure zero."""
    nothing = LatencySummary("ttft", 0, 0.0, 0.0, 0.0, Interval(0.0, 0.0, 0.0), 0.0)
    return Report(
        kind="investigate",
        title="http://localhost:8000",
        headline="No request was answered.",
        objective_metric="ttft",
        objective_ms=1200.0,
        seed=0,
        repetitions=1,
        before=Side("measured", nothing, (), Account(0, 0, 0, 0, 0, 0), ()),
    )
