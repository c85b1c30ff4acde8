"""How hard a KV pool is pressed: use, contention, and what preemption costs; and whether a device's memory agrees.

    use           blocks in use / blocks of the pool, weighted by time
    contention    share of steps in which a request was denied blocks, or lost them
    preemptions   a second
    recomputed    tokens computed again / tokens computed

`USE_HIGH` (75 %) and `CONTENTION_HIGH` (0.4) are the thresholds of the sources; use alone is no harm (a full pool without denials is a
pool well used), so a pool is called short only when requests were denied.

A *device's* memory says nothing of all this: an engine takes its whole pool at the start, so what nvidia-smi shows is flat.  It can only
agree or not with weights + pool: `device_check` says what remains for activations, graphs and the context of the driver, and
refuses a reading below what must be there.

Deliberately absent: (allocation time - free time) / allocation time, which is called contention elsewhere and is negative whenever
freeing is the slower of two unrelated durations.
"""

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError

Ints = NDArray[np.int64]
USE_HIGH, CONTENTION_HIGH = 0.75, 0.4
MIB = 2**20


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps of a run say.  Quantiles and shares of time, except `contention`, which is of steps."""

    use_p50: float
    use_p99: float
    above_high: float
    contention: float
    preemptions_per_s: float
    recomputed: float
    steps: int

    @property
    def verdict(self) -> str:
        """`short`, `pressed`, `full` or `roomy`."""
        if self.contention > CONTENTION_HIGH:
            return "short"
        if self.contention > 0 and self.preemptions_per_s > 0:
            return "pressed"
        return "full" if self.use_p99 > USE_HIGH else "roomy"


SAID = {
    "short": "requests wait for blocks in most steps: more memory, fewer sequences, or shorter ones",
    "pressed": "blocks run out now and then, and requests begin again",
    "full": "well used; nobody lost blocks",
    "roomy": "never three quarters in use",
}


def pressure_of(
    durations_ns: Ints,
    used: Ints,
    blocks: int,
    denied: Ints,
    preempted: Ints,
    recomputed: Ints,
    computed: Ints,
) -> Pressure:
    """The pressure of a run, from one value a step.

    >>> one = np.array([1, 1, 2])
    >>> seen = pressure_of(one, np.array([2, 8, 9]), 10, np.array([0, 1, 0]), one * 0, one * 0, one)
    >>> seen.above_high, round(seen.contention, 3), seen.use_p50, seen.verdict
    (0.75, 0.333, 0.8, 'full')

    Raises:
        ConfigError: no steps.

    """
    if not len(durations_ns):
        raise ConfigError("no steps", field="steps", value=0, hint="give a run in which something happened")
    order = np.argsort(used, kind="stable")
    time = np.cumsum(durations_ns[order])
    whole = float(time[-1]) or 1.0
    share = used / blocks

    def at(q: float) -> float:
        return float(share[order][min(len(order) - 1, int(np.searchsorted(time, q * whole)))])

    return Pressure(
        use_p50=at(0.5),
        use_p99=at(0.99),
        above_high=float(durations_ns[share > USE_HIGH].sum()) / whole,
        contention=float((denied > 0).mean()),
        preemptions_per_s=float(preempted.sum()) / whole * 1e9,
        recomputed=float(recomputed.sum()) / max(1.0, float(computed.sum())),
        steps=len(order),
    )


class DeviceCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU's memory against what must be on it; bytes.

    `rest` is what is used beyond weights and pool: activations, graphs, the driver's context.  `agrees` when that is
    something but no more than `REST_MOST`.
    """

    used: int
    total: int
    expected: int
    rest: int
    agrees: bool
    said: str


REST_MOST = 8 * 2**30


def device_check(used: int, total: int, weights: int, pool: int) -> DeviceCheck:
    """Whether a reading of a GPU's memory fits the plan for it.

    >>> device_check(74 * 2**30, 80 * 2**30, 34 * 2**30, 36 * 2**30).said
    '4.0 GiB beside weights and pool: activations, graphs, the driver'
    >>> device_check(40 * 2**30, 80 * 2**30, 34 * 2**30, 36 * 2**30).agrees
    False
    """
    rest = used - weights - pool
    if rest < 0:
        said = f"{-rest / 2**30:.1f} GiB less than weights and pool take: another model, another pool, or not loaded yet"
    elif rest > REST_MOST:
        said = f"{rest / 2**30:.1f} GiB beside weights and pool: something else lives on this GPU, or the pool is larger"
    else:
        said = f"{rest / 2**30:.1f} GiB beside weights and pool: activations, graphs, the driver"
    return DeviceCheck(
        used=used, total=total, expected=weights + pool, rest=rest, agrees=0 <= rest <= REST_MOST, said=said
    )


def read_device_memory(text: str) -> list[tuple[int, int]]:
    r"""(used, total) bytes of each GPU, of `nvidia-smi -q` or `-q -x`, or of `dcgmi dmon -e 250,252` (its last sample).

    >>> read_device_memory("FB Memory Usage\n Total : 40960 MiB\n Reserved : 520 MiB\n Used : 12000 MiB\n")
    [(12582912000, 42949672960)]
    >>> read_device_memory("#Entity  FBTTL  FBUSD\nID\nGPU 0  N/A  N/A\nGPU 0  81920  71234\nGPU 1  81920  N/A\n")
    [(74694262784, 85899345920)]

    Raises:
        ConfigError: neither is in it.

    """
    found = _query(text) or _xml(text) or _dmon(text)
    if not found:
        raise ConfigError(
            "no memory of a GPU in it",
            field="device_memory",
            hint="give nvidia-smi -q, nvidia-smi -q -x, or dcgmi dmon -e 250,252",
        )
    return found


def _mib(value: str) -> int:
    return int(float(value) * MIB)


def _query(text: str) -> list[tuple[int, int]]:
    """Sections of whole GPUs: those of MIG slices stand deeper."""
    pattern = (
        r"^([ ]*)FB Memory Usage\s+Total\s*:\s*(\d+) MiB\s+(?:Reserved\s*:\s*\d+ MiB\s+)?Used\s*:\s*(\d+) MiB"
    )
    found = re.findall(pattern, text, re.MULTILINE)
    outer = min((len(indent) for indent, _, _ in found), default=0)
    return [(_mib(used), _mib(total)) for indent, total, used in found if len(indent) == outer]


def _xml(text: str) -> list[tuple[int, int]]:
    """The same, with the slices cut out first."""
    whole = re.sub(r"<mig_devices>.*?</mig_devices>", "", text, flags=re.DOTALL)
    pattern = r"<fb_memory_usage>\s*<total>(\d+) MiB</total>.*?<used>(\d+) MiB</used>"
    return [(_mib(used), _mib(total)) for total, used in re.findall(pattern, whole, re.DOTALL)]


def _dmon(text: str) -> list[tuple[int, int]]:
    """Columns FBTTL and FBUSD, in MiB; fields are N/A until they were sampled."""
    header: Sequence[str] = ()
    latest: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        words = line.split()
        if line.startswith("#Entity"):
            header = words[1:]
        elif words[:1] == ["GPU"] and {"FBTTL", "FBUSD"} <= set(header) and len(words) == len(header) + 2:
            values = dict(zip(header, words[2:], strict=True))
            if "N/A" not in (values["FBTTL"], values["FBUSD"]):
                latest[words[1]] = (_mib(values["FBUSD"]), _mib(values["FBTTL"]))
    return [latest[gpu] for gpu in sorted(latest, key=int)]
