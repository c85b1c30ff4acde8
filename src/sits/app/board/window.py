"""What a board looks at: a stretch of time cut into steps, and which requests of it.

Rules: a live window ends now and moves on with each look; its steps begin at whole minutes, because figures per minute are what there is.
A window is cut into 15 to 150 steps, so that a drawing is neither empty nor finer than a screen.

Deliberately absent: rows.
"""

from collections.abc import Mapping

import msgspec

from sits.core.errors import CallerError
from sits.core.units import MS, SECOND

MINUTE_NS = 60 * SECOND
LIVE = {"15m": 15, "1h": 60, "6h": 360, "24h": 1440}
"""Names of live windows, and their minutes."""

LONGEST_MINUTES = 90 * 1440
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 1440)
"""Minutes a step may have."""

STEPS_MAX = 150
NAME_MAX = 256


class Only(msgspec.Struct, frozen=True):
    """Which requests; empty is all."""

    model: str = ""
    engine: str = ""
    tenant: str = ""

    def parameters(self) -> dict[str, str | None]:
        """For a named query that knows tenants."""
        return {"model": self.model or None, "engine": self.engine or None, "tenant": self.tenant or None}


class Look(msgspec.Struct, frozen=True):
    """What somebody looks at: a live window by its name, or one from `since_ns` to `until_ns` (wall clock), and which requests."""

    name: str = "15m"
    since_ns: int = 0
    until_ns: int = 0
    only: Only = Only()

    @property
    def live(self) -> bool:
        """Whether the window ends now."""
        return not self.until_ns

    def window(self, now_ns: int) -> "Window":
        """The stretch of time it is now."""
        if not self.live:
            return _cut(self.since_ns, self.until_ns)
        return _cut(now_ns - LIVE[self.name] * MINUTE_NS, now_ns)


class Window(msgspec.Struct, frozen=True):
    """From `since_ns`, a whole step, to `until_ns`, in steps of `step_ns`; the last step may not be over."""

    since_ns: int
    until_ns: int
    step_ns: int

    @property
    def steps(self) -> int:
        """How many there are."""
        return -((self.since_ns - self.until_ns) // self.step_ns)


def _cut(since_ns: int, until_ns: int) -> Window:
    minutes = max(1, (until_ns - since_ns) // MINUTE_NS)
    step = next((some for some in STEPS if minutes / some <= STEPS_MAX), STEPS[-1]) * MINUTE_NS
    return Window(
        -(-since_ns // step) * step if until_ns - since_ns > step else since_ns // step * step, until_ns, step
    )


def look_of(asked: Mapping[str, str]) -> Look:
    """What the query of an address asks for.

    Raises:
        CallerError: an unknown window, or times that are none.

    """
    only = Only(**{name: asked.get(name, "")[:NAME_MAX] for name in ("model", "engine", "tenant")})
    name = asked.get("window", "15m")
    if name != "custom":
        if name not in LIVE:
            raise CallerError(
                f"there is no window {name[:40]!r}", field="window", hint=f"one of {', '.join(LIVE)}, custom"
            )
        return Look(name=name, only=only)
    since_ns, until_ns = (_time(asked, field) for field in ("since", "until"))
    if not MINUTE_NS <= until_ns - since_ns <= LONGEST_MINUTES * MINUTE_NS:
        raise CallerError(
            "the window has to end between a minute and 90 days after its beginning",
            field="until",
            value=asked.get("until"),
            hint="choose another end",
        )
    return Look(name="custom", since_ns=since_ns, until_ns=until_ns, only=only)


def _time(asked: Mapping[str, str], field: str) -> int:
    text = asked.get(field, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 14):
        raise CallerError(
            f"{text[:40]!r} is no time", field=field, value=text[:40], hint="write ms since 1970, UTC"
        )
    return int(text) * MS
