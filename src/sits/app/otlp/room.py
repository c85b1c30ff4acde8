"""OTLP's room in the admin process: the receivers, the exporter, and what they count.

```
POST /v1/traces, gRPC ──> inbox ──every 2 s──> the store (a writer of its own)        the store ──tail──> exporter ──> telemetry.otlp.export
GET /otlp.json          what both count
```
Rules: the paths are there for as long as the process is; whether spans are taken follows the configuration.  What names an address or a
receiver is set when the process starts; without a token spans are taken on a loopback address only; another configuration that changes it says that a restart is needed.

Deliberately absent: pages.
"""

import asyncio
import os
import socket
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from sits.app.otlp.exporting import Exporter, providers_of
from sits.app.otlp.receiving_grpc import GrpcReceiver
from sits.app.otlp.receiving_http import HttpReceiver, admitted
from sits.app.otlp.sending import sender_of
from sits.app.otlp.target import target_of
from sits.app.up.generation import Generation
from sits.app.up.rooms import House, Room
from sits.core import otel_names as names
from sits.core.decode import tag_of
from sits.core.errors import ConfigError
from sits.core.fleet_otlp import Export
from sits.core.loopback import is_loopback
from sits.telemetry.otlp.inbox import Inbox
from sits.telemetry.otlp.protobuf import messages
from sits.telemetry.store import DuckStore
from sits.telemetry.writer import StoreWriter

WRITE_S = 2.0


class OtlpRoom(Room):
    """The room; its paths are for machines and are guarded by the token of the receiver, if any."""

    name = "otlp"
    guarded = False

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._otlp = house.generation.fleet.telemetry.otlp
        variable = self._otlp.receive.token_env
        self._token = os.environ.get(variable, "") if variable else ""
        near = is_loopback(house.address.rpartition(":")[0])
        self._asked: str | None = self._token if self._token or near else None
        self.inbox = Inbox(house.generation.run_id)
        self.grpc: GrpcReceiver | None = None
        self.exporter: Exporter | None = None
        self._writer: StoreWriter | None = None
        self._store: DuckStore | None = None

    def routes(self) -> Sequence[BaseRoute]:
        """The receiver's paths, and the counts."""
        taken = HttpReceiver(self.inbox, self._asked).routes() if self._otlp.receive.http else ()
        return (*taken, Route("/otlp.json", self._counts))

    async def start(self) -> None:
        """Open the store, listen, and begin to send; what of it cannot be had is told, the rest goes on.

        Raises:
            ConfigError: the token's variable is not set.

        """
        receive = self._otlp.receive
        if receive.token_env and not self._token:
            raise ConfigError(
                f"the variable {receive.token_env} is not set",
                field="telemetry.otlp.receive.token_env",
                hint=f"export {receive.token_env}=... before 'sitsctl up'",
            )
        if receive.http or receive.grpc:
            self._store = DuckStore(self.house.store, world=self.house.world)
            self._writer = StoreWriter(self._store, self.inbox.sources, period_s=WRITE_S)
            self._writer.start()
        if receive.http and self._asked is None:
            self.house.say(
                f"otlp: spans are not taken on {self.house.address}: that is no loopback address, and telemetry.otlp.receive names no token_env"
            )
        if receive.grpc:
            try:
                self.grpc = GrpcReceiver(self.inbox, receive.grpc, self._token)
                await self.grpc.start()
                self.house.say(f"otlp: spans are taken on gRPC port {self.grpc.port}")
            except ConfigError as error:
                self.grpc = None
                self.house.say(f"otlp: {error}")
        if self._otlp.export is not None:
            try:
                self.exporter = self._exporting(self._otlp.export)
            except ConfigError as error:
                self.house.say(f"otlp: nothing is sent: {error}")

    def _exporting(self, export: Export) -> Exporter:
        house, fleet = self.house, self.house.generation.fleet
        resource = {
            names.SERVICE: "sits",
            names.INSTANCE: f"{fleet.name}@{socket.gethostname()}",
            names.ENVIRONMENT: fleet.telemetry.environment,
        }
        target = target_of(export, os.environ, resource)
        known = messages()
        sender = sender_of(target, known)
        providers = providers_of(fleet.engines, lambda engine: tag_of(type(engine))[1])
        made = Exporter(house.store, export, target, sender, known, providers, house.world)
        made.start()
        house.say(f"otlp: spans and metrics go to {target.shown}, names of {target.convention.version}")
        return made

    def adopt(self, new: Generation) -> None:
        """Another configuration; addresses stay as they are."""
        if new.fleet.telemetry.otlp != self._otlp:
            self.house.say(
                "otlp: telemetry.otlp has changed, and is taken when the gateway is started the next time"
            )

    def vitals(self) -> dict[str, dict[str, float]]:
        """What is counted here, as the metrics page has it."""
        inbox = self.inbox
        spans: dict[str, float] = {'result="received"': inbox.spans, 'result="refused"': inbox.rejected}
        told = {
            "sits_otlp_spans_total": spans,
            "sits_otlp_requests_refused_total": {"": float(inbox.refused)},
        }
        if self.exporter is not None:
            spans |= {
                'result="sent"': self.exporter.sent,
                'result="dropped"': self.exporter.dropped,
                'result="rejected"': self.exporter.rejected,
            }
            told["sits_otlp_retries_total"] = {"": self.exporter.retries}
        return told

    async def _counts(self, request: Request) -> Response:
        if not admitted(self._asked, request.headers.get("authorization", "")):
            return Response("with the token of telemetry.otlp.receive only", 401, media_type="text/plain")
        inbox, exporter, writer = self.inbox, self.exporter, self._writer
        made: dict[str, object] = {
            "receive": {
                "requests": inbox.requests,
                "spans": inbox.spans,
                "spans_rejected": inbox.rejected,
                "requests_refused": inbox.refused,
                "bytes_held": inbox.held,
                "rows_stored": writer.written if writer else 0,
                "trouble": writer.last_error if writer else "",
            }
        }
        if exporter is not None:
            made["export"] = {
                "spans": exporter.sent,
                "spans_dropped": exporter.dropped,
                "spans_rejected": exporter.rejected,
                "retries": exporter.retries,
                "trouble": exporter.trouble,
            }
        return JSONResponse(made)

    async def close(self) -> None:
        """Send and write what is left."""
        if self.grpc is not None:
            await self.grpc.stop()
        if self._writer is not None:
            await asyncio.to_thread(self._writer.stop)
        if self._store is not None:
            await asyncio.to_thread(self._store.close)
        if self.exporter is not None:
            await asyncio.to_thread(self.exporter.stop)
