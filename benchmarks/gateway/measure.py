"""One gateway, started new, through every phase, to one row of figures.

CPU is that of all its processes over a window, divided by what was served in it.  Memory is resident memory of all of
them: idle = a second after the first answer, loaded = after every phase.
"""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from gateway.load import Load, cores, family, free_ports, raise_priority, wait_until
from gateway.peers import KEY, Peer, Place

PHASES = ("sat", "credit", "flood", "rate", "ttft", "cancel", "many", "large", "hostile")
QUICK = ("sat", "credit", "flood", "rate", "ttft", "cancel")
LARGE = (1_000_000, 5_000_000, 20_000_000)
PROMPT_100K = 400_000
"""About 100,000 tokens of English."""


class Running:
    """A started gateway."""

    def __init__(self, peer: Peer, home: Path, engines: tuple[int, ...]):
        self.peer, self.port = peer, free_ports(1)[0]
        self.scratch = Path(tempfile.mkdtemp(prefix=f"bench-{peer.name}-"))
        self.scratch.chmod(0o755)  # nginx' worker is another user
        arguments, environment = peer.start(Place(home, self.scratch, self.port, engines))
        core = cores()[0]

        def prepare() -> None:
            os.sched_setaffinity(0, {core})
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

        self.log = (self.scratch / "log").open("wb")
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            cwd=self.scratch,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509
        )
        raise_priority(self.process.pid)

    def first_ok(self) -> float:
        """Seconds from the start to the first good answer.

        Raises:
            RuntimeError: it ended, or never answered.

        """
        body = f'{{"model":"{self.peer.model}","messages":[{{"role":"user","content":"hello there"}}]}}'
        request = (
            f"POST {self.peer.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {KEY}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

        def answers() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.peer.name} ended: {self.tail()}")
            with contextlib.suppress(OSError):  # a peer that chooses its port itself writes it down
                self.port = int((self.scratch / "port").read_text())
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 0.5) as link,
            ):
                link.settimeout(5)
                link.sendall(request)
                return link.recv(64).startswith(b"HTTP/1.1 200")
            return False

        if not wait_until(answers, self.peer.start_s, 0.002):
            raise RuntimeError(f"{self.peer.name} never answered: {self.tail()}")
        return time.monotonic() - self.began

    def tail(self) -> str:
        """The end of what it wrote."""
        return (self.scratch / "log").read_text(errors="replace")[-600:]

    def rss(self) -> dict[int, float]:
        """Resident memory of each of its processes, MB."""
        found = {}
        for pid in family(self.process.pid):
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                found[pid] = pages * resource.getpagesize() / 1e6
        return found

    def rss_mb(self) -> float:
        """Resident memory of all of them, MB."""
        return sum(self.rss().values())

    def end(self) -> None:
        """End every process of it; what it wrote stays."""
        pids = family(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.peer.drain_s)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def stop(self) -> None:
        """End it and forget it."""
        self.end()
        shutil.rmtree(self.scratch, ignore_errors=True)


def _cpu(figures: dict, unit: str) -> dict:
    """What a phase cost: microseconds a unit in all processes, and in the busiest one (the worker, where there are several)."""
    used = figures["cpu_ns"].values()
    count, window = max(figures["served"], 1), figures["window_ns"]
    return {
        f"cpu_us_per_{unit}": sum(used) / count / 1e3,
        "worker_us": max(used, default=0) / count / 1e3,
        "per_s": figures["served"] / window * 1e9,
        "busy": sum(used) / window,
        "load_busy": figures["own_cpu_ns"] / window,
    }


def measure(
    peer: Peer, home: Path, load: Load, phases: tuple[str, ...], seconds: float, *, hostile: int = 50_000
) -> dict:
    """One row."""
    row: dict = {"peer": peer.name, "loadavg": os.getloadavg()[0]}
    running = Running(peer, home, load.ports)
    try:
        row["start_s"] = running.first_ok()
        load.ask("set", path=peer.path, model=peer.model, bearer=KEY)
        load.ask("wait", seconds=1)
        idle = running.rss()
        loaded: dict[int, float] = {}
        for phase in phases:
            load.ask("set", pids=",".join(map(str, family(running.process.pid))))
            row[phase] = _PHASES[phase](running, load, seconds, hostile)
            if running.process.poll() is not None:
                raise RuntimeError(f"{peer.name} ended in {phase}: {running.tail()}")
            if phase not in {"large", "hostile"}:
                loaded |= {pid: max(mb, loaded.get(pid, 0.0)) for pid, mb in running.rss().items()}
        row |= _memory(idle, loaded, row)
        row["processes"] = len(family(running.process.pid))
    finally:
        running.stop()
    return row


def _memory(idle: dict[int, float], loaded: dict[int, float], row: dict) -> dict:
    """Memory of all processes, and of the worker: the one that used most CPU over all phases."""
    used: dict[int, int] = {}
    for phase in row.values():
        if isinstance(phase, dict):
            for pid, ns in phase.get("cpu_ns", {}).items():
                used[int(pid)] = used.get(int(pid), 0) + ns
    worker = max(used, key=lambda pid: used[pid], default=min(idle))
    return {
        "rss_idle_mb": sum(idle.values()),
        "rss_loaded_mb": sum(loaded.values()),
        "worker_idle_mb": idle.get(worker, 0.0),
        "worker_loaded_mb": loaded.get(worker, 0.0),
    }


def _sat(running: Running, load: Load, seconds: float, _: int) -> dict:
    conns = 8 if running.peer.slow else 32
    got = load.ask("sat", port=running.port, seconds=seconds, conns=conns)
    return {**got, **_cpu(got, "request")}


def _stream(phase: str):
    def run(running: Running, load: Load, seconds: float, _: int) -> dict:
        conns = 8 if running.peer.slow else 32
        got = load.ask(phase, port=running.port, seconds=seconds, conns=conns)
        return {**got, **_cpu(got, "chunk")}

    return run


def _rate(running: Running, load: Load, seconds: float, _: int) -> dict:
    rate = 20 if running.peer.slow else 200
    got = load.ask("rate", port=running.port, direct=load.ports[0], seconds=seconds * 2, rate=rate)
    added = {
        f"added_{p}_us": got["latency_us"][p] - got["direct_latency_us"][p]
        for p in ("p50", "p99")
        if "latency_us" in got
    }
    return {**got, **_cpu(got, "request"), **added}


def _ttft(running: Running, load: Load, seconds: float, _: int) -> dict:
    rate = 5 if running.peer.slow else 50
    got = load.ask(
        "ttft", port=running.port, direct=load.ports[0], seconds=seconds * 2, rate=rate, chunks=16, gap_ms=5
    )
    added = {
        f"added_{p}_us": got["ttft_us"][p] - got["direct_ttft_us"][p]
        for p in ("p50", "p99")
        if "ttft_us" in got
    }
    return {**got, **_cpu(got, "stream"), **added}


def _many(running: Running, load: Load, _: float, __: int) -> dict:
    conns, chunks, gap = (200, 20, 250) if running.peer.slow else (2000, 50, 100)
    got = load.ask("many", port=running.port, conns=conns, chunks=chunks, gap_ms=gap)
    return {**got, **_cpu(got, "chunk")}


def _large(running: Running, load: Load, _: float, __: int) -> dict:
    row: dict = {}
    for size in (*LARGE, PROMPT_100K):
        before = running.rss_mb()
        got = load.ask("large", port=running.port, size=size, count=3 if running.peer.slow else 8)
        figures = _cpu(got, "request")
        row[str(size)] = {
            "us_per_mb": figures["cpu_us_per_request"] / (size / 1e6),
            "cpu_us": figures["cpu_us_per_request"],
            "latency_us": got["latency_us"]["p50"],
            "errors": got["errors"] + got["unfinished"],
            "whole": got["engine_bytes"] >= 0.99 * got["body_bytes"] * got["served"],
            "rss_added_mb": running.rss_mb() - before,
        }
    return row


def _cancel(running: Running, load: Load, _: float, __: int) -> dict:
    return {
        mode: load.ask("cancel", port=running.port, mode=mode, count=20)
        for mode in ("plain", "token", "middle")
    }


def _hostile(running: Running, load: Load, _: float, count: int) -> dict:
    count = min(count, 2000) if running.peer.slow else count
    seconds = 3600 if count > 200_000 else 10 if running.peer.slow else 60
    first = load.ask("hostile", port=running.port, count=count // 5, seconds=seconds)
    load.ask("wait", seconds=0.5)
    before = running.rss()
    rest = load.ask("hostile", port=running.port, count=count - count // 5, seconds=seconds)
    load.ask("wait", seconds=0.5)
    after = running.rss()
    return {
        **rest,
        "good_failed": first["good_failed"] + rest["good_failed"],
        "rss_before_mb": before,
        "rss_after_mb": after,
        "drift": sum(after.values()) / sum(before.values()) - 1,
    }


_PHASES = {
    "sat": _sat,
    "credit": _stream("credit"),
    "flood": _stream("flood"),
    "rate": _rate,
    "ttft": _ttft,
    "many": _many,
    "large": _large,
    "cancel": _cancel,
    "hostile": _hostile,
}
