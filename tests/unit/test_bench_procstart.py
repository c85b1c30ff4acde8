"""Real starts on this machine: a server, a program that ends, one that fails, and what is left of them."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sits.bench.procstart import Tree, watch
from sits.bench.procstart_listeners import by_netlink, by_proc, listening
from sits.core.errors import ConfigError, EngineError
from sits.core.units import SECOND
from sits.world import RealWorld

WORLD = RealWorld(0)
SERVER = """
import http.server, sys, time
class Slow(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Slow.asked += 1
        self.send_response(503 if Slow.asked < 3 else 200)
        self.end_headers()
    def log_message(self, *_): pass
import json, decimal, sqlite3
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Slow)
server.serve_forever()
"""


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_a_server_is_watched_to_its_first_good_answer_and_ended(port):
    seen = watch([sys.executable, "-c", SERVER, str(port)], WORLD, url=f"http://127.0.0.1:{port}/health")
    stages = seen.startup.stages_ns
    assert {"exec", "imports", "answer"} <= set(stages)
    assert sum(stages.values()) == seen.startup.total_ns
    assert 0 < seen.listening_ns <= seen.answered_ns <= seen.startup.total_ns
    assert seen.exit_code is None
    assert port not in listening().values()


def test_without_a_url_it_is_over_when_it_listens_on_any_port(port):
    seen = watch([sys.executable, "-c", SERVER, str(port)], WORLD)
    assert seen.listening_ns > 0
    assert seen.answered_ns == -1
    assert "answer" not in seen.startup.stages_ns


def test_a_program_that_ends_is_seen_to_its_end_with_its_imports_by_package():
    seen = watch([sys.executable, "-c", "import json.tool, sqlite3"], WORLD, import_times=True)
    assert seen.exit_code == 0
    assert seen.imports_us["json"] > 0
    assert list(seen.imports_us.values()) == sorted(seen.imports_us.values(), reverse=True)
    assert sum(look.cpu_ns for look in seen.used.values()) <= 10 * seen.startup.total_ns


def test_children_are_watched_and_ended_too(port, tmp_path):
    pids = tmp_path / "pid"
    script = f'{sys.executable} -c "$0" {port} & echo $! > {pids}; wait'
    seen = watch(["sh", "-c", script, SERVER], WORLD, url=f"http://127.0.0.1:{port}/")
    assert seen.processes >= 2
    _wait_gone(int(pids.read_text()))


def _wait_gone(pid):
    """Wait for a process that is not ours to end: a pidfd becomes readable then."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 10)[0]
    finally:
        os.close(handle)


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


@pytest.mark.parametrize(
    ("command", "url", "error", "says"),
    [
        (["sh", "-c", "echo no weights here >&2; exit 3"], None, EngineError, "code 3 .*\n.*no weights here"),
        (["true"], "http://127.0.0.1:9/", EngineError, "code 0 before it answered"),
        (["no-such-program-at-all"], None, ConfigError, "cannot be run"),
        (["true"], "https://127.0.0.1/", ConfigError, "no URL"),
    ],
)
def test_a_start_that_fails_says_why(command, url, error, says):
    with pytest.raises(error, match=says):
        watch(command, WORLD, url=url)


def test_one_that_never_listens_is_ended_at_its_limit(tmp_path):
    pid = tmp_path / "pid"
    with pytest.raises(EngineError, match="not there after"):
        watch(["sh", "-c", f"echo $$ > {pid}; exec sleep 600"], WORLD, limit_ns=SECOND // 2)
    assert _state(int(pid.read_text())) in (None, "Z")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_the_watcher_ends_what_it_watches(tmp_path, sign):
    started = tmp_path / "pid"
    code = (
        "import signal, sys; from sits.bench.procstart import watch; from sits.world import RealWorld\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # whatever the tests were started by
        "watch(['sh', '-c', f'echo $$ > {sys.argv[1]}.part; mv {sys.argv[1]}.part {sys.argv[1]}; echo x; exec sleep 600'], RealWorld())"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(started)], stderr=subprocess.DEVNULL) as watcher:
        while not started.exists():  # written whole, by the command itself
            assert watcher.poll() is None
            os.sched_yield()
        watcher.send_signal(sign)
    _wait_gone(int(started.read_text()))


def test_a_port_somebody_else_holds_is_refused():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="listens on port"),
    ):
        watch(["true"], WORLD, url=f"http://127.0.0.1:{taken.getsockname()[1]}/")


def test_listeners_over_netlink_are_those_of_the_table():
    with socket.create_server(("127.0.0.1", 0)) as four, socket.create_server(("127.0.0.1", 0)) as other:
        try:
            asked = by_netlink()
        except OSError as error:
            pytest.skip(f"no netlink here: {error}")
        read = by_proc()
        for server in (four, other):
            inode, port = str(os.fstat(server.fileno()).st_ino), server.getsockname()[1]
            assert asked[inode] == read[inode] == port
    assert str(12345678901) not in asked


def test_gpu_devices_and_libraries_are_seen_in_proc(tmp_path):
    """A made-up /proc: no machine with a GPU is needed to see that its devices are told from other files."""
    base = tmp_path / "7"
    (base / "fd").mkdir(parents=True)
    (base / "task/7").mkdir(parents=True)
    (base / "task/7/children").write_text("")
    for number, target in enumerate(
        ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/null", "socket:[5]")
    ):
        (base / "fd" / str(number)).symlink_to(target)
    (base / "maps").write_text(
        "7f00-7f01 r-xp 00000000 fe:00 12   /usr/lib/libcuda.so.1\n7f01-7f02 r--p 0 fe:00 12  /usr/lib/data\n7f03-7f04 rw-p 0 0:0 0\n"
    )
    (base / "stat").write_text("7 (a) b) S " + " ".join(str(n) for n in range(1, 30)))
    (base / "io").write_text("rchar: 1\nread_bytes: 4096\n")
    tree = Tree(7, tmp_path)
    assert tree.pids() == [7]
    assert tree.look([7]) == (True, True)
    assert tree.look([7]) == (False, False)
    assert tree.devices == {"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"}
    assert tree.libraries == {"/usr/lib/libcuda.so.1"}
    assert tree.use([7]).read_bytes == 4096
