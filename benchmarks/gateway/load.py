"""The load generator as a Python object: compiled once into the cache, driven by lines, answering by JSON.

Knows how to pin it, how to name the processes whose CPU time counts, and how to raise both sides above other work
of the machine for the seconds of a measurement (through the scheduler's autogroups; ignored where not allowed).
"""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path

SOURCES = Path(__file__).parent / "load"


def compiled(cache: Path) -> Path:
    """The program, built by `cc` when its sources have changed."""
    files = sorted(SOURCES.glob("*.[ch]"))
    mark = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    program = cache / f"load-{mark}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        sources = [str(file) for file in files if file.suffix == ".c"]
        made = program.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", str(made), *sources, "-lm"], check=True)
        made.replace(program)
    return program


def free_ports(count: int) -> tuple[int, ...]:
    """Ports nobody listens on."""
    with contextlib.ExitStack() as open_ones:
        probes = [open_ones.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return tuple(probe.getsockname()[1] for probe in probes)


def cores() -> tuple[int, int]:
    """The gateway's core and the load's; the same one where there is only one (and the figures say less)."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def raise_priority(pid: int) -> bool:
    """Put a process' session before other work on this machine; False where the kernel or the user may not."""
    try:
        Path(f"/proc/{pid}/autogroup").write_text("-12")
    except OSError:
        return False
    return True


def family(root: int) -> list[int]:
    """A process and everything below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(parents.get(pid, ()))
    return found


class Load:
    """The running program; its two engines serve at `ports` for as long as it lives."""

    def __init__(self, cache: Path):
        core = cores()[1]
        self.ports = free_ports(2)
        self.process = subprocess.Popen(
            [str(compiled(cache)), *map(str, self.ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509
        )
        raise_priority(self.process.pid)
        self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the load generator ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, phase: str, **values) -> dict:
        """Run one phase to its end."""
        self.process.stdin.write(" ".join([phase, *(f"{k}={v}" for k, v in values.items())]) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it; its engines go with it."""
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
            return
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def wait_until(true, seconds: float, step: float = 0.005) -> bool:
    """Poll until `true()`; False when the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(step)
    return False
