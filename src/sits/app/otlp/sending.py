"""One batch to one receiver, over HTTP or gRPC: what became of it, and whether it is worth another try.

Rules: nothing is raised for what a network does; an `Answer` says it.  Worth another try are, over HTTP, 429, 502, 503, 504 and no answer, over
gRPC the codes the protocol lists.  How long the receiver wants to be left alone is honoured: `Retry-After`, or `RetryInfo`.  A partial success
is a success, whose refused items are counted and not sent again.  A redirect is not followed, and told.  Called from one thread, which it blocks, for
`timeout_s` an exchange and no longer, whatever the other side does (`telemetry.posting`).

Source: OpenTelemetry Protocol 1.x, "Failures" of both transports.

Deliberately absent: waiting, and what is in a batch.
"""

import gzip
import http.client
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import SplitResult, urlsplit

from sits.app.otlp import rpc_status
from sits.app.otlp.target import Target
from sits.core.errors import ConfigError
from sits.telemetry.otlp.protobuf import INSTALL, Messages
from sits.telemetry.posting import (
    LATER,
    RETRY_AFTER_MAX_S,
    Connection,
    Deadline,
    after_s,
    connection_to,
    moved,
    shown,
)

LATER_CODES = frozenset({
    "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS",
})  # fmt: skip
ANSWER_MAX = 64 * 1024

Signal = Literal["traces", "metrics"]


class Answer(NamedTuple):
    """What became of a batch: `taken`, worth another try `later` (not before `after_s`), or neither; `rejected` items of one that was taken."""

    taken: bool
    later: bool = False
    after_s: float = 0.0
    rejected: int = 0
    text: str = ""


class Sender(Protocol):
    """Sends batches."""

    def send(self, signal: Signal, request: Any) -> Answer:
        """Send one `Export...ServiceRequest`."""

    def close(self) -> None:
        """Let go of the connection."""


def sender_of(target: Target, known: Messages) -> Sender:
    """The sender of the target's protocol.

    Raises:
        ConfigError: grpc is not installed.

    """
    return GrpcSender(target, known) if target.protocol == "grpc" else HttpSender(target, known)


class HttpSender:
    """Posts protobuf; the connection is kept."""

    def __init__(self, target: Target, known: Messages) -> None:
        self._target = target
        self._known = known
        self._open: dict[tuple[str, str], Connection] = {}

    def send(self, signal: Signal, request: Any) -> Answer:
        """Post it, and wait for the answer."""
        body = request.SerializeToString()
        headers = {"user-agent": "sitsctl", **self._target.headers, "content-type": "application/x-protobuf"}
        if self._target.gzip:
            body = gzip.compress(body, 3)
            headers["content-encoding"] = "gzip"
        try:
            response, answer = self._post(urlsplit(self._target.urls[signal]), body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Answer(False, later=True, text=shown(f"{type(error).__name__}: {error}"))
        status = response.status
        if 200 <= status < 300:
            return self._partial(signal, answer)
        if 300 <= status < 400:
            return Answer(False, text=f"HTTP {status}: {moved(response.getheader('location'))}")
        later = status in LATER
        wait_s = after_s(response.getheader("retry-after"), response.getheader("date")) if later else 0.0
        return Answer(False, later, wait_s, text=f"HTTP {status}: {_shown(answer)}")

    def _post(
        self, parts: SplitResult, body: bytes, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        key = parts.scheme, parts.netloc
        kept = key in self._open
        connection = self._open.get(key) or self._connect(key)
        try:
            response, answer = self._exchange(connection, path, body, headers)
        except (http.client.RemoteDisconnected, ConnectionError):
            if not kept:
                raise
            connection.close()  # an idle connection that the receiver closed meanwhile
            response, answer = self._exchange(self._connect(key), path, body, headers)
        if not response.isclosed():
            self._open.pop(key).close()
        return response, answer

    def _exchange(
        self, connection: Connection, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        with Deadline(connection, self._target.timeout_s):
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response, response.read(ANSWER_MAX)

    def _connect(self, key: tuple[str, str]) -> Connection:
        self._open[key] = made = connection_to(*key, self._target.timeout_s)
        return made

    def _partial(self, signal: Signal, answer: bytes) -> Answer:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415

        traces = signal == "traces"
        response = (
            self._known.traces.ExportTraceServiceResponse()
            if traces
            else self._known.metrics.ExportMetricsServiceResponse()
        )
        try:
            response.ParseFromString(answer)
        except DecodeError:
            return Answer(True)  # some answer with a text of their own
        return _partial(response)

    def close(self) -> None:
        """Close the connections; the next `send` opens one."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()


class GrpcSender:
    """Calls `Export` of both services over one channel.

    Raises:
        ConfigError: grpc is not installed.

    """

    def __init__(self, target: Target, known: Messages) -> None:
        try:
            import grpc  # type: ignore[import-untyped]  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "OTLP over gRPC needs grpcio, which is not installed",
                field="telemetry.otlp.export.protocol",
                hint=f"{INSTALL}, or protocol: http/protobuf",
            ) from error
        self._grpc = grpc
        self._target = target
        parts = urlsplit(target.urls["traces"])
        address = f"{parts.hostname}:{parts.port or 4317}"
        if ":" in (parts.hostname or ""):
            address = f"[{parts.hostname}]:{parts.port or 4317}"
        options = (("grpc.enable_retries", 0), ("grpc.max_send_message_length", -1))
        self._channel = (
            grpc.secure_channel(address, grpc.ssl_channel_credentials(), options)
            if parts.scheme == "https"
            else grpc.insecure_channel(address, options)
        )
        prefix = "/opentelemetry.proto.collector"
        self._calls = {
            "traces": self._call(
                f"{prefix}.trace.v1.TraceService/Export", known.traces.ExportTraceServiceResponse
            ),
            "metrics": self._call(
                f"{prefix}.metrics.v1.MetricsService/Export", known.metrics.ExportMetricsServiceResponse
            ),
        }

    def _call(self, method: str, response: Any) -> Any:
        return self._channel.unary_unary(
            method,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )

    def send(self, signal: Signal, request: Any) -> Answer:
        """Call `Export`, and wait for the answer."""
        grpc = self._grpc
        try:
            response = self._calls[signal](
                request,
                timeout=self._target.timeout_s,
                metadata=tuple(self._target.headers.items()),
                compression=grpc.Compression.Gzip if self._target.gzip else grpc.Compression.NoCompression,
            )
        except grpc.RpcError as error:
            code = error.code().name
            later = code in LATER_CODES
            return Answer(
                False,
                later,
                _retry_info_s(error) if later else 0.0,
                text=f"gRPC {code}: {str(error.details() or '')[:200]}",
            )
        return _partial(response)

    def close(self) -> None:
        """Close the channel; no `send` may follow."""
        self._channel.close()


def _partial(response: Any) -> Answer:
    partial = response.partial_success
    rejected = getattr(partial, "rejected_spans", 0) or getattr(partial, "rejected_data_points", 0)
    return Answer(True, rejected=max(0, rejected), text=partial.error_message[:200])


def _retry_info_s(error: Any) -> float:
    """The delay that the error's details ask for; 0 when they ask for none."""
    details = (value for key, value in error.trailing_metadata() or () if key == rpc_status.KEY)
    return min(max(map(rpc_status.retry_after_s, details), default=0.0), RETRY_AFTER_MAX_S)


def _shown(answer: bytes) -> str:
    return shown(answer[:200].decode("utf-8", "replace")) or "no text"
