"""What a GPU tool said, in one form for all tools: devices with values by our names, links between them, events, remarks.

Rules: a value that the tool does not know (`N/A`, blank, deprecated) is absent, never 0; shares are 0..1; memory is bytes; a rate is
bytes a second.  What could not be read is a remark, and no number is made up in its place.

The names and units are `UNITS`.  `*_active_share` are DCGM's profiling fields: the share of time (or of cycles) in which the unit
did anything; `gpu_busy_share` is the old "utilization": the share of time in which any kernel ran, however small
(https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html#profiling-metrics).

Deliberately absent: reading any text (its neighbours), and judging a value.
"""

import math
import re

import msgspec

UNITS: dict[str, str] = {
    "gpu_busy_share": "share",
    "gpu_memory_busy_share": "share",
    "gpu_memory_used_bytes": "bytes",
    "gpu_memory_free_bytes": "bytes",
    "gpu_memory_reserved_bytes": "bytes",
    "gpu_memory_total_bytes": "bytes",
    "gpu_engine_active_share": "share",
    "gpu_sm_active_share": "share",
    "gpu_sm_occupancy_share": "share",
    "gpu_tensor_active_share": "share",
    "gpu_dram_active_share": "share",
    "gpu_fp64_active_share": "share",
    "gpu_fp32_active_share": "share",
    "gpu_fp16_active_share": "share",
    "gpu_pcie_sent_bytes_per_s": "bytes/s",
    "gpu_pcie_received_bytes_per_s": "bytes/s",
    "gpu_nvlink_sent_bytes_per_s": "bytes/s",
    "gpu_nvlink_received_bytes_per_s": "bytes/s",
    "gpu_nvlink_links": "links",
    "gpu_nvlink_capacity_bytes_per_s": "bytes/s",
    "gpu_pcie_generation": "generation",
    "gpu_pcie_lanes": "lanes",
    "gpu_pcie_replays_total": "replays",
    "gpu_power_w": "W",
    "gpu_power_limit_w": "W",
    "gpu_temperature_c": "°C",
    "gpu_memory_temperature_c": "°C",
    "gpu_sm_clock_mhz": "MHz",
    "gpu_memory_clock_mhz": "MHz",
    "gpu_throttled_by_power": "0 or 1",
    "gpu_throttled_by_heat": "0 or 1",
    "gpu_ecc_uncorrectable_total": "errors",
    "gpu_last_xid": "Xid code",
}
"""Our name of each value of a GPU -> its unit.  `sent` and `received` are as the GPU sees it."""

_NOTHING = re.compile(
    r"(?i)\[?(n/?a|not supported|unknown( error)?|not active \(n/a\)|none|-|"
    r"requested functionality has been deprecated|insufficient permissions|err(or)?!?|reset required|gpu is lost)\]?"
)
_QUANTITY = re.compile(r"([+-]?\d{1,15}(?:\.\d{1,9})?) ?([A-Za-z%/°]*)")
_SCALES: dict[str, tuple[str, float]] = {
    "": ("", 1),
    "%": ("share", 0.01),
    "B": ("bytes", 1),
    "KiB": ("bytes", 2**10),
    "MiB": ("bytes", 2**20),
    "GiB": ("bytes", 2**30),
    "KB/s": ("bytes/s", 1e3),
    "MB/s": ("bytes/s", 1e6),
    "GB/s": ("bytes/s", 1e9),
    "W": ("W", 1),
    "C": ("°C", 1),
    "MHz": ("MHz", 1),
    "x": ("lanes", 1),
}
_FLAGS = {"Active": 1.0, "Not Active": 0.0}
_COUNTS = frozenset({"generation", "lanes", "replays", "errors", "links", "Xid code"})


class Device(msgspec.Struct, frozen=True):
    """One GPU (or part of one): how the tool calls it, what is known of it, and its values by our names."""

    name: str
    values: dict[str, float] = {}
    facts: dict[str, str] = {}
    """`model`, `uuid`, `bus`, `numa_node`, `cpus`, ... as the tool writes them; only those it tells."""


class Link(msgspec.Struct, frozen=True):
    """How two devices reach each other: `kind` as in `nvidia-smi topo -m` (`NV12`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`)."""

    a: str
    b: str
    kind: str
    bytes_per_s: float | None = None
    """Bandwidth one way where the tool tells it."""


class Event(msgspec.Struct, frozen=True):
    """Something the driver logged: when (as written), on which device, which Xid, and the driver's own words."""

    when: str
    device: str
    code: int
    text: str


class Report(msgspec.Struct, frozen=True):
    """All that one text says.  `kind` is the tool, `facts` what holds for the machine, `remarks` what was wrong or missing."""

    kind: str
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    events: tuple[Event, ...] = ()
    facts: dict[str, str] = {}
    remarks: tuple[str, ...] = ()


def known(text: str | None) -> bool:
    """Whether a tool's text is an answer at all.

    >>> [known(text) for text in ("0 MiB", "N/A", "[N/A]", "", None)]
    [True, False, False, False, False]
    """
    return bool(text and text.strip() and not _NOTHING.fullmatch(text.strip()))


def quantity(text: str | None, unit: str) -> float | None:
    """The value of `text` in `unit` (one of `UNITS`' values), None when it tells none or one of another unit.

    >>> quantity("19968 MiB", "bytes"), quantity("37 %", "share"), quantity("4000 KB/s", "bytes/s"), quantity("N/A", "bytes")
    (20937965568.0, 0.37, 4000000.0, None)
    >>> quantity("25.58 W", "°C")
    """
    if not known(text):
        return None
    assert text is not None
    stripped = text.strip()
    if unit == "0 or 1":
        return _FLAGS.get(stripped)
    match = _QUANTITY.fullmatch(stripped)
    scale = _SCALES.get(match[2]) if match else None
    if match is None or scale is None or (scale[0] or (unit if unit in _COUNTS else "")) != unit:
        return None
    value = float(match[1]) * scale[1] if scale[1] >= 1 else float(match[1]) / round(1 / scale[1])
    return sane(unit, value)


def sane(unit: str, value: float) -> float | None:
    """The value, or None for one that cannot be: not finite, a share outside 0..1, less than nothing of what has no less."""
    if not math.isfinite(value):
        return None
    if unit == "share" and not 0 <= value <= 1:
        return None
    return None if value < 0 and unit != "°C" else value
