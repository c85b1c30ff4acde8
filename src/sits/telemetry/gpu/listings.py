"""Three lists: `nvidia-smi nvlink --status`, `lspci -nn`, and the driver's Xid lines in `dmesg`.

Rules: a link that is inactive has no bandwidth and is not counted; NVIDIA's class 03xx is a GPU, its bridges (0680) are NVSwitches;
an Xid is an event with the driver's words, its short meaning is from NVIDIA's catalogue of Xid errors
(https://docs.nvidia.com/deploy/xid-errors/).

Deliberately absent: all other lines of a kernel log.
"""

import re

from sits.core.errors import CallerError
from sits.telemetry.gpu.report import Device, Event, Report

XIDS: dict[int, str] = {
    13: "exception in the graphics engine: most often a fault of the program",
    31: "a program touched memory that is not mapped",
    32: "invalid or corrupted push buffer",
    43: "a program's channel was stopped after its own fault",
    45: "preemptive clean-up after an earlier error",
    48: "uncorrectable ECC error: the GPU must be reset",
    61: "internal microcontroller halted",
    62: "internal microcontroller halted",
    63: "a row of memory was remapped or a page retired",
    64: "remapping a row or retiring a page failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many correctable ECC errors",
    94: "uncorrectable ECC error, contained in one program",
    95: "uncorrectable ECC error, not contained: all programs are hit",
    109: "context switch timed out",
    119: "the GPU's system processor (GSP) did not answer in time",
    120: "the GPU's system processor (GSP) failed",
    121: "error of the chip-to-chip link",
    140: "unrecovered ECC error",
    149: "NVLink error (its fabric)",
    154: "the GPU needs an action to recover, named in the line",
}

_GPU = re.compile(r"GPU (\d{1,4}): (.{0,200}?)(?: \(UUID: ([^)]{1,100})\))?")
_LINK = re.compile(r"Link (\d{1,3}): (?:(\d{1,6}(?:\.\d{1,6})?) GB/s|(<?inactive>?|.{1,80}))")
_PCI = re.compile(
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.{1,80}?) \[([0-9a-f]{4})\]: (.{1,200}) \[([0-9a-f]{4}):[0-9a-f]{4}\](?: .*)?"
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{1,20})[^)]{0,60}\): (\d{1,4}), ?(.{0,400})")
_WHEN = re.compile(r"\[([^\]]{1,40})\]|([A-Z][a-z]{2} +\d{1,2} [0-9:]{8}|\d{4}-\d\d-\d\dT\S{1,40})")


def read_nvlink(text: str) -> Report:
    """`nvidia-smi nvlink --status`: links that are up, and what they carry together, one way.

    Raises:
        CallerError: no GPU is named.

    """
    devices: list[Device] = []
    for line in text.splitlines():
        stripped = line.strip()
        if match := _GPU.fullmatch(stripped):
            told = (("model", match[2]), ("uuid", match[3]))
            devices.append(Device(f"GPU{match[1]}", {}, {name: value for name, value in told if value}))
        elif devices and (match := _LINK.fullmatch(stripped)) and match[2]:
            values = devices[-1].values
            values["gpu_nvlink_links"] = values.get("gpu_nvlink_links", 0.0) + 1
            sum_before = values.get("gpu_nvlink_capacity_bytes_per_s", 0.0)
            values["gpu_nvlink_capacity_bytes_per_s"] = sum_before + float(match[2]) * 1e9
    if not devices:
        raise CallerError("this is no output of nvidia-smi nvlink --status: it names no GPU")
    remarks = [f"{device.name} has no link that is up" for device in devices if not device.values]
    return Report("nvidia-smi nvlink --status", tuple(devices), remarks=tuple(remarks))


def read_lspci(text: str) -> Report:
    """`lspci -nn`: NVIDIA's GPUs, and how many NVSwitches and network cards there are.

    Raises:
        CallerError: no line is one of `lspci -nn`.

    """
    devices: list[Device] = []
    lines = switches = nets = 0
    for line in text.splitlines():
        match = _PCI.fullmatch(line.strip())
        if match is None:
            continue
        lines += 1
        nvidia = match[5] == "10de"
        if nvidia and match[3].startswith("03"):
            model = match[4].removeprefix("NVIDIA Corporation ")
            devices.append(Device(f"GPU{len(devices)}", {}, {"bus": match[1], "model": model}))
        switches += nvidia and match[3] == "0680"
        nets += match[3] in ("0200", "0207")
    if not lines:
        raise CallerError("this is no output of lspci -nn: no line has a class and ids in brackets")
    facts = {"nvswitches": str(switches), "network_cards": str(nets)}
    return Report(
        "lspci -nn", tuple(devices), facts=facts, remarks=() if devices else ("it shows no NVIDIA GPU",)
    )


def read_dmesg(text: str) -> Report:
    """The Xid lines of a kernel log, in their order; a log without one has no events."""
    events = []
    for line in text.splitlines():
        match = _XID.search(line)
        if match:
            when = _WHEN.match(line.strip())
            said = (when[1] or when[2]) if when else ""
            events.append(Event(said.strip(), match[1], int(match[2]), match[3].strip()))
    last = {event.device: event.code for event in events}
    devices = tuple(Device(bus, {"gpu_last_xid": float(code)}, {"bus": bus}) for bus, code in last.items())
    return Report("dmesg", devices, events=tuple(events), remarks=() if events else ("no Xid in it",))
