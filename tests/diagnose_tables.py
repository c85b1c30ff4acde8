"""A toy service whose sizes are known: builds the three tables that diagnosis reads.

A gateway stamps each request, an engine runs back-to-back steps (whole prompts, one output token a step).  Every
knob adds an effect of known size; all knobs at rest make a quiet run.
"""

from dataclasses import dataclass, field

import numpy as np

from sits.core.breakpoints import NAMES, POINT_COUNT
from sits.core.fleet import EmulatedEngine, Fleet, Node, Policies, Window
from sits.core.units import Bytes

MS = 1_000_000


def dice(seed: int) -> np.random.Generator:
    """A generator of its own for a test."""
    return np.random.Generator(np.random.PCG64(seed))


@dataclass
class Knobs:
    """What may be turned; times in ms."""

    seed: int = 1
    n: int = 1000
    gap_ms: float = 40.0
    """Mean inter-arrival time (Poisson unless `arrivals_ms` is given)."""
    arrivals_ms: np.ndarray | None = None
    engines: int = 1
    choose: list[int] | None = None
    """Engine of request i; round robin when None."""
    prompt: tuple[int, int] = (100, 400)
    output: tuple[int, int] = (2, 12)
    window_ms: float = 0.0
    gateway_wait_ms: np.ndarray | None = None
    outward_wait_ms: np.ndarray | None = None
    """Wait of request i's first token for the gateway's CPU, after its step."""
    base_ms: float = 8.0
    prefill_us_per_token: float = 20.0
    decode_us_per_token: float = 50.0
    prepare_ms: float = 1.0
    link_gbytes_per_s: float = 24.0
    copy_mbytes: float = 4.0
    dip: tuple[float, float] = (0.0, 0.0)
    """Share of steps whose copies run slow, and the share of bandwidth that is lost then."""
    load_ms: np.ndarray | None = None
    """Adapter load of request i at its first step, ms."""
    long_prompts: dict[int, int] = field(default_factory=dict)
    """Request index -> prompt tokens."""
    seats: int = 10**6
    """Requests that run at a time on one engine."""
    closed_ms: tuple[tuple[float, float], ...] = ()
    """Spans in which no blocks are granted: nobody new is scheduled."""


def make(k: Knobs) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Tables `requests`, `steps`, `signals` of one run."""
    rng = dice(k.seed)
    arrival = (rng.exponential(k.gap_ms, k.n).cumsum() if k.arrivals_ms is None else k.arrivals_ms) * MS + MS
    at = np.zeros((k.n, POINT_COUNT), dtype=np.int64)
    at[:, 0] = arrival.astype(np.int64)
    wait = np.zeros(k.n) if k.gateway_wait_ms is None else k.gateway_wait_ms
    at[:, 1] = at[:, 0] + 20_000
    at[:, 2] = at[:, 1] + 20_000 + (wait * MS).astype(np.int64)
    at[:, 3] = at[:, 2] + 10_000
    window = (rng.uniform(0.9, 1.0, k.n) * k.window_ms * MS).astype(np.int64)
    at[:, 4] = at[:, 3] + 5_000 + window
    at[:, 5] = at[:, 4] + 100_000
    at[:, 6] = at[:, 5] + 300_000
    at[:, 7] = at[:, 6] + 10_000
    prompt = rng.integers(*k.prompt, k.n)
    for index, tokens in k.long_prompts.items():
        prompt[index] = tokens
    output = rng.integers(*k.output, k.n)
    engine = np.arange(k.n) % k.engines if k.choose is None else np.array(k.choose)
    steps: list[dict[str, object]] = []
    for e in range(k.engines):
        _engine(k, e, np.flatnonzero(engine == e), at, prompt, output, steps, rng)
    requests = {
        "run_id": np.array(["r"] * k.n, dtype=object),
        "id": np.array([f"q{i}" for i in range(k.n)], dtype=object),
        "tenant": np.array(["t"] * k.n, dtype=object),
        "model": np.array(["m"] * k.n, dtype=object),
        "adapter": np.array([f"a{i % 4}" for i in range(k.n)], dtype=object),
        "engine": np.array([f"e{e}" for e in engine], dtype=object),
        "arm": np.array(["stable"] * k.n, dtype=object),
        "outcome": np.array(["completed"] * k.n, dtype=object),
        "status": np.full(k.n, 200),
        "detail": np.array([""] * k.n, dtype=object),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "cached_tokens": np.zeros(k.n, dtype=np.int64),
        "preemptions": np.zeros(k.n, dtype=np.int64),
        "exactness": np.array(["3" * POINT_COUNT] * k.n, dtype=object),
        "wall_ns": at[:, 0],
        "prompt_hash": np.array([""] * k.n, dtype=object),
        "abstraction_layer": np.array([""] * k.n, dtype=object),
        "trace_id": np.array([f"r{i}" for i in range(k.n)], dtype=object),
        "parent_id": np.array([""] * k.n, dtype=object),
        "weight": np.ones(k.n),
    }
    outward = np.zeros(k.n) if k.outward_wait_ms is None else k.outward_wait_ms
    at[:, 17] += (outward * MS).astype(np.int64)
    at[:, 18] = np.maximum(at[:, 18], at[:, 17])
    at[:, 19] = np.maximum(at[:, 19], at[:, 18])
    requests |= {name: at[:, i].copy() for i, name in enumerate(NAMES)}
    names = steps[0].keys() if steps else ()
    table = {name: np.array([s[name] for s in steps]) for name in names}
    if table:
        table["engine"] = table["engine"].astype(object)
        table["run_id"] = np.array(["r"] * len(steps), dtype=object)
    return requests, table, signals_of(table, wait, at[:, 0], at[:, 17], outward)


def _engine(k, e, mine, at, prompt, output, steps, rng) -> None:
    mine = mine[np.argsort(at[mine, 7], kind="stable")]
    t, head = int(at[mine[0], 7]), 0
    running: dict[int, int] = {}
    while head < len(mine) or running:
        if not running and head < len(mine):
            t = max(t, int(at[mine[head], 7]))
        closed = any(a * MS <= t < b * MS for a, b in k.closed_ms)
        fresh = []
        while (
            not closed and head < len(mine) and at[mine[head], 7] <= t and len(running) + len(fresh) < k.seats
        ):
            fresh.append(int(mine[head]))
            head += 1
        waiting = int(np.sum(at[mine[head:], 7] <= t)) if head < len(mine) else 0
        tokens = int(sum(prompt[i] for i in fresh))
        slow = rng.random() < k.dip[0]
        nbytes = k.copy_mbytes * 1e6
        copy = nbytes / (k.link_gbytes_per_s * (1 - k.dip[1] * slow))
        loads = [i for i in fresh if k.load_ms is not None and k.load_ms[i] > 0]
        copy += sum(k.load_ms[i] * MS for i in loads)
        nbytes += sum(k.load_ms[i] * MS * k.link_gbytes_per_s for i in loads)
        prepare = copy + k.prepare_ms * MS
        kernel = k.base_ms * MS + 1e3 * (
            k.prefill_us_per_token * tokens + k.decode_us_per_token * len(running)
        )
        duration = int(prepare + kernel)
        for i in fresh:
            at[i, 8] = t
            at[i, 9:16] = t + (prepare * np.array([0.02, 0.1, 0.2, 0.9, 0.92, 0.97, 0.99])).astype(np.int64)
            at[i, 16] = t + int(prepare)
            at[i, 17] = t + duration + 50_000
        for i in list(running):
            running[i] -= 1
            if running[i] <= 0:
                del running[i]
                at[i, 18] = t + duration + 50_000
                at[i, 19] = at[i, 18] + 20_000
        steps.append(
            {
                "engine": f"e{e}", "t_ns": t, "duration_ns": duration, "running": len(running) + len(fresh),
                "waiting": waiting, "prefill_tokens": tokens, "decode_tokens": len(running), "kv_used": 300 + 600 * closed,
                "kv_total": 1000, "preempted": 0, "denied": int(closed and waiting > 0), "recomputed_tokens": 0,
                "copy_bytes": int(nbytes), "copy_ns": int(copy), "adapter_loads": len(loads), "eager": 0,
                "prepare_ns": int(prepare),
            }
        )  # fmt: skip
        for i in fresh:
            running[i] = int(output[i]) - 1
            if running[i] <= 0:
                del running[i]
                at[i, 18] = at[i, 17]
                at[i, 19] = at[i, 18] + 20_000
        t += duration


def signals_of(steps, wait_ms, arrival, first, outward_ms) -> dict[str, np.ndarray]:
    """Link bandwidth and KV use at each step; gateway share and backlog at each arrival and around each outward wait."""
    rows: list[tuple[int, str, str, float]] = []
    for t, e, nbytes, ns, used, total, waiting in zip(
        *(steps[c] for c in ("t_ns", "engine", "copy_bytes", "copy_ns", "kv_used", "kv_total", "waiting")),
        strict=True,
    ):
        rows += [
            (t, e, "link_bandwidth_gbytes_per_s", nbytes / ns if ns else 0.0),
            (t, e, "kv_usage", used / total),
            (t, e, "requests_waiting", float(waiting)),
        ]
    late = np.flatnonzero(outward_ms > 0)
    begun, ended = first[late] - (outward_ms[late] * MS).astype(np.int64), first[late]
    for t, wait in (
        *zip(arrival, wait_ms, strict=True),
        *zip(begun, np.zeros(len(late)), strict=True),
        *zip(ended, np.zeros(len(late)), strict=True),
    ):
        left = max(wait, float(((ended - t) * ((begun <= t) & (t <= ended))).max(initial=0)) / MS)
        busy = bool(((begun <= t) & (t <= ended)).any())
        rows += [
            (t, "gateway", "gateway_cpu_share", 1.0 if busy else min(1.0, 0.2 + wait / 20)),
            (t, "gateway", "gateway_backlog_ms", left),
        ]
    rows.sort()
    return {
        "run_id": np.array(["r"] * len(rows), dtype=object),
        "t_ns": np.array([r[0] for r in rows], dtype=np.int64),
        "source": np.array([r[1] for r in rows], dtype=object),
        "name": np.array([r[2] for r in rows], dtype=object),
        "value": np.array([r[3] for r in rows], dtype=np.float64),
    }


def fleet_of(engines: int = 1, *, cpu_numa: int = 0, window: str = "none") -> Fleet:
    """Where the toy service runs: one node, every GPU on NUMA node 0, 24 GB/s local and 11 GB/s remote."""
    node = Node(name="n", gpu="A100", gpus=engines, gpu_numa=(0,) * engines, gpu_memory=Bytes(80 * 2**30))
    return Fleet(
        name="toy",
        policy=Policies(window=Window(kind=window)),
        nodes=(node,),
        engines=tuple(
            EmulatedEngine(name=f"e{i}", node="n", gpus=(i,), model="m", cpu_numa=cpu_numa)
            for i in range(engines)
        ),
    )
