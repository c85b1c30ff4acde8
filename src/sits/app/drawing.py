"""Boxes, lines and words on a drawing of fixed width: marks of one SVG, text fitted to the room it has.

Widths of text are estimated (`CHAR_WIDTH` a letter), for nothing here knows the font a reader has; every text is
escaped.  Colours are CSS classes of whoever draws.
"""

from collections.abc import Sequence
from html import escape

CHAR_WIDTH = 6.1
LINE_HEIGHT = 13


class Drawing:
    """Marks collected from top to bottom."""

    def __init__(self) -> None:
        self.marks: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> None:
        """A rectangle with a tooltip."""
        inner = f"<title>{escape(tip)}</title>" if tip else ""
        self.marks.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3">{inner}</rect>'
        )

    def text(self, x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> None:
        """One line of text."""
        self.marks.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'
        )

    def words(self, x: float, y: float, parts: Sequence[tuple[str, bool]], kind: str, room: float) -> float:
        """A line of values, the changed ones marked, wrapped at `room`; returns the y of its last line."""
        for index, line in enumerate(wrapped(parts, room)):
            y += LINE_HEIGHT if index else 0
            shown = " · ".join(
                f'<tspan class="tp-diff">{escape(content)}</tspan>' if changed else escape(content)
                for content, changed in line
            )
            self.marks.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{shown}</text>')
        return y

    def path(self, d: str, kind: str) -> None:
        """A free line."""
        self.marks.append(f'<path class="{kind}" d="{d}"/>')


def fit(content: str, room: float) -> str:
    """Text cut to about `room` units of width, with an ellipsis.

    >>> fit("a-very-long-engine-name", 60)
    'a-very-l…'
    """
    most = max(2, int(room / CHAR_WIDTH))
    return content if len(content) <= most else content[: most - 1] + "…"


def wrapped(parts: Sequence[tuple[str, bool]], room: float) -> list[list[tuple[str, bool]]]:
    """Values in lines of about `room` units, none broken inside.

    >>> wrapped([("one", False), ("two", True), ("three", False)], 60)
    [[('one', False), ('two', True)], [('three', False)]]
    """
    lines: list[list[tuple[str, bool]]] = []
    used = room
    for content, changed in parts:
        short = fit(content, room)
        width = len(short) * CHAR_WIDTH
        if used + width > room:
            lines.append([])
            used = 0.0
        lines[-1].append((short, changed))
        used += width + 3 * CHAR_WIDTH
    return lines
