"""What the keeper looks at besides engines: the GPUs and the machine it is on, as signals of sources `GPU0`, ... and `host`; GPUs of
other machines behind a dcgm-exporter; and segments the kernel sent again, of all processes (`host`) and to each engine (its name).

Rules: in a thread of its own, for a driver may hold a call for seconds, and one look that takes long only makes the next one late; a
machine without a GPU is asked again now and then, because drivers come later than gateways, and says nothing; GPUs that were there and
are gone are told once.

Deliberately absent: engines (`app.up.watch`) and connections (`app.up.wires`).
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from sits.bench.target import fetch
from sits.core.errors import SitsError
from sits.core.fleet_signals import EXPORTERS_MAX, Signals
from sits.core.ports import World
from sits.core.units import SECOND
from sits.telemetry.gpu.nvml import NoDeviceError, Nvml
from sits.telemetry.gpu.recognise import read_gpu_text
from sits.telemetry.host.machine import Machine
from sits.telemetry.host.numa import local_share_of, nodes_here
from sits.telemetry.host.retransmits import Peer, ProbeRefusedError, Retransmits
from sits.telemetry.logs import Say

TIMEOUT_S = 2.0
"""Of an exporter's answer."""

ASK_AGAIN_NS = 60 * SECOND
"""How long a machine without a GPU is left alone."""

Found = Callable[[str, int, Mapping[str, float]], None]
"""Called with a source, the time, and its values by signal name."""


class Senses:
    """One task that looks at GPUs and the machine."""

    def __init__(
        self, world: World, found: Found, say: Say, open_nvml: Callable[[World], Nvml] = Nvml
    ) -> None:
        self._world = world
        self._found = found
        self._say = say
        self._open = open_nvml
        self._asked_ns: int | None = None
        self._nvml: Nvml | None = None
        self._machine = Machine(world)
        self._probe: Retransmits | None = None
        self._refused = False
        self._nodes = nodes_here()
        self._peers: dict[str, tuple[str, int]] = {}
        self._addresses: dict[str, set[Peer]] = {}
        self._thread = ThreadPoolExecutor(1, "sits-senses")
        self._away: set[str] = set()
        self._asking = ThreadPoolExecutor(EXPORTERS_MAX, "sits-exporters")
        self._signals: Signals | None = None
        self._told = ""
        self._task: asyncio.Task[None] | None = None

    def adopt(self, signals: Signals, peers: Mapping[str, tuple[str, int]]) -> None:
        """Look at these, and as often, from now on; `peers` are the hosts and ports of engines by name."""
        if signals == self._signals and peers == self._peers:
            return
        self._signals, self._peers, self._addresses = signals, dict(peers), {}
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._sense(signals))

    def stop(self) -> None:
        """Look at nothing any more."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._asking.shutdown(wait=False, cancel_futures=True)
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    async def _sense(self, signals: Signals) -> None:
        loop = asyncio.get_running_loop()
        while signals.exporters or "auto" in (signals.gpu, signals.host, signals.retransmits):
            now_ns = self._world.now_ns()
            asked = [
                loop.run_in_executor(self._asking, self.ask, name, url)
                for name, url in signals.exporters.items()
            ]
            looks = [loop.run_in_executor(self._thread, self.look, signals), *asked]
            for seen in await asyncio.gather(*looks, return_exceptions=True):
                if isinstance(
                    seen, BaseException
                ):  # a file or a library as nobody has met it: the others still count
                    self._tell_once(f"{type(seen).__name__}: {seen}")
                    continue
                for source, values in seen:
                    self._found(source, now_ns, values)
            await asyncio.sleep(signals.every / SECOND)

    def _tell_once(self, trouble: str) -> None:
        if trouble != self._told:
            self._told = trouble
            self._say(f"a look at the machine failed: {trouble}", "warning")

    def look(self, signals: Signals) -> list[tuple[str, Mapping[str, float]]]:
        """One look: each source with its values.  For the thread."""
        seen: list[tuple[str, Mapping[str, float]]] = []
        if signals.host == "auto" and (values := self._machine.look()):
            seen.append(("host", values))
            share = local_share_of(os.getpid()) if self._nodes > 1 else None
            seen += [("host", {"host_numa_local_share": share})] if share is not None else []
        if signals.gpu == "auto":
            seen += self._gpus()
        if signals.retransmits == "auto":
            seen += self._again()
        return seen

    def ask(self, name: str, url: str) -> list[tuple[str, Mapping[str, float]]]:
        """The GPUs behind a dcgm-exporter, as sources `<name>/GPU0`, ...; one that does not answer is told once.  For a thread."""
        try:
            report = read_gpu_text(fetch(url, timeout_s=TIMEOUT_S))
        except SitsError as error:
            if name not in self._away:
                self._away.add(name)
                self._say(f"exporter {name}: {error}", "warning")
            return []
        self._away.discard(name)
        return [(f"{name}/{device.name}", device.values) for device in report.devices if device.values]

    def _again(self) -> list[tuple[str, Mapping[str, float]]]:
        """Segments sent again since the look before: a measured 0 is told too."""
        if self._probe is None:
            if self._refused:
                return []
            try:
                self._probe = Retransmits()
            except ProbeRefusedError as error:
                self._refused = True
                self._say(f"{error}; retransmits are counted for sampled connections only", "warning")
                return []
        again = self._probe.since()
        seen: list[tuple[str, Mapping[str, float]]] = [
            ("host", {"host_tcp_retransmits": float(sum(again.values()))})
        ]
        for name, (host, port) in self._peers.items():
            if not self._addresses.get(name):
                self._addresses[name] = _resolved(host, port)
            count = sum(again.get(peer, 0) for peer in self._addresses[name])
            if self._addresses[name]:
                seen.append((name, {"tcp_kernel_retransmits": float(count)}))
        return seen

    def _gpus(self) -> list[tuple[str, Mapping[str, float]]]:
        now_ns = self._world.now_ns()
        try:
            if self._nvml is None:
                if self._asked_ns is not None and now_ns - self._asked_ns < ASK_AGAIN_NS:
                    return []
                self._asked_ns = now_ns
                self._nvml = self._open(self._world)
            report = self._nvml.look()
        except NoDeviceError as error:
            if self._nvml is not None:
                self._say(f"GPUs are not seen any more: {error}", "warning")
                self._nvml.close()
            self._nvml = None
            return []
        return [(device.name, device.values) for device in report.devices if device.values]


def _resolved(host: str, port: int) -> set[Peer]:
    try:
        found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {(str(address[0]), int(address[1])) for *_, address in found}
