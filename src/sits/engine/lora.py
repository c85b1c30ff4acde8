"""What an engine has loaded, and telling it to load, unload and show an adapter: the HTTP of vLLM and SGLang.

```
             list               load                      unload                      asked for by a request as
vllm    GET /v1/models  POST /v1/load_lora_adapter  POST /v1/unload_lora_adapter     model = adapter
sglang  GET /v1/models  POST /load_lora_adapter     POST /unload_lora_adapter        model = base:adapter
```
vLLM 0.32, asked by us: load answers 200 with a sentence, 400 when the name is taken, 404 for a path without adapter (and for the
endpoint itself, `{"detail": "Not Found"}`, where run-time loading is off), 500 with the worker's words otherwise.  Its 200 says that
files of the right form were read: an adapter none of whose modules the model has is listed, and answers as the base does.
SGLang (documentation and source, not run): `{"success": ..., "error_message": ...}` with 200 or 400; a bare adapter's name as
`model` is answered by the base.

Rules: listing uses one connection that is kept open in between, the *line*.  When the engine's process ends, so does the line, and
who `watch`es is told at once; a line that we give up ourselves is no sign of anything.  Everything else gets a connection of its own, so
that a slow load delays no listing.  Probes ask as a caller would (temperature 0, candidates): see `core.fingerprint` for why they
never ask for log-probabilities of the prompt; and never with a `seed`, which ends vLLM on the CPU.

Deliberately absent: what follows from an answer (gateway.adapters), retries.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import orjson

from sits.core.fingerprint import CANDIDATES, Fingerprint, fingerprint
from sits.core.ports import World
from sits.core.units import SECOND, show_duration
from sits.engine.answer import error_text
from sits.engine.client import ClosedError, Connection, Silence
from sits.engine.openai import OpenAIEngine

LISTING_NS = 5 * SECOND
QUIET_NS = 3600 * SECOND
"""Waits are bounded call by call; the connection's own clock never ends one first."""

Api = Literal["vllm", "sglang"]


class LoraError(Exception):
    """It did not work.  `reason` is a word of `policy.adapters.REASONS`, or `already_loaded`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Shown(msgspec.Struct, frozen=True):
    """The answer to a probe, and the model it says it is from."""

    fingerprint: Fingerprint
    model: str


class Lora:
    """The adapters of one engine.

    Args:
        engine: where it is and with which key.
        api: which of the two.
        load_ns, probe_ns: how long a load or unload, and a probe, may take.
        world: the clock.

    """

    def __init__(self, engine: OpenAIEngine, api: Api, *, load_ns: int, probe_ns: int, world: World) -> None:
        self.name = engine.name
        self.api = api
        self._lost: Callable[[], None] = lambda: None
        self._engine = engine
        self._load_ns, self._probe_ns = load_ns, probe_ns
        self._prefix = "/v1" if api == "vllm" else ""
        self._silence = Silence(QUIET_NS, world)
        self._line: Connection | None = None
        self._one_at_a_time = asyncio.Lock()

    def watch(self, lost: Callable[[], None]) -> None:
        """Call `lost` whenever the line ends that we did not end."""
        self._lost = lost

    async def listed(self) -> dict[str, str]:
        """What it serves: name -> the path it has it from (empty where it does not tell).  Raises LoraError."""
        async with self._one_at_a_time:
            status, body = await self._on_line("GET", "/v1/models")
        found = _json(body)
        models = found.get("data")
        if status != 200 or not isinstance(models, list):
            raise LoraError("engine_error", f"GET /v1/models: {status} {error_text(body)}")
        cards = [card for card in models if isinstance(card, dict) and isinstance(card.get("id"), str)]
        return {card["id"]: card.get("root") or "" for card in cards}

    async def load(self, name: str, path: str) -> None:
        """Have it load the adapter at `path` as `name`.  Raises LoraError; that it returns proves nothing."""
        told = {"lora_name": name, "lora_path": path}
        status, body = await self._alone(f"{self._prefix}/load_lora_adapter", told, self._load_ns)
        if status != 200 or _json(body).get("success") is False:
            raise _refusal(status, body)

    async def unload(self, name: str) -> None:
        """Have it forget `name`; one it does not know is forgotten already.  Raises LoraError."""
        status, body = await self._alone(
            f"{self._prefix}/unload_lora_adapter", {"lora_name": name}, self._load_ns
        )
        if status == 200 and _json(body).get("success") is not False:
            return
        error = _refusal(status, body)
        if error.reason not in ("path_not_found", "refused"):
            raise error

    async def show(self, model: str, adapter: str, prompt: str, tokens: int) -> Shown:
        """What `adapter` of `model` answers to the probe; the base model itself when `adapter` is empty.  Raises LoraError."""
        asked: dict[str, Any] = {
            "model": self.asked_as(model, adapter),
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": CANDIDATES,
        }
        if self.api == "vllm":
            asked["return_tokens_as_token_ids"] = True  # two tokens that look alike stay two
        status, body = await self._alone("/v1/completions", asked, self._probe_ns)
        if status == 404:
            raise LoraError("denied", error_text(body))
        if status != 200:
            reason = "engine_error" if status >= 500 else "probe_failed"
            raise LoraError(reason, f"/v1/completions: {status} {error_text(body)}")
        found = _json(body)
        try:
            told = found["choices"][0]["logprobs"]
            shown = fingerprint(prompt, told["tokens"], told["top_logprobs"])
        except (LookupError, TypeError, AttributeError, ValueError):
            raise LoraError("probe_failed", "its answer to the probe has no log-probabilities") from None
        named = found.get("model")
        return Shown(shown, named if isinstance(named, str) else "")

    def asked_as(self, model: str, adapter: str) -> str:
        """The name a request must ask for."""
        return asked_as(self.api, model, adapter)

    def close(self) -> None:
        """Give up the line."""
        line, self._line = self._line, None
        if line is not None:
            line.abort()

    async def _on_line(self, method: str, path: str) -> tuple[int, bytes]:
        line = self._line
        if line is not None and not (line.free and line.quiet):
            self.close()
            self._lost()
            line = None
        if line is None:
            line = await self._connected(LISTING_NS)
            line.ended = self._ended
            self._line = line
        try:
            status, body = await self._asked(line, method, path, b"", LISTING_NS)
        except BaseException:
            if self._line is line:
                self.close()
            raise
        if self._line is line and not line.free:  # it closes after each answer: there is no line to have
            self.close()
        return status, body

    async def _alone(self, path: str, told: Mapping[str, Any], limit_ns: int) -> tuple[int, bytes]:
        connection = await self._connected(limit_ns)
        try:
            return await self._asked(connection, "POST", path, orjson.dumps(told), limit_ns)
        finally:
            connection.abort()

    async def _connected(self, limit_ns: int) -> Connection:
        address = self._engine.address
        try:
            async with asyncio.timeout(min(limit_ns, self._engine.connect_timeout) / SECOND):
                return await address.connect(self._silence)
        except TimeoutError:
            raise LoraError("engine_unreachable", "it did not accept a connection in time") from None
        except (OSError, ValueError) as error:
            raise LoraError("engine_unreachable", str(error)) from None

    async def _asked(
        self, connection: Connection, method: str, path: str, body: bytes, limit_ns: int
    ) -> tuple[int, bytes]:
        head = self._engine.head_of(method, path, len(body))
        try:
            async with asyncio.timeout(limit_ns / SECOND):
                connection.send(head, body)
                await connection.head()
                return connection.status, await connection.rest()
        except TimeoutError:
            raise LoraError("engine_timeout", f"{path}: no answer in {show_duration(limit_ns)}") from None
        except ClosedError as error:
            raise LoraError("engine_unreachable", f"{path}: {error}") from None

    def _ended(self, line: Connection) -> None:
        if self._line is line:
            self._line = None
            self._lost()


def asked_as(api: Api, model: str, adapter: str) -> str:
    """The `model` a request for `adapter` of `model` must ask an engine for."""
    if not adapter:
        return model
    return adapter if api == "vllm" else f"{model}:{adapter}"


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(status: int, body: bytes) -> LoraError:
    """What an answer that is no success means."""
    found = _json(body)
    words = found.get("error_message")
    text = words if isinstance(words, str) and words else error_text(body)
    if status in (404, 405) and "error" not in found and "error_message" not in found:
        return LoraError("lora_disabled", f"there is no such endpoint ({status})")
    if "already" in text and "loaded" in text:
        return LoraError("already_loaded", text)
    if status >= 500 and "is not enabled" in text:
        return LoraError("lora_disabled", text)
    if status >= 500:
        # vLLM answers 500 for what it will answer every time (a rank too high) as well as for its own death.
        return LoraError("refused" if "Worker failed with error" in text else "engine_error", text)
    if status == 404 or "No adapter found" in text or "No such file" in text:
        return LoraError("path_not_found", text)
    return LoraError("refused", text)
