"""Small CSV files of numbers that people write by hand: points of a measurement, one a line.

Rules: lines that begin with # are skipped, and so is a header before the first row; anything else that is no row of numbers is refused
with its line.

Deliberately absent: columns by name.
"""

import csv
from pathlib import Path


def read_rows(path: Path, widths: tuple[int, ...], example: str) -> list[list[float]]:
    """The rows of a file, each of one of the `widths`.

    Raises:
        ConfigError: a row of another width, or a cell that is no number.

    """
    from sits.core.errors import ConfigError  # noqa: PLC0415

    rows, first = [], True
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            if not row or row[0].lstrip().startswith("#"):
                continue
            if first and not is_number(row[0]):
                first = False
                continue
            first = False
            if len(row) not in widths or not all(is_number(cell) for cell in row):
                raise ConfigError(
                    f"{','.join(row)!r} is no such row", where=f"{path}:{number}", hint=f"write {example}"
                )
            rows.append([float(cell) for cell in row])
    return rows


def is_number(text: str) -> bool:
    """Whether a text is a number as people write it."""
    try:
        float(text)
    except ValueError:
        return False
    return True
