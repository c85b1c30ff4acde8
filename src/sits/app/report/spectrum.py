"""The sample spectrum: in which token lengths the slow requests lie, beside where all others lie.

Two maps of the same cells.  A cell's tint is its share of that map's requests on a square-root scale, so that a
rare cell is still seen; the tooltip has the count.
"""

from collections.abc import Sequence

import msgspec

from sits.app.drawing import fit
from sits.app.report import numbers, svg
from sits.core.report import HeatMap

MAP_WIDTH, CELL_HEIGHT = 340.0, 18.0
LEAST_CELLS = 4
"""Two lengths in each direction: less is a coloured box, not a map."""
LEFT, BOTTOM, TOP = 46.0, 36.0, 20.0


class Spectrum(msgspec.Struct, frozen=True):
    """Two drawings and how many requests are in each."""

    slow: str
    rest: str
    n_slow: str
    n_rest: str
    x_name: str
    y_name: str


def spectrum(data: HeatMap | None) -> Spectrum | None:
    """The view of a spectrum; None where there is none, nothing was counted, or all is one cell.  Counts are `[x][y]`."""
    if data is None or not any(map(any, (*data.slow, *data.rest))):
        return None
    if (len(data.x_edges) - 1) * (len(data.y_edges) - 1) < LEAST_CELLS:
        return None
    return Spectrum(
        slow=_map(data, data.slow, "slow"),
        rest=_map(data, data.rest, "rest"),
        n_slow=numbers.many(sum(map(sum, data.slow)), "request"),
        n_rest=numbers.many(sum(map(sum, data.rest)), "request"),
        x_name=data.x_name,
        y_name=data.y_name,
    )


def _map(data: HeatMap, counts: Sequence[Sequence[float]], kind: str) -> str:
    columns, rows = len(data.x_edges) - 1, len(data.y_edges) - 1
    largest = max((count for row in counts for count in row), default=0.0) or 1.0
    total = sum(map(sum, counts)) or 1.0
    width, height = LEFT + MAP_WIDTH + 14, TOP + rows * CELL_HEIGHT + BOTTOM
    marks = [
        _cell(data, count, row, column, (count / largest) ** 0.5, total, kind)
        for column, line in enumerate(counts)
        for row, count in enumerate(line)
    ]
    marks += _labels(data, columns, rows)
    label = f"{kind} requests by {data.x_name} and {data.y_name}"
    return svg.element(
        "svg", *marks, viewBox=f"0 0 {width:.0f} {height:.0f}", class_="heat", role="img", aria_label=label
    )


def _cell(data: HeatMap, count: float, row: int, column: int, tint: float, total: float, kind: str) -> str:
    rows, cell_width = len(data.y_edges) - 1, MAP_WIDTH / (len(data.x_edges) - 1)
    where = (
        f"{data.x_name} {_edge(data.x_edges[column])}–{_edge(data.x_edges[column + 1])}, "
        f"{data.y_name} {_edge(data.y_edges[row])}–{_edge(data.y_edges[row + 1])}"
    )
    return svg.element(
        "rect",
        svg.title(f"{where}: {numbers.many(count, 'request')}, {numbers.percent(count / total)}"),
        x=LEFT + column * cell_width,
        y=TOP + (rows - 1 - row) * CELL_HEIGHT,
        width=cell_width - 1,
        height=CELL_HEIGHT - 1,
        class_=f"cell {kind}" if count else "cell empty",
        fill_opacity=f"{tint:.3f}" if count else None,
    )


def _labels(data: HeatMap, columns: int, rows: int) -> list[str]:
    every = max(1, -(-columns // 8))
    base = TOP + rows * CELL_HEIGHT
    marks = [
        svg.text(
            _edge(data.x_edges[at]),
            x=LEFT + at * MAP_WIDTH / columns,
            y=base + 14,
            text_anchor="middle",
            class_="tick",
        )
        for at in range(0, columns + 1, every)
    ]
    marks += [
        svg.text(
            _edge(data.y_edges[at]),
            x=LEFT - 6,
            y=base - at * CELL_HEIGHT + 4,
            text_anchor="end",
            class_="tick",
        )
        for at in range(0, rows + 1, max(1, -(-rows // 8)))
    ]
    return [
        *marks,
        svg.text(fit(data.y_name, MAP_WIDTH * 0.7), x=LEFT, y=13, class_="tick name"),
        svg.text(
            fit(data.x_name, MAP_WIDTH * 0.7),
            x=LEFT + MAP_WIDTH,
            y=base + 31,
            text_anchor="end",
            class_="tick name",
        ),
    ]


def _edge(value: float) -> str:
    return f"{value / 1024:g}k" if value >= 1024 and value % 1024 == 0 else f"{value:g}"
