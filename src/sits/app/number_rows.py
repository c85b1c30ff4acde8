"""Small CSV files of numbers that people write by hand: points of a measurement, one a line.

Rules: lines that begin with # are skipped, and so is a header before the first row; anything else that is no row of numbers is refused
with its line.

Deliberately absent: columns by name.
"""

import csv
import io
from pathlib import Path

MOST = 1e15
"""No load, time in ms or count is larger, and squares of it are still numbers."""


def read_rows(path: Path, widths: tuple[int, ...], example: str) -> list[list[float]]:
    """The rows of a file, each of one of the `widths`.

    Raises:
        ConfigError: a row of another width, a cell that is no number from 0 to `MOST`, or a file that is no text.

    """
    from sits.app.output import read_text  # noqa: PLC0415
    from sits.core.errors import ConfigError  # noqa: PLC0415

    rows, first = [], True
    reader = csv.reader(io.StringIO(read_text(path).removeprefix("\ufeff"), newline=""))
    try:
        for number, row in enumerate(reader, 1):
            if not row or row[0].lstrip().startswith("#"):
                continue
            if first and not is_number(row[0]):
                first = False
                continue
            first = False
            if len(row) not in widths or not all(
                is_number(cell) and 0.0 <= float(cell) <= MOST for cell in row
            ):
                raise ConfigError(
                    f"{','.join(row)!r} is no such row",
                    where=f"{path}:{number}",
                    hint=f"write {example}: numbers from 0 to {MOST:.0e}",
                )
            rows.append([float(cell) for cell in row])
    except csv.Error as error:
        raise ConfigError(
            f"no CSV ({error})", where=f"{path}:{reader.line_num + 1}", hint=f"write {example}"
        ) from error
    return rows


def is_number(text: str) -> bool:
    """Whether a text is a number as people write it, or nan or inf."""
    try:
        float(text)
    except ValueError:
        return False
    return True
