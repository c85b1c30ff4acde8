"""Figures as people read them: three or four significant digits, thousands separated, a real minus sign.

Rules: a column of figures has one number of decimals, so that the points line up; a figure too small for its
column reads `<0.1`, never `0.0`; an interval is written `low – high` and says its level once a table, not once
a cell.
"""

import re
from collections.abc import Iterable

from sits.core.finding import Interval

MINUS = "−"
EN_DASH = "–"
NO_BREAK = "\u00a0"
UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|min|%)(?!\w))")


def number(value: float) -> str:
    """A figure on its own: `2,312`, `45.1`, `0.93`, `1.2e+09`.

    >>> number(2312.4), number(45.12), number(0.9312), number(-3.0), number(0.0)
    ('2,312', '45.1', '0.93', '−3', '0')
    """
    size = abs(value)
    if value == 0:
        return "0"
    if size >= 1e7 or size < 1e-4:
        return _signed(f"{size:.3g}", value)
    if size < 0.1:
        return _signed(f"{size:.2g}", value)
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2
    text = f"{size:,.{decimals}f}"
    return _signed(text.rstrip("0").rstrip(".") if decimals else text, value)


def fixed(value: float, decimals: int) -> str:
    """A figure of a column: always `decimals` decimals, `<0.1` where it would round to nothing.

    >>> fixed(1203.44, 1), fixed(0.02, 1), fixed(-12.0, 1), fixed(0, 1)
    ('1,203.4', '<0.1', '−12.0', '0.0')
    """
    if abs(value) >= 1e9:
        return _signed(f"{abs(value):.2e}", value)
    text = f"{abs(value):,.{decimals}f}"
    smallest = 10.0**-decimals
    if value != 0 and abs(value) < smallest / 2:
        return ("<" if value > 0 else f">{MINUS}") + f"{smallest:.{decimals}f}"
    return _signed(text, value)


def decimals_for(values: Iterable[float]) -> int:
    """Decimals of a column, from its largest figure: small figures of a long column must still be seen."""
    largest = max((abs(value) for value in values), default=0.0)
    return 0 if largest >= 1e6 else 1 if largest >= 10 else 2 if largest >= 1 else 3


def signed(value: float, decimals: int) -> str:
    """A difference: with its plus or minus.

    >>> signed(12.0, 1), signed(-12.0, 1)
    ('+12.0', '−12.0')
    """
    text = fixed(value, decimals)
    return f"+{text}" if value > 0 and not text.startswith("<") else text


def interval(figure: Interval, decimals: int) -> str:
    """`low – high` of an interval.

    >>> interval(Interval(5.0, -1.0, 12.0), 0)
    '−1 – 12'
    """
    return f"{fixed(figure.low, decimals)} {EN_DASH} {fixed(figure.high, decimals)}"


def level(figure: Interval) -> str:
    """The level of an interval."""
    return percent(figure.level)


def percent(share: float) -> str:
    """A share in percent; the space before the sign does not break.

    >>> [percent(share).replace(NO_BREAK, " ") for share in (0.42, 0.003, 0.0, 1e-6)]
    ['42 %', '0.3 %', '0 %', '<0.1 %']
    """
    points = share * 100
    if share and abs(points) < 0.05:
        return f"<0.1{NO_BREAK}%" if share > 0 else f"{MINUS}0.0{NO_BREAK}%"
    text = f"{abs(points):.0f}" if abs(points) >= 9.95 or points == 0 else f"{abs(points):.1f}"
    return f"{_signed(text, share)}{NO_BREAK}%"


def bound(text: str) -> str:
    """Text in which no figure is parted from its unit at the end of a line.

    >>> bound("from 2.34 s to 999 ms, 12 % less, in 3 parts").replace(NO_BREAK, "_")
    'from 2.34_s to 999_ms, 12_% less, in 3 parts'
    """
    return UNIT.sub(NO_BREAK, text)


def count(value: float) -> str:
    """A count with separators: `20,000`."""
    return f"{value:,.0f}"


def many(n: float, noun: str) -> str:
    """A count with its noun.

    >>> many(1, "request"), many(20_000, "request")
    ('1 request', '20,000 requests')
    """
    return f"{count(n)} {noun}{'' if n == 1 else 's'}"


def _signed(text: str, value: float) -> str:
    return f"{MINUS}{text}" if value < 0 else text
