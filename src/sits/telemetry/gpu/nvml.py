"""NVML: the driver's own library, asked through `nvidia-ml-py`, into the same report as the tools' texts.

Rules: no library, no driver, no permission or no GPU is `NoDeviceError` with the driver's reason and no more; each field is asked for
by itself, and one that a GPU does not know (or refuses) is absent, never 0.  Counters of bytes become rates between two looks; the first
look tells none.  A call takes microseconds to a millisecond, but a GPU that resets may hold one for seconds: look from a thread.

Units (nvml.h): power mW, memory bytes, clocks MHz, utilization percent, NVLink counters KiB, PCIe counters bytes.
A GPU that goes away between two looks leaves the report; when none answers any more the next look begins anew.

Deliberately absent: setting anything, processes, and the sampled PCIe throughput (each call holds its thread for 20 ms).
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from sits.core.ports import World
from sits.core.units import SECOND
from sits.telemetry.gpu.report import UNITS, Device, Link, Report, sane

ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
LINKS_MAX = 36
DEVICES_MAX = 64
_ALL_LINKS = 2**32 - 1
_SWITCH = 2
_HEAT = 0x20 | 0x40
_POWER = 0x04 | 0x80


class NoDeviceError(Exception):
    """There is no GPU that NVML could be asked about; the text says why."""


class Nvml:
    """A session with the driver.

    Args:
        world: the clock, for rates.
        api: a module like `pynvml`; the real one when not given.

    Raises:
        NoDeviceError: there is nothing to ask; says why.

    """

    def __init__(self, world: World, api: Any = None) -> None:
        self._world = world
        self._api = api = api if api is not None else _module()
        self._before: dict[tuple[str, str], tuple[int, float]] = {}
        try:
            api.nvmlInit()
        except api.NVMLError as error:
            raise NoDeviceError(f"NVML: {error}") from None
        try:
            count = api.nvmlDeviceGetCount()
        except api.NVMLError as error:
            self.close()
            raise NoDeviceError(f"NVML: {error}") from None
        if not count:
            self.close()
            raise NoDeviceError("NVML: the driver is there and has no GPU")
        self._count = min(count, DEVICES_MAX)

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(self._api.NVMLError):
            self._api.nvmlShutdown()

    def look(self, *, links: bool = False) -> Report:
        """What all GPUs say now; with `links` also how they reach each other.

        Raises:
            NoDeviceError: none of them answers.

        """
        devices, remarks = [], []
        for index in range(self._count):
            try:
                handle = self._api.nvmlDeviceGetHandleByIndex(index)
            except self._api.NVMLError as error:
                remarks.append(f"GPU{index}: {error}")
                continue
            devices.append(Device(f"GPU{index}", self._values(f"GPU{index}", handle), self._facts(handle)))
        if not devices:
            raise NoDeviceError(f"NVML: no GPU answers ({'; '.join(remarks[:3])})")
        told = self._ask("nvmlSystemGetDriverVersion")
        facts = {"driver": str(told)} if told else {}
        between = tuple(self._links()) if links else ()
        return Report("NVML", tuple(devices), between, facts=facts, remarks=tuple(remarks))

    def _ask(self, call: str, *arguments: Any) -> Any:
        """The answer, or None when this GPU, driver or library has none."""
        try:
            return getattr(self._api, call)(*arguments)
        except (self._api.NVMLError, AttributeError, UnicodeDecodeError):
            return None

    def _facts(self, handle: Any) -> dict[str, str]:
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        told = {
            "model": self._ask("nvmlDeviceGetName", handle),
            "uuid": self._ask("nvmlDeviceGetUUID", handle),
            "bus": getattr(pci, "busId", None),
            "numa_node": self._ask("nvmlDeviceGetNumaNodeId", handle),
        }
        return {
            name: text.decode() if isinstance(text, bytes) else str(text)
            for name, text in told.items()
            if text not in (None, "", b"", -1, 2**32 - 1)
        }

    def _values(self, name: str, handle: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        for ours, raw, scale in (*self._direct(handle), *self._fields(name, handle)):
            value = None if raw is None else sane(UNITS[ours], float(raw) / scale)
            if value is not None:
                found[ours] = value
        return found

    def _direct(self, handle: Any) -> Iterator[tuple[str, Any, float]]:
        """Our name, the driver's number or None, and what to divide by."""
        api, ask = self._api, self._ask
        used = ask("nvmlDeviceGetUtilizationRates", handle)
        yield "gpu_busy_share", getattr(used, "gpu", None), 100
        yield "gpu_memory_busy_share", getattr(used, "memory", None), 100
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        for part in ("used", "free", "total"):
            yield f"gpu_memory_{part}_bytes", getattr(memory, part, None), 1
        yield "gpu_power_w", ask("nvmlDeviceGetPowerUsage", handle), 1000
        yield "gpu_power_limit_w", ask("nvmlDeviceGetEnforcedPowerLimit", handle), 1000
        yield "gpu_temperature_c", ask("nvmlDeviceGetTemperature", handle, api.NVML_TEMPERATURE_GPU), 1
        yield "gpu_sm_clock_mhz", ask("nvmlDeviceGetClockInfo", handle, api.NVML_CLOCK_SM), 1
        yield "gpu_memory_clock_mhz", ask("nvmlDeviceGetClockInfo", handle, api.NVML_CLOCK_MEM), 1
        yield "gpu_pcie_generation", ask("nvmlDeviceGetCurrPcieLinkGeneration", handle), 1
        yield "gpu_pcie_lanes", ask("nvmlDeviceGetCurrPcieLinkWidth", handle), 1
        yield "gpu_pcie_replays_total", ask("nvmlDeviceGetPcieReplayCounter", handle), 1
        uncorrected = (api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, api.NVML_AGGREGATE_ECC)
        yield "gpu_ecc_uncorrectable_total", ask("nvmlDeviceGetTotalEccErrors", handle, *uncorrected), 1
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is not None:
            yield "gpu_throttled_by_heat", int(bool(reasons & _HEAT)), 1
            yield "gpu_throttled_by_power", int(bool(reasons & _POWER)), 1

    def _fields(self, name: str, handle: Any) -> Iterator[tuple[str, Any, float]]:
        """Those that are told as fields: a temperature, and counters that become rates."""
        api = self._api
        yield "gpu_memory_temperature_c", self._field(handle, api.NVML_FI_DEV_MEMORY_TEMP), 1
        counters = (
            ("gpu_nvlink_sent_bytes_per_s", (api.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS), 1024),
            (
                "gpu_nvlink_received_bytes_per_s",
                (api.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
                1024,
            ),
            ("gpu_pcie_sent_bytes_per_s", api.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 1),
            ("gpu_pcie_received_bytes_per_s", api.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 1),
        )
        for ours, field, size in counters:
            count = self._field(handle, field)
            if count is None:
                continue
            now_ns = self._world.now_ns()
            before = self._before.get((name, ours))
            self._before[name, ours] = (now_ns, count)
            if before is not None and now_ns > before[0] and count >= before[1]:
                yield ours, (count - before[1]) * size * SECOND / (now_ns - before[0]), 1

    def _field(self, handle: Any, field: Any) -> float | None:
        told = self._ask("nvmlDeviceGetFieldValues", handle, [field])
        if not told or told[0].nvmlReturn != 0:
            return None
        part = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}.get(
            told[0].valueType, ""
        )
        value = getattr(told[0].value, part, None)
        return None if value is None else float(value)

    def _links(self) -> Iterator[Link]:
        """How each two GPUs reach each other: NVLinks counted, else the nearest common ancestor on PCIe."""
        ask = self._ask
        handles = [ask("nvmlDeviceGetHandleByIndex", index) for index in range(self._count)]
        ends = [self._ends(handle) if handle is not None else {} for handle in handles]
        buses = [
            str(getattr(ask("nvmlDeviceGetPciInfo", handle), "busId", index))
            for index, handle in enumerate(handles)
        ]
        for i, one in enumerate(handles):
            for j in range(i + 1, len(handles)):
                if one is None or handles[j] is None:
                    continue
                wires = ends[i].get(buses[j], 0) or min(ends[i].get("switch", 0), ends[j].get("switch", 0))
                level = ask("nvmlDeviceGetTopologyCommonAncestor", one, handles[j])
                kind = f"NV{wires}" if wires else ANCESTORS.get(level, "")
                if kind:
                    yield Link(f"GPU{i}", f"GPU{j}", kind)

    def _ends(self, handle: Any) -> dict[str, int]:
        """How many of a GPU's NVLinks are up, by the bus of whom they reach; all that reach switches as `switch`."""
        ask = self._ask
        found: dict[str, int] = {}
        for link in range(LINKS_MAX):
            if not ask("nvmlDeviceGetNvLinkState", handle, link):
                continue
            kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            end = "switch" if kind == _SWITCH else str(getattr(remote, "busId", ""))
            found[end] = found.get(end, 0) + 1
        return found


def _module() -> Any:
    try:
        return importlib.import_module("pynvml")  # when asked: 0.1 s, and most gateways' machines have no GPU
    except ImportError:
        raise NoDeviceError("NVML: the package nvidia-ml-py is not installed") from None
