"""A real process start, watched from outside: exec, code loaded, device, listening, first answer.

The command runs in a session of its own; every few milliseconds `/proc` is asked what its processes are doing:

    exec           until the program has replaced the fork
    imports        until the last shared library was mapped before it listened (or ended)
    device         from the driver's control device being opened until the last GPU device was (with a GPU only)
    configuration  from there until it listens on a TCP port (on the port of the URL, where one is given)
    answer         until the URL answers with a 2xx

With each stage goes the CPU time it took and what it read from the disk, which tell computing from waiting.  Nothing is traced, so
nothing is slowed down, but what happens between two looks is seen at the second: `exact_ns` says how far apart they were.

`import_times` asks a Python process to report its imports on standard error (it makes them 10 to 20 % slower) and adds them
up by package.

When the start is over, the session is told to end (SIGTERM, after ten seconds SIGKILL); so it is when the watcher is interrupted or
told to end itself, and when the watcher is killed the kernel tells the command.  The command's output goes to a temporary
file, whose end is shown when it fails.

Deliberately absent: attaching to a process that runs already.
"""

import ctypes
import http.client
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import msgspec

from sits.bench.leaving import ends_when_told
from sits.bench.procstart_listeners import listening
from sits.core.errors import ConfigError, EngineError
from sits.core.units import MS, SECOND
from sits.predict.startup import Mark, Startup, attribute
from sits.world import RealWorld

LOOK_NS = 4 * MS
GRACE_S = 10.0
PR_SET_PDEATHSIG = 1
_GPU = re.compile(r"/dev/(?:nvidia(?:ctl|-uvm|\d+)|kfd|dri/renderD\d+)$")
_IMPORT = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")
TICK_NS = SECOND // os.sysconf("SC_CLK_TCK")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes had used by a moment: CPU time, and bytes that came from a disk."""

    cpu_ns: int = 0
    read_bytes: int = 0


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start: its stages, what each used, when it listened and answered (ns, -1 = never), and the exit code of one that ended."""

    startup: Startup
    used: dict[str, Look]
    listening_ns: int
    answered_ns: int
    exit_code: int | None
    processes: int
    imports_us: dict[str, int]


class Tree:
    """The processes of one session, and what `/proc` says of them."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self.pid, self.proc = pid, proc
        self.libraries: set[str] = set()
        self.devices: set[str] = set()
        self.seen: set[int] = set()
        self._used: dict[int, Look] = {}

    def pids(self) -> list[int]:
        """The process and all that descend from it."""
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for task in self._list(self.proc / str(pid) / "task"):
                todo += [int(child) for child in self._text(pid, f"task/{task}/children").split()]
        self.seen.update(found)
        return found

    def look(self, pids: Sequence[int]) -> tuple[bool, bool]:
        """Look at all; whether a library and whether a GPU device is new."""
        libraries, devices = len(self.libraries), len(self.devices)
        for pid in pids:
            for line in self._text(pid, "maps").splitlines():
                parts = line.split(maxsplit=5)
                if len(parts) == 6 and "x" in parts[1] and parts[5].startswith("/"):
                    self.libraries.add(parts[5])
            self.devices.update(path for path in self.files(pid) if _GPU.match(path))
        return len(self.libraries) > libraries, len(self.devices) > devices

    def files(self, pid: int) -> list[str]:
        """What a process has open."""
        base = self.proc / str(pid) / "fd"
        found = []
        for name in self._list(base):
            try:
                found.append(str((base / name).readlink()))
            except OSError:
                found.append("")  # closed meanwhile
        return found

    def listens(self, pids: Sequence[int], port: int | None) -> bool:
        """Whether one of them listens on a TCP port (`port`, where it matters)."""
        waiting = listening()
        wanted = {inode for inode, local in waiting.items() if port in (None, local)}
        return bool(wanted) and any(
            path.startswith("socket:[") and path[8:-1] in wanted for pid in pids for path in self.files(pid)
        )

    def use(self, pids: Sequence[int]) -> Look:
        """What all that were ever seen have used, each as last seen."""
        for pid in pids:
            stat = self._text(pid, "stat").rpartition(")")[2].split()
            io = re.search(r"^read_bytes: (\d+)", self._text(pid, "io"), re.MULTILINE)
            if len(stat) > 12:
                cpu = (int(stat[11]) + int(stat[12])) * TICK_NS
                self._used[pid] = Look(cpu_ns=cpu, read_bytes=int(io[1]) if io else 0)
        return Look(
            cpu_ns=sum(one.cpu_ns for one in self._used.values()),
            read_bytes=sum(one.read_bytes for one in self._used.values()),
        )

    def _text(self, pid: int, name: str) -> str:
        try:
            return (self.proc / str(pid) / name).read_text(errors="replace")
        except OSError:
            return ""  # gone meanwhile

    def _list(self, path: Path) -> list[str]:
        try:
            return os.listdir(path)  # noqa: PTH208  # names are all that is wanted, many times a second
        except OSError:
            return []


def watch(
    command: Sequence[str],
    world: RealWorld,
    *,
    url: str | None = None,
    limit_ns: int = 600 * SECOND,
    import_times: bool = False,
) -> Start:
    """Start `command`, watch it until it answers (with `url`), listens, or ends, and end it.

    Raises:
        ConfigError: no such program, a URL that is none, or somebody else listens on its port already.
        EngineError: it ended with an error, or is not there after `limit_ns`.

    """
    port = _port(url)
    if port is not None and port in listening().values():
        raise ConfigError(
            f"something listens on port {port} already",
            field="url",
            value=url,
            hint="stop it, or choose another port",
        )
    environment = dict(os.environ) | ({"PYTHONPROFILEIMPORTTIME": "1"} if import_times else {})
    told_at_death = _told_at_death()
    with tempfile.TemporaryFile() as output, ends_when_told():
        begin_ns = world.now_ns()
        try:
            process = subprocess.Popen(  # noqa: S603  # running what the user asked for is the point
                list(command),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=told_at_death,  # noqa: PLW1509  # one call of C between fork and exec
                env=environment,
            )
        except OSError as error:
            raise ConfigError(
                f"{command[0]!r} cannot be run: {error.strerror}", field="command", value=command[0]
            ) from error
        try:
            return _watched(process, world, begin_ns, world.now_ns(), url, port, limit_ns, output)
        finally:
            _end(process)


def _told_at_death() -> Callable[[], None]:
    """What a new process does to be told to end when this one is gone; the library is loaded before the fork."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask


def _watched(
    process: subprocess.Popen[bytes], world: RealWorld, begin_ns: int, exec_ns: int, url: str | None, port: int | None,
    limit_ns: int, output: IO[bytes],
) -> Start:  # fmt: skip
    tree = Tree(process.pid)
    library_ns = device_ns = exec_ns
    first_device_ns = listening_ns = answered_ns = -1
    exact_ns, looked_ns, used = 0, exec_ns, {"exec": Look()}
    by_library = by_device = by_listening = Look()
    while True:
        before_ns = world.now_ns()
        pids = tree.pids()
        library, device = tree.look(pids)
        use = tree.use(pids)
        between_ns, looked_ns = world.now_ns() - looked_ns, before_ns
        if listening_ns < 0:
            if library or device:
                exact_ns = max(exact_ns, between_ns)
            if library:
                library_ns, by_library = before_ns, use
            if device:
                first_device_ns = before_ns if first_device_ns < 0 else first_device_ns
                device_ns, by_device = before_ns, use
            if tree.listens(pids, port):
                listening_ns, by_listening = world.now_ns(), use
                exact_ns = max(exact_ns, listening_ns - looked_ns, between_ns)
        if listening_ns >= 0 and url is not None and _answers(url):
            answered_ns = world.now_ns()
        now_ns = world.now_ns()
        code = process.poll()
        if answered_ns >= 0 or (url is None and listening_ns >= 0) or code is not None:
            break
        if now_ns - begin_ns > limit_ns:
            raise EngineError(
                f"not there after {(now_ns - begin_ns) / 1e9:.0f} s"
                + ("" if listening_ns < 0 else ", though it listens")
                + _tail(output),
                hint="give it more time (--limit), or look at what it says",
            )
        time.sleep(LOOK_NS / SECOND)
    if code is not None and (code != 0 or url is not None):
        raise EngineError(
            f"it ended with code {code} before it {'answered' if url else 'listened'}{_tail(output)}"
        )
    end_ns = world.now_ns()
    marks = [Mark(exec_ns - begin_ns, "exec")]
    last = Look()
    split = [(library_ns, "imports", by_library)]
    if first_device_ns >= 0:
        split.append((device_ns, "device", by_device))
    if listening_ns >= 0:
        split.append((listening_ns, "configuration", by_listening))
    split.append(
        (answered_ns, "answer", tree.use(pids)) if answered_ns >= 0 else (end_ns, "configuration", use)
    )
    for at_ns, stage, seen in sorted(split, key=lambda one: one[0]):
        marks.append(Mark(at_ns - begin_ns, stage, "", exact_ns))
        kept = used.get(stage, Look())
        used[stage] = Look(
            cpu_ns=kept.cpu_ns + max(0, seen.cpu_ns - last.cpu_ns),
            read_bytes=kept.read_bytes + max(0, seen.read_bytes - last.read_bytes),
        )
        last = seen
    return Start(
        startup=attribute(0, marks),
        used=used,
        listening_ns=listening_ns - begin_ns if listening_ns >= 0 else -1,
        answered_ns=answered_ns - begin_ns if answered_ns >= 0 else -1,
        exit_code=code,
        processes=len(tree.seen),
        imports_us=_imports(output),
    )


def _port(url: str | None) -> int | None:
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(
            f"{url!r} is no URL to ask",
            field="url",
            value=url,
            hint="write it like http://127.0.0.1:8000/health",
        )
    return parts.port or 80


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=5)
    try:
        connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False  # not yet
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the session, gently at first; what its first process left behind is ended too."""
    _tell(process.pid, signal.SIGTERM)
    if _gone(process, GRACE_S) and not _tell(process.pid, 0):
        return
    _tell(process.pid, signal.SIGKILL)
    process.wait()


def _tell(group: int, sign: int) -> bool:
    """Send a signal to a session; whether anybody was there."""
    try:
        os.killpg(group, sign)
    except ProcessLookupError:
        return False
    return True


def _gone(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _tail(output: IO[bytes], lines: int = 5) -> str:
    output.seek(0)
    text = output.read()[-4000:].decode(errors="replace").splitlines()[-lines:]
    return (":\n  " + "\n  ".join(text)) if text else ""


def _imports(output: IO[bytes]) -> dict[str, int]:
    """Microseconds of importing by top-level package, the longest first."""
    output.seek(0)
    found: dict[str, int] = {}
    for line in output.read().decode(errors="replace").splitlines():
        match = _IMPORT.match(line)
        if match is not None:
            package = match[2].partition(".")[0]
            found[package] = found.get(package, 0) + int(match[1])
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
