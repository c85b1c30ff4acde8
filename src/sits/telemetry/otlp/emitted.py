"""From rows of table `requests` to spans: what the gateway tells others of a request.

```
SERVER  POST /v1/chat/completions        llm.request      id[:16], child of the caller's span
  INTERNAL route
  CLIENT  chat <model>                    its id is id[16:], what the engine was given in `traceparent`
    INTERNAL tokenize, queue, prefill, decode             where both ends were seen
  INTERNAL respond                        llm.response
```
`id` is the request's, 32 hex digits: both ids follow from it, so the engine's span is a child of ours whoever sends first, and a row sent twice
makes the same spans again.  A request that was never sent to an engine is one span.

Rules: names follow the conventions (`core.otel_names`).  The request's own span has everything the row says, all breakpoints too, so that one span
is one row where spans are kept (`telemetry.clickhouse`); the spans below it show the same in the words of the conventions and repeat no breakpoint.
Counts of tokens are `gen_ai.usage.*` on our call to the engine alone, for tools add those up over spans; the request's are `sits.prompt_tokens` and so on.
Times are wall clock: the request's span begins at the row's `wall_ns`, that of its first point, and the others lie as far from it as the
monotonic clock says.  What our call to the engine failed with is an
error of its span; a request the caller has to mend is no error of ours.

Deliberately absent: the hash of the prompt (it tells equal prompts); bytes and connections; who the engine's maker is (`providers` says).
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from sits.core import otel_names as names
from sits.core.breakpoints import (
    API_RECV,
    DISPATCHED,
    FIRST_TOKEN,
    LAST_TOKEN,
    NAMES,
    POINT_COUNT,
    SENT,
)
from sits.telemetry.spans_json import CLIENT, ERROR, INTERNAL, SERVER, UNSET, Span
from sits.telemetry.tables import Columns

_ID, _HEX = re.compile("[0-9a-f]{32}"), set("0123456789abcdef")
DEFAULT_ROUTE = "/v1/chat/completions"


class Row:
    """One row of `requests`, with its seen points in wall-clock ns."""

    __slots__ = ("at", "how", "told")

    def __init__(self, told: Mapping[str, Any], at: list[int], how: list[int]) -> None:
        self.told, self.at, self.how = told, at, how

    def has(self, *points: int) -> bool:
        """Whether all of them were seen."""
        return all(self.how[point] for point in points)

    def points(self) -> dict[str, int | str]:
        """Attributes that tell the points that were seen."""
        seen = [point for point in range(POINT_COUNT) if self.how[point]]
        return names.point_attributes({p: self.at[p] for p in seen}, {p: self.how[p] for p in seen})

    @property
    def route(self) -> str:
        """The endpoint that was asked for, as the row tells it."""
        return self.told["abstraction_layer"].partition(" ")[2] or DEFAULT_ROUTE

    @property
    def operation(self) -> str:
        """What the convention calls what it does."""
        return names.OPERATIONS.get(self.route, "chat")


def rows_of(requests: Columns) -> list[Row]:
    """The rows that have an id and a time; wall-clock ns of their points (0: not seen)."""
    n = len(requests["id"])
    if not n:
        return []
    at = np.stack([requests[name] for name in NAMES], axis=1)
    how = np.frombuffer("".join(requests["exactness"]).encode(), dtype=np.uint8).reshape(n, POINT_COUNT) - 48
    earliest = np.where(how > 0, at, np.iinfo(np.int64).max).min(axis=1)
    start = np.where(how[:, API_RECV] > 0, at[:, API_RECV], earliest)
    wall = np.where(how > 0, at + (requests["wall_ns"] - start)[:, None], 0).tolist()
    columns = {name: values.tolist() for name, values in requests.items() if name not in NAMES}
    made = [
        Row({name: values[i] for name, values in columns.items()}, wall[i], seen)
        for i, seen in enumerate(how.tolist())
    ]
    return [row for row in made if _can_be_told(row)]


def _can_be_told(row: Row) -> bool:
    """Whether OTLP has a form for its ids and times; a row for which it has none must not cost the others."""
    told = row.told
    seen = [at for at, how in zip(row.at, row.how, strict=True) if how]
    ids = _ID.fullmatch(told["id"]) and (not told["trace_id"] or _ID.fullmatch(told["trace_id"]))
    return bool(ids and seen) and min(told["wall_ns"], *seen) > 0 and not set(told["parent_id"]) - _HEX


def spans_of(
    requests: Columns, convention: names.Convention, providers: Mapping[str, str]
) -> dict[str, list[Span]]:
    """The spans of all rows, by run: a run is a resource of its own.  `providers` says who made what answers, by engine."""
    runs: dict[str, list[Span]] = defaultdict(list)
    for row in rows_of(requests):
        runs[row.told["run_id"]] += request_spans(row, convention, providers)
    return runs


def request_spans(row: Row, _: names.Convention, providers: Mapping[str, str]) -> list[Span]:
    """The spans of one request, its own first."""
    told, request_id = row.told, row.told["id"]
    trace_id = told["trace_id"] or request_id
    server_id, call_id = server_span_id(request_id), request_id[16:]
    start = told["wall_ns"]
    end = max(start, *row.at)
    server = Span(
        trace_id,
        server_id,
        told["parent_id"],
        f"POST {row.route}",
        start,
        end,
        _server_attributes(row),
        SERVER,
        ERROR if told["status"] >= 500 else UNSET,
        told["detail"] if told["status"] >= 500 else "",
    )
    if not row.has(DISPATCHED):
        return [server, *_stages(row, trace_id, server_id, "")]
    last = next((row.at[p] for p in (LAST_TOKEN, FIRST_TOKEN, SENT) if row.how[p]), end)
    failed = told["outcome"] == "failed"
    call = Span(
        trace_id,
        call_id,
        server_id,
        f"{row.operation} {told['model']}".rstrip(),
        row.at[DISPATCHED],
        max(last, row.at[DISPATCHED]),
        _call_attributes(row, providers),
        CLIENT,
        ERROR if failed else UNSET,
        told["detail"] if failed else "",
    )
    return [server, call, *_stages(row, trace_id, server_id, call_id)]


def server_span_id(request_id: str) -> str:
    """The id of the request's own span; never that of its call, and never the one that is no id.

    >>> server_span_id("4bf92f3577b34da6a3ce929d0e0e4736")
    '4bf92f3577b34da6'
    """
    first = request_id[:16]
    if first not in (request_id[16:], "0" * 16):
        return first
    return blake2b(request_id.encode(), digest_size=8).hexdigest()


def _stages(row: Row, trace_id: str, server_id: str, call_id: str) -> list[Span]:
    spans = []
    for stage in names.STAGES:
        parent = call_id if stage.below_call else server_id
        if not parent or not row.has(stage.start, stage.end):
            continue
        own = blake2b(f"{row.told['id']} {stage.name}".encode(), digest_size=8).hexdigest()
        start, end = row.at[stage.start], row.at[stage.end]
        if end >= start:
            about = _stage_attributes(stage.stage, row)
            spans.append(Span(trace_id, own, parent, stage.name, start, end, about, INTERNAL))
    return spans


def _server_attributes(row: Row) -> dict[str, Any]:
    told = row.told
    made: dict[str, Any] = {
        names.STAGE: names.REQUEST_STAGE,
        names.HTTP_METHOD: "POST",
        names.HTTP_ROUTE: row.route,
        names.HTTP_STATUS: told["status"] or None,
        names.OPERATION: row.operation,
        names.REQUEST_MODEL: told["model"] or None,
        names.LLM_MODEL: told["model"] or None,
        names.REQUEST_ID: told["id"],
        names.OUTCOME: told["outcome"],
        names.DETAIL: told["detail"] or None,
        names.TENANT: told["tenant"] or None,
        names.ENGINE: told["engine"] or None,
        names.ARM: told["arm"] or None,
        names.ADAPTER: told["adapter"] or None,
        names.RUN: told["run_id"] or None,
        names.BUILD: told["abstraction_layer"] or None,
        names.PROMPT_TOKENS: told["prompt_tokens"] or None,
        names.TOKENS_OUT: told["output_tokens"] or None,
        names.TOKENS_CACHED: told["cached_tokens"] or None,
        names.PREEMPTIONS: told["preemptions"] or None,
        names.WEIGHT: told["weight"] if told["weight"] > 1 else None,
        names.TTFT: (row.at[FIRST_TOKEN] - row.at[API_RECV]) / 1e9
        if row.has(API_RECV, FIRST_TOKEN)
        else None,
    }
    if told["status"] >= 500:
        made[names.ERROR_TYPE] = told["detail"] or str(told["status"])
    return made | row.points()


def _call_attributes(row: Row, providers: Mapping[str, str]) -> dict[str, Any]:
    told = row.told
    streamed = row.has(FIRST_TOKEN)
    made: dict[str, Any] = {
        names.OPERATION: row.operation,
        names.PROVIDER: providers.get(told["engine"], "openai"),
        names.REQUEST_MODEL: told["model"] or None,
        names.REQUEST_STREAM: True if streamed else None,
        names.INPUT_TOKENS: told["prompt_tokens"],
        names.OUTPUT_TOKENS: told["output_tokens"],
        names.CACHE_READ: told["cached_tokens"] or None,
        names.FIRST_CHUNK: (row.at[FIRST_TOKEN] - row.at[DISPATCHED]) / 1e9 if streamed else None,
        names.ENGINE: told["engine"] or None,
        names.ADAPTER: told["adapter"] or None,
        names.PREEMPTIONS: told["preemptions"] or None,
    }
    if told["outcome"] == "failed":
        made[names.ERROR_TYPE] = told["detail"] or str(told["status"])
    return made


def _stage_attributes(stage: str, row: Row) -> dict[str, Any]:
    told, made = row.told, {names.STAGE: stage}
    if stage in ("llm.tokenization", "llm.inference"):
        made |= {names.LLM_MODEL: told["model"], names.LLM_INPUT_TOKENS: told["prompt_tokens"]}
    elif stage == "llm.decoding":
        made |= {names.LLM_MODEL: told["model"], names.LLM_GENERATED_TOKENS: told["output_tokens"]}
    return made
