"""`nvidia-smi -q` as text and (`-x`) as XML: the same facts under two sets of names.

Text is a tree by indentation, `key : value`; a section's name alone on its line.  XML is the same tree in tags.  `ITEMS` says where
each of our values is in either, the newest place first (NVIDIA renames them: `power_readings` became `gpu_power_readings`, throttle
reasons became event reasons).  A MIG device is a device of its own, named after its GPU.

Source: the schema files that the XML names (`nvsmi_device_v10` to `v13`) and real outputs.
Deliberately absent: processes (their names are other people's business), and everything that is set and not measured but the power limit.
"""

import re
from collections.abc import Callable, Iterator

from sits.core.errors import CallerError
from sits.telemetry.gpu.report import UNITS, Device, Report, known, quantity
from sits.telemetry.gpu.safe_xml import Node

ITEMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gpu_busy_share": (("utilization/gpu_util",), ("Utilization/Gpu", "Utilization/GPU")),
    "gpu_memory_busy_share": (("utilization/memory_util",), ("Utilization/Memory",)),
    "gpu_memory_total_bytes": (("fb_memory_usage/total",), ("FB Memory Usage/Total",)),
    "gpu_memory_reserved_bytes": (("fb_memory_usage/reserved",), ("FB Memory Usage/Reserved",)),
    "gpu_memory_used_bytes": (("fb_memory_usage/used",), ("FB Memory Usage/Used",)),
    "gpu_memory_free_bytes": (("fb_memory_usage/free",), ("FB Memory Usage/Free",)),
    "gpu_power_w": (
        (
            "gpu_power_readings/instant_power_draw",
            "gpu_power_readings/power_draw",
            "gpu_power_readings/average_power_draw",
            "power_readings/power_draw",
        ),
        (
            "GPU Power Readings/Instantaneous Power Draw",
            "GPU Power Readings/Power Draw",
            "GPU Power Readings/Average Power Draw",
            "Power Readings/Power Draw",
        ),
    ),
    "gpu_power_limit_w": (
        ("gpu_power_readings/current_power_limit", "power_readings/power_limit"),
        ("GPU Power Readings/Current Power Limit", "Power Readings/Power Limit"),
    ),
    "gpu_temperature_c": (("temperature/gpu_temp",), ("Temperature/GPU Current Temp",)),
    "gpu_memory_temperature_c": (("temperature/memory_temp",), ("Temperature/Memory Current Temp",)),
    "gpu_sm_clock_mhz": (("clocks/sm_clock",), ("Clocks/SM",)),
    "gpu_memory_clock_mhz": (("clocks/mem_clock",), ("Clocks/Memory",)),
    "gpu_pcie_sent_bytes_per_s": (("pci/tx_util",), ("PCI/Tx Throughput",)),
    "gpu_pcie_received_bytes_per_s": (("pci/rx_util",), ("PCI/Rx Throughput",)),
    "gpu_pcie_replays_total": (("pci/replay_counter",), ("PCI/Replays Since Reset",)),
    "gpu_pcie_generation": (
        ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
        ("PCI/GPU Link Info/PCIe Generation/Current",),
    ),
    "gpu_pcie_lanes": (
        ("pci/pci_gpu_link_info/link_widths/current_link_width",),
        ("PCI/GPU Link Info/Link Width/Current",),
    ),
    "gpu_throttled_by_power": (
        (
            "clocks_event_reasons/clocks_event_reason_sw_power_cap",
            "clocks_throttle_reasons/clocks_throttle_reason_sw_power_cap",
        ),
        ("Clocks Event Reasons/SW Power Cap", "Clocks Throttle Reasons/SW Power Cap"),
    ),
    "gpu_throttled_by_heat": (
        (
            "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown",
            "clocks_throttle_reasons/clocks_throttle_reason_hw_thermal_slowdown",
        ),
        (
            "Clocks Event Reasons/HW Slowdown/HW Thermal Slowdown",
            "Clocks Throttle Reasons/HW Slowdown/HW Thermal Slowdown",
        ),
    ),
    "gpu_ecc_uncorrectable_total": (
        ("ecc_errors/aggregate/dram_uncorrectable",),
        ("ECC Errors/Aggregate/DRAM Uncorrectable",),
    ),
}
"""Our name -> where it is in the XML, where it is in the text."""

FACTS: dict[str, tuple[str, str]] = {
    "model": ("product_name", "Product Name"),
    "uuid": ("uuid", "GPU UUID"),
    "state": ("performance_state", "Performance State"),
    "mig": ("mig_mode/current_mig", "MIG Mode/Current"),
}

MIG_ITEMS = (
    "gpu_memory_total_bytes",
    "gpu_memory_reserved_bytes",
    "gpu_memory_used_bytes",
    "gpu_memory_free_bytes",
)
DEPTH_MAX = 40
NAME_MAX = 100
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")


def read_smi_xml(root: Node) -> Report:
    """`nvidia-smi -q -x`, read already.

    Raises:
        CallerError: it is other XML.

    """
    if root.tag != "nvidia_smi_log":
        raise CallerError(f"this XML is no output of nvidia-smi -x: its root is {root.tag!r}")
    devices: list[Device] = []
    for index, gpu in enumerate(root.all("gpu")):
        facts = {name: text for name, (path, _) in FACTS.items() if known(text := gpu.at(path) or "")}
        if bus := gpu.attributes.get("id"):
            facts["bus"] = bus
        values = {
            name: value
            for name, (paths, _) in ITEMS.items()
            if (value := _first(name, (gpu.at(path) for path in paths))) is not None
        }
        devices.append(Device(f"GPU{index}", values, facts))
        migs = gpu.first("mig_devices")
        for mig in migs.all("mig_device") if migs else ():
            parts = {name: _first(name, (mig.at(path) for path in ITEMS[name][0])) for name in MIG_ITEMS}
            told = {name: value for name, value in parts.items() if value is not None}
            devices.append(
                Device(f"GPU{index}/MIG{mig.at('index') or '?'}", told, {"part_of": f"GPU{index}"})
            )
    return _report("nvidia-smi -q -x", root.at, devices)


def read_smi_text(text: str) -> Report:
    """`nvidia-smi -q`, in whole or cut by `-d`.

    Raises:
        CallerError: there is no log of nvidia-smi in it.

    """
    machine: dict[str, str] = {}
    gpus: list[tuple[str, dict[str, str]]] = []
    path: list[tuple[int, str]] = []
    into = machine
    begun = False
    for line in text.splitlines():
        begun = begun or "NVSMI LOG" in line
        stripped = line.strip()
        if not begun or not stripped or stripped.startswith("="):
            continue
        if match := _GPU.fullmatch(stripped):
            into, path = {}, []
            gpus.append((match[1], into))
            continue
        indent = len(line) - len(line.lstrip())
        while path and path[-1][0] >= indent:
            path.pop()
        key, colon, said = stripped.partition(":")
        if colon:
            into["/".join([*(name for _, name in path), key.strip()])] = said.strip()
        elif len(path) < DEPTH_MAX and len(stripped) <= NAME_MAX:
            path.append((indent, stripped))
    if not begun:
        raise CallerError("this is no output of nvidia-smi -q: it has no line NVSMI LOG")
    devices = []
    for index, (bus, found) in enumerate(gpus):
        facts = {name: found[key] for name, (_, key) in FACTS.items() if known(found.get(key))}
        values = {
            name: value
            for name, (_, keys) in ITEMS.items()
            if (value := _first(name, (found.get(key) for key in keys))) is not None
        }
        devices.append(Device(f"GPU{index}", values, facts | {"bus": bus}))
    names = {
        "driver_version": "Driver Version",
        "cuda_version": "CUDA Version",
        "attached_gpus": "Attached GPUs",
    }
    return _report("nvidia-smi -q", lambda name: machine.get(names[name]), devices)


def _first(name: str, texts: Iterator[str | None]) -> float | None:
    """The first of the places that tells a value of the right unit."""
    unit = UNITS[name]
    return next((value for text in texts if (value := quantity(text, unit)) is not None), None)


def _report(kind: str, at: Callable[[str], str | None], devices: list[Device]) -> Report:
    facts = {
        ours: text
        for ours, name in (("driver", "driver_version"), ("cuda", "cuda_version"))
        if known(text := at(name) or "")
    }
    remarks = []
    attached, whole = at("attached_gpus"), sum("/" not in device.name for device in devices)
    if attached is not None and attached.isdecimal() and int(attached[:9]) != whole:
        remarks.append(f"it says {attached[:9]} GPUs are attached and shows {whole}: it was cut")
    if not devices:
        remarks.append("it shows no GPU")
    return Report(kind, tuple(devices), facts=facts, remarks=tuple(remarks))
