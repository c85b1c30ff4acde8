"""A Request: one piece of work.  A workload is an iterator of Requests; a trace file is a saved one.

Policies see only what a caller can know: they never see the true output length (`output_tokens_max` is the
caller's own limit).  The true length exists only in the emulated engine, keyed by the request's id.
"""

import msgspec


class Request(msgspec.Struct, kw_only=True):
    """One piece of work, with the identities that decide where it may go.

    Attributes:
        id: unique within a run; also the decision id answers carry.
        model: name the caller asked for.
        adapter: LoRA adapter name, empty for the base model.
        tenant, unit: who pays, and for whom of theirs: the user a release assignment keeps together.
        prompt_tokens: known or estimated prompt length, tokens.
        output_tokens_max: the caller's limit, tokens.
        prefix: identity of that shared prefix; empty = none.
        prompt_hash: SHA-256 of the prompt and of whose template it is, hexadecimal; empty when not wanted.
        arrival_ns: first byte, monotonic ns.
        deadline_ns: answer useless after this, monotonic ns; 0 = none.
        traceparent: W3C trace context for the engine; empty = none.  tracestate: the header line that goes with it, its line end first.
        trace_id, parent_id: the caller's trace and its span in it; empty when the trace begins here, and then its id is the request's.
        dialect_headers: header lines of the caller's dialect that its engine has to see, each with its line end.
        body: the raw request body as received, forwarded without re-serialising.

    """

    id: str
    model: str
    adapter: str = ""
    tenant: str = "default"
    unit: str = ""
    endpoint: str = "/v1/chat/completions"
    stream: bool = True
    prompt_tokens: int = 0
    output_tokens_max: int = 0
    prefix: str = ""
    prompt_hash: str = ""
    arrival_ns: int = 0
    deadline_ns: int = 0
    traceparent: str = ""
    tracestate: str = ""
    trace_id: str = ""
    parent_id: str = ""
    dialect_headers: str = ""
    body: bytes = b""


class Usage(msgspec.Struct, frozen=True):
    """Tokens an answer really took: prompt, generated, and prompt tokens served from a cache."""

    input: int = 0
    output: int = 0
    cached: int = 0


class Chunk(msgspec.Struct):
    """One piece of an answer as the engine gave it.

    `data` is what goes to the client byte for byte (an SSE event, or the whole body when not streaming);
    `tokens` is how many generated tokens it carries (chunks may carry several); the last chunk of an answer
    has `last` set, and `usage` when the engine told.  `retry_after` is the engine's own header of that name, when
    it refused; `preemptions` is how often the engine took the request's KV away, when it told (on the last chunk).  `in_pieces`: this begins an
    answer that comes whole but is too large to be held; more pieces follow.
    """

    data: bytes = b""
    tokens: int = 0
    last: bool = False
    usage: Usage | None = None
    status: int = 200
    content_type: bytes = b""
    retry_after: bytes = b""
    preemptions: int = 0
    in_pieces: bool = False
