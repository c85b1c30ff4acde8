"""What OpenTelemetry calls things: one table for each version of its conventions for generative AI, and our own names beside them.

The conventions are still in development and have moved: those up to 1.41 lie in the core repository, the ones after it in a repository of
their own, first tagged 0.1.0.  What moved are names of the caller's side (its metrics, and its attribute for tokens written to a cache);
`gen_ai.server.*` did not.  Which table is used is said by the configuration, or else by `OTEL_SEMCONV_STABILITY_OPT_IN`, in which the
entry `gen_ai_latest_experimental` asks for the newer.

Rules: no name under `gen_ai.` is of our making; ours begin with `sits.`, those of our stages with `llm.`.  Names of spans follow the
convention, the stage is their attribute `sits.stage`.  A breakpoint is the attribute `sits.bp.<name>` (int, Unix ns) of a span
and never an event of it, since events of spans are on their way out (OTEP 4430).  How it came to be is `sits.exactness.<name>`, left out where measured.

Source: semantic conventions 1.41, `gen-ai-spans` and `gen-ai-metrics`; conventions for generative AI 0.1.0 and their guide to
migration (pull requests 374, 440, 521); conventions for HTTP 1.41.

Deliberately absent: what other programs call their spans (`core.otel_aliases`), and environment variables: callers hand them in.
"""

from typing import Literal

import msgspec

from sits.core.breakpoints import (
    AUTHORIZED,
    DISPATCHED,
    ENGINE_RECV,
    FIRST_TOKEN,
    INDEX,
    LAST_TOKEN,
    NAMES,
    QUEUED,
    ROUTED,
    SCHEDULED,
    SENT,
    TOKENIZED,
    Exactness,
)

Version = Literal["1.41", "genai-0.1.0"]

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
LATEST = "gen_ai_latest_experimental"


class Convention(msgspec.Struct, frozen=True):
    """The names that differ between versions; what is the same in all is a constant of this module.

    `duration`, `first_chunk`: metrics of the caller's side, in seconds.  `token_usage`: its histogram of tokens by `gen_ai.token.type`, empty where
    there are two of them instead, `input_tokens` and `output_tokens`.  `schema_url` is sent with what is named so.
    """

    version: Version
    duration: str
    first_chunk: str
    token_usage: str = ""
    input_tokens: str = ""
    output_tokens: str = ""
    cache_write: str = ""
    schema_url: str = ""


CORE_1_41 = Convention(
    "1.41",
    duration="gen_ai.client.operation.duration",
    first_chunk="gen_ai.client.operation.time_to_first_chunk",
    token_usage="gen_ai.client.token.usage",  # noqa: S106
    cache_write="gen_ai.usage.cache_creation.input_tokens",
    schema_url="https://opentelemetry.io/schemas/1.41.0",
)
GENAI_0_1_0 = Convention(
    "genai-0.1.0",
    duration="gen_ai.client.inference.duration",
    first_chunk="gen_ai.client.inference.time_to_first_chunk",
    input_tokens="gen_ai.client.inference.operation.input_tokens",
    output_tokens="gen_ai.client.inference.operation.output_tokens",
    cache_write="gen_ai.usage.cache_write.input_tokens",
)
CONVENTIONS: dict[str, Convention] = {one.version: one for one in (CORE_1_41, GENAI_0_1_0)}


def convention(configured: str = "", opt_in: str = "") -> Convention:
    """The table to use: the configured version, else the one `OTEL_SEMCONV_STABILITY_OPT_IN` asks for, else the older.

    >>> convention(opt_in="http, gen_ai_latest_experimental").version
    'genai-0.1.0'
    >>> convention("1.41", "gen_ai_latest_experimental").version
    '1.41'
    """
    if configured:
        return CONVENTIONS[configured]
    return GENAI_0_1_0 if LATEST in map(str.strip, opt_in.split(",")) else CORE_1_41


# -- the same in both versions -------------------------------------------------------------------------------

OPERATION, PROVIDER = "gen_ai.operation.name", "gen_ai.provider.name"
REQUEST_MODEL, REQUEST_STREAM = "gen_ai.request.model", "gen_ai.request.stream"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
ERROR_TYPE = "error.type"
HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS = "http.request.method", "http.route", "http.response.status_code"
SERVICE, INSTANCE, HOST, ENVIRONMENT = (
    "service.name",
    "service.instance.id",
    "host.name",
    "deployment.environment.name",
)

SERVER_DURATION = "gen_ai.server.request.duration"
SERVER_TTFT = "gen_ai.server.time_to_first_token"
SERVER_TPOT = "gen_ai.server.time_per_output_token"

SECONDS_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Bounds the convention asks of durations, s."""
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Bounds the convention asks of the time to the first token, s."""
TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Bounds the convention asks of the time for each token after the first, s."""
TOKEN_BUCKETS = tuple(4**n for n in range(14))
"""Bounds the convention asks of counts of tokens: 1 to 67,108,864."""

OPERATIONS = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
"""What the convention calls what our endpoints do; the others are `chat`."""

PROVIDERS = {"anthropic": "anthropic", "emulated": "sits"}
"""`gen_ai.provider.name` by kind of engine: Anthropic's own, ours where it is emulated; the others speak the dialect of `openai`."""

# -- ours ----------------------------------------------------------------------------------------------------

STAGE = "sits.stage"
BREAKPOINT, EXACTNESS = "sits.bp.", "sits.exactness."
RUN, REQUEST_ID, ENGINE, ARM = "sits.run_id", "sits.request_id", "sits.engine", "sits.arm"
OUTCOME, DETAIL, TENANT, ADAPTER = "sits.outcome", "sits.detail", "sits.tenant", "sits.adapter"
WEIGHT, BUILD = "sits.weight", "sits.abstraction_layer"
PROMPT_TOKENS, TOKENS_OUT, TOKENS_CACHED = "sits.prompt_tokens", "sits.output_tokens", "sits.cached_tokens"
PREEMPTIONS, TTFT, INCIDENT = "sits.preemptions", "sits.ttft", "sits.incident"
"""The time to the first token is in seconds, from the first byte of the request."""

LLM_MODEL, LLM_INPUT_TOKENS = "llm.model", "llm.input_tokens"
LLM_TOKENIZER, LLM_GENERATED_TOKENS = "llm.tokenizer.name", "llm.generated_tokens"
LLM_STEPS = "llm.decoding.steps"
"""Attributes of our stages.  `llm.generated_token` of one step and `llm.decoding.step`, its number, are of those who record single steps."""
LLM_STEP, LLM_GENERATED_TOKEN = "llm.decoding.step", "llm.generated_token"


class StageSpan(msgspec.Struct, frozen=True):
    """One stage as a span called `name`, from point `start` to point `end` of `core.breakpoints`; below our call to the engine, or the request."""

    stage: str
    name: str
    start: int
    end: int
    below_call: bool = True


STAGES: tuple[StageSpan, ...] = (
    StageSpan("route", "route", AUTHORIZED, ROUTED, below_call=False),
    StageSpan("llm.tokenization", "tokenize", ENGINE_RECV, TOKENIZED),
    StageSpan("engine_queue", "queue", QUEUED, SCHEDULED),
    StageSpan("llm.inference", "prefill", SCHEDULED, FIRST_TOKEN),
    StageSpan("llm.decoding", "decode", FIRST_TOKEN, LAST_TOKEN),
    StageSpan("llm.response", "respond", LAST_TOKEN, SENT, below_call=False),
)
"""The stages within a request that are spans of their own, where both ends were seen: those that are long, or somebody else's, and those that
have an `llm.` name.  `llm.request` is the request's own span."""
REQUEST_STAGE = "llm.request"
CLIENT_START = DISPATCHED
"""Where the span of our call to the engine begins: its id goes to the engine in `traceparent`."""

_HOW = {how.name.lower(): how for how in Exactness if how}


def breakpoint_of(attribute: str) -> int | None:
    """The point whose time an attribute tells; None for any other attribute.

    >>> breakpoint_of("sits.bp.tokenized"), breakpoint_of("sits.bp.lunch")
    (6, None)
    """
    return INDEX.get(attribute.removeprefix(BREAKPOINT)) if attribute.startswith(BREAKPOINT) else None


def exactness_of(word: object) -> int:
    """How a time came to be, as a span tells it; what it does not tell is measured, a word we do not know is derived."""
    if word is None:
        return int(Exactness.MEASURED)
    return int(_HOW.get(str(word), Exactness.DERIVED))


def point_attributes(at: dict[int, int], how: dict[int, int]) -> dict[str, int | str]:
    """Attributes that tell points `at` (Unix ns), each of exactness `how`.

    >>> point_attributes({6: 1000, 7: 2000}, {6: 3, 7: 2})
    {'sits.bp.tokenized': 1000, 'sits.bp.queued': 2000, 'sits.exactness.queued': 'derived'}
    """
    told: dict[str, int | str] = {}
    for point, wall_ns in at.items():
        told[BREAKPOINT + NAMES[point]] = wall_ns
        if how[point] != Exactness.MEASURED:
            told[EXACTNESS + NAMES[point]] = Exactness(how[point]).name.lower()
    return told
