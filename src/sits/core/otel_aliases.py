"""How other programs' spans tell our breakpoints: one table, a rule for each span that says something about a request.

A rule names a span and, for each point it tells, which edge of the span and which of its attributes make up the time:
`edge + sum(sign * attribute * unit)`.  What a program stamped at that moment is measured; what is computed from its durations, or what
is only next to the moment that we mean, is derived.

| program | span | what it tells |
|---|---|---|
| vLLM 0.32 | `llm_request` | its start is `engine_recv`; its durations tell `scheduled = start + ttft - prefill` and `queued = scheduled - queue` |
| SGLang 0.5 | `[role] Req <id>`, `tokenize`, `request_process`, `prefill_waiting`, `prefill_forward`, `decode_forward`, `decode_loop`, ... | a boundary each |
| Dynamo 1 | `http-request`, `kv_router.*`, `handle_payload`, `engine.generate` | front end, hashed (so tokenised), at the worker, first token |
| llm-d | `gateway.request_orchestration`, `llm_d.epp.*` | its end: before that the engine cannot have had it; the rest is vLLM's |

Two things called time to first token are not the same: `gen_ai.latency.time_to_first_token` begins when the engine's front end has the
request, `time_to_first_token_ms` in vLLM's answers when it is scheduled, which is prefill alone.  `LATENCIES` says where each begins.
And queue + prefill is not all of it: what lies before `queued` (the front end, the way to the engine's core and its loop being
busy) belongs to no duration of the engine, and stays between `engine_recv` and `queued`.

Source: spans of vLLM 0.32 recorded by us; SGLang 0.5.23, its tracing; Dynamo and llm-d, their documents and source.

Deliberately absent: token steps (they are many a request), and where KV is handed from a prefilling to a decoding engine: our row has its
place before the first step only.
"""

from typing import Literal

import msgspec

from sits.core.breakpoints import (
    ENGINE_RECV,
    FIRST_TOKEN,
    LAST_TOKEN,
    QUEUED,
    SCHEDULED,
    TOKENIZED,
    Exactness,
)

Edge = Literal["start", "end"]
SITS = "sits"
"""The scheme of our own attributes, `sits.bp.<name>`."""

_MEASURED, _DERIVED = int(Exactness.MEASURED), int(Exactness.DERIVED)
_S, _MS = 1e9, 1e6


class Term(msgspec.Struct, frozen=True):
    """One duration of a span, added or taken away: the attribute, and nanoseconds for each of its units with their sign."""

    attribute: str
    ns: float


class Told(msgspec.Struct, frozen=True):
    """One point that a span tells; `last`: of several such spans of a request the last tells it, not the first."""

    point: int
    edge: Edge
    how: int
    terms: tuple[Term, ...] = ()
    last: bool = False


class Alias(msgspec.Struct, frozen=True):
    """What a span of program `scheme` tells.

    `name` is the whole name, or with `*` at one end the rest of it.  `common`: others have spans of that name too, so it is taken for the
    program's only beside one that is not common, or when its scope or service says so.
    """

    scheme: str
    name: str
    tells: tuple[Told, ...]
    common: bool = False


def _at(point: int, edge: Edge, how: int = _MEASURED, *terms: Term, last: bool = False) -> Told:
    return Told(point, edge, how, terms, last)


_TTFT = Term("gen_ai.latency.time_to_first_token", _S)
_PREFILL = Term("gen_ai.latency.time_in_model_prefill", -_S)
_QUEUE = Term("gen_ai.latency.time_in_queue", -_S)
_E2E = Term("gen_ai.latency.e2e", _S)
_FRONT = (
    _at(FIRST_TOKEN, "start", _DERIVED, _TTFT),
    _at(LAST_TOKEN, "start", _DERIVED, _E2E),
)

ALIASES: tuple[Alias, ...] = (
    Alias(
        "vllm",
        "llm_request",
        (
            _at(ENGINE_RECV, "start"),
            _at(QUEUED, "start", _DERIVED, _TTFT, _PREFILL, _QUEUE),
            _at(SCHEDULED, "start", _DERIVED, _TTFT, _PREFILL),
            *_FRONT,
        ),
    ),
    Alias("sglang", "Req *", (_at(ENGINE_RECV, "start"), *_FRONT)),
    Alias("sglang", "* Req *", (_at(ENGINE_RECV, "start"), *_FRONT)),
    Alias("sglang", "tokenize", (_at(ENGINE_RECV, "start", _DERIVED), _at(TOKENIZED, "end")), common=True),
    Alias("sglang", "api_server_dispatch", (_at(TOKENIZED, "start", _DERIVED),)),
    Alias("sglang", "request_process", (_at(QUEUED, "end", _DERIVED),)),
    Alias("sglang", "prefill_waiting", (_at(QUEUED, "start"), _at(SCHEDULED, "end"))),
    Alias("sglang", "prefill_forward", (_at(SCHEDULED, "start", _DERIVED), _at(FIRST_TOKEN, "end", _DERIVED))),
    Alias("sglang", "chunked_prefill", (_at(SCHEDULED, "start", _DERIVED),)),
    Alias("sglang", "decode_forward", (_at(LAST_TOKEN, "end", _DERIVED, last=True),)),
    Alias("sglang", "decode_loop", (_at(LAST_TOKEN, "end", _DERIVED, last=True),)),
    Alias(
        "dynamo",
        "http-request",
        (
            _at(ENGINE_RECV, "start"),
            _at(FIRST_TOKEN, "start", _DERIVED, Term("ttft_ms", _MS)),
            _at(LAST_TOKEN, "end", _DERIVED),
        ),
        common=True,
    ),
    Alias("dynamo", "router.route_request", (_at(TOKENIZED, "start", _DERIVED),)),
    Alias("dynamo", "kv_router.route_request", (_at(TOKENIZED, "start", _DERIVED),)),
    Alias("dynamo", "kv_router.compute_block_hashes", (_at(TOKENIZED, "start", _DERIVED),)),
    Alias("dynamo", "kv_router.*", ()),
    Alias("dynamo", "handle_payload", (_at(QUEUED, "start", _DERIVED),)),
    Alias("dynamo", "engine.generate", (_at(FIRST_TOKEN, "start", _DERIVED, Term("ttft_ms", _MS)),)),
    Alias("llm-d", "gateway.request_orchestration", (_at(ENGINE_RECV, "end", _DERIVED),)),
    Alias("llm-d", "llm_d.epp.*", ()),
    Alias("llm-d", "llm_d.kv_cache.*", ()),
)  # fmt: skip
"""Earlier rules go first where two name a span."""

LATENCIES: dict[str, tuple[int, int]] = {
    "gen_ai.latency.time_to_first_token": (ENGINE_RECV, FIRST_TOKEN),
    "gen_ai.latency.e2e": (ENGINE_RECV, LAST_TOKEN),
    "gen_ai.latency.time_in_queue": (QUEUED, SCHEDULED),
    "gen_ai.latency.time_in_model_prefill": (SCHEDULED, FIRST_TOKEN),
    "gen_ai.latency.time_in_model_decode": (FIRST_TOKEN, LAST_TOKEN),
    "time_to_first_token_ms": (SCHEDULED, FIRST_TOKEN),
    "queue_time_ms": (QUEUED, SCHEDULED),
}
"""Between which points of the engine's own a duration lies that it tells: two are called time to first token."""


def alias_of(name: str) -> Alias | None:
    """The rule for spans of that name; None when nothing is known of them.

    >>> alias_of("llm_request").scheme, alias_of("unified Req 3f2a").scheme, alias_of("kv_router.schedule").tells
    ('vllm', 'sglang', ())
    >>> alias_of("GET /")
    """
    found = _EXACT.get(name)
    if found is not None:
        return found
    return next((rule for rule in _OPEN if _matches(rule.name, name)), None)


def _matches(pattern: str, name: str) -> bool:
    begins, _, rest = pattern.partition("*")
    if not begins and rest.endswith("*"):  # "* Req *": a word or two before it
        return rest[:-1] in name
    return name.startswith(begins) and name.endswith(rest)


_EXACT: dict[str, Alias] = {rule.name: rule for rule in ALIASES if "*" not in rule.name}
_OPEN: tuple[Alias, ...] = tuple(rule for rule in ALIASES if "*" in rule.name)
