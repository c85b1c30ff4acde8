"""Option values with a unit: sizes, bandwidths, durations, shares, read by the rules of `sits.core.units`.

Deliberately absent: bare numbers.  "80" is no size and no time.
"""

from typing import Any

import click

PARSERS = ("duration", "bytes", "bandwidth", "share")


class Quantity(click.ParamType):
    """A value of one of `PARSERS`; numbers (defaults already parsed) pass."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value in its base unit."""
        if not isinstance(value, str):
            return value
        from sits.core import units  # noqa: PLC0415
        from sits.core.errors import ConfigError  # noqa: PLC0415

        try:
            return getattr(units, f"parse_{self.name}")(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


DURATION, BYTES, BANDWIDTH, SHARE = map(Quantity, PARSERS)
