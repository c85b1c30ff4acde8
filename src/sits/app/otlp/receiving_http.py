"""OTLP over HTTP, received: `POST /v1/traces` as protobuf or JSON, compressed or not.

Rules: a body is read only while there is room, and never beyond `BODY_MAX`, compressed or not.  The answer has the encoding of the request: 200,
with a partial success where spans were refused; 400 for what is no OTLP, 413, 415, 429 with `Retry-After` where there is no room, 401 without
the token where one is asked for.  Metrics and logs are not taken and that is said, for a 200 would lose them quietly.  A browser cannot be made to
send here by another site's page: neither content type is one it sends unasked.

Source: OpenTelemetry Protocol 1.x, "OTLP/HTTP".

Deliberately absent: what spans mean, and CORS.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sits.app.otlp import rpc_status
from sits.core.errors import AuthError, CallerError, CapacityError, ConfigError, SitsError, TooLargeError
from sits.telemetry.otlp import mapping, protobuf
from sits.telemetry.otlp.inbox import Inbox
from sits.telemetry.otlp.received import BODY_MAX, Batch, inflated

PROTOBUF, JSON = "application/x-protobuf", "application/json"


class UnsupportedError(CallerError):
    """A content type that is not OTLP's."""

    status = 415


class HttpReceiver:
    """Takes spans into `inbox`; `token` empty asks for none, None takes from nobody."""

    def __init__(self, inbox: Inbox, token: str | None) -> None:
        self._inbox = inbox
        self._token = token
        self._known: protobuf.Messages | None = None

    def routes(self) -> Sequence[BaseRoute]:
        """The paths."""
        return (
            Route("/v1/traces", self._answered(self._traces), methods=["POST"]),
            Route("/v1/metrics", self._answered(self._not_taken), methods=["POST"]),
            Route("/v1/logs", self._answered(self._not_taken), methods=["POST"]),
        )

    def _answered(
        self, serve: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:  # fmt: skip
        async def answer(request: Request) -> Response:
            try:
                return await serve(request)
            except ClientDisconnect:
                return Response(status_code=400)
            except SitsError as error:
                return _refusal(error, kind_of(request))

        return answer

    async def _not_taken(self, request: Request) -> Response:
        text = f"{request.url.path} is not taken here: only /v1/traces is; send the others to a Collector ('sitsctl otel collector')"
        return Response(text, 404, media_type="text/plain")

    async def _traces(self, request: Request) -> Response:
        if not admitted(self._token, request.headers.get("authorization", "")):
            raise AuthError(
                "spans are taken with a token only", hint="authorization: Bearer <the token of telemetry.otlp.receive>"
            )  # fmt: skip
        kind = kind_of(request)
        if kind not in (PROTOBUF, JSON):
            raise UnsupportedError(f"content-type {kind[:80]!r} is not OTLP's", hint=f"{PROTOBUF} or {JSON}")
        encoding = request.headers.get("content-encoding", "").strip().lower()
        body, weight = await self._read(request)
        try:
            async with self._inbox.one_at_a_time:
                batch, size = await asyncio.to_thread(self._decoded, body, encoding, kind, weight)
        except BaseException:
            self._inbox.release(weight)
            raise
        self._inbox.add(batch, size)
        return self._taken(batch, kind)

    async def _read(self, request: Request) -> tuple[bytes, int]:
        """The body, and the bytes reserved for it."""
        told = request.headers.get("content-length", "")
        if told.isdigit() and int(told) > BODY_MAX:
            raise TooLargeError(f"more than {BODY_MAX} bytes in one request", hint="send smaller batches")
        weight, pieces = 0, []
        try:
            async for piece in request.stream():
                if weight + len(piece) > BODY_MAX:
                    raise TooLargeError(  # noqa: TRY301  (here, for the room has to be given back)
                        f"more than {BODY_MAX} bytes in one request", hint="send smaller batches"
                    )
                self._inbox.reserve(len(piece))
                weight += len(piece)
                pieces.append(piece)
        except BaseException:
            self._inbox.release(weight)
            raise
        return b"".join(pieces), weight

    def _decoded(self, body: bytes, encoding: str, kind: str, weight: int) -> tuple[Batch, int]:
        """What the body says, and the bytes reserved for it now that it is inflated."""
        plain = inflated(body, encoding)
        more = max(0, len(plain) - weight)
        self._inbox.reserve(more)
        try:
            batch = mapping.decoded(plain) if kind == JSON else protobuf.decoded(plain, self._messages())
        except BaseException:
            self._inbox.release(more)
            raise
        return batch, weight + more

    def _messages(self) -> protobuf.Messages:
        if self._known is None:
            self._known = protobuf.messages()
        return self._known

    def _taken(self, batch: Batch, kind: str) -> Response:
        if kind == JSON:
            partial = {"rejectedSpans": str(batch.rejected), "errorMessage": batch.reason}
            body = orjson.dumps({"partialSuccess": partial} if batch.rejected else {})
        else:
            made = self._messages().traces.ExportTraceServiceResponse()
            if batch.rejected:
                made.partial_success.rejected_spans = batch.rejected
                made.partial_success.error_message = batch.reason
            body = made.SerializeToString()
        return Response(body, media_type=kind)


def kind_of(request: Request) -> str:
    """The content type, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def admitted(token: str | None, authorization: str) -> bool:
    """Whether a sender who shows `authorization` may send.

    >>> admitted("", ""), admitted("s", "Bearer s"), admitted("s", "s"), admitted(None, "Bearer None")
    (True, True, False, False)
    """
    return token is not None and (not token or _same(authorization, token))


def _same(authorization: str, token: str) -> bool:
    return hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())


def _refusal(error: SitsError, kind: str) -> Response:
    """A `google.rpc.Status`, in the encoding that was sent."""
    headers = {}
    status = error.status
    if isinstance(error, CapacityError):
        status = 429
        headers["retry-after"] = str(max(1, round(error.retry_after_s or 1)))
    elif isinstance(error, ConfigError):
        status = 501
    text = str(error)
    if kind != PROTOBUF:
        return Response(orjson.dumps({"code": 0, "message": text}), status, headers, JSON)
    return Response(rpc_status.status(0, text[:4096]), status, headers, PROTOBUF)
