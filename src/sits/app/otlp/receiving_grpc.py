"""OTLP over gRPC, received: `TraceService/Export` on an address of its own.

Rules: those of the HTTP receiver, in gRPC's words: RESOURCE_EXHAUSTED with `RetryInfo` where there is no room, INVALID_ARGUMENT for what is no
OTLP, UNAUTHENTICATED without the token.  Messages are read as bytes and parsed by us in a thread, so that garbage is answered and a large
batch does not hold up the loop; gRPC bounds their size, decompressed.

Source: OpenTelemetry Protocol 1.x, "OTLP/gRPC".

Deliberately absent: TLS (a Collector or a proxy has it), and reflection.
"""

import asyncio
from typing import Any

from sits.app.otlp import rpc_status
from sits.app.otlp.receiving_http import admitted
from sits.core.errors import CallerError, CapacityError, ConfigError
from sits.telemetry.otlp import protobuf
from sits.telemetry.otlp.inbox import Inbox
from sits.telemetry.otlp.received import BODY_MAX, Batch

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
CALLS_MAX = 64
CLOSE_S = 1.0


class GrpcReceiver:
    """Takes spans into `inbox` at `address`; `token` empty asks for none.

    Raises:
        ConfigError: grpc is not installed.

    """

    def __init__(self, inbox: Inbox, address: str, token: str) -> None:
        try:
            import grpc  # type: ignore[import-untyped]  # noqa: PLC0415
            import grpc.aio  # type: ignore[import-untyped]  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "OTLP over gRPC needs grpcio, which is not installed",
                field="telemetry.otlp.receive.grpc",
                hint=f"{protobuf.INSTALL}, or send over HTTP",
            ) from error
        self._grpc = grpc
        self._known = protobuf.messages()
        self._inbox, self._address, self._token = inbox, address, token
        self._server: Any = None
        self.port = 0

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address cannot be had.

        """
        grpc = self._grpc
        options = (
            ("grpc.max_receive_message_length", BODY_MAX),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", CALLS_MAX),
        )
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
        handler = grpc.unary_unary_rpc_method_handler(
            self._export,
            request_deserializer=bytes,
            response_serializer=lambda made: made.SerializeToString(),
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Export": handler}),)
        )
        try:
            self.port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {self._address}",
                field="telemetry.otlp.receive.grpc",
                value=self._address,
                hint="somebody else has the port",
            ) from error
        await self._server.start()

    async def _export(self, body: bytes, context: Any) -> Any:
        code = self._grpc.StatusCode
        headers = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        if not admitted(self._token, headers.get("authorization", "")):
            await context.abort(code.UNAUTHENTICATED, "spans are taken with a token only")
        try:
            batch = await self._take(body)
        except CapacityError as error:
            told = rpc_status.status(code.RESOURCE_EXHAUSTED.value[0], str(error), error.retry_after_s or 1.0)
            context.set_trailing_metadata(((rpc_status.KEY, told),))
            await context.abort(code.RESOURCE_EXHAUSTED, str(error))
        except CallerError as error:
            await context.abort(code.INVALID_ARGUMENT, str(error))
        made = self._known.traces.ExportTraceServiceResponse()
        if batch.rejected:
            made.partial_success.rejected_spans = batch.rejected
            made.partial_success.error_message = batch.reason
        return made

    async def _take(self, body: bytes) -> Batch:
        self._inbox.reserve(len(body))
        try:
            async with self._inbox.one_at_a_time:
                batch = await asyncio.to_thread(protobuf.decoded, body, self._known)
        except BaseException:
            self._inbox.release(len(body))
            raise
        self._inbox.add(batch, len(body))
        return batch

    async def stop(self) -> None:
        """End, with a second for calls that are under way."""
        if self._server is not None:
            await self._server.stop(CLOSE_S)
