"""May this request be answered from the cache, and its answer be kept?  One word of a verdict, before any digest is made.

Rules, first one that applies (verdict in brackets; empty = yes):
- the client may say no: `cache-control: no-store` [bypass_no_store]; `no-cache` and `max-age=0` mean *look again, keep the
  news*, `max-age=N` bounds the age of an answer (RFC 9111, section 5.2.1);
- a `store` field of either value is a wish about keeping at the provider, which an answer from here would not honour
  [bypass_store];
- more than one answer, or one picked among several, is a draw [bypass_n];
- tools that the *provider* runs look at the world [bypass_tools]; functions the caller runs may have effects for whoever
  gets the call again, so they need `tools: true`;
- a body over `body_limit` is not read [bypass_long], a model that is not listed is not cached [bypass_model], and a body
  that parsers read differently (a name twice, no JSON) has no key [bypass_ambiguous];
- answers that continue a state the body does not hold [bypass_state];
- sampling without a seed is a draw: `temperature` must be 0, or a `seed` given, or `any_temperature` [bypass_sampled].
  Nothing given means the engine's default, which samples.  Embeddings draw nothing.

Deliberately absent: `only-if-cached` (a gateway that can ask has no reason to answer 504), and what an answer must be like
to be kept (`gateway.cached`).
"""

from typing import Any

import msgspec

from sits.core.fleet_cache import ResponseCache
from sits.core.units import SECOND
from sits.policy.cachekey import canonical, digest_of, fields_of

PLAIN = b"plain"
STREAM = b"stream"
STREAM_USAGE = b"stream+usage"

DRAWLESS = frozenset({"/v1/embeddings"})
STATE = (
    "previous_response_id",
    "conversation",
    "container",
    "kv_transfer_params",
    "web_search_options",
    "mcp_servers",
)
"""Fields that bring in, or leave behind, something the body does not hold."""

AGE_DIGITS = 9


class Wish(msgspec.Struct, frozen=True):
    """What a client's `cache-control` asks for: may it be looked up, may it be kept, how old may an answer be."""

    look: bool = True
    keep: bool = True
    age_ns: int = 2**63


_NO_WISH = Wish()


class Question(msgspec.Struct, frozen=True):
    """A request as the cache sees it: why it is none of its business (or empty), its digest, the form of its answer."""

    verdict: str = ""
    digest: bytes = b""
    form: bytes = PLAIN
    wish: Wish = _NO_WISH


def question_of(
    body: bytes, endpoint: str, config: ResponseCache, *, model: str, cache_control: bytes | None = None
) -> Question:
    """Read the body once, whatever may come of it; `model` is the name the caller asked for."""
    if config.models and model not in config.models:
        return _NOT_CACHED
    if len(body) > config.body_limit:
        return _LONG
    wish = wish_of(cache_control)
    if not wish.keep:
        return _NO_STORE
    fields = fields_of(body)
    if fields is None:
        return _UNREAD
    verdict = judge(fields, endpoint, config)
    if verdict:
        return _REFUSED[verdict]
    digest = digest_of(body, fields)
    return _UNREAD if digest is None else Question("", digest, form_of(fields, endpoint), wish)


_NOT_CACHED = Question("bypass_model")
_LONG = Question("bypass_long")
_NO_STORE = Question("bypass_no_store")
_UNREAD = Question("bypass_ambiguous")
_REFUSED = {
    verdict: Question(verdict)
    for verdict in ("bypass_store", "bypass_n", "bypass_tools", "bypass_state", "bypass_sampled")
}


def wish_of(cache_control: bytes | None) -> Wish:
    """The wish in a request's `cache-control`; directives that are none of ours are passed over.

    >>> wish_of(b"max-age=30").age_ns, wish_of(b"No-Cache").look, wish_of(b"no-store").keep
    (30000000000, False, False)

    """
    if not cache_control:
        return _NO_WISH
    look = keep = True
    age_ns = _NO_WISH.age_ns
    for directive in cache_control.lower().split(b","):
        name, _, value = directive.strip().partition(b"=")
        if name == b"no-store":
            look = keep = False
        elif name == b"no-cache":
            look = False
        elif name == b"max-age":
            digits = value.strip(b'" ')
            known = digits.isdigit() and len(digits) <= AGE_DIGITS
            age_ns = min(age_ns, int(digits) * SECOND if known else 0)
            look = look and age_ns > 0
    return Wish(look=look, keep=keep, age_ns=age_ns)


def judge(fields: dict[str, Any], endpoint: str, config: ResponseCache) -> str:
    """Why the request with these body fields is no business of a cache; empty when it is."""
    get = fields.get
    if get("store") is not None:
        return "bypass_store"
    if get("n", 1) not in _ONE or get("best_of", 1) not in _ONE:
        return "bypass_n"
    if (get("tools") or get("functions")) and not (config.tools and _are_functions(get("tools"))):
        return "bypass_tools"
    for name in STATE:
        if get(name) is not None:
            return "bypass_state"
    if not config.any_temperature and endpoint not in DRAWLESS and get("seed") is None:
        temperature = get("temperature")
        if temperature != 0 or temperature is False:
            return "bypass_sampled"
    return ""


_ONE = (1, None)


def form_of(fields: dict[str, Any], endpoint: str) -> bytes:
    """How the answer travels: as one body, as a stream, as one with usage at its end, or as its own options say."""
    if not fields.get("stream") or endpoint in DRAWLESS:
        return PLAIN
    options = fields.get("stream_options")
    if not options:
        return STREAM
    text = canonical(options)
    return STREAM_USAGE if text == _WITH_USAGE else STREAM if text == _WITHOUT_USAGE else text


_WITH_USAGE = b'{"include_usage":true}'
_WITHOUT_USAGE = b'{"include_usage":false}'


def _are_functions(tools: Any) -> bool:
    if tools is None:
        return True
    return isinstance(tools, list) and all(
        isinstance(tool, dict) and tool.get("type") == "function" for tool in tools
    )
