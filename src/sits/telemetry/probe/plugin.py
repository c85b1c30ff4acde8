"""What vLLM loads: `load`, the entry point of group `vllm.general_plugins`, called in each of its processes.

```
SITS_PROBE=off ──> nothing      version unknown, or anything differs ──> one warning, nothing      else ──> all wrappers
```
Rules: vLLM's processes call this more than once, and forked ones inherit it: the second call does nothing.  Where the spans go is said by
`SITS_PROBE_ENDPOINT` (an OTLP/HTTP receiver, `/v1/traces` is added to an address without a path; `SITS_PROBE_HEADERS` go with them) or
`SITS_PROBE_FILE` (one JSON document a line); without either they go to `DEFAULT`, and to nobody when nobody is there.  OpenTelemetry's own
variables are vLLM's, and not read.  Whatever goes wrong here is told in one warning and never reaches vLLM.

Deliberately absent: options in files, and a list of points to leave out: the probe is on or off.
"""

import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sits import __version__
from sits.telemetry.posting import Answer
from sits.telemetry.probe.front import Front
from sits.telemetry.probe.known import VERSIONS, Known, known
from sits.telemetry.probe.patching import Patches
from sits.telemetry.probe.reading import differences, package_of, version_of
from sits.telemetry.probe.scheduling import Scheduling
from sits.telemetry.probe.seeing import LOG, Seeing
from sits.telemetry.probe.stepping import Stepping
from sits.telemetry.spans_out import SpansOut, pairs
from sits.world import RealWorld

DEFAULT = "http://127.0.0.1:4318"
SWITCH, ENDPOINT, HEADERS, FILE = "SITS_PROBE", "SITS_PROBE_ENDPOINT", "SITS_PROBE_HEADERS", "SITS_PROBE_FILE"
OFF = ("off", "0", "false", "no")


class Found(NamedTuple):
    """What a look at vLLM found: empty `problems` mean that the probe would run."""

    package: Path | None
    version: str
    known: Known | None
    problems: tuple[str, ...]


class Probe:
    """The wrappers of one process and the way out of their spans."""

    def __init__(self, seeing: Seeing, patches: Patches, out: SpansOut, front: Front) -> None:
        self.seeing, self.patches, self.out, self.front = seeing, patches, out, front


_running: list[Probe] = []
_looked: list[bool] = []


def running() -> Probe | None:
    """The probe of this process, None when it stood down or was never loaded."""
    return _running[0] if _running and not _running[0].seeing.ended else None


def look(package: Path | None = None) -> Found:
    """Is there a vLLM, and is it one we know?"""
    package = package or package_of()
    if package is None:
        return Found(None, "", None, ("there is no vLLM in this Python",))
    version = version_of(package)
    about = known(version)
    if about is None:
        names = ", ".join(f"{name}.x" for name in VERSIONS)
        return Found(package, version, None, (f"vLLM {version} is not one the probe knows ({names})",))
    return Found(package, version, about, tuple(differences(package, about)))


def load() -> None:
    """Start the probe in this process, or say why not."""
    if _looked:
        return
    _looked.append(True)
    if os.environ.get(SWITCH, "").lower() in OFF:
        return
    try:
        found = look()
        if found.problems or found.known is None:
            _warn("; ".join(found.problems))
            return
        _running.append(started(found.known, found.version, os.environ))
    except Exception as error:  # noqa: BLE001  # an engine must start whatever becomes of us
        _warn(f"{type(error).__name__}: {error}")


def started(about: Known, version: str, environ: Mapping[str, str]) -> Probe:
    """All wrappers in place, or none."""
    out = way_out(version, environ)
    seeing = Seeing(out.put, RealWorld.now_ns, RealWorld.wall_ns)
    front = Front(seeing)
    parts = {"front": front, "scheduling": Scheduling(seeing), "stepping": Stepping(seeing)}
    wraps = {site: getattr(parts[site.part], site.wrapper) for site in about.sites}

    def stand_down(problem: str) -> None:
        seeing.ended = True
        _warn(problem)

    patches = Patches(wraps, stand_down)
    seeing.on_trouble = patches.undo
    patches.apply()
    return Probe(seeing, patches, out, front)


def way_out(version: str, environ: Mapping[str, str]) -> SpansOut:
    """Where the spans of this process go."""
    host = socket.gethostname()
    resource = {
        "service.name": environ.get("OTEL_SERVICE_NAME") or "vllm",
        "service.instance.id": host,
        "host.name": host,
        "sits.probe.version": __version__,
        "sits.vllm.version": version,
    }
    if path := environ.get(FILE, ""):
        return SpansOut(path, resource, scope=LOG, post=append_line)
    return SpansOut(
        traces_url(environ.get(ENDPOINT) or DEFAULT),
        resource,
        scope=LOG,
        headers=pairs(environ.get(HEADERS, "")),
    )


def traces_url(endpoint: str) -> str:
    """The address of an OTLP/HTTP receiver, with the path of traces where it has none.

    >>> traces_url("http://gateway:9464"), traces_url("http://collector/otlp/v1/traces")
    ('http://gateway:9464/v1/traces', 'http://collector/otlp/v1/traces')
    """
    return endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"


def append_line(path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
    """Append a batch to a file as one line: one write, so the processes of an engine can share it."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, body + b"\n")
        finally:
            os.close(file)
    except OSError as error:
        return Answer(507, 0.0, str(error))
    return Answer(200)


def _warn(problem: str, log: Any = None) -> None:
    (log or logging.getLogger(LOG)).warning("the probe stands down, vLLM runs as without it: %s", problem)
