"""Where a process's memory lies: how much of it is on the NUMA nodes whose processors it may run on.

`/proc/PID/numa_maps` has a line a mapping with `N<node>=<pages>` and `kernelpagesize_kB=`.  The share is of bytes, so huge pages
count as what they are.  A machine of one node is all local.  Reading the file walks the page tables: not often, and not of a large
process in a hurry.

Deliberately absent: moving anything, and which thread touches which page.
"""

import re
from collections.abc import Collection
from pathlib import Path

_NODE = re.compile(r"N(\d{1,5})=(\d{1,15})")
_PAGE = re.compile(r"kernelpagesize_kB=(\d{1,9})")


def read_numa_maps(text: str) -> dict[int, int]:
    """Bytes by node.

    >>> read_numa_maps("7f00 default anon=3 N0=2 N1=1 kernelpagesize_kB=4")
    {0: 8192, 1: 4096}
    """
    found: dict[int, int] = {}
    for line in text.splitlines():
        page = _PAGE.search(line)
        size = int(page[1]) * 1024 if page else 4096
        for word in line.split()[2:]:
            if match := _NODE.fullmatch(word):
                node = int(match[1])
                found[node] = found.get(node, 0) + int(match[2]) * size
    return found


def read_list(text: str) -> set[int]:
    """The numbers of a kernel's list, empty when it is none.

    >>> sorted(read_list("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or len(part) > 12:
            return set()
        first, last = int(low), int(high or low)
        if not first <= last <= 65_535:
            return set()
        found |= set(range(first, last + 1))
    return found


def local_share(pages: dict[int, int], nodes: Collection[int]) -> float | None:
    """The share of the bytes that lies on `nodes`; None when there are no bytes or no nodes."""
    total = sum(pages.values())
    return sum(pages.get(node, 0) for node in set(nodes)) / total if total and nodes else None


def nodes_here(system: Path = Path("/sys/devices/system/node")) -> int:
    """How many NUMA nodes this machine has; 0 when the kernel does not say."""
    return sum(folder.name[4:].isdecimal() for folder in system.glob("node[0-9]*"))


def local_share_of(pid: int, proc: Path = Path("/proc"), system: Path = Path("/sys/devices/system/node")) -> float | None:  # fmt: skip
    """The share of process `pid`'s memory that is local to it; None when the kernel does not say (or not to us)."""
    try:
        pages = read_numa_maps((proc / str(pid) / "numa_maps").read_text(encoding="utf-8", errors="replace"))
        status = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        cpus = next(
            (
                read_list(line.partition(":")[2])
                for line in status.splitlines()
                if line.startswith("Cpus_allowed_list:")
            ),
            set[int](),
        )
        nodes = {
            int(folder.name[4:])
            for folder in system.glob("node[0-9]*")
            if read_list((folder / "cpulist").read_text(encoding="ascii")) & cpus
        }
    except (OSError, ValueError):
        return None
    return local_share(pages, nodes)
