"""Which plane of the system the time belongs to: latency bands x {model, framework, infrastructure,
unattributed}.

Rules.  A stage belongs to the plane `STAGE_PLANE` says, except where the engine's steps, joined by engine and
time window, know better:

- *Gateway* (`parse`, `authorize`, `route`, `send`): infrastructure.  Its own cost is microseconds; what is
  long is waiting for a CPU.
- `admit_window`: framework (a batching stall).  `tokenize`, `enqueue`: framework (tokenizer and front end).
- `to_engine`: infrastructure (network).  `kv_restore`, `input_copy`: infrastructure (the host link).
- The rest of the preparation chain, `collective_sync` among it: framework.
- `engine_queue`: framework (scheduler), except the time in which the engine's steps were *copying*
  (infrastructure) or *recomputing* what preemption threw away (framework, shown apart).
- `prefill`: *own compute* (model) = what this prompt would take alone, `steps needed * base + uncached tokens
  * prefill_ns` of the fitted step cost, at most the kernel time there was; *recompute* and *host preparation*
  (framework); *copies* (infrastructure); *delivery* = from the end of the step that finished the prompt
  (`StepTime.prompt_end`) to `first_token` (infrastructure: engine output, network, gateway CPU); the rest of the kernel time was spent on *other
  requests* in the same steps (framework: batching, head of line).
- `decode`: kernel time is model, except the part that other requests' *prompts* (framework) and recompute
  took; copies and preparation as above.
- Time in `prefill` or `decode` in which no step ran, and stages whose inner points were not seen, are
  unattributed.  A merged stage from `scheduled` or later to `first_token` is split like `prefill` where steps
  are known.

Without steps of its engine a stage keeps its plane whole.  For each request the parts add up to its latency
exactly (integer ns).  Band bounds are those of this run and held fixed while resampling.

Deliberately absent: indirect effects (a copy that delays a step that delays a queue behind it is charged
where the time was spent).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, SCHEDULED
from sits.core.report import Band, Cell, Matrix
from sits.diagnose.columns import Columns, Floats, Ints
from sits.diagnose.decompose import NS_PER_MS, UNATTRIBUTED, Cut, decompose
from sits.diagnose.resample import DRAWS, Blocks, interval, quantile
from sits.diagnose.steps import StepTime, by_engine

MODEL, FRAMEWORK, INFRASTRUCTURE = "model", "framework", "infrastructure"
PLANES = (MODEL, FRAMEWORK, INFRASTRUCTURE, UNATTRIBUTED)

STAGE_PLANE: dict[str, str] = {
    "parse": INFRASTRUCTURE,
    "authorize": INFRASTRUCTURE,
    "route": INFRASTRUCTURE,
    "admit_window": FRAMEWORK,
    "to_engine": INFRASTRUCTURE,
    "tokenize": FRAMEWORK,
    "enqueue": FRAMEWORK,
    "engine_queue": FRAMEWORK,
    "kv_allocate": FRAMEWORK,
    "kv_restore": INFRASTRUCTURE,
    "batch_build": FRAMEWORK,
    "input_copy": INFRASTRUCTURE,
    "graph_choose": FRAMEWORK,
    "attention_prep": FRAMEWORK,
    "collective_sync": FRAMEWORK,
    "launch": FRAMEWORK,
    "prefill": MODEL,
    "decode": MODEL,
    "send": INFRASTRUCTURE,
}

COPIES = ("copies", INFRASTRUCTURE)
RECOMPUTE = ("recompute", FRAMEWORK)
HOST = ("host preparation", FRAMEWORK)
DELIVERY = ("delivery", INFRASTRUCTURE)
OWN = ("own compute", MODEL)
COMPUTE = ("compute", MODEL)
OTHERS = ("other requests", FRAMEWORK)
PROMPTS = ("other prompts", FRAMEWORK)
SCHEDULER = ("scheduler", FRAMEWORK)
NO_STEP = ("no step running", UNATTRIBUTED)

Part = tuple[str, str]


class Parts(NamedTuple):
    """Latency split finer than stages: `part_ns` (m, k) int64 adds up to the totals of `cut` row by row.

    `lines` are the steps of each engine by name, empty when none were recorded.
    """

    cut: Cut
    names: tuple[str, ...]
    planes: tuple[str, ...]
    part_ns: Ints
    lines: dict[str, StepTime]

    def part(self, name: str) -> Ints:
        """(m,) ns of part `name`, like `prefill: delivery`; zeros when there is none."""
        if name not in self.names:
            return np.zeros(len(self.cut.rows), dtype=np.int64)
        return self.part_ns[:, self.names.index(name)]


def split(requests: Columns, steps: Columns, metric: str = "ttft") -> Parts:
    """Split every completed request's latency into parts, each on one plane.

    Raises:
        CallerError: a needed column is missing or malformed.

    """
    cut = decompose(requests, metric)
    lines = by_engine(steps)
    engine = requests["engine"][cut.rows].astype(str)
    fresh = (requests["prompt_tokens"] - requests["cached_tokens"])[cut.rows].astype(np.float64)
    if "preemptions" in requests:
        # Who was preempted computed some tokens twice, nobody knows how many: its last prompt step counts.
        fresh[requests["preemptions"][cut.rows] > 0] = np.inf
    names: list[str] = []
    planes: list[str] = []
    columns: list[Ints] = []
    for j, (stage, (start, end)) in enumerate(zip(cut.names, cut.pairs, strict=True)):
        whole = cut.stage_ns[:, j]
        found, rest = _evidence(start, end, cut, engine, lines, np.maximum(fresh, 0.0), whole)
        left = whole.copy()
        for (label, plane), ns in found.items():
            taken = np.minimum(left, np.rint(ns).astype(np.int64))
            left -= taken
            names.append(f"{stage}: {label}")
            planes.append(plane)
            columns.append(taken)
        known = np.isin(engine, list(lines)) if found else np.zeros(len(engine), dtype=bool)
        for label, plane, rows in (
            (f"{stage}: {rest[0]}", rest[1], known),
            (stage, STAGE_PLANE.get(stage, UNATTRIBUTED), ~known),
        ):
            if rows.any():
                names.append(label)
                planes.append(plane)
                columns.append(np.where(rows, left, 0))
    return Parts(
        cut, tuple(names), tuple(planes), np.column_stack(columns) if columns else cut.stage_ns, lines
    )


def _evidence(
    start: int, end: int, cut: Cut, engine: np.ndarray, lines: dict[str, StepTime], fresh: Floats, whole: Ints
) -> tuple[dict[Part, Floats], Part]:
    """What the steps say about the stage from point `start` to `end`, and what its rest is called."""
    rule: Callable[[StepTime, Ints, Ints, Floats], dict[Part, Floats]]
    if end == SCHEDULED:
        rule, rest = _queue, SCHEDULER
    elif end == FIRST_TOKEN and start >= SCHEDULED:
        rule, rest = _prefill, NO_STEP
    elif start == FIRST_TOKEN:
        rule, rest = _decode, NO_STEP
    else:
        return {}, SCHEDULER
    found: dict[Part, Floats] = {}
    for name, line in lines.items():
        mine = np.flatnonzero((engine == name) & (whole > 0))
        for part, ns in rule(line, cut.at[mine, start], cut.at[mine, end], fresh[mine]).items():
            found.setdefault(part, np.zeros(len(whole)))[mine] = ns
    return found, rest


def _queue(line: StepTime, a: Ints, b: Ints, _: Floats) -> dict[Part, Floats]:
    again = line.kernel_share(line.column("recomputed_tokens"))
    return {COPIES: line.between(a, b, copy=1.0), RECOMPUTE: line.between(a, b, kernel=again)}


def _prefill(line: StepTime, a: Ints, b: Ints, fresh: Floats) -> dict[Part, Floats]:
    end = np.maximum(line.prompt_end(a, b, fresh), a)
    end = np.where(end > a, end, b)
    kernel = line.between(a, end, kernel=1.0)
    recompute = line.between(a, end, kernel=line.kernel_share(line.column("recomputed_tokens")))
    largest = max(1.0, float(line.prefill_tokens.max()))
    alone = np.maximum(1.0, np.ceil(fresh / largest)) * line.cost.base_ns + fresh * line.cost.prefill_ns
    own = np.minimum(np.where(np.isfinite(alone), alone, 0.0), kernel - recompute)
    return {
        DELIVERY: (b - end).astype(np.float64),
        COPIES: line.between(a, end, copy=1.0),
        RECOMPUTE: recompute,
        HOST: line.between(a, end, prepare=1.0),
        OWN: own,
        OTHERS: kernel - recompute - own,
    }


def _decode(line: StepTime, a: Ints, b: Ints, _: Floats) -> dict[Part, Floats]:
    again = line.kernel_share(line.column("recomputed_tokens"))
    prompts = np.minimum(line.kernel_share(line.prefill_tokens), 1.0 - again)
    return {
        COPIES: line.between(a, b, copy=1.0),
        RECOMPUTE: line.between(a, b, kernel=again),
        HOST: line.between(a, b, prepare=1.0),
        PROMPTS: line.between(a, b, kernel=prompts),
        COMPUTE: line.between(a, b, kernel=1.0 - again - prompts),
    }


def matrix(
    requests: Columns,
    steps: Columns,
    metric: str,
    rng: np.random.Generator,
    *,
    draws: int = DRAWS,
    weight: Floats | None = None,
) -> Matrix:
    """The attribution matrix of one run; a band without requests has no cells.

    `weight` (rows of `requests`,) says how many requests each row stands for, one each if not given: bands are then weighted quantiles,
    their `n` the sum of weights.

    Raises:
        CallerError: a needed column is missing or malformed, or no request completed.

    """
    parts = split(requests, steps, metric)
    total = parts.cut.total_ns
    of_plane = np.array([PLANES.index(plane) for plane in parts.planes], dtype=np.int64)
    by_plane = np.column_stack([parts.part_ns[:, of_plane == p].sum(axis=1) for p in range(len(PLANES))])
    blocks = Blocks(parts.cut.at[:, API_RECV], rng, draws, length=1, run=parts.cut.run)
    bands, cells = [], []
    stands = None if weight is None else weight[parts.cut.rows]
    for name, low, high, members in _bands(total, stands):
        part = members if stands is None else members * stands
        n = round(float(part.sum()))
        bands.append(Band(name, low / NS_PER_MS, high / NS_PER_MS, n))
        inside = by_plane * part[:, None]
        whole = float((total * part).sum())
        if whole <= 0:
            continue
        drawn = blocks.sums(inside)
        drawn_whole = drawn.sum(axis=1)
        kept = drawn_whole > 0
        for p, plane in enumerate(PLANES):
            share = interval(float(inside[:, p].sum()) / whole, drawn[kept, p] / drawn_whole[kept])
            cells.append(Cell(name, plane, share, float(inside[:, p].sum()) / NS_PER_MS / float(part.sum())))
    return Matrix(PLANES, tuple(bands), tuple(cells))


def _bands(total: Ints, weight: Floats | None) -> list[tuple[str, float, float, np.ndarray]]:
    ranked = np.sort(total)
    if weight is None:
        p50, p90, p99 = (quantile(ranked, q) for q in (0.5, 0.9, 0.99))
    else:
        upto = np.cumsum(weight[np.argsort(total, kind="stable")])
        p50, p90, p99 = (float(ranked[np.searchsorted(upto, q * upto[-1])]) for q in (0.5, 0.9, 0.99))
    return [
        ("<= P50", float(ranked[0]), p50, (total <= p50) & (total < p99)),
        ("P50..P90", p50, p90, (total > p50) & (total <= p90) & (total < p99)),
        ("P90..P99", p90, p99, (total > p90) & (total < p99)),
        (">= P99", p99, float(ranked[-1]), total >= p99),
    ]
