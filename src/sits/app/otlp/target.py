"""Where to send: the fleet's `telemetry.otlp.export`, completed by the OpenTelemetry variables.

Rules: what the fleet says goes before a variable, and the variable of one signal (`OTEL_EXPORTER_OTLP_TRACES_...`) before the common one.  An
endpoint is a base to which HTTP adds `/v1/traces`, except in the variable of one signal, which is the whole URL.  Durations in variables are ms.

Source: OpenTelemetry specification, "OpenTelemetry Protocol Exporter" and "General SDK Configuration".

Deliberately absent: certificates by variable (the system's are used), and connections.
"""

import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from sits.core.errors import ConfigError
from sits.core.fleet_otlp import Export
from sits.core.otel_names import OPT_IN, SERVICE, Convention, convention

BASE = "OTEL_EXPORTER_OTLP_"
_TOKEN, _VISIBLE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"), re.compile("[ -~]*")
DEFAULTS = {"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318"}


class Target(msgspec.Struct, frozen=True):
    """A receiver, all decided.  `urls` are those of traces and of metrics; over gRPC both are its address."""

    protocol: str
    urls: Mapping[str, str]
    headers: Mapping[str, str]
    timeout_s: float
    gzip: bool
    convention: Convention
    resource: Mapping[str, str]

    @property
    def shown(self) -> str:
        """Where spans go, for people."""
        return f"{self.urls['traces']} ({self.protocol})"


def target_of(export: Export, environ: Mapping[str, str], resource: Mapping[str, str]) -> Target:
    """What `export` and the variables say together; `resource` describes us, and `OTEL_RESOURCE_ATTRIBUTES` adds to it.

    Raises:
        ConfigError: a header's variable is not set, or a variable says what cannot be.

    """
    protocol = export.protocol or environ.get(BASE + "PROTOCOL", "") or "http/protobuf"
    if protocol not in DEFAULTS:
        raise ConfigError(
            f"{BASE}PROTOCOL is {protocol!r}",
            field="telemetry.otlp.export.protocol",
            value=protocol,
            hint=f"one of {', '.join(DEFAULTS)}",
        )
    return Target(
        protocol=protocol,
        urls={signal: _url(export, signal, protocol, environ) for signal in ("traces", "metrics")},
        headers=_headers(export, environ),
        timeout_s=_timeout_s(export, environ),
        gzip=export.compression == "gzip",
        convention=convention(export.semconv, environ.get(OPT_IN, "")),
        resource={**pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", "")), **resource, **_service(environ)},
    )


def _url(export: Export, signal: str, protocol: str, environ: Mapping[str, str]) -> str:
    exact = environ.get(f"{BASE}{signal.upper()}_ENDPOINT", "")
    base = export.endpoint or environ.get(BASE + "ENDPOINT", "") or DEFAULTS[protocol]
    url = exact if exact and not export.endpoint else base
    if protocol == "http/protobuf" and url is base:
        url = f"{base.rstrip('/')}/v1/{signal}"
    if protocol == "grpc" and "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            f"the endpoint of {signal} has a name or password in it",
            field="telemetry.otlp.export.endpoint",
            hint="send it as a header: headers: [{name: authorization, env: VARIABLE}]",
        )
    if not good:
        raise ConfigError(
            f"the endpoint of {signal} is {url[:80]!r}, which is no URL",
            field="telemetry.otlp.export.endpoint",
            value=url,
            hint="write a URL like 'http://127.0.0.1:4318'",
        )
    return url


def _headers(export: Export, environ: Mapping[str, str]) -> dict[str, str]:
    found = pairs(environ.get(BASE + "TRACES_HEADERS") or environ.get(BASE + "HEADERS", ""))
    for header in export.headers:
        value = environ.get(header.env) if header.env else header.value
        if value is None:
            raise ConfigError(
                f"the variable {header.env} of header {header.name} is not set",
                field="telemetry.otlp.export.headers",
                value=header.env,
                hint=f"export {header.env}=... before 'sitsctl up'",
            )
        found[header.name] = value
    for name, value in found.items():
        if not _TOKEN.fullmatch(name) or not _VISIBLE.fullmatch(value.strip()):
            raise ConfigError(
                f"header {name[:80]!r} has a name or a value that no request can carry",
                field="telemetry.otlp.export.headers",
                hint="names of letters, digits and dashes; values of printable ASCII",
            )
    return {name.lower(): value.strip() for name, value in found.items()}


def _timeout_s(export: Export, environ: Mapping[str, str]) -> float:
    told = environ.get(BASE + "TIMEOUT", "")
    if export.timeout != Export().timeout or not told:
        return export.timeout / 1e9
    if not told.isdigit() or not 0 < int(told) <= 600_000:
        raise ConfigError(
            f"{BASE}TIMEOUT is {told!r}", field=BASE + "TIMEOUT", hint="milliseconds, 1..600000"
        )
    return int(told) / 1e3


def _service(environ: Mapping[str, str]) -> dict[str, str]:
    told = environ.get("OTEL_SERVICE_NAME", "")
    return {SERVICE: told} if told else {}


def pairs(said: str) -> dict[str, str]:
    """`a=1,b=2` as these variables have it; what has no `=` is left out.

    >>> pairs("authorization=Bearer%20x, tenant=a, odd")
    {'authorization': 'Bearer x', 'tenant': 'a'}
    """
    parts = (part.partition("=") for part in said.split(","))
    return {key.strip(): unquote(value.strip()) for key, equals, value in parts if equals and key.strip()}
