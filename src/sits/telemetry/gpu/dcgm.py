"""DCGM's two faces: `dcgmi dmon` in the terminal and the exporter's metrics page.

`FIELDS` is DCGM's numbering (dcgm_fields.h) -> the tag in dmon's head, the exporter's name, our name, and what to multiply with:
profiling fields are shares 0..1 already, utilizations are percent, frame buffer is MiB, PCIe and NVLink are bytes a second (though
old exporters call them counters).  What DCGM does not know is `N/A`, or a huge "blank" number (2^31-16 and near, 2^47, 2^63-16):
absent, both.  dmon's first sample of a profiling field is always `N/A`; fields that share a counter take turns (each row has some).

The values of a device are the newest told.  Deliberately absent: counters that need two samples (energy, throttle times).
"""

import re
from collections.abc import Iterable

import msgspec

from sits.core.errors import CallerError
from sits.telemetry.gpu.report import UNITS, Device, Report, known, sane
from sits.telemetry.prometheus_text import Scrape


class Field(msgspec.Struct, frozen=True):
    """One field of DCGM."""

    number: int
    tag: str
    exported: str
    name: str
    scale: float = 1.0


FIELDS: tuple[Field, ...] = (
    Field(100, "SMCLK", "DCGM_FI_DEV_SM_CLOCK", "gpu_sm_clock_mhz"),
    Field(101, "MMCLK", "DCGM_FI_DEV_MEM_CLOCK", "gpu_memory_clock_mhz"),
    Field(140, "MMTMP", "DCGM_FI_DEV_MEMORY_TEMP", "gpu_memory_temperature_c"),
    Field(150, "TMPTR", "DCGM_FI_DEV_GPU_TEMP", "gpu_temperature_c"),
    Field(155, "POWER", "DCGM_FI_DEV_POWER_USAGE", "gpu_power_w"),
    Field(202, "PCIRC", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "gpu_pcie_replays_total"),
    Field(203, "GPUTL", "DCGM_FI_DEV_GPU_UTIL", "gpu_busy_share", 0.01),
    Field(204, "MCUTL", "DCGM_FI_DEV_MEM_COPY_UTIL", "gpu_memory_busy_share", 0.01),
    Field(230, "XIDER", "DCGM_FI_DEV_XID_ERRORS", "gpu_last_xid"),
    Field(250, "FBTTL", "DCGM_FI_DEV_FB_TOTAL", "gpu_memory_total_bytes", 2**20),
    Field(251, "FBFRE", "DCGM_FI_DEV_FB_FREE", "gpu_memory_free_bytes", 2**20),
    Field(252, "FBUSD", "DCGM_FI_DEV_FB_USED", "gpu_memory_used_bytes", 2**20),
    Field(253, "FBRSV", "DCGM_FI_DEV_FB_RESERVED", "gpu_memory_reserved_bytes", 2**20),
    Field(1001, "GRACT", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gpu_engine_active_share"),
    Field(1002, "SMACT", "DCGM_FI_PROF_SM_ACTIVE", "gpu_sm_active_share"),
    Field(1003, "SMOCC", "DCGM_FI_PROF_SM_OCCUPANCY", "gpu_sm_occupancy_share"),
    Field(1004, "TENSO", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gpu_tensor_active_share"),
    Field(1005, "DRAMA", "DCGM_FI_PROF_DRAM_ACTIVE", "gpu_dram_active_share"),
    Field(1006, "FP64A", "DCGM_FI_PROF_PIPE_FP64_ACTIVE", "gpu_fp64_active_share"),
    Field(1007, "FP32A", "DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gpu_fp32_active_share"),
    Field(1008, "FP16A", "DCGM_FI_PROF_PIPE_FP16_ACTIVE", "gpu_fp16_active_share"),
    Field(1009, "PCITX", "DCGM_FI_PROF_PCIE_TX_BYTES", "gpu_pcie_sent_bytes_per_s"),
    Field(1010, "PCIRX", "DCGM_FI_PROF_PCIE_RX_BYTES", "gpu_pcie_received_bytes_per_s"),
    Field(1011, "NVLTX", "DCGM_FI_PROF_NVLINK_TX_BYTES", "gpu_nvlink_sent_bytes_per_s"),
    Field(1012, "NVLRX", "DCGM_FI_PROF_NVLINK_RX_BYTES", "gpu_nvlink_received_bytes_per_s"),
)
BY_TAG = {field.tag: field for field in FIELDS}
BY_EXPORTED = {field.exported: field for field in FIELDS}
BLANKS = (2**31 - 16, 2**47, 2**63 - 16)
"""From each of these on, over the next 16 numbers, DCGM means: blank, not found, not supported, not permitted."""

_NUMBER = re.compile(r"[+-]?\d{1,20}(?:\.\d{1,9})?(?:[eE][+-]?\d{1,3})?")
_ROW = re.compile(r"(GPU|GPU-I|GPU-CI|CI|Switch|CPU)[ \t]+(\d{1,5})[ \t]+(\S.*)")


def value_of(field: Field, number: float) -> float | None:
    """The number in our unit, None where DCGM means nothing by it or it cannot be."""
    if any(blank <= number < blank + 16 for blank in BLANKS):
        return None
    scaled = number / round(1 / field.scale) if field.scale < 1 else number * field.scale
    return sane(UNITS[field.name], scaled)


def read_dmon(text: str) -> Report:
    """`dcgmi dmon`, any fields, any number of samples.

    Raises:
        CallerError: it has no head that names DCGM's columns.

    """
    columns: list[str] | None = None
    devices: dict[str, dict[str, float]] = {}
    unknown: dict[str, None] = {}
    odd = 0
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            words = line.replace("#", " ").split()
            if words[:1] == ["Entity"]:
                columns = words[1:]
                unknown |= dict.fromkeys(word for word in columns if word not in BY_TAG)
            continue
        row = _ROW.fullmatch(line.strip())
        if row is None or columns is None:
            continue
        cells = row[3].split()
        values = devices.setdefault(f"{row[1]}{row[2]}", {})
        if len(cells) != len(columns):
            odd += 1
            continue
        for tag, cell in zip(columns, cells, strict=True):
            field = BY_TAG.get(tag)
            if field is None or not known(cell):
                continue
            value = value_of(field, float(cell)) if _NUMBER.fullmatch(cell) else None
            if value is None:
                odd += 1
            else:
                values[field.name] = value
    if columns is None:
        raise CallerError("this is no output of dcgmi dmon: it has no head '#Entity ...'")
    remarks = [f"column {tag} is not known here" for tag in unknown]
    if odd:
        remarks.append(f"{odd} cells or rows do not fit their columns or cannot be; they are left out")
    remarks += [
        f"{name} tells only N/A: dmon's first sample always is; take more (dcgmi dmon -c 5)"
        for name, values in devices.items()
        if not values
    ]
    return Report(
        "dcgmi dmon",
        tuple(Device(name, values) for name, values in _in_order(devices.items())),
        remarks=tuple(remarks),
    )


def read_exporter(page: Scrape) -> Report:
    """The page of dcgm-exporter: a device a GPU, and one a MIG instance (`GPU0/MIG7`)."""
    values: dict[str, dict[str, float]] = {}
    facts: dict[str, dict[str, str]] = {}
    for (name, labels), number in page.series.items():
        field = BY_EXPORTED.get(name)
        told = dict(labels)
        if field is None or "gpu" not in told:
            continue
        instance = told.get("GPU_I_ID", "")
        device = f"GPU{told['gpu']}" + (f"/MIG{instance}" if instance else "")
        into = values.setdefault(device, {})
        facts.setdefault(device, {}).update(
            {
                ours: told[label]
                for ours, label in (
                    ("uuid", "UUID"),
                    ("model", "modelName"),
                    ("host", "Hostname"),
                    ("pod", "pod"),
                )
                if told.get(label)
            }
        )
        value = value_of(field, number)
        if value is not None:
            into[field.name] = value
    names = _in_order(values.items())
    return Report("dcgm-exporter", tuple(Device(name, told, facts[name]) for name, told in names))


def is_exporter(names: Iterable[str]) -> bool:
    """Whether series of these names are dcgm-exporter's."""
    return any(name.startswith("DCGM_FI_") for name in names)


def _in_order(items: Iterable[tuple[str, dict[str, float]]]) -> list[tuple[str, dict[str, float]]]:
    return sorted(
        items,
        key=lambda item: [part.zfill(6) for part in re.split(r"(\d+)", item[0]) if part],
    )
