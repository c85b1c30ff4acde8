"""Which tool printed this: one text in, its report out, or the reason why none.

Rules: decided by what only that tool prints; what looks like a near relative (lstopo for people, a table of measured bandwidths) is
refused with the way to what can be read.  Linear in the text.

Deliberately absent: engines' pages (`telemetry.signals`), files and commands (`app`).
"""

import re

from sits.core.errors import CallerError, EngineError
from sits.telemetry.gpu.dcgm import is_exporter, read_dmon, read_exporter
from sits.telemetry.gpu.listings import read_dmesg, read_lspci, read_nvlink
from sits.telemetry.gpu.report import Report
from sits.telemetry.gpu.safe_xml import BYTES_MAX, read_xml
from sits.telemetry.gpu.smi import read_smi_text, read_smi_xml
from sits.telemetry.gpu.topology import read_topology
from sits.telemetry.gpu.trees import read_hwloc, read_nccl
from sits.telemetry.prometheus_text import parse

READABLE = (
    "nvidia-smi -q, -q -x, topo -m, nvlink --status; dcgmi dmon; the page of dcgm-exporter; lspci -nn; dmesg; "
    "NCCL's and hwloc's XML"
)
HEAD = 20_000
"""Characters in which a text must show what it is."""

_LSPCI = re.compile(r"^[0-9a-f:]{5,16}\.[0-7] [^\n]{1,80} \[[0-9a-f]{4}\]: ", re.MULTILINE)
_TOPOLOGY = re.compile(
    r"^[ \t]*(?:\x1b\[[0-9;]*m)?(?:GPU0[ \t]+(?:GPU1|NIC0|mlx|CPU Affinity)|GPU0[ \t]+X[ \t])", re.MULTILINE
)
_NVLINK = re.compile(r"^GPU \d+: [^\n]*\n[ \t]+(?:Link \d+:|NVML:)", re.MULTILINE)
_DMESG = re.compile(r"NVRM: |^\[[^\]\n]{5,40}\] ", re.MULTILINE)


def read_gpu_text(text: str) -> Report:
    """What a GPU tool printed.

    Raises:
        CallerError: it is none of `READABLE`, or is one and cannot be read; says which.

    """
    if len(text) > BYTES_MAX:
        raise CallerError(f"this is longer than {BYTES_MAX} characters", hint="cut it to what is asked about")
    start = text[:HEAD].lstrip("\ufeff \t\r\n")
    if "\0" in start:
        raise CallerError("this is no text: it holds zero bytes", hint=READABLE)
    if start.startswith("<"):
        root = read_xml(text.lstrip("\ufeff \t\r\n"))
        if root.tag == "nvidia_smi_log":
            return read_smi_xml(root)
        if root.tag in ("system", "graphs"):
            return read_nccl(root)
        if root.tag == "topology":
            return read_hwloc(root)
        raise CallerError(f"nobody here writes XML with the root {root.tag[:40]!r}", hint=READABLE)
    if "NVSMI LOG" in start:
        return read_smi_text(text)
    if "#Entity" in start or "# Entity" in start:
        return read_dmon(text)
    if "DCGM_FI_" in start:
        return _exporter(text)
    if _TOPOLOGY.search(start):
        return read_topology(text)
    if _NVLINK.search(start):
        return read_nvlink(text)
    if _LSPCI.search(start):
        return read_lspci(text)
    if _DMESG.search(start):
        return read_dmesg(text)
    raise _refused(start)


def _exporter(text: str) -> Report:
    try:
        page = parse(text)
    except EngineError as error:
        raise CallerError(error.message, field=error.field, hint=error.hint) from None
    if not is_exporter(page.names):
        raise _refused(text)
    return read_exporter(page)


def _refused(start: str) -> CallerError:
    if start.startswith("Machine (") and " L#0" in start:
        return CallerError(
            "this is lstopo's picture for people", hint="save the tree: lstopo --of xml topology.xml"
        )
    if "busbw" in start[:400]:
        return CallerError(
            "this is a table of measured bandwidths (nccl-tests), not of signals",
            hint="`sitsctl plan network` takes bandwidths",
        )
    return CallerError("this is no output of a GPU tool that can be read here", hint=READABLE)
