"""What section `telemetry.otlp` needs beyond the types of its fields: addresses, headers, and a process to run in.

Deliberately absent: whether anybody listens there.
"""

import re
from urllib.parse import urlsplit

from sits.core.fleet_otlp import Export, Otlp
from sits.core.problems import Report, join
from sits.core.remote_rules import is_host
from sits.core.units import SECOND

_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[a-z0-9][a-z0-9_.-]*")

OTLP_RANGES: dict[type, dict[str, tuple[float, float]]] = {
    Export: {
        "timeout": (10**6, 600 * SECOND),
        "metrics_every": (0, 3600 * SECOND),
        "retry_for": (0, 24 * 3600 * SECOND),
    }
}


def check_otlp(otlp: Otlp, admin: str, path: str, report: Report) -> None:
    """Report what of the section cannot be used; `admin` is where the admin process listens."""
    if otlp.export is not None:
        _check_export(otlp.export, join(path, "export"), report)
    receive = join(path, "receive")
    if otlp.receive.token_env and not _ENV.fullmatch(otlp.receive.token_env):
        _no_variable(join(receive, "token_env"), otlp.receive.token_env, report)
    if otlp.receive.grpc:
        host, _, port = otlp.receive.grpc.rpartition(":")
        if not is_host(host) or not port.isdigit() or int(port) > 65_535:
            hint = "write host:port like '127.0.0.1:4317'"
            report.add(
                join(receive, "grpc"), f"{otlp.receive.grpc[:80]!r} is not host:port",
                value=otlp.receive.grpc, hint=hint,
            )  # fmt: skip
        elif not otlp.receive.token_env and host not in ("127.0.0.1", "localhost", "[::1]"):
            hint = "name a variable in 'token_env', or listen on 127.0.0.1"
            report.add(
                join(receive, "grpc"), "would take spans from everybody", value=otlp.receive.grpc, hint=hint
            )
    if (otlp.export is not None or otlp.receive.grpc) and not admin:
        hint = "write 'admin: {listen: 127.0.0.1:8081}', or leave out telemetry.otlp"
        report.add(path, "needs the admin process, which is off", hint=hint)


def _check_export(export: Export, path: str, report: Report) -> None:
    if export.endpoint:
        try:
            parts = urlsplit(export.endpoint)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or not export.endpoint.isprintable() or " " in export.endpoint:
            hint = "write a URL like 'http://127.0.0.1:4318'"
            report.add(
                join(path, "endpoint"), f"{export.endpoint[:80]!r} is no URL of a receiver",
                value=export.endpoint, hint=hint,
            )  # fmt: skip
        elif parts.username is not None:
            report.add(
                join(path, "endpoint"), "holds a user or a password", hint="name a variable in a header's 'env'"
            )  # fmt: skip
    for i, header in enumerate(export.headers):
        inner = f"{join(path, 'headers')}[{i}]"
        if not _HEADER.fullmatch(header.name):
            hint = "lower-case letters, digits and . _ -"
            report.add(
                join(inner, "name"),
                f"{header.name[:40]!r} is no header's name",
                value=header.name,
                hint=hint,
            )
        if header.env and not _ENV.fullmatch(header.env):
            _no_variable(join(inner, "env"), header.env, report)
        if bool(header.env) == bool(header.value):
            report.add(inner, "needs either 'value' or 'env'", hint="a secret is named in 'env', not written")
        elif not header.value.isprintable() or not header.value.isascii():
            report.add(join(inner, "value"), "has characters that no header can hold")


def _no_variable(path: str, value: str, report: Report) -> None:
    report.add(
        path, f"{value[:40]!r} is not the name of an environment variable",
        value=value, hint="letters, digits and _, not beginning with a digit",
    )  # fmt: skip
