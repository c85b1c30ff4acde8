"""Figures of closed minutes, kept in memory: what boards look at again and again is read from its file once.

```
part files of `minutes` (never changed) ──read once──> Kept: minute, model, engine, stage of each row, its occupied buckets ──look──> counts
```
A part file never changes (`telemetry.parts`), so what was read of it holds as long as the directory lists it: each look lists first, reads what
is new, and forgets what was merged or deleted.  What is told is therefore what a query of the same moment tells, whoever writes.

Rules: newest first; at most `RECORDS_MAX` buckets are kept (6 bytes each), what is older is read again by each look.  A minute is written
after it is over, so a file of an hour before the window has nothing of it; `SLACK_NS` is left for clocks that were set.  Threads take turns, a file at a time while it is warmed.

Deliberately absent: quantiles, and windows of many days (one query is cheaper there than that many files).
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sits.telemetry.duck import StoreError, arrays, connect, quoted
from sits.telemetry.histograms import BUCKETS, RECORD
from sits.telemetry.parts import HOUR_NS, current, hour_end_ns, hours_of, parts_in

SLACK_NS = HOUR_NS
LISTINGS = 8
"""So often is it tried again when files go while they are read."""

RECORDS_MAX = 16_000_000

_ROWS = "SELECT minute_wall_ns, model, engine, stage, histogram FROM read_parquet([{}], union_by_name=true)"


class GoneError(StoreError):
    """A file was merged or deleted between listing and reading."""


class Kept(NamedTuple):
    """Rows of one part: their keys, how many buckets each has, and those buckets in the order of rows."""

    minute_ns: np.ndarray
    model: np.ndarray
    engine: np.ndarray
    stage: np.ndarray
    lengths: np.ndarray
    buckets: np.ndarray
    counts: np.ndarray


class MinuteParts:
    """The minutes of the store in `path`, which need not exist yet."""

    def __init__(self, path: Path | str, stages: Sequence[str], *, records_max: int = RECORDS_MAX) -> None:
        self._path = Path(path) / "minutes"
        self._stages = {name: i for i, name in enumerate(stages)}
        self._names: dict[str, int] = {}
        self._kept: dict[Path, Kept] = {}
        self._records_max = records_max
        self._db: Any = None
        self._lock = threading.Lock()

    def counts(
        self, since_ns: int, until_ns: int, step_ns: int, steps: int, *, model: str = "", engine: str = ""
    ) -> np.ndarray:
        """Values by stage, step and bucket, shape (stages, steps, BUCKETS), of the minutes that begin from `since_ns` up to before
        `until_ns`, which is in the last of the steps or before it; an empty name is all.

        Raises:
            StoreError: a file cannot be read.

        """
        only = {"model": model, "engine": engine}
        for left in reversed(range(LISTINGS)):
            try:
                with self._lock:
                    return self._counted(since_ns, until_ns, step_ns, steps, only)
            except GoneError:  # list again as a whole, so that nothing is told twice or not at all
                if not left:
                    raise
        raise AssertionError

    def keep_one(self, since_ns: int) -> bool:
        """Read the newest part that is not in memory; whether there was one.  For who has time before somebody looks.

        Raises:
            StoreError: it cannot be read.

        """
        with self._lock:
            before = len(self._kept)
            try:
                return any(len(self._kept) > before for _ in self._parts(since_ns))
            except GoneError:
                return True

    def close(self) -> None:
        """Give back what reading took."""
        self._kept.clear()
        if self._db is not None:
            self._db.close()
            self._db = None

    # -- inside ------------------------------------------------------------------------------------------------

    def _counted(
        self, since_ns: int, until_ns: int, step_ns: int, steps: int, only: Mapping[str, str]
    ) -> np.ndarray:
        made = np.zeros((len(self._stages), steps, BUCKETS), dtype=np.int64)
        for kept in self._parts(since_ns):
            mine = (kept.minute_ns >= since_ns) & (kept.minute_ns < until_ns) & (kept.stage >= 0)
            for column, name in only.items():
                if name:
                    mine &= getattr(kept, column) == self._names.get(name, -1)
            if not mine.any():
                continue
            step = (kept.minute_ns - since_ns) // step_ns
            first, last = int(step[mine].min()), int(step[mine].max())
            wide = last - first + 1
            cell = np.repeat((kept.stage * wide + step - first) * BUCKETS, kept.lengths)
            cell += kept.buckets
            n = kept.counts
            if not mine.all():
                which = np.repeat(mine, kept.lengths)
                cell, n = cell[which], n[which]
            told = np.bincount(cell, weights=n, minlength=len(self._stages) * wide * BUCKETS)
            made[:, first : last + 1] += told.reshape(len(self._stages), wide, BUCKETS).astype(np.int64)
        return made

    def _listed(self, since_ns: int) -> list[Path]:
        """Parts that may have minutes since then, the newest hour first."""
        try:
            hours = [
                hour
                for hour in reversed(hours_of(self._path))
                if (hour_end_ns(hour.name) or 0) > since_ns - SLACK_NS
            ]
            return [part.path for hour in hours for part in reversed(current(parts_in(hour)))]
        except OSError as error:
            raise StoreError(f"the store cannot be read: {error}", hint="is it ours to read?") from error

    def _parts(self, since_ns: int) -> Iterator[Kept]:
        """What each of them has.

        Raises:
            GoneError: one is not there any more.

        """
        listed = self._listed(since_ns)
        newest = self._listed(0) if len(self._kept) > len(listed) else listed
        for gone in self._kept.keys() - set(newest):
            del self._kept[gone]
        room = self._records_max - sum(len(kept.buckets) for kept in self._kept.values())
        for path in listed:
            kept = self._kept.get(path)
            if kept is None:
                kept = self._read(path)
                if len(kept.buckets) <= room:
                    room -= len(kept.buckets)
                    self._kept[path] = kept
            yield kept

    def _read(self, path: Path) -> Kept:
        if self._db is None:
            self._db = connect(threads=1)
        try:
            rows = arrays(self._db.execute(_ROWS.format(quoted(str(path)))))
        except Exception as error:
            if not path.exists():
                raise GoneError(f"{path} has gone", hint="look again") from None
            raise StoreError(
                f"cannot read {path}: {error}", hint="move it out of the store; the rest stays readable"
            ) from error
        blobs = [bytes(blob) for blob in rows["histogram"].tolist()]
        records = np.frombuffer(b"".join(blobs), dtype=RECORD)
        if len(records) and int(records["bucket"].max()) >= BUCKETS:
            raise StoreError(
                f"{path} has a bucket that there is not",
                hint="move it out of the store; the rest stays readable",
            )
        return Kept(
            rows["minute_wall_ns"].astype(np.int64),
            self._numbers(rows["model"]),
            self._numbers(rows["engine"]),
            np.array([self._stages.get(stage, -1) for stage in rows["stage"].tolist()], dtype=np.int64),
            np.array([len(blob) // RECORD.itemsize for blob in blobs], dtype=np.int64),
            records["bucket"].astype(np.uint16),
            records["n"].astype(np.uint32),
        )

    def _numbers(self, names: np.ndarray) -> np.ndarray:
        known = self._names
        return np.array([known.setdefault(name, len(known)) for name in names.tolist()], dtype=np.int64)
