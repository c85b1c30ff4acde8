"""A real Redis for tests: its own process, its own directory, a socket file; killed with the test that asked for it."""

import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

COMMAND = next((name for name in ("redis-server", "valkey-server") if shutil.which(name)), "")


class RedisServer:
    """Listens on a socket file.  `append` keeps what it knows over `stop` and `begin`."""

    def __init__(self, append=False):
        self.directory = Path(tempfile.mkdtemp(prefix="redis-"))
        self.url = f"unix://{self.directory}/redis.sock"
        self._append = append
        self.begin()

    def begin(self):
        path = self.directory / "redis.sock"
        path.unlink(missing_ok=True)
        options = ["--port", "0", "--unixsocket", str(path), "--dir", str(self.directory), "--save", ""]
        options += ["--appendonly", "yes", "--appendfsync", "always"] if self._append else []
        self.process = subprocess.Popen([COMMAND, *options], stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if "Ready to accept connections" in line or "ready to accept connections" in line:
                break
        else:
            raise RuntimeError(f"{COMMAND} ended with {self.process.wait()}")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def close(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def a_redis(append=False):
    """A server, or a skip that says why there is none."""
    if not COMMAND:
        pytest.skip("neither redis-server nor valkey-server is installed")
    return RedisServer(append)
