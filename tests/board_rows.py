"""Rows for boards: requests at chosen moments with chosen times, and the figures of their minutes as a keeper makes them."""

import numpy as np

from sits.core.breakpoints import NAMES
from sits.telemetry.histograms import BUCKETS, buckets_of, packed
from sits.telemetry.stage_queries import SPANS
from sits.telemetry.tables import MINUTES, OUTCOMES_MINUTES, REQUESTS, columns_of

MINUTE_NS = 60 * 10**9
STAGES_MS = (
    0.05,
    0.03,
    0.06,
    1.2,
    0.4,
    2.1,
    0.2,
    60.0,
    0.3,
    8.0,
    1.1,
    0.8,
    0.1,
    0.4,
    0.2,
    0.3,
    240.0,
    2400.0,
    0.1,
)
HOW = "3" * 9 + "1" * 8 + "3" * 3


def row(
    i, wall_ns, *, queue_ms=60.0, outcome="completed", status=200, tenant="acme", engine="a0", how=HOW, **more
):
    """One request that came at `wall_ns`, as a dictionary of `REQUESTS`."""
    stages = [queue_ms if k == 7 else ms for k, ms in enumerate(STAGES_MS)]
    at = [10**12 + int(sum(stages[:k]) * 1e6) for k in range(len(NAMES))]
    at = [ns if digit != "0" else 0 for ns, digit in zip(at, how, strict=True)]
    plain = {name: "" if kind == "VARCHAR" else 0 for name, kind in REQUESTS.items()}
    return plain | {
        "run_id": "r", "id": f"req-{i:06d}", "trace_id": f"{i:032x}", "tenant": tenant, "model": "llama-3-8b", "engine": engine,
        "arm": "stable", "outcome": outcome, "status": status, "wall_ns": wall_ns, "exactness": how, "output_tokens": 10,
        "prompt_tokens": 50, "weight": 1.0, **dict(zip(NAMES, at, strict=True)), **more,
    }  # fmt: skip


def requests(rows):
    """As columns."""
    return columns_of(REQUESTS, [tuple(one[name] for name in REQUESTS) for one in rows])


def minutes(rows):
    """The figures of the minutes in which the rows were over."""
    cells, outcomes = {}, {}
    for one in rows:
        minute = _over(one) // MINUTE_NS * MINUTE_NS
        key = (minute, one["model"], one["engine"], one["arm"])
        counts = outcomes.setdefault((*key, one["outcome"], one["status"]), [0, 0, 0, 0])
        for k, n in enumerate((1, one["prompt_tokens"], one["output_tokens"], 0)):
            counts[k] += n
        if one["outcome"] == "completed":
            for stage, start, end in SPANS:
                if one["exactness"][start] != "0" and one["exactness"][end] != "0":
                    cells.setdefault((*key, stage), []).append(one[NAMES[end]] - one[NAMES[start]])
    told = []
    for key, took in cells.items():
        counts = np.bincount(buckets_of(np.array(took)), minlength=BUCKETS)
        there = np.flatnonzero(counts)
        told.append((*key, len(took), float(sum(took)), packed(there, counts[there])))
    return columns_of(MINUTES, told), columns_of(
        OUTCOMES_MINUTES, [(*key, *n) for key, n in outcomes.items()]
    )


def _over(one):
    return one["wall_ns"] + max(one[name] for name in NAMES) - one["api_recv"]


def stored(store, rows, *, closed_before=None):
    """Put rows into a store, and the figures of those that were over before a moment (of all, when none is given)."""
    store.append("requests", requests(rows))
    some = rows if closed_before is None else [one for one in rows if _over(one) < closed_before]
    if some:
        for table, columns in zip(("minutes", "outcomes_minutes"), minutes(some), strict=True):
            store.append(table, columns)
    store.flush()
