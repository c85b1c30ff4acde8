"""Runtime adapters on the path of a request: wait until it is ready, and make sure that it was it who answered.

Rules: before its first byte goes to the caller, an answer is looked at: a 404 that is about the model, or an answer signed with
another model's name, is no answer.  The engine is out of the routes for the adapter in that moment, and the request goes to another
engine once, or ends with 503 `adapter_not_ready`.

Deliberately absent: waiting and counting (gateway.adapters.desk).
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import orjson

from sits.core.errors import EngineError
from sits.core.request import Chunk
from sits.engine.answer import error_text
from sits.gateway.exchange import Exchange

if TYPE_CHECKING:
    from sits.gateway.adapters.service import Adapters
    from sits.gateway.pipeline import Gateway

SIGNED_WITHIN = 1024
"""Engines say the model's name at the beginning of an answer."""

_MODEL = b'"model":'


class AdapterLostError(EngineError):
    """The engine has not the adapter it was asked for."""

    status = 503
    kind = "overloaded_error"


def need_adapter(gateway: "Gateway", exchange: Exchange) -> Awaitable[None] | None:
    """Is the adapter ready somewhere?  If not, wait for it, or be refused with the reason."""
    adapter, adapters = exchange.request.adapter, gateway.adapters
    if (
        not adapter
        or adapters is None
        or adapter in adapters.desk.ready
        or adapter not in adapters.desk.names
    ):
        return None
    return adapters.desk.wait(adapter)


def check_answer(adapters: "Adapters", exchange: Exchange, chunk: Chunk) -> None:
    """Whether the first chunk of an answer is the adapter's own.

    Raises:
        AdapterLostError: it is not.

    """
    adapter = exchange.request.adapter
    signed = adapters.signed.get(adapter)
    if signed is None or (chunk.status < 400 and chunk.data.find(signed, 0, SIGNED_WITHIN) >= 0):
        return
    assert exchange.replica is not None
    engine = exchange.replica.id
    reason, detail = _wrong(chunk, adapter, signs=adapters.signs(engine))
    if not reason:
        return
    adapters.desk.deny(adapter, engine, reason, detail)
    raise AdapterLostError(
        f"engine {engine!r} lost the adapter {adapter!r}: {detail}",
        field="model",
        code="adapter_not_ready",
        retry_after_s=adapters.desk.retry_after_s(adapter),
    )


def _wrong(chunk: Chunk, adapter: str, *, signs: bool) -> tuple[str, str]:
    """Reason and detail when the engine has not the adapter; empty when the answer may be its own."""
    if chunk.status == 404:
        text = error_text(chunk.data)
        about_model = adapter in text or b"model" in chunk.data
        return ("denied", text) if about_model else ("", "")
    if chunk.status >= 400 or not signs:
        return "", ""
    named = signature(chunk.data)
    return ("names_base", f"its answer is signed {named!r}") if named not in ("", adapter) else ("", "")


def signature(data: bytes) -> str:
    """The model an answer says it is from; empty when it does not say.

    >>> signature(b'data: {"id": "x", "model": "org/m", "choices": []}')
    'org/m'
    """
    at = data.find(_MODEL, 0, SIGNED_WITHIN)
    start = data.find(b'"', at + len(_MODEL)) if at >= 0 else -1
    end = data.find(b'"', start + 1) if start >= 0 else -1
    if end < 0 or data[at + len(_MODEL) : start].strip():
        return ""
    try:
        found = orjson.loads(data[start : end + 1])
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""
