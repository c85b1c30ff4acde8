"""What answers at a URL: its models, its engine family, its metrics page; and requests it will understand.

Discovery asks only what every OpenAI-compatible server has (`/v1/models`) and what many have (`/metrics`).  Requests of
known lengths are token ids sent to `/v1/completions` where the engine takes them (vLLM, SGLang, llama.cpp), words sent to
`/v1/chat/completions` elsewhere.  Prompts are random from the first token on, so that no prefix cache answers for the
engine.  Never sent is `seed`: on vLLM's CPU backend one seeded request whose prompt takes more than one chunk kills the
engine.  Proxies of the environment are not used: the target is what the URL says.

Deliberately absent: streaming (the Engine does that).
"""

import difflib
import http.client
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import msgspec
import numpy as np

from sits.core.engine_names import detect
from sits.core.errors import AuthError, ConfigError, EngineError
from sits.core.http_address import http_address
from sits.core.request import Request
from sits.telemetry.prometheus_text import Scrape, parse
from sits.world import RealWorld

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
_TOKEN_IDS = frozenset({"vllm", "sglang", "llamacpp"})
"""Families that take a prompt as token ids."""

_FIRST_ID, _LAST_ID = 200, 2000
"""Ids every vocabulary of the field has, clear of the special ones."""

_PAGE_LIMIT = 16 * 2**20


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server to be asked.

    `base` is its URL without `/v1`; `family` its engine as seen by its metrics, `""` when it shows none, and then
    `metrics_error` says why; `context_max` tokens of prompt and answer together, 0 = not told.
    """

    base: str
    model: str
    models: tuple[str, ...]
    family: str = ""
    metrics_url: str = ""
    metrics_error: str = ""
    context_max: int = 0
    api_key: str = ""

    @property
    def endpoint(self) -> str:
        """Where requests go."""
        return COMPLETIONS if self.family in _TOKEN_IDS else CHAT

    def scrape(self) -> Scrape:
        """The metrics page as it is now.

        Raises:
            EngineError: not reachable, or not a metrics page.

        """
        return parse(fetch(self.metrics_url, api_key=_key_for(self.metrics_url, self.base, self.api_key)))

    def request(self, name: str, prompt_tokens: int, output_tokens: int, rng: np.random.Generator) -> Request:
        """One streaming request of about these lengths."""
        if self.context_max:
            output_tokens = max(1, min(output_tokens, self.context_max // 2))
            prompt_tokens = max(1, min(prompt_tokens, self.context_max - output_tokens - 16))
        body: dict[str, object] = {
            "model": self.model,
            "max_tokens": output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.family in _TOKEN_IDS:
            ids = rng.integers(_FIRST_ID, _LAST_ID, prompt_tokens).tolist()
            body |= {"prompt": ids, "ignore_eos": True}
        else:
            letters = rng.integers(0, 26, (prompt_tokens, 3)) + ord("a")
            words = " ".join(bytes(word).decode() for word in letters.astype(np.uint8))
            body |= {"messages": [{"role": "user", "content": words}]}
        if self.family == "vllm":
            body |= {"min_tokens": output_tokens}
        if self.family in {"vllm", "sglang"}:
            body |= {"skip_special_tokens": False}  # else a special token is a token without text
        return Request(
            id=name,
            model=self.model,
            endpoint=self.endpoint,
            prompt_tokens=prompt_tokens,
            output_tokens_max=output_tokens,
            body=msgspec.json.encode(body),
        )


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def discover(target_url: str, *, model: str = "", metrics_url: str = "", api_key: str = "") -> Target:
    """Find out what answers at `target_url` (with or without `/v1`).

    Raises:
        ConfigError: not an HTTP URL, or a model that is not served there.
        EngineError: nothing there that speaks the OpenAI API.
        AuthError: it wants a key, or another one.

    """
    base = _base(target_url)
    if metrics_url:
        http_address(metrics_url, "metrics")
    page = fetch(f"{base}/v1/models", api_key=api_key)
    try:
        served = msgspec.json.decode(page, type=_Models).data
    except msgspec.DecodeError as error:
        raise EngineError(
            f"{base}/v1/models is not a list of models: {error}",
            field="target",
            hint="is this an OpenAI API?",
        ) from error
    names = tuple(entry.id for entry in served)
    if not names:
        raise EngineError(f"{base} serves no model", field="target", hint="is it still loading?")
    if model and model not in names:
        near = difflib.get_close_matches(model, names, 1)
        raise ConfigError(
            f"{base} does not serve {model!r}",
            field="model",
            value=model,
            hint=f"did you mean {near[0]!r}?" if near else f"it serves {', '.join(names)}",
        )
    chosen = model or names[0]
    where = metrics_url or f"{base}/metrics"
    family, why = "", ""
    try:
        family = detect(parse(fetch(where, api_key=_key_for(where, base, api_key))).names)
        if not family:
            why = f"{where} shows no metrics of an engine we know"
    except (EngineError, AuthError) as error:
        why = str(error)
    return Target(
        base=base,
        model=chosen,
        models=names,
        family=family,
        metrics_url="" if why else where,
        metrics_error=why,
        context_max=next((entry.max_model_len or 0 for entry in served if entry.id == chosen), 0),
        api_key=api_key,
    )


def fetch(url: str, *, api_key: str = "", timeout_s: float = 10.0) -> str:
    """GET one page as text.  Blocks: call it in a thread.

    Raises:
        ConfigError: that is no address.
        EngineError: no answer, or one that is not a success; names the URL and the reason.
        AuthError: 401 or 403.

    """
    http_address(url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    asked = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme is checked above
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(asked, timeout=timeout_s) as answer:
            data = _body(answer, url, timeout_s)
    except urllib.error.HTTPError as error:
        if error.code in {401, 403}:
            raise AuthError(f"{url} answers {error.code}", field="api_key", hint=_refused(api_key)) from error
        raise EngineError(f"{url} answers {error.code}", field="url", hint=_hint(error.code)) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise EngineError(f"{url} does not answer: {reason}", field="url", hint="is it running?") from error
    if len(data) > _PAGE_LIMIT:
        raise EngineError(f"{url} sends more than {_PAGE_LIMIT} bytes", field="url")
    return data.decode("utf-8", "replace")


def _body(answer: http.client.HTTPResponse, url: str, timeout_s: float) -> bytes:
    """All of a page; a server that sends a little now and then has no longer for it than one that sends nothing."""
    world, data = RealWorld(), bytearray()
    until_ns = world.now_ns() + int(timeout_s * 1e9)
    while len(data) <= _PAGE_LIMIT and (piece := answer.read1(1 << 16)):
        data += piece
        if world.now_ns() > until_ns:
            raise EngineError(f"{url} has not ended its answer in {timeout_s:g} s", field="url")
    return bytes(data)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: following one could carry the key to another host."""

    def redirect_request(self, *_: object) -> None:
        """Do not follow."""


def _key_for(url: str, base: str, api_key: str) -> str:
    """The key, for pages of the target itself only."""
    return api_key if urlsplit(url)[:2] == urlsplit(base)[:2] else ""


def _refused(api_key: str) -> str:
    return (
        "it does not take the key that was sent"
        if api_key
        else "no key was sent; give the API key, on the command line with --api-key-env NAME"
    )


def _base(target_url: str) -> str:
    parts = http_address(target_url.strip(), "target")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/v1").rstrip("/")


def _hint(status: int) -> str:
    return "it is starting or overloaded; try again" if status == 503 else "is the URL right?"
