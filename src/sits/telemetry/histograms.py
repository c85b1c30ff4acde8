"""Log-bucketed histograms: quantiles of any number of durations in a few hundred bytes, mergeable, with a known error.

Bucket `i` holds the ns values in `(g^(i-2), g^(i-1)]` with `g = (1 + a) / (1 - a)`, and bucket 0 those of no time; it is told as `2 g^(i-1) / (g + 1)`,
so that no value is further than the share `a` from what it is told as.  A quantile told from the histogram is therefore within `a` of
the exact order statistic (the `ceil(q n)`-th smallest), whatever the distribution, and histograms are merged by adding counts.
Source: Masson, Rim, Lee: DDSketch, PVLDB 12(12), 2019, section 2.  With `a` = 1 %, 64-bit durations need some 2,200 buckets.

As bytes a histogram is its occupied buckets, each a `RECORD`: joined bytes of several are the bytes of their sum.

Deliberately absent: collapsing of buckets (there is room for all) and time.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sits.core.errors import CallerError

ERROR = 0.01
"""Relative error of a quantile."""

_MARGIN = 1e-4
"""Logarithms are of single precision (half the time of double), which moves the edge of a bucket by 1e-5 at most: this much is left for it."""

GAMMA = (1.0 + ERROR - _MARGIN) / (1.0 - ERROR + _MARGIN)
_PER_LOG = np.float32(1.0 / math.log2(GAMMA))

BUCKETS = math.ceil(63.0 / math.log2(GAMMA)) + 3

RECORD = np.dtype([("bucket", "<u2"), ("n", "<u4")])
"""One occupied bucket: its index and how many values it holds."""

VALUES_NS = np.concatenate(([0.0], 2.0 * GAMMA ** np.arange(BUCKETS - 1, dtype=np.float64) / (GAMMA + 1.0)))
"""(BUCKETS,) what the values of each bucket are told as, ns."""


def buckets_of(durations_ns: np.ndarray) -> np.ndarray:
    """Bucket of each duration (ns, not negative), in an array of the same shape (int64).

    >>> buckets_of(np.array([0, 1, 10**9])).tolist()
    [0, 1, 1048]
    """
    logs = np.log2(np.maximum(durations_ns.astype(np.float32), np.float32(0.5)))
    logs *= _PER_LOG
    np.ceil(logs, out=logs)
    buckets: np.ndarray = logs.astype(np.int64)
    buckets += 1
    np.maximum(buckets, 0, out=buckets)
    return buckets


def packed(buckets: np.ndarray, counts: np.ndarray) -> bytes:
    """Occupied buckets and their counts, of equal length, as bytes."""
    made = np.empty(len(buckets), dtype=RECORD)
    made["bucket"] = buckets
    made["n"] = np.minimum(counts, 2**32 - 1)
    return made.tobytes()


def summed(parts: Iterable[bytes]) -> np.ndarray:
    """Counts by bucket, shape (BUCKETS,), of all histograms together.

    Raises:
        CallerError: bytes that are no histogram.

    """
    data = b"".join(parts)
    if len(data) % RECORD.itemsize:
        raise CallerError(f"{len(data)} bytes are no histogram", field="histogram")
    records = np.frombuffer(data, dtype=RECORD)
    if len(records) and records["bucket"].max() >= BUCKETS:
        raise CallerError("a histogram has a bucket that there is not", field="histogram")
    counts: np.ndarray = np.bincount(records["bucket"], weights=records["n"], minlength=BUCKETS)
    return counts.astype(np.int64)


def quantiles_ns(counts: np.ndarray, levels: Sequence[float]) -> list[float]:
    """The quantiles, ns, each within `ERROR` of the `ceil(q n)`-th smallest value.

    Raises:
        CallerError: an empty histogram, or a level outside (0, 1].

    """
    total = int(counts.sum())
    if not total or not all(0.0 < level <= 1.0 for level in levels):
        raise CallerError(
            f"no quantiles {list(levels)} of {total} values", field="levels", value=list(levels)
        )
    ranks = np.maximum(np.ceil(np.array(levels) * total - 1e-9), 1)
    found = np.searchsorted(np.cumsum(counts), ranks, side="left")
    return [float(value) for value in VALUES_NS[found]]


def quantiles_by(
    columns: Mapping[str, np.ndarray], by: Sequence[str], levels: Sequence[float]
) -> dict[str, np.ndarray]:
    """Quantiles of rows of table `minutes`, added up over everything but the columns `by`.

    Returns the columns `by`, `n` (how many values), `mean_ns`, and one column (ns, float64) for each level, named by its per cent (`p50_ns`,
    `p99.9_ns`); one row a combination, in order.
    """
    rows = (
        list(zip(*(columns[name].tolist() for name in by), strict=True)) if by else [()] * len(columns["n"])
    )
    keys = sorted(set(rows))
    number = {key: i for i, key in enumerate(keys)}
    group = np.array([number[row] for row in rows], dtype=np.int64)
    blobs = columns["histogram"].tolist()
    records = np.frombuffer(b"".join(blobs), dtype=RECORD)
    each = np.array([len(blob) // RECORD.itemsize for blob in blobs], dtype=np.int64)
    cells = np.repeat(group * BUCKETS, each) + records["bucket"]
    counts = np.bincount(cells, weights=records["n"], minlength=len(keys) * BUCKETS).reshape(-1, BUCKETS)
    made: dict[str, np.ndarray] = {
        name: np.array([key[i] for key in keys], dtype=columns[name].dtype) for i, name in enumerate(by)
    }
    n = counts.sum(axis=1)
    made["n"] = n.astype(np.int64)
    made["mean_ns"] = np.bincount(group, weights=columns["sum_ns"], minlength=len(keys)) / np.maximum(n, 1)
    upto = counts.cumsum(axis=1)
    for level in levels:
        rank = np.maximum(np.ceil(level * n - 1e-9), 1)
        made[f"p{level * 100:g}_ns"] = VALUES_NS[(upto < rank[:, np.newaxis]).sum(axis=1)]
    return made


def share_above(counts: np.ndarray, bound_ns: float) -> float:
    """Share of values above `bound_ns`; those of the bucket the bound is in count as not above (0 of an empty histogram)."""
    total = int(counts.sum())
    bucket = int(buckets_of(np.array([bound_ns]))[0])
    return float(counts[bucket + 1 :].sum() / total) if total else 0.0
