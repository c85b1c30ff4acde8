"""NVML through a library of our own making: each field alone, absent where the driver has none, rates only between two looks."""

import contextlib
from types import SimpleNamespace

import pynvml
import pytest

from sits.telemetry.gpu.nvml import NoDeviceError, Nvml
from sits.telemetry.gpu.report import Link

SECOND = 1_000_000_000


class Clock:
    """A world with only the time."""

    def __init__(self):
        self.t = 5 * SECOND

    def now_ns(self):
        return self.t


class Driver:
    """What `pynvml` looks like to us; `gone` are calls that this driver does not know, `dead` GPUs that do not answer."""

    NVMLError = pynvml.NVMLError

    def __init__(self, count=2, gone=(), dead=()):
        self.count, self.gone, self.dead = count, set(gone), set(dead)
        self.sent = {0: 1000, 1: 5000}
        self.ended = False

    def __getattr__(self, name):
        if name.startswith(("NVML_", "nvmlClocks")):
            return getattr(pynvml, name)
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda *arguments: self.call(name, *arguments)

    def call(self, name, *arguments):
        if name in self.gone:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        gpu = arguments[0] if arguments else None
        answers = {
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=93, memory=41),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=10, free=20, total=30),
            "nvmlDeviceGetPowerUsage": 412_300,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetPcieReplayCounter": 0,
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x20,
            "nvmlDeviceGetName": b"NVIDIA H100",
            "nvmlDeviceGetUUID": f"GPU-{gpu}",
            "nvmlDeviceGetNumaNodeId": -1,
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=f"0000:0{gpu}:00.0"),
            "nvmlDeviceGetCount": self.count,
            "nvmlSystemGetDriverVersion": "580.1",
            "nvmlDeviceGetTopologyCommonAncestor": 50,
            "nvmlInit": None,
        }
        if name == "nvmlShutdown":
            self.ended = True
            return None
        if name == "nvmlDeviceGetHandleByIndex":
            if gpu in self.dead:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            return gpu
        if name == "nvmlDeviceGetFieldValues":
            (field,) = arguments[1]
            if field == pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES:
                return [
                    SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=self.sent[gpu]))
                ]
            return [SimpleNamespace(nvmlReturn=3, valueType=0, value=None)]
        if name == "nvmlDeviceGetNvLinkState":
            return int(arguments[1] < 4)
        if name == "nvmlDeviceGetNvLinkRemoteDeviceType":
            return pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
        if name == "nvmlDeviceGetNvLinkRemotePciInfo":
            return SimpleNamespace(busId=f"0000:0{1 - gpu}:00.0")
        return answers[name]


def test_all_that_the_driver_tells_in_our_names_and_units():
    report = Nvml(Clock(), Driver()).look()
    assert report.facts == {"driver": "580.1"}
    assert report.devices[0].facts == {"model": "NVIDIA H100", "uuid": "GPU-0", "bus": "0000:00:00.0"}
    assert report.devices[1].values == {
        "gpu_busy_share": 0.93,
        "gpu_memory_busy_share": 0.41,
        "gpu_memory_used_bytes": 10,
        "gpu_memory_free_bytes": 20,
        "gpu_memory_total_bytes": 30,
        "gpu_power_w": 412.3,
        "gpu_power_limit_w": 700,
        "gpu_temperature_c": 61,
        "gpu_sm_clock_mhz": 1980,
        "gpu_memory_clock_mhz": 1980,
        "gpu_pcie_generation": 5,
        "gpu_pcie_lanes": 16,
        "gpu_pcie_replays_total": 0,
        "gpu_ecc_uncorrectable_total": 0,
        "gpu_throttled_by_heat": 1,
        "gpu_throttled_by_power": 0,
    }


def test_a_field_that_fails_is_absent_and_the_others_are_not():
    gone = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetPowerUsage")
    values = Nvml(Clock(), Driver(gone=gone)).look().devices[0].values
    assert "gpu_power_w" not in values
    assert not any(name.startswith(("gpu_memory_used", "gpu_throttled")) for name in values)
    assert values["gpu_temperature_c"] == 61


def test_counters_of_bytes_are_rates_between_two_looks_and_nothing_after_a_reset():
    clock, driver = Clock(), Driver()
    nvml = Nvml(clock, driver)
    assert "gpu_pcie_sent_bytes_per_s" not in nvml.look().devices[0].values
    clock.t += 2 * SECOND
    driver.sent[0] += 8_000
    assert nvml.look().devices[0].values["gpu_pcie_sent_bytes_per_s"] == 4_000
    clock.t += SECOND
    driver.sent[0] = 0
    assert "gpu_pcie_sent_bytes_per_s" not in nvml.look().devices[0].values


def test_links_are_counted_else_the_ancestor_tells():
    assert Nvml(Clock(), Driver()).look(links=True).links == (Link("GPU0", "GPU1", "NV4"),)
    plain = Driver(gone=("nvmlDeviceGetNvLinkState",))
    assert Nvml(Clock(), plain).look(links=True).links == (Link("GPU0", "GPU1", "SYS"),)


def test_a_gpu_that_was_lost_is_remarked_and_none_left_is_no_device():
    report = Nvml(Clock(), Driver(dead=(1,))).look(links=True)
    assert [device.name for device in report.devices] == ["GPU0"]
    assert report.remarks[0].startswith("GPU1: ")
    with pytest.raises(NoDeviceError, match="no GPU answers"):
        Nvml(Clock(), Driver(dead=(0, 1))).look()


def test_a_machine_without_gpu_says_why():
    driver = Driver(count=0)
    with pytest.raises(NoDeviceError, match="has no GPU"):
        Nvml(Clock(), driver)
    assert driver.ended
    with pytest.raises(NoDeviceError, match="NVML: Not Supported"):
        Nvml(Clock(), Driver(gone=("nvmlInit",)))


def test_the_real_library_here_answers_or_says_why_not():
    world = Clock()
    with contextlib.suppress(NoDeviceError):
        assert Nvml(world).look(links=True).devices[0].values
        return
    with pytest.raises(NoDeviceError, match=r"^NVML: "):
        Nvml(world)
