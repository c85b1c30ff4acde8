"""SVG by hand: elements, scales and the lane that all row charts share.

A *lane* is the drawing of one table row.  Its horizontal positions are percentages and its heights pixels, so
it stretches with the page while text stays at its size: no chart needs a second version for a narrow screen.
Every attribute and text is escaped here; colours are CSS classes, so that dark mode and print are the style
sheet's business.

Deliberately absent: a chart library's generality.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape

import msgspec

from sits.app.report import numbers

HUGE = 1e15
ROUND = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
LABEL_HALF, TICK_HALF = 17.0, 5.0
"""Half of what a written-out label and a tick need of an axis on a narrow screen, percent."""


def element(tag: str, *children: str, **attributes: object) -> str:
    """One element; `class_` becomes `class`, underscores become hyphens, None leaves an attribute out.

    Children are markup already; use `text` for text.
    """
    parts = [
        f'{_name(key)}="{escape(_value(value))}"' for key, value in attributes.items() if value is not None
    ]
    head = " ".join((tag, *parts))
    return f"<{head}>{''.join(children)}</{tag}>" if children else f"<{head}/>"


def text(content: str, **attributes: object) -> str:
    """A text element."""
    return element("text", escape(content), **attributes)


def title(content: str) -> str:
    """A tooltip: what a browser shows on hover and a screen reader reads."""
    return f"<title>{escape(content)}</title>"


def _name(key: str) -> str:
    plain = key.rstrip("_")
    return plain if plain in {"viewBox", "preserveAspectRatio"} else plain.replace("_", "-")


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


class Scale(msgspec.Struct, frozen=True):
    """A linear axis from `low` to `high` (same unit as the data), drawn from 0 % to 100 %."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """Where `value` lies, 0..100, clamped to the axis."""
        if self.high <= self.low:
            return 0.0
        return min(100.0, max(0.0, (value - self.low) / (self.high - self.low) * 100.0))

    def at(self, value: float) -> str:
        """`share` as an SVG percentage."""
        return f"{self.share(value):.2f}%"

    def width(self, start: float, end: float) -> str:
        """The width between two values as an SVG percentage."""
        return f"{abs(self.share(end) - self.share(start)):.2f}%"

    def ticks(self, about: int = 5) -> tuple[float, ...]:
        """Round values on the axis, `about` that many."""
        return tuple(nice_ticks(self.low, self.high, about))


def covering(values: Iterable[float], *, zero: bool = True, margin: float = 0.02) -> Scale:
    """The axis that holds all `values` (and zero), with a little air at each end that is not zero."""
    known = [*values, *([0.0] if zero else [])]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if high <= low:
        high = low + (abs(low) or 1.0)
    air = (high - low) * margin
    return Scale(low - air if low < 0 or not zero else low, high + air)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten inside `low`..`high`.

    >>> nice_ticks(0, 2400, 5)
    [0.0, 500.0, 1000.0, 1500.0, 2000.0]
    """
    span = high - low
    if not (0 < span < HUGE):
        return [low]
    raw = span / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0)), key=lambda one: abs(one - raw))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def round_up(value: float) -> float:
    """The nearest round figure at or above a positive `value`.

    >>> round_up(61.5), round_up(2168.0), round_up(0.05)
    (80.0, 2500.0, 0.05)
    """
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in ROUND if step * power >= value * (1 - 1e-9))


def lane(
    scale: Scale,
    marks: Sequence[str],
    *,
    height: int,
    lines: Sequence[tuple[float, str]] = (),
    bleed: int = 0,
) -> str:
    """The drawing of one row: grid, then reference lines `(value, class)`, then `marks`.

    Upright lines reach `bleed` pixels over both edges, to meet those of the next row where rows are taller.
    """
    grid = [_upright(scale, tick, "zero" if tick == 0 else "grid", height, bleed) for tick in scale.ticks()]
    rules = [_upright(scale, value, kind, height, bleed) for value, kind in lines]
    return element(
        "svg", *grid, *rules, *marks, class_="lane", width="100%", height=height, aria_hidden="true"
    )


def _upright(scale: Scale, value: float, kind: str, height: int, bleed: int) -> str:
    at = scale.at(value)
    return element("line", x1=at, x2=at, y1=-bleed, y2=height + bleed, class_=kind)


def axis(
    scale: Scale,
    *,
    unit: str = "ms",
    marked: Sequence[tuple[float, str]] = (),
    about: int = 5,
    height: int = 18,
) -> str:
    """The row of tick labels over or under the lanes; `marked` values are written out, ticks near them are not.

    With `about` = 0 only the zero is labelled: for an axis too narrow for more.
    """
    taken = [_label_span(scale.share(value)) for value, _ in marked]
    labels = [
        (tick, f"{numbers.number(tick)} {unit}" if tick == 0 else numbers.number(tick), "")
        for tick in (scale.ticks(about) if about else (0.0,))
        if not any(low < scale.share(tick) < high for low, high in taken)
    ]
    marks = []
    for value, label, kind in [*labels, *((value, label, "objective") for value, label in marked)]:
        share = scale.share(value)
        anchor = _anchor(share, 14 if kind else 3)
        marks.append(text(label, x=f"{share:.2f}%", y=height - 5, text_anchor=anchor, class_=f"tick {kind}"))
    return element("svg", *marks, class_="lane axis", width="100%", height=height, aria_hidden="true")


def _anchor(share: float, edge: float) -> str:
    return "start" if share < edge else "end" if share > 100 - edge else "middle"


def _label_span(share: float) -> tuple[float, float]:
    """What a written-out label at `share` keeps free of ticks, percent."""
    left, right = {"start": (0.0, 2.0), "middle": (1.0, 1.0), "end": (2.0, 0.0)}[_anchor(share, 14)]
    return share - left * LABEL_HALF - TICK_HALF, share + right * LABEL_HALF + TICK_HALF


def whisker(scale: Scale, low: float, high: float, middle: float, kind: str, *, half: int = 4) -> str:
    """An interval: a line from `low` to `high` with end caps, at pixel height `middle`."""
    left, right = scale.at(low), scale.at(high)
    return "".join(
        element("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=f"whisker {kind}")
        for x1, x2, y1, y2 in (
            (left, right, middle, middle),
            (left, left, middle - half, middle + half),
            (right, right, middle - half, middle + half),
        )
    )
