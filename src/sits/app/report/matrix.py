"""The attribution matrix as a table: latency bands down, planes across, shares in the cells.

A cell's tint is its share, on one scale for the whole table; the figure is always there, so colour only helps.
"""

import msgspec

from sits.app.report import numbers
from sits.core.report import Band, Matrix

STRONGEST_TINT = 0.42
LEAST_MS, LEAST_SHARE = 1e-6, 1e-9
"""Below a nanosecond, and below a billionth: the rounding of a sum, not time."""


class CellView(msgspec.Struct, frozen=True):
    """One cell: share, interval, mean, and how strongly it is tinted (0..1)."""

    share: str
    interval: str
    mean: str
    tint: str
    nothing: bool


class BandView(msgspec.Struct, frozen=True):
    """One row: the band, its bounds, its requests, its cells in the order of the planes."""

    name: str
    bounds: str
    n: str
    cells: tuple[CellView | None, ...]


class MatrixView(msgspec.Struct, frozen=True):
    """The table."""

    planes: tuple[str, ...]
    bands: tuple[BandView, ...]
    level: str


def matrix(data: Matrix | None) -> MatrixView | None:
    """The view of an attribution matrix; None where there is none."""
    if data is None or not data.bands or not data.cells:
        return None
    by_place = {(cell.band, cell.plane): cell for cell in data.cells}
    largest = max(cell.share.value for cell in data.cells) or 1.0

    def view(band: Band, plane: str) -> CellView | None:
        cell = by_place.get((band.name, plane))
        if cell is None:
            return None
        return CellView(
            share=numbers.percent(_told(cell.share.value, LEAST_SHARE)),
            interval=f"{numbers.percent(_told(cell.share.low, LEAST_SHARE)).removesuffix('%').rstrip()} {numbers.EN_DASH} {numbers.percent(_told(cell.share.high, LEAST_SHARE))}",
            mean=f"{numbers.fixed(_told(cell.mean_ms, LEAST_MS), 1 if cell.mean_ms < 100 else 0)} ms",
            tint=f"{max(0.0, cell.share.value / largest) * STRONGEST_TINT * 100:.1f}%",
            nothing=not _told(cell.share.high, LEAST_SHARE),
        )

    return MatrixView(
        planes=data.planes,
        bands=tuple(
            BandView(
                name=band.name.replace("<= ", "≤ ")
                .replace(">= ", "≥ ")
                .replace("..", f" {numbers.EN_DASH} "),
                bounds=_bounds(band),
                n=numbers.many(band.n, "request"),
                cells=tuple(view(band, plane) for plane in data.planes),
            )
            for band in data.bands
        ),
        level=numbers.level(data.cells[0].share),
    )


def _told(value: float, least: float) -> float:
    return value if abs(value) >= least else 0.0


def _bounds(band: Band) -> str:
    return f"{numbers.number(band.low_ms)} {numbers.EN_DASH} {numbers.number(band.high_ms)} ms"
