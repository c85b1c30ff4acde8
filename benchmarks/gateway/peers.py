"""Who is measured: how each gateway is installed, configured and started.

A peer is installed from the package registries into its own directory under the cache, in the version that is
written here.  Configuration is what a careful user would write for two engines behind one address: balancing by
round robin where it exists, access logs off, one worker (the core is one), everything else as it comes.

Deliberately absent: tuning of a peer beyond that, and of ours: `sits` runs as `sitsctl up FILE` does for everybody.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
KEY = "bench-key"
Command = tuple[list[str], dict[str, str]]
"""Arguments and added environment."""


@dataclass(frozen=True)
class Peer:
    """One gateway in one shape."""

    name: str
    what: str
    start: Callable[[Path, Path, int, tuple[int, ...]], Command]
    """(its installation, a scratch directory, its port, the engines' ports) -> how to start it."""
    packages: tuple[str, ...] = ()
    installation: str = ""
    path: str = "/v1/chat/completions"
    model: str = "m"
    slow: bool = False
    """Its loads are smaller: milliseconds a request."""
    start_s: float = 60.0
    notes: tuple[str, ...] = field(default_factory=tuple)


def _uv() -> str | None:
    return shutil.which("uv")


def install(peer: Peer, cache: Path) -> Path:
    """Its directory in the cache, made when it is not there.

    Raises:
        subprocess.CalledProcessError: the registry did not give it.

    """
    if not peer.packages:
        return cache
    home = cache / "peers" / (peer.installation or peer.name)
    if (home / "installed").exists() and (home / "installed").read_text() == "\n".join(peer.packages):
        return home
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    if uv := _uv():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(home / "venv")], check=True)
        install_line = [uv, "pip", "install", "--quiet", "--python", str(home / "venv/bin/python")]
    else:
        subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
        install_line = [str(home / "venv/bin/python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install_line, *peer.packages], check=True)
    (home / "installed").write_text("\n".join(peer.packages))
    return home


def _python(home: Path, *args: str) -> list[str]:
    return [str(home / "venv/bin/python"), *args]


def _sits(shape: str) -> Callable[..., Command]:
    def start(home: Path, scratch: Path, port: int, engines: tuple[int, ...]) -> Command:
        text = (HERE / "fleets" / f"{shape}.yaml").read_text()
        for name, value in {
            "PORT": port,
            "STORE": scratch / "store",
            "E0": engines[0],
            "E1": engines[1],
        }.items():
            text = text.replace(f"{{{name}}}", str(value))
        (scratch / "fleet.yaml").write_text(text)
        program = Path(sys.executable).parent / "sitsctl"
        return [str(program), "up", str(scratch / "fleet.yaml")], {}

    return start


PEERS = (
    Peer(
        "sits",
        "this gateway, features on",
        _sits("features"),
        notes=("keys, release with two arms, routing over two replicas, timeline and recorder on",),
    ),
    Peer("sits-bare", "this gateway, one engine, no keys", _sits("bare")),
)
BY_NAME = {peer.name: peer for peer in PEERS}
