"""Option values with a unit: sizes, bandwidths, durations, shares, read by the rules of `sits.core.units`.

Deliberately absent: bare numbers.  "80" is no size and no time.
"""

import math
from typing import Any

import click

PARSERS = ("duration", "bytes", "bandwidth", "share")


class Quantity(click.ParamType):
    """A value of one of `PARSERS`; numbers (defaults already parsed) pass.  `some`: more than zero."""

    def __init__(self, name: str, *, some: bool = False) -> None:
        self.name = name
        self.some = some

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value in its base unit."""
        if not isinstance(value, str):
            return value
        from sits.core import units  # noqa: PLC0415
        from sits.core.errors import ConfigError  # noqa: PLC0415

        try:
            got = getattr(units, f"parse_{self.name}")(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if self.some and not got:
            self.fail(f"{value!r} is nothing; give more, or leave the option out", param, ctx)
        return got


class GpuMemory(Quantity):
    """The memory of one GPU: pools of blocks are held block by block, so a slip of a unit would take all memory there is."""

    def __init__(self) -> None:
        super().__init__("bytes")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Bytes."""
        got = super().convert(value, param, ctx)
        if got > 2**42:
            self.fail(f"{value!r}: no GPU has so much; at most 4TiB", param, ctx)
        return got


class Number(click.FloatRange):
    """A finite number in a range; click's own range lets nan through, for no comparison with it is true, and inf where there is no end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        got = super().convert(value, param, ctx)
        if not math.isfinite(got):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return got


class Whole(click.IntRange):
    """A whole number in a range; one that 64 bits do not hold is refused here and not somewhere in the arithmetic."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        got = super().convert(value, param, ctx)
        if got >= 2**63:
            self.fail(f"{str(value)[:20]}... is too large", param, ctx)
        return got


DURATION, BYTES, BANDWIDTH, SHARE = map(Quantity, PARSERS)
GPU_MEMORY = GpuMemory()
OBJECTIVE = Quantity("duration", some=True)
