"""Gigabytes and gigabits a second as two types, and what a PCIe slot gives.

A 400 Gb/s network card moves 50 GB/s.  The names differ by a capital letter and the values by eight, so here they are types:
`GBps` and `Gbps` cannot be added, compared or passed for each other; `mypy` says so before the program runs, and
`gigabytes` does when it runs.  Changing over is a method with a name.

PCIe, x16: raw rate times coding (128b/130b) times what packets leave for payload.  Measured copies reach about 28 GB/s on
generation 4 and 55 GB/s on generation 5; a data sheet's 31.5 and 63 are never seen.

Deliberately absent: arithmetic, and parsing ("24GB/s" of a file is `core.units.parse_bandwidth`).
"""

import math

import msgspec

from sits.core.errors import ConfigError

PCIE_USABLE_X16 = {3: 13.0, 4: 28.0, 5: 55.0}
"""GB/s a large copy in one direction reaches in 16 lanes, by generation."""

PCIE_GIGATRANSFERS = {3: 8.0, 4: 16.0, 5: 32.0}
LANES = (1, 2, 4, 8, 16)


class GBps(msgspec.Struct, frozen=True):
    """Gigabytes (10^9 bytes) a second.

    >>> GBps(50.0).bits()
    Gbps(value=400.0)
    """

    value: float

    def __post_init__(self) -> None:
        _positive("GB/s", self.value)

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second."""
        return self.value * 1e9

    def bits(self) -> "Gbps":
        """The same in gigabits a second."""
        return Gbps(self.value * 8.0)


class Gbps(msgspec.Struct, frozen=True):
    """Gigabits (10^9 bits) a second: what network cards are sold by.

    >>> Gbps(400.0).bytes()
    GBps(value=50.0)
    """

    value: float

    def __post_init__(self) -> None:
        _positive("Gb/s", self.value)

    def bytes(self) -> GBps:
        """The same in gigabytes a second."""
        return GBps(self.value / 8.0)


def gigabytes(rate: GBps) -> float:
    """The number of a `GBps`, and nothing else.

    >>> gigabytes(GBps(28.0))
    28.0
    >>> gigabytes(Gbps(400.0))                                       # mypy refuses it too
    Traceback (most recent call last):
    ...
    TypeError: 400 Gb/s where GB/s are asked for: use .bytes(), 50 GB/s

    Raises:
        TypeError: gigabits, or a bare number, which has no unit at all.

    """
    # mypy believes the annotation; who runs without it gets the same answer here.
    given: object = rate
    if isinstance(given, Gbps):
        raise TypeError(
            f"{given.value:g} Gb/s where GB/s are asked for: use .bytes(), {given.value / 8:g} GB/s"
        )
    if not isinstance(given, GBps):
        raise TypeError(f"{given!r} has no unit: GBps({given!r}) or Gbps({given!r})")
    return given.value


def pcie(generation: int, lanes: int = 16) -> GBps:
    """What a large copy reaches in one direction.

    >>> pcie(4), pcie(5), pcie(4, 8)
    (GBps(value=28.0), GBps(value=55.0), GBps(value=14.0))
    >>> raw = PCIE_GIGATRANSFERS[4] * 16 / 8 * 128 / 130                  # GB/s before packets
    >>> round(raw, 1), pcie(4).value < raw
    (31.5, True)

    Raises:
        ConfigError: a generation nobody measured, or an odd number of lanes.

    """
    if generation not in PCIE_USABLE_X16 or lanes not in LANES:
        raise ConfigError(
            f"PCIe {generation} x{lanes}",
            field="pcie",
            value=generation,
            hint=f"generations {', '.join(map(str, PCIE_USABLE_X16))}; lanes {', '.join(map(str, LANES))}",
        )
    return GBps(PCIE_USABLE_X16[generation] * lanes / 16.0)


def _positive(unit: str, value: float) -> None:
    if not (value > 0.0 and math.isfinite(value)):
        raise ConfigError(
            f"{value!r} {unit}", field="bandwidth", value=value, hint="give a number above zero"
        )
