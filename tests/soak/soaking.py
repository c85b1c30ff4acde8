"""What soaks share: a real `sitsctl up` on one core, the benchmark's load on another, and lines that say how far they are."""

import functools
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gateway.load import Load
from gateway.measure import Running
from gateway.peers import CACHE, KEY, Command, Peer, Place

from sits.core.units import SECOND
from sits.world import RealWorld

WORLD = RealWorld()

FLEET = Path(__file__).with_name("fleet.yaml")
SITSCTL = str(Path(sys.executable).parent / "sitsctl")
CHAT = "/v1/chat/completions"


def _start(workers: int, at: Place) -> Command:
    file = at.scratch / "fleet.yaml"
    store = at.scratch / "store"
    file.write_text(FLEET.read_text().format(port=at.port, store=store, workers=workers, engines=at.engines))
    return [SITSCTL, "up", str(file)], {}


@contextmanager
def serving(workers: int) -> Iterator[tuple[Running, Load]]:
    """A gateway that answers, and the load to put on it."""
    peer = Peer("soak", "sitsctl up", functools.partial(_start, workers), drain_s=600)
    with Load(CACHE) as load:
        running = Running(peer, CACHE, load.ports)
        try:
            running.first_ok()
            load.ask("set", path=CHAT, model="m", bearer=KEY)
            yield running, load
        finally:
            if running.process.returncode is None:
                running.end()
            shutil.rmtree(running.scratch, ignore_errors=True)


def since_s(began_ns: int) -> float:
    """Seconds since then."""
    return (WORLD.now_ns() - began_ns) / SECOND


def say(*words: object) -> None:
    """One line, at once."""
    print(*words, flush=True)
