"""Section `telemetry.otlp` of a `fleet.yaml`: where our spans and metrics are sent, and whose we take.

Rules: nothing is sent without `export`, whatever the environment says; with it, what is left empty comes from the OpenTelemetry variables
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `_PROTOCOL`, `_HEADERS`, `_TIMEOUT`, `OTEL_SEMCONV_STABILITY_OPT_IN`).  Secrets are named, not written: a header
or a token comes from an environment variable.

Deliberately absent: what is sent (`telemetry.otlp`), and reading those variables (`app.otlp.target`).
"""

from typing import Literal

from sits.core.section import Section
from sits.core.units import SECOND, Ns


class Header(Section, frozen=True, kw_only=True):
    """One header of what is sent: its value as written, or that of environment variable `env`."""

    name: str
    value: str = ""
    env: str = ""


class Export(Section, frozen=True, kw_only=True):
    """Where to.

    `endpoint`: URL of the receiver; `http://` is in the clear, `https://` is TLS; over HTTP, `/v1/traces` and `/v1/metrics` are added to it.
    `protocol`: empty is what the variables say, or `http/protobuf`.  `semconv`: the version of the conventions for generative AI.
    `metrics_every`: how often metrics are sent, 0 never.  `retry_for`: how long one batch is tried before it is dropped and counted.
    """

    endpoint: str = ""
    protocol: Literal["", "grpc", "http/protobuf"] = ""
    headers: tuple[Header, ...] = ()
    compression: Literal["gzip", "none"] = "gzip"
    semconv: Literal["", "1.41", "genai-0.1.0"] = ""
    timeout: Ns = Ns(10 * SECOND)
    metrics_every: Ns = Ns(60 * SECOND)
    retry_for: Ns = Ns(600 * SECOND)


class Receive(Section, frozen=True, kw_only=True):
    """Whose spans we take: over HTTP on the port of `admin`, over gRPC on `grpc` (host:port, empty is off).

    `token_env`: the environment variable with the token that senders have to show (`authorization: Bearer ...`); empty asks for none, and then
    spans are taken on loopback addresses only.
    """

    http: bool = True
    grpc: str = ""
    token_env: str = ""


class Otlp(Section, frozen=True, kw_only=True):
    """Both directions; they run in the admin process, so `admin.listen` has to be given."""

    export: Export | None = None
    receive: Receive = Receive()
