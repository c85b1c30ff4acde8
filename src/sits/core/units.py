"""Quantities with units: durations, bytes, bandwidths, shares.

Rules: a quantity in a file carries its unit ("100ms", "80GiB", "24GB/s"); a bare number is an error, because
GB/s and Gb/s differ by eight and ms and s by a thousand.  Inside the program a quantity is a plain number of
the base unit with a type name of its own (`Ns`, `Bytes`, `BytesPerSecond`, `Share`), so that signatures say
what they take.  Decimal and binary prefixes are different words (GB = 10^9, GiB = 2^30).

Deliberately absent: arithmetic on units; conversions happen at the edges only.
"""

import math
import re
from typing import NewType

from sits.core.errors import ConfigError

Ns = NewType("Ns", int)
Bytes = NewType("Bytes", int)
BytesPerSecond = NewType("BytesPerSecond", float)
Share = NewType("Share", float)

MS = 1_000_000
SECOND = 1_000_000_000

_DURATIONS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": MS,
    "s": SECOND,
    "min": 60 * SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
    "d": 86_400 * SECOND,
}
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_RATES = {f"{unit}/s": float(size) for unit, size in _BYTES.items()} | {
    "kb/s": 125.0,
    "Mb/s": 125e3,
    "Gb/s": 125e6,
    "Tb/s": 125e9,
}
_QUANTITY = re.compile(r"\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\s\d].*?)?\s*", re.ASCII)
_PERCENT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*%\s*", re.ASCII)
_END = 2.0**63
"""Quantities are stored and added up in 64 bits."""


def _parse(text: object, table: dict[str, float] | dict[str, int], what: str, example: str) -> float:
    shown = repr(text)
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None and isinstance(text, (int, float)) and not isinstance(text, bool):
        match = _QUANTITY.fullmatch(repr(text))
    if match is None:
        raise ConfigError(f"{shown} is not a {what}", value=text, hint=f"write it like {example}")
    number, unit = match.groups()
    if unit is None:
        raise ConfigError(f"{shown} has no unit", value=text, hint=f"write the unit, like {example}")
    if unit not in table:
        known = ", ".join(table)
        raise ConfigError(f"{unit!r} is not a unit of a {what}", value=text, hint=f"one of {known}")
    value = float(number) * table[unit]
    if not math.isfinite(value) or value >= _END:
        raise ConfigError(f"{shown} is too large", value=text, hint=f"write it like {example}")
    if value < 0:
        raise ConfigError(f"{shown} is negative", value=text, hint=f"a {what} is zero or more")
    return value


def parse_duration(text: object) -> Ns:
    """Nanoseconds of "100ms", "2.5s", "15m".

    >>> parse_duration("100ms")
    100000000

    Raises:
        ConfigError: no unit, unknown unit, negative, or not a quantity.

    """
    return Ns(round(_parse(text, _DURATIONS, "duration", "'100ms'")))


def parse_bytes(text: object) -> Bytes:
    """Bytes of "80GiB" (2^30) or "80GB" (10^9).

    >>> parse_bytes("8GiB"), parse_bytes("8GB")
    (8589934592, 8000000000)
    """
    return Bytes(round(_parse(text, _BYTES, "size", "'80GiB'")))


def parse_bandwidth(text: object) -> BytesPerSecond:
    """Bytes per second of "24GB/s" (bytes) or "400Gb/s" (bits: eight times less).

    >>> parse_bandwidth("400Gb/s") == parse_bandwidth("50GB/s")
    True
    """
    return BytesPerSecond(_parse(text, _RATES, "bandwidth", "'24GB/s' (bytes) or '400Gb/s' (bits)"))


def parse_share(text: object) -> Share:
    """A share 0..1 from "42%" or 0.42.

    >>> parse_share("42%")
    0.42
    """
    percent = _PERCENT.fullmatch(text) if isinstance(text, str) else None
    if percent is not None:
        value = float(percent.group(1)) / 100.0
    elif isinstance(text, (int, float)) and not isinstance(text, bool):
        value = float(text)
    else:
        raise ConfigError(f"{text!r} is not a share", value=text, hint="write it like '42%' or 0.42")
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{text!r} is outside 0..1", value=text, hint="a share is between 0% and 100%")
    return Share(value)


def show_duration(ns: float) -> str:
    """A duration as people read it: three significant digits and a fitting unit.

    >>> show_duration(2_312_000_000), show_duration(45_100)
    ('2.31 s', '45.1 us')
    """
    for unit, size in (("s", SECOND), ("ms", MS), ("us", 1_000)):
        if abs(ns) >= size:
            return f"{ns / size:.3g} {unit}" if ns / size < 1000 else f"{ns / size:,.0f} {unit}"
    return f"{ns:.0f} ns"
