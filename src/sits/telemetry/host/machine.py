"""Processors, memory and pressure of the machine, from `/proc`: shares of the time between two looks, not since boot.

`/proc/stat` counts hundredths of seconds a state; *busy* is all but idle and waiting for disks, *steal* what the hypervisor gave to others
(a gateway cannot see it otherwise).  Guest time is in user time already.  `/proc/pressure/*` (PSI) counts microseconds in which some task
(`some`) or all of them (`full`) stood still for want of the resource; a container's limits show there and nowhere else
(docs.kernel.org/accounting/psi.html).  `/proc/meminfo`: *available* is the kernel's estimate of what can be had without swapping.

Rules: what the kernel does not tell is absent; the first look tells no shares; a counter that goes back tells none either.
Parsers are pure; only `Machine` reads files.

Deliberately absent: single processors and processes.
"""

from collections.abc import Mapping
from pathlib import Path

from sits.core.ports import World

UNITS: dict[str, str] = {
    "host_cpu_busy_share": "share",
    "host_cpu_steal_share": "share",
    "host_cpu_iowait_share": "share",
    "host_cpu_pressure_share": "share",
    "host_memory_pressure_share": "share",
    "host_memory_stalled_share": "share",
    "host_io_pressure_share": "share",
    "host_memory_total_bytes": "bytes",
    "host_memory_available_bytes": "bytes",
    "host_swap_used_bytes": "bytes",
    "host_numa_local_share": "share",
    "host_tcp_retransmits": "segments since the sample before",
}
"""Signal -> unit.  `host_numa_local_share` is of the keeper's own memory (`telemetry.host.numa`), `host_tcp_retransmits` of all processes'
connections (`telemetry.host.retransmits`)."""

PRESSURES = {
    ("cpu", "some"): "host_cpu_pressure_share",
    ("memory", "some"): "host_memory_pressure_share",
    ("memory", "full"): "host_memory_stalled_share",
    ("io", "some"): "host_io_pressure_share",
}


def read_stat(text: str) -> tuple[int, int, int, int] | None:
    """Busy, steal, iowait and all ticks of `/proc/stat`'s line of all processors together; None when it has none.

    >>> read_stat("cpu  100 0 50 800 40 0 5 5 0 0")
    (160, 5, 40, 1000)
    """
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["cpu"] and len(words) >= 9 and all(word.isdecimal() for word in words[1:9]):
            user, nice, system, idle, iowait, irq, soft, steal = (int(word) for word in words[1:9])
            busy = user + nice + system + irq + soft + steal
            return busy, steal, iowait, busy + idle + iowait
    return None


def read_meminfo(text: str) -> dict[str, float]:
    """Our memory signals of `/proc/meminfo`.

    >>> read_meminfo("MemTotal: 100 kB")
    {'host_memory_total_bytes': 102400.0}
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB" and words[1].isdecimal() and len(words[1]) < 16:
            found[words[0].rstrip(":")] = int(words[1]) * 1024
    made = {
        ours: float(found[name])
        for ours, name in (
            ("host_memory_total_bytes", "MemTotal"),
            ("host_memory_available_bytes", "MemAvailable"),
        )
        if name in found
    }
    if "SwapTotal" in found and "SwapFree" in found:
        made["host_swap_used_bytes"] = float(max(0, found["SwapTotal"] - found["SwapFree"]))
    return made


def read_pressure(text: str) -> dict[str, int]:
    """Microseconds stood still, `some` and `full`, of one file of `/proc/pressure`.

    >>> read_pressure("some avg10=1.00 avg60=0.50 avg300=0.10 total=1234")
    {'some': 1234}
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        total = next((word[6:] for word in words[1:] if word.startswith("total=")), "")
        if words and words[0] in ("some", "full") and total.isdecimal() and len(total) < 19:
            found[words[0]] = int(total)
    return found


class Machine:
    """The machine we are on, looked at again and again.

    Args:
        world: the clock.
        proc: where the kernel tells; another folder in tests.

    """

    def __init__(self, world: World, proc: Path = Path("/proc")) -> None:
        self._world = world
        self._proc = proc
        self._ticks: tuple[int, int, int, int] | None = None
        self._stalls: Mapping[tuple[str, str], int] = {}
        self._at_ns = 0

    def look(self) -> dict[str, float]:
        """The signals, shares being of the time since the look before."""
        now_ns = self._world.now_ns()
        values = read_meminfo(self._text("meminfo"))
        ticks = read_stat(self._text("stat"))
        if ticks is not None and self._ticks is not None and (all_ticks := ticks[3] - self._ticks[3]) > 0:
            for name, new, old in zip(("busy", "steal", "iowait"), ticks[:3], self._ticks[:3], strict=True):
                if new >= old:
                    values[f"host_cpu_{name}_share"] = min(1.0, (new - old) / all_ticks)
        stalls = {
            (resource, how): total
            for resource in ("cpu", "memory", "io")
            for how, total in read_pressure(self._text(f"pressure/{resource}")).items()
        }
        for key, name in PRESSURES.items():
            grown = stalls.get(key, -1) - self._stalls.get(key, 0)
            if key in stalls and key in self._stalls and grown >= 0 and now_ns > self._at_ns:
                values[name] = min(1.0, grown * 1000 / (now_ns - self._at_ns))
        self._ticks, self._stalls, self._at_ns = ticks, stalls, now_ns
        return values

    def _text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""
