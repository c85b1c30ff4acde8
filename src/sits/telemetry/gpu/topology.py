"""`nvidia-smi topo -m`: which GPU reaches which GPU and network card over what.

A table of one column a device and three of affinity.  Rules: a cell counts only in the column it provably belongs to.  The row of a
device has `X` in its own column: where it has not, the row slipped and is left out.  Texts that lost tabs (`NODEPXB`, `NIC8NIC9`)
are taken apart where that is possible in one way only and the count then fits; else the row is left out.  Two rows that disagree
about one pair leave the pair out.  All of that is remarked.  Affinity cells are read where tabs, or their number, say whose they are.

Escapes of a terminal are taken off.  Deliberately absent: what a connection is worth in bytes a second.
"""

import re
from collections.abc import Sequence

from sits.core.errors import CallerError
from sits.telemetry.gpu.report import Device, Link, Report, known

DEVICES_MAX = 1024
REMARKS_MAX = 20
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NAME = r"(?:GPU|NIC)\d{1,4}|mlx\d{1,2}_(?:bond_)?\d{1,4}"
_NAMES = re.compile(rf"(?:{_NAME})+")
_ONE_NAME = re.compile(_NAME)
_LINK = r"X|SYS|NODE|SOC|PHB|PXB|PIX|NV\d{1,3}"
_LINKS = re.compile(rf"(?:{_LINK})+")
_ONE_LINK = re.compile(_LINK)
_AFFINITIES = {"CPU Affinity": "cpus", "NUMA Affinity": "numa_node", "GPU NUMA ID": "gpu_numa_node"}
_AFFINITY = re.compile("|".join(_AFFINITIES))


def read_topology(text: str) -> Report:
    """Read the matrix.

    Raises:
        CallerError: there is none, or its head cannot be read.

    """
    lines = _ESCAPES.sub("", text).splitlines()
    at = next((i for i, line in enumerate(lines) if _is_head(line)), None)
    if at is None:
        raise CallerError("this is no output of nvidia-smi topo -m: no line names GPU0 and more in columns")
    names, affinities, remarks = _head(lines[at])
    if len(set(names)) != len(names) or len(names) > DEVICES_MAX:
        raise CallerError(
            "the head of this matrix names a device twice, so its columns are nobody's",
            hint="copy the output as the tool printed it, with its tabs",
        )
    column = {name: i for i, name in enumerate(names)}
    rows: dict[str, list[str]] = {}
    facts: dict[str, dict[str, str]] = {name: {} for name in names}
    for line in lines[at + 1 :]:
        label = line.split(None, 1)[0] if line.strip() else ""
        if label not in column:
            continue
        cells, rest, fused = _cells(line.strip()[len(label) :], len(names))
        if cells is None or cells[column[label]] != "X" or cells.count("X") != 1:
            why = "its cells do not fit the columns" if cells is None else "its X is not in its own column"
            remarks.append(f"row {label} is left out: {why}")
            continue
        if fused:
            remarks.append(f"row {label} had lost tabs; they can be put back in one way only")
        rows[label] = cells
        facts[label] = _affinity(rest, affinities, tabbed="\t" in line)
    missing = [name for name in names if name not in rows]
    if missing:
        remarks.append(f"no readable row of {', '.join(missing)}")
    links, disagree = _links(names, rows)
    remarks += disagree
    devices = tuple(Device(name, {}, facts[name]) for name in names)
    return Report("nvidia-smi topo -m", devices, tuple(links), remarks=tuple(remarks))


def _is_head(line: str) -> bool:
    words = line.split()
    if len(words) < 2 or not words[0].startswith("GPU0"):
        return False
    return all(_NAMES.fullmatch(word) for word in words[:2]) or words[:3] == ["GPU0", "CPU", "Affinity"]


def _head(line: str) -> tuple[list[str], list[str], list[str]]:
    affinities = [_AFFINITIES[name] for name in _AFFINITY.findall(line)]
    words = _AFFINITY.sub(" ", line).split()
    names: list[str] = []
    remarks = []
    for word in words:
        if not _NAMES.fullmatch(word):
            continue
        found = _ONE_NAME.findall(word)
        if len(found) > 1:
            remarks.append(f"the head had lost a tab in {word!r}; it can be put back in one way only")
        names += found
    return names, affinities, remarks


def _cells(text: str, count: int) -> tuple[list[str] | None, str, bool]:
    """The row's `count` cells, the text after them, and whether any had to be taken apart; None when they do not fit."""
    cells: list[str] = []
    fused, end = False, 0
    for match in re.finditer(r"\S+", text):
        if len(cells) >= count:
            break
        if not _LINKS.fullmatch(match[0]):
            return None, "", False
        found = _ONE_LINK.findall(match[0])
        if "".join(found) != match[0]:
            return None, "", False
        fused = fused or len(found) > 1
        cells += found
        end = match.end()
    return (cells if len(cells) == count else None), text[end:], fused


def _affinity(rest: str, affinities: Sequence[str], *, tabbed: bool) -> dict[str, str]:
    """Whose the cells after the matrix are: by their tabs, else only where there is one for each column."""
    cells = [cell.strip() for cell in rest.split("\t")[1:]] if tabbed else rest.split()
    while tabbed and len(cells) > len(affinities) and "" in cells:
        cells.remove("")  # newer tools print one empty column before the last
    if len(cells) != len(affinities):
        return {}
    return {name: cell for name, cell in zip(affinities, cells, strict=True) if known(cell)}


def _links(names: Sequence[str], rows: dict[str, list[str]]) -> tuple[list[Link], list[str]]:
    links, remarks = [], []
    for i, a in enumerate(names):
        for j in range(i + 1, len(names)):
            b = names[j]
            told = {rows[name][of] for name, of in ((a, j), (b, i)) if name in rows}
            if len(told) == 1:
                links.append(Link(a, b, told.pop()))
            elif len(told) > 1:
                remarks.append(
                    f"{a} and {b} are left out: one row says {' and the other '.join(sorted(told))}"
                )
    more = len(remarks) - REMARKS_MAX
    return links, remarks[:REMARKS_MAX] + [f"and {more} pairs more"] * (more > 0)
