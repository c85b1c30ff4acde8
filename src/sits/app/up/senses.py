"""What the keeper looks at besides engines: the GPUs and the machine it is on, as signals of sources `GPU0`, ... and `host`.

Rules: in a thread of its own, for a driver may hold a call for seconds, and one look that takes long only makes the next one late; a
machine without a GPU is asked again now and then, because drivers come later than gateways, and says nothing; GPUs that were there and
are gone are told once.

Deliberately absent: engines (`app.up.watch`) and connections (`app.up.wires`).
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from sits.core.fleet_signals import Signals
from sits.core.ports import World
from sits.core.units import SECOND
from sits.telemetry.gpu.nvml import NoDeviceError, Nvml
from sits.telemetry.host.machine import Machine
from sits.telemetry.logs import Say

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
        self._thread = ThreadPoolExecutor(1, "sits-senses")
        self._signals: Signals | None = None
        self._task: asyncio.Task[None] | None = None

    def adopt(self, signals: Signals) -> None:
        """Look at these, and as often, from now on."""
        if signals == self._signals:
            return
        self._signals = signals
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._sense(signals))

    def stop(self) -> None:
        """Look at nothing any more."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _sense(self, signals: Signals) -> None:
        loop = asyncio.get_running_loop()
        while signals.gpu == "auto" or signals.host == "auto":
            now_ns = self._world.now_ns()
            for source, values in await loop.run_in_executor(self._thread, self.look, signals):
                self._found(source, now_ns, values)
            await asyncio.sleep(signals.every / SECOND)

    def look(self, signals: Signals) -> list[tuple[str, Mapping[str, float]]]:
        """One look: each source with its values.  For the thread."""
        seen: list[tuple[str, Mapping[str, float]]] = []
        if signals.host == "auto" and (values := self._machine.look()):
            seen.append(("host", values))
        if signals.gpu == "auto":
            seen += self._gpus()
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
