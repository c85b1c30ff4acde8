"""Single requests on a board: the slowest and those that went wrong, one of them stage by stage, what makes the tail, and the matrix.

Rules: a request's bars are those of `diagnose.decompose.waterfall`, so what nobody saw is named and nothing is dropped.  What reads rows
takes the newest `MATRIX_ROWS` where it needs whole rows, and says how many it had.  Where rows were thinned each counts by its weight.

Deliberately absent: figures of a window (`app.board.figures`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sits.app.board.grid import weights
from sits.app.board.window import MINUTE_NS, Look
from sits.app.report.stages import explain
from sits.core.breakpoints import BREAKPOINTS, INDEX
from sits.core.errors import CallerError, UnknownError
from sits.core.fleet import Fleet
from sits.core.units import MS, SECOND
from sits.diagnose.attribute import matrix as attribution
from sits.diagnose.decompose import waterfall
from sits.telemetry.store import DuckStore
from sits.world import stream_generator

LISTED = 12
MATRIX_ROWS = 20_000
DRAWS = 200
NEAR_NS = 2 * SECOND
ID_MIN, ID_MAX = 4, 128
LAYERS = {point.stage: point.layer for point in BREAKPOINTS[1:]}


def _bounds(look: Look, now_ns: int) -> dict[str, Any]:
    window = look.window(now_ns)
    return {"since_wall_ns": window.since_ns, "until_wall_ns": window.until_ns, **look.only.parameters()}


def listed(store: DuckStore, fleet: Fleet, look: Look, now_ns: int) -> dict[str, Any]:
    """The slowest requests of a window, and the newest that went wrong.

    Raises:
        StoreError: the store cannot be read.

    """
    bounds = _bounds(look, now_ns)
    slow = store.scan("board_slowest", metric=fleet.objective.metric, limit=LISTED, **bounds)
    failed = store.scan("board_failed", limit=LISTED, **bounds)
    return {"slowest": [_line(row) for row in slow], "failed": [_line(row) for row in failed]}


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    how = str(row["exactness"] or "").ljust(len(BREAKPOINTS), "0")

    def ms(end: str) -> float | None:
        seen = how[0] != "0" and how[INDEX[end]] != "0"
        return (row[end] - row["api_recv"]) / MS if seen else None

    named = (
        "id",
        "tenant",
        "model",
        "engine",
        "outcome",
        "status",
        "detail",
        "prompt_tokens",
        "output_tokens",
    )
    return {
        **{name: row[name] for name in named},
        "trace_id": row["trace_id"] or row["id"],
        "wall_ms": row["wall_ns"] // MS,
        "ttft_ms": ms("first_token"),
        "e2e_ms": ms("sent") if how[INDEX["sent"]] != "0" else ms("last_token"),
    }


def found(store: DuckStore, wanted: str, came_ns: int = 0) -> dict[str, Any]:
    """The newest request whose id or trace id begins so, bar by bar, and the other requests that do; `came_ns` is when it came, if that is
    known: then few files are looked at.

    Raises:
        CallerError: too short or too long; UnknownError: nobody has it; StoreError: the store cannot be read.

    """
    if not ID_MIN <= len(wanted) <= ID_MAX:
        raise CallerError(
            f"{wanted[:40]!r} is no id", field="id", hint=f"give {ID_MIN} characters of it or more"
        )
    rows = _rows(store, wanted, came_ns)
    ids = rows["id"].tolist()
    if not ids:
        raise UnknownError(
            f"no request or trace begins with {wanted!r}",
            field="id",
            value=wanted,
            hint="rows of single requests are written every 2 s, and kept as the fleet says (`telemetry`)",
        )
    fall = waterfall(rows, 0)
    row = {name: values[0] for name, values in rows.items()}
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}
    return {
        **_line(plain),
        "arm": plain["arm"],
        "adapter": plain["adapter"],
        "cached_tokens": plain["cached_tokens"],
        "preemptions": plain["preemptions"],
        "total_ms": fall.total_ms,
        "bars": [
            {
                "stage": bar.stage,
                "layer": LAYERS.get(bar.stage, "unattributed"),
                "start_ms": bar.start_ms,
                "ms": bar.duration_ms,
                "exactness": bar.exactness,
                "explain": explain(bar.stage),
            }
            for bar in fall.bars
        ],
        "first_token_ms": _line(plain)["ttft_ms"],
        "others": [
            {"id": other, "wall_ms": int(wall) // MS}
            for other, wall in zip(ids[1:], rows["wall_ns"][1:], strict=True)
        ],
    }


def _rows(store: DuckStore, wanted: str, came_ns: int) -> dict[str, np.ndarray]:
    """Rows of an id or trace, or of the newest that begins so."""
    near = {"since_wall_ns": came_ns - NEAR_NS, "until_wall_ns": came_ns + NEAR_NS} if came_ns else {}
    rows = store.columns("board_request", id=wanted, **near)
    if not len(rows["id"]):
        ids = store.scan("board_ids", prefix=wanted)
        if ids and (ids[0]["id"] != wanted or near):
            return _rows(store, ids[0]["id"], ids[0]["wall_ns"])
    return rows


def tail(store: DuckStore, fleet: Fleet, look: Look, now_ns: int) -> dict[str, Any]:
    """Mean time of each stage in the slowest 1 % of requests, and in all others.

    Raises:
        StoreError: the store cannot be read.

    """
    metric = fleet.objective.metric
    bounds = _bounds(look, now_ns)
    if (
        bounds.get("tenant") is None
    ):  # hours that are over have this ready, weights and all; tenants are in no index
        rows = store.scan(
            f"slow_{metric}_stages", **{name: bounds[name] for name in bounds if name != "tenant"}
        )
    else:
        thinned = any(one["thinned"] for one in store.scan("board_thinned", **bounds))
        rows = store.scan(f"board_tail_{metric}_weighted" if thinned else f"board_tail_{metric}", **bounds)
    stages = [
        {
            "stage": row["stage"],
            "layer": LAYERS.get(row["stage"], "unattributed"),
            "slow_ms": row["slow_mean_ms"],
            "rest_ms": row["rest_mean_ms"],
        }
        for row in rows
        if row["slow_mean_ms"] or row["rest_mean_ms"]
    ]
    n = (round(rows[0]["slow_n"]), round(rows[0]["rest_n"])) if rows else (0, 0)
    return {"metric": metric, "slow_n": n[0], "rest_n": n[1], "stages": stages}


def matrix(store: DuckStore, fleet: Fleet, look: Look, now_ns: int) -> dict[str, Any]:
    """Latency bands by planes, over the newest rows of the window.

    Raises:
        StoreError: the store cannot be read.

    """
    bounds = _bounds(look, now_ns)
    window_ns = bounds["since_wall_ns"]
    bounds["since_wall_ns"] = since_for(store, look, bounds, MATRIX_ROWS)
    rows = store.columns("board_matrix_requests", **bounds)
    end = INDEX["first_token"] if fleet.objective.metric == "ttft" else INDEX["sent"]
    timed = [
        i for i, how in enumerate(rows["exactness"].tolist()) if len(how) > end and how[0] != "0" != how[end]
    ]
    if not timed:
        return {"n": 0, "planes": [], "bands": []}
    rows = {name: values[timed] for name, values in rows.items()}
    began_ns, ended_ns = int(rows["api_recv"].min()), int(rows["sent"].max())
    steps = store.columns("steps_window", start_ns=began_ns, end_ns=ended_ns)
    weight = weights(rows)
    made = attribution(
        rows,
        steps,
        fleet.objective.metric,
        stream_generator(1, "board"),
        draws=DRAWS,
        weight=weight if (weight != 1.0).any() else None,
    )
    cells = {(cell.band, cell.plane): cell for cell in made.cells}
    return {
        "n": round(float(weight.sum())),
        "newest": bounds["since_wall_ns"] > window_ns,
        "planes": list(made.planes),
        "bands": [
            {
                "name": band.name,
                "low_ms": band.low_ms,
                "high_ms": band.high_ms,
                "n": band.n,
                "cells": [
                    None
                    if (cell := cells.get((band.name, plane))) is None
                    else {
                        "share": cell.share.value,
                        "low": cell.share.low,
                        "high": cell.share.high,
                        "ms": cell.mean_ms,
                    }
                    for plane in made.planes
                ],
            }
            for band in made.bands
        ],
    }


def since_for(store: DuckStore, look: Look, bounds: Mapping[str, Any], rows: int) -> int:
    """From when on the window has so many requests or a few more, by the counts of its minutes."""
    since_ns, until_ns = int(bounds["since_wall_ns"]), int(bounds["until_wall_ns"])
    of = {"model": look.only.model or None, "engine": look.only.engine or None, "step_ns": MINUTE_NS}
    counts = store.scan("board_outcomes", since_wall_ns=since_ns, until_wall_ns=until_ns, **of)
    n = 0
    for told in reversed(counts):
        n += told["n"]
        if n >= rows:
            return since_ns + int(told["step"]) * MINUTE_NS
    return since_ns
