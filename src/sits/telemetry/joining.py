"""What others saw of a request, put into the request's row: late, at read time, on one clock.

A sighting (`telemetry.tables`) is in the wall clock of who saw it.  That clock is off ours by some o, which nobody tells; causality bounds it.
An engine cannot have a request before we sent it, nor have made a token after we saw it, so of every request

    their last of its first token (or of what came before it) - ours   <=   o   <=   their first point - our `dispatched`

and o lies in the intersection over all requests of one source.

Rules:
- A source whose interval has 0 in it has our clock, as far as anybody can tell: its times are taken as they are.
- Otherwise its times are moved by the midpoint, and what was measured becomes derived.
- An empty interval means that the clocks are not comparable (one was set meanwhile): nothing is merged, and the account says so.
- A request of which the source tells what cannot be on any clock (a stay there longer than between our two points) is left out by itself, and
  so is one in a hundred that contradicts all the others (a request sent twice is seen where it failed, too).
- Only points 5 to 16 are taken, only where the row has none; what was measured goes before what was derived.  The times of a row never
  decrease: a cell that would break that is dropped and counted.
- A sighting belongs to the request whose call to the engine it is a child of (its `parent_id` is the second half of the request's id), or
  else to the only request of its trace; a trace of several requests and no such parent is nobody's.

Deliberately absent: estimating drift within the window (look at a shorter one), and changing any row that is stored.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from sits.core.breakpoints import (
    API_RECV,
    DISPATCHED,
    ENGINE_RECV,
    FIRST_TOKEN,
    KERNEL_LAUNCH,
    LAST_TOKEN,
    NAMES,
    POINT_COUNT,
    SENT,
    Exactness,
)
from sits.telemetry.tables import Columns

CONTRADICTING, ENOUGH = 100, 8
"""One request in so many may contradict the others, and one of so few at all."""

_FAR = np.int64(2**62)
_MEASURED, _DERIVED = int(Exactness.MEASURED), int(Exactness.DERIVED)


class Source(msgspec.Struct, frozen=True):
    """What became of one source's sightings.

    `low_ns..high_ns` bounds its clock minus ours; `shift_ns` was taken away; `comparable` is False where the interval is empty.
    `rows`: requests it saw; `impossible`: of those, the ones it tells nonsense of; `filled`, `dropped`: cells put into rows, and left out for order.
    """

    source: str
    scheme: str
    rows: int
    comparable: bool
    low_ns: int
    high_ns: int
    shift_ns: int
    impossible: int = 0
    filled: int = 0
    dropped: int = 0


class Joined(msgspec.Struct, frozen=True):
    """The rows with what others saw, and the account of it.  `strays`: sightings of requests that are not among the rows, or of nobody's in particular."""

    requests: Columns
    sources: tuple[Source, ...]
    strays: int = 0

    @property
    def filled(self) -> int:
        """Cells that came from somebody else."""
        return sum(one.filled for one in self.sources)


class _Cells:
    """Times and exactness of n rows, monotonic ns of ours; and how far the wall clock is from them."""

    def __init__(self, requests: Columns) -> None:
        n = len(requests["id"])
        self.at = np.stack([requests[name] for name in NAMES], axis=1).astype(np.int64, copy=True)
        self.how = _digits(requests["exactness"], n)
        earliest = np.where(self.how > 0, self.at, _FAR).min(axis=1, initial=_FAR)
        start = np.where(self.how[:, API_RECV] > 0, self.at[:, API_RECV], earliest)
        self.usable = start < _FAR
        self.offset = np.where(self.usable, requests["wall_ns"] - start, 0)
        self.sent = np.where(self.how[:, DISPATCHED] > 0, self.at[:, DISPATCHED], -_FAR)


def completed(requests: Columns, sightings: Columns) -> Joined:
    """The rows of `requests` (any columns, among them the points, `exactness`, `wall_ns`, `id`, `trace_id`) with what `sightings` tell.

    Neither argument is changed; rows, their order and all other columns stay as they are.
    """
    if not len(requests.get("id", ())) or not len(sightings.get("trace_id", ())):
        return Joined(requests, (), len(sightings.get("trace_id", ())))
    whose = _owners(requests, sightings)
    cells = _Cells(requests)
    at = np.stack([sightings[name] for name in NAMES], axis=1)
    how = np.where((at > 0) & (at < _FAR // 2), _digits(sightings["exactness"], len(whose)), 0)
    mine = (whose >= 0) & cells.usable[whose]
    moved: list[tuple[np.ndarray, np.ndarray, np.ndarray, int]] = []
    accounts: list[Source] = []
    for key in sorted({*zip(sightings["source"].tolist(), sightings["scheme"].tolist(), strict=True)}):
        some = np.flatnonzero(mine & (sightings["source"] == key[0]) & (sightings["scheme"] == key[1]))
        if not len(some):
            continue
        row = whose[some]
        ours = np.where(how[some] > 0, at[some] - cells.offset[row][:, None], 0)
        account, sane = _bounded(key, cells, row, ours, how[some])
        accounts.append(account)
        if account.comparable:
            grade = np.minimum(how[some], _DERIVED) if account.shift_ns else how[some]
            shifted = np.where(grade > 0, ours - account.shift_ns, 0)
            moved.append((row[sane], shifted[sane], grade[sane], len(accounts) - 1))
    counts = _merged(cells, moved, len(accounts))
    told = tuple(
        msgspec.structs.replace(account, filled=int(filled), dropped=int(dropped))
        for account, filled, dropped in zip(accounts, *counts, strict=True)
    )
    changed = dict(requests)
    changed |= {name: cells.at[:, i].copy() for i, name in enumerate(NAMES)}
    changed["exactness"] = _texts(cells.how)
    return Joined(changed, told, int((~mine).sum()))


def _owners(requests: Columns, sightings: Columns) -> np.ndarray:
    """The row each sighting belongs to; -1 where that cannot be said."""
    calls: dict[tuple[str, str], int] = {}
    only: dict[str, int] = {}
    for i, (trace_id, request_id) in enumerate(
        zip(requests["trace_id"].tolist(), requests["id"].tolist(), strict=True)
    ):
        calls[trace_id or request_id, request_id[16:]] = i
        only[trace_id or request_id] = -1 if (trace_id or request_id) in only else i
    parents = sightings.get("parent_id", np.full(len(sightings["trace_id"]), "", dtype=object))
    found = [
        calls.get((trace_id, parent), only.get(trace_id, -1))
        for trace_id, parent in zip(sightings["trace_id"].tolist(), parents.tolist(), strict=True)
    ]
    return np.array(found, dtype=np.int64)


def _bounded(
    key: tuple[str, str], cells: _Cells, row: np.ndarray, ours: np.ndarray, how: np.ndarray
) -> tuple[Source, np.ndarray]:
    """The interval of a source's clock, and which of its sightings are possible at all."""
    seen = how > 0
    inner = slice(ENGINE_RECV, FIRST_TOKEN + 1)
    told = slice(ENGINE_RECV, LAST_TOKEN + 1)
    first = np.where(seen[:, told], ours[:, told], _FAR).min(axis=1)
    last = np.where(seen[:, inner], ours[:, inner], -_FAR).max(axis=1)
    final = np.where(seen[:, LAST_TOKEN], ours[:, LAST_TOKEN], -_FAR)
    token, end = _seen_at(cells, row, FIRST_TOKEN), _ended(cells, row)
    # Without a first token of ours (an answer that came whole) all that the engine did was before the end.
    before = np.where((last > -_FAR) & (np.minimum(token, end) < _FAR), last - np.minimum(token, end), -_FAR)
    after = np.where((final > -_FAR) & (end < _FAR), final - end, -_FAR)
    lows = np.maximum(before, after)
    sent = cells.sent[row]
    highs = np.where((first < _FAR) & (sent > -_FAR), first - sent, _FAR)
    sane = (lows <= highs) & (highs < _FAR)
    low, high = _interval(lows[sane], highs[sane])
    bounded = -_FAR < low <= high
    near = low <= 0 <= high
    shift = 0 if near or not bounded else (low + high) // 2
    account = Source(
        key[0],
        key[1],
        rows=len(np.unique(row)),
        comparable=bool(near or bounded),
        low_ns=low,
        high_ns=high,
        shift_ns=shift,
    )
    sane &= (lows <= shift) & (shift <= highs)
    return msgspec.structs.replace(account, impossible=int((~sane).sum())), sane


def _interval(lows: np.ndarray, highs: np.ndarray) -> tuple[int, int]:
    """The intersection of all intervals; (1, 0) of none.

    Of all but one in a hundred, where all of them have none, or leave out 0 only for those few: one clock is what machines mostly have.
    """
    n = len(lows)
    if not n:
        return 1, 0
    low, high = int(lows.max()), int(highs.min())
    few = max(1, n // CONTRADICTING) if n >= ENOUGH else 0
    if few and not low <= 0 <= high:
        most = int(np.sort(lows)[-1 - few]), int(np.sort(highs)[few])
        if low > high or most[0] <= 0 <= most[1]:
            return most
    return low, high


def _seen_at(cells: _Cells, row: np.ndarray, point: int) -> np.ndarray:
    found: np.ndarray = np.where(cells.how[row, point] > 0, cells.at[row, point], _FAR)
    return found


def _ended(cells: _Cells, row: np.ndarray) -> np.ndarray:
    """Our last sight of the answer: its last token, or else when it was sent."""
    last = _seen_at(cells, row, LAST_TOKEN)
    return np.where(last < _FAR, last, _seen_at(cells, row, SENT))


def _merged(
    cells: _Cells, moved: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, int]], sources: int
) -> tuple[np.ndarray, np.ndarray]:
    """Put cells into the rows, the most trusted first; cells filled and dropped, by source."""
    filled, dropped = np.zeros(sources, dtype=np.int64), np.zeros(sources, dtype=np.int64)
    for grade in range(_MEASURED, 0, -1):
        for row, at, how, which in moved:
            for point in range(ENGINE_RECV, KERNEL_LAUNCH + 1):
                wanted = (how[:, point] == grade) & (cells.how[row, point] == 0)
                if not wanted.any():
                    continue
                some, when = row[wanted], at[wanted, point]
                some, once = np.unique(some, return_index=True)
                when = when[once]
                fits = _fits(cells, some, point, when)
                cells.at[some[fits], point], cells.how[some[fits], point] = when[fits], grade
                filled[which] += int(fits.sum())
                dropped[which] += int((~fits).sum())
    return filled, dropped


def _fits(cells: _Cells, row: np.ndarray, point: int, when: np.ndarray) -> np.ndarray:
    """Whether times keep the order of their rows."""
    how, at = cells.how[row], cells.at[row]
    before = np.where(how[:, :point] > 0, at[:, :point], -_FAR).max(axis=1)
    after = np.where(how[:, point + 1 :] > 0, at[:, point + 1 :], _FAR).min(axis=1)
    fits: np.ndarray = (before <= when) & (when <= after)
    return fits


def _digits(texts: np.ndarray, n: int) -> np.ndarray:
    return (
        np.frombuffer("".join(texts.tolist()).encode(), dtype=np.uint8).reshape(n, POINT_COUNT) - 48
    ).copy()


def _texts(how: np.ndarray) -> np.ndarray:
    texts: np.ndarray = (how + ord("0")).astype(np.uint8).view(f"S{POINT_COUNT}").ravel()
    return texts.astype(str).astype(object)


def notes(joined: Joined) -> tuple[str, ...]:
    """What a reader should know of the joining, in sentences; none where nobody else told anything."""
    told = []
    for one in joined.sources:
        who = f"{one.source} ({one.scheme})"
        if not one.comparable:
            told.append(
                f"{who} tells of {one.rows} requests on a clock that fits ours for no offset: nothing of it is used."
            )
            continue
        clock = (
            "on our clock"
            if not one.shift_ns
            else f"on a clock {one.shift_ns / 1e6:+.3f} ms off ours (between {one.low_ns / 1e6:.3f} and {one.high_ns / 1e6:.3f}), so derived"
        )
        left = f"; {one.dropped} left out that would break a row's order" if one.dropped else ""
        odd = f"; {one.impossible} requests told of as they cannot have been" if one.impossible else ""
        told.append(f"{who} tells {one.filled} points of {one.rows} requests, {clock}{left}{odd}.")
    return tuple(told)
