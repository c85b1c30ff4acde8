"""Rows and sightings for the tests of OTLP: small tables with the columns that matter, and the recorded run of a real vLLM."""

import gzip
import json
from pathlib import Path

import pytest

from sits.core.breakpoints import NAMES
from sits.telemetry.otlp.received import Received
from sits.telemetry.spans_json import Span
from sits.telemetry.tables import REQUESTS, SIGHTINGS, columns_of

WALL = 1_796_037_783 * 10**9
"""A wall-clock time; the monotonic clock of these rows began then."""

SHARED = Path(__file__).parents[2] / "shared" / "data" / "engines" / "vllm"
MS = 10**6


def request_id(n):
    return f"{(n + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}"


def row(n=0, points=None, **told):
    """One row of `requests`; `points`: ms by name, all measured."""
    at = {name: round(ms * MS) for name, ms in (points or {}).items()}
    first = at.get("api_recv", min(at.values(), default=0))
    made = {
        **{name: "" if kind == "VARCHAR" else 0 for name, kind in REQUESTS.items()},
        "run_id": "run-1",
        "id": request_id(n),
        "tenant": "t",
        "model": "llama",
        "engine": "a",
        "outcome": "completed",
        "status": 200,
        "prompt_tokens": 100,
        "output_tokens": 11,
        "abstraction_layer": "sits/0 /v1/chat/completions",
        "wall_ns": WALL + first,
        "trace_id": request_id(n),
        "exactness": "".join("3" if name in at else "0" for name in NAMES),
        **at,
        **told,
    }
    return tuple(made[name] for name in REQUESTS)


def requests(*rows):
    return columns_of(REQUESTS, rows)


def sighting(trace_id, at, source="vllm@1", scheme="vllm", parent_id="", how=None):
    """One row of `sightings`; `at`: Unix ns by name; `how`: digits by name, 3 where not told."""
    digits = "".join(str((how or {}).get(name, 3)) if name in at else "0" for name in NAMES)
    told = {"run_id": "", "trace_id": trace_id, "source": source, "scheme": scheme, "exactness": digits}
    made = {**dict.fromkeys(NAMES, 0), **told, "parent_id": parent_id, **at}
    return tuple(made[name] for name in SIGHTINGS)


def sightings(*rows):
    return columns_of(SIGHTINGS, rows)


def whole(at=0.0):
    """A row whose gateway points are all there, ms after `at`."""
    points = {"api_recv": 0, "parsed": 1, "authorized": 2, "routed": 3, "dispatched": 4}
    points |= {"first_token": 100, "last_token": 200, "sent": 201}
    return {name: at + ms for name, ms in points.items()}


def recorded_vllm():
    """Rows of a client that stood where our gateway stands, and the spans of the vLLM it asked; skips without the recording."""
    if not SHARED.is_dir():
        pytest.skip("the recording of vLLM's spans is not here")
    rows, start_s = [], 0.0
    with gzip.open(SHARED / "otel_client_requests.jsonl.gz", "rt") as lines:
        for line in lines:
            told = json.loads(line)
            if "run" in told:
                start_s = told["t0_unix"]
                continue
            if told["status"] != 200 or told["error"] or told.get("first") is None:
                continue
            t0 = round((start_s - 1_796_037_783) * 1e9)
            at = {
                "api_recv": told["sent"],
                "dispatched": told["sent"],
                "first_token": told["first"],
                "last_token": told["end"],
                "sent": told["end"],
            }
            ms = {name: (t0 + s * 1e9) / MS for name, s in at.items()}
            rows.append(
                (row(len(rows), ms, trace_id=told["trace"], prompt_tokens=told["prompt_tokens"]), told)
            )
    spans = []
    with gzip.open(SHARED / "otel_spans.jsonl.gz", "rt") as lines:
        for line in lines:
            told = json.loads(line)
            span = Span(
                told["trace_id"], told["span_id"], told["parent_span_id"] or "", told["name"],
                told["start_ns"], told["end_ns"], told["attributes"], 2, told["status"],
            )  # fmt: skip
            source = f"{told['resource']['service.name']}@{told['resource']['service.instance.id']}"
            spans.append(Received(span, told["resource"]["service.name"], source, told["scope"]))
    return rows, spans
