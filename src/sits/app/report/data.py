"""A report as bytes that are the same on every machine: sorted keys, rounded floats, no NaN.

Floats are rounded to nine significant digits: finer than any clock here, coarse enough that the last bits of a
summation order do not show.  `report_json` decodes back into a `Report` with `msgspec.json.decode`.

NaN and infinity are refused, with the path of the value: JSON has no word for them, and a figure that is not a
number is a bug of whoever computed it, not something to print.
"""

import math
from typing import Any

import msgspec

from sits.core.errors import BugError
from sits.core.report import Report

SIGNIFICANT_DIGITS = 9


def report_json(report: Report) -> bytes:
    """The report as one line of JSON, UTF-8, keys sorted, ending in a newline.

    Raises:
        BugError: a figure is NaN or infinite; `field` is its path.

    """
    tree = _clean(msgspec.to_builtins(report), "report")
    return msgspec.json.encode(tree, order="deterministic") + b"\n"


def check_finite(report: Report) -> None:
    """Refuse a report that holds NaN or infinity anywhere.

    Raises:
        BugError: naming the path of the first such value.

    """
    _clean(msgspec.to_builtins(report), "report")


def _clean(node: Any, path: str) -> Any:
    if isinstance(node, float):
        if not math.isfinite(node):
            raise BugError(
                f"{path} is {node}, which is not a figure a report can hold",
                field=path,
                value=node,
                hint="leave the value out or say that it could not be computed",
            )
        rounded = float(f"{node:.{SIGNIFICANT_DIGITS}g}")
        return rounded or 0.0
    if isinstance(node, dict):
        return {key: _clean(value, f"{path}.{key}") for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_clean(value, f"{path}[{index}]") for index, value in enumerate(node)]
    return node
