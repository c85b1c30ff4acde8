"""Prometheus and Alertmanager as processes of ours, with the configurations made for a fleet, and a webhook that notes what arrives.

Rules: both listen on free ports of the loopback address and keep everything in one folder; what was started is ended, also after an error.

Deliberately absent: what is scraped.
"""

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import msgspec
import yaml

from sits.app.alerts.rules import rules_of
from sits.app.alerts.servers import alertmanager_of, prometheus_of
from sits.core.errors import EngineError, UnknownError
from sits.core.fleet import Fleet
from sits.core.ports import World

PROMETHEUS, ALERTMANAGER = ("prometheus",), ("prometheus-alertmanager", "alertmanager")
LOOK_S, READY_LOOKS = 0.1, 300


class Told(msgspec.Struct, frozen=True):
    """One alert that arrived: when (wall clock, ns), its name, `firing` or `resolved`."""

    wall_ns: int
    name: str
    status: str
    labels: dict[str, str]


class Webhook:
    """Listens for Alertmanager's messages; `told` is what came, in order."""

    def __init__(self, world: World) -> None:
        self.told: list[Told] = []
        told = self.told

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                at_ns = world.wall_ns()
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                for alert in body["alerts"]:
                    told.append(Told(at_ns, alert["labels"]["alertname"], alert["status"], alert["labels"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


def binary(names: Sequence[str]) -> str:
    """The first of these programs that is here.

    Raises:
        UnknownError: none is.

    """
    for name in names:
        if found := shutil.which(name):
            return found
    raise UnknownError(
        f"there is no {names[0]} on this machine", hint=f"install it (Debian: apt-get install {names[0]})"
    )


class Stack:
    """The two servers and the webhook in `folder`, scraping `targets` (host:port); started on entering, ended on leaving.

    Raises:
        UnknownError: a program is not here.
        EngineError: one does not become ready.

    """

    def __init__(self, folder: Path, fleet: Fleet, targets: Sequence[str], world: World) -> None:
        self.folder = folder
        self._programs = binary(PROMETHEUS), binary(ALERTMANAGER)
        self._world = world
        self._targets = targets
        self._fleet = fleet
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pause = threading.Event()
        self._ports = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._ports[0]}"
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.webhook = undo.enter_context(closing(Webhook(self._world)))
            undo.callback(self._end)
            self._write()
            self._start(
                1, "alertmanager", self._ports[1], "--storage.path=alertmanager", "--cluster.listen-address="
            )
            self._start(0, "prometheus", self._ports[0], "--storage.tsdb.path=prometheus")
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        alertmanagers = [f"127.0.0.1:{self._ports[1]}"]
        files = {
            "rules.yaml": rules_of(self._fleet),
            "prometheus.yml": prometheus_of(self._fleet, self._targets, alertmanagers, "rules.yaml"),
            "alertmanager.yml": alertmanager_of(self._fleet, [self.webhook.url]),
        }
        for name, data in files.items():
            (self.folder / name).write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")

    def _end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        found: list[dict[str, Any]] = self.get("/api/v1/query?" + urllib.parse.urlencode({"query": expr}))[
            "result"
        ]
        return found

    def value(self, expr: str) -> float | None:
        """The value of an expression of one sample; None when there is none."""
        samples = self.query(expr)
        return float(samples[0]["value"][1]) if samples else None

    def get(self, path: str) -> Any:
        """The data of an answer of Prometheus's API.

        Raises:
            EngineError: it refused.

        """
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:  # noqa: S310  (our own server)
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise EngineError(f"Prometheus: {error.read().decode(errors='replace')}") from error

    def wait(self, what: str, holds: Any, looks: int = READY_LOOKS) -> Any:
        """The first answer of `holds` that is not false.

        Raises:
            EngineError: it stays false for `looks` looks.

        """
        for _ in range(looks):
            if found := holds():
                return found
            self._pause.wait(LOOK_S)
        raise EngineError(
            f"waited {looks * LOOK_S:.0f} s in vain for {what}", hint=f"see the logs in {self.folder}"
        )

    def _start(self, program: int, name: str, port: int, *more: str) -> None:
        suffix = ".yml"
        arguments = [
            f"--config.file={name}{suffix}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
            *more,
        ]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603
                [self._programs[program], *arguments], cwd=self.folder, stdout=log, stderr=log
            )
        self._processes.append(process)
        self.wait(
            f"{name} to be ready",
            lambda: process.poll() is None and _ready(f"http://127.0.0.1:{port}/-/ready"),
        )


def _ready(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  (our own server)
        return bool(answer.status == 200)
    return False


def free_port() -> int:
    """A port nobody has at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
