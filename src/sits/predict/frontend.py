"""The time outside the engine's core: what its metrics do not hold and every caller waits for.

A request is parsed and tokenized by an API server, handed to the core, and its tokens come back the same way.  Queue time and
prefill time of the engine's own metrics start and end in the core, so neither sees this; here it was a third of the median time to first token.

    enter   from being sent until the core could take it: the API server takes requests one by one, `serial_ms` each, so a
            burst queues there (Lindley: done = max(arrival, done of the one before) + serial_ms); then `enter_ms`
    pick-up until the core's loop looks: the rest of the step it is in; that is the simulator's part, not this module's
    out     from the end of the first (last) token's step until the caller has it: `hop_ms` + `first_ms` (`last_ms`), then `end_ms`

The draws of one request belong together (`Outside`: one recorded request a row, drawn whole), and are kept by how many
requests were in flight when it came, because the API server shares the machine with what it feeds.

How they are told apart, from a request's times (all but the engine's own on the caller's clock):

    rest(first) = time to first token - queue - prefill - headers         pick-up + out
    rest(last)  = the same for the last token, less the time between       the same pick-up + out
    difference                                                             out alone, twice

so with nobody else in flight (no pick-up) `rest` is `out`; otherwise the difference's two signs are the excess of one side or the
other, and their common part, `hop_ms`, is what is missing between simulated and measured medians (`sits.bench.calibrating`).

Deliberately absent: tokens lost between chunks, and prompts' lengths: the recordings show no effect of them here.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SERIAL_MS = tuple(float(v) for v in np.round(np.geomspace(0.05, 50.0, 61), 3))
FASTER = 0.05
ROWS_LEAST, BINS_MOST, ROWS_MOST, LEVEL_LEAST = 40, 5, 400, 5


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """Draws for a request that finds at least `in_flight_min` others in flight; one recorded request a row, times in ms.

    `weight` says how much each row counts; `hop_ms` is added to the way out of every row.
    """

    in_flight_min: int
    enter_ms: tuple[float, ...]
    first_ms: tuple[float, ...]
    last_ms: tuple[float, ...]
    end_ms: tuple[float, ...]
    weight: tuple[float, ...]
    hop_ms: float = 0.0


class FrontLaw(msgspec.Struct, frozen=True, kw_only=True):
    """The front end: how long it takes for each request in turn, and the draws by load, ascending from 0 in flight.

    `level_spread` is the standard deviation of the runs' log levels: how unequal it was from run to run at equal load.
    """

    serial_ms: float
    bins: tuple[Outside, ...]
    level_spread: float = 0.0

    def bin_of(self, in_flight: int) -> int:
        """The place of the draws for a request that finds so many in flight.

        >>> row = dict(enter_ms=(0.0,), first_ms=(0.0,), last_ms=(0.0,), end_ms=(0.0,), weight=(1.0,))
        >>> law = FrontLaw(serial_ms=1.0, bins=(Outside(in_flight_min=0, **row), Outside(in_flight_min=4, **row)))
        >>> [law.bin_of(n) for n in (0, 3, 4, 900)]
        [0, 0, 1, 1]
        """
        return max(i for i, one in enumerate(self.bins) if one.in_flight_min <= max(0, in_flight))


class FrontTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What one run's requests say of the front end; a row a request in order of sending, ms, NaN where the recording has none.

    `sent_ms` and `gone_ms` are when it was sent and had its end, on one clock; `headers_ms`, `first_ms`, `last_ms`, `end_ms` are from being sent to the
    response's headers, first token, last token and end; `queue_ms`, `prefill_ms`, `generation_ms` are the engine's own.
    """

    sent_ms: "Floats"
    gone_ms: "Floats"
    headers_ms: "Floats"
    first_ms: "Floats"
    last_ms: "Floats"
    end_ms: "Floats"
    queue_ms: "Floats"
    prefill_ms: "Floats"
    generation_ms: "Floats"
    weight: float = 1.0

    def in_flight(self) -> "NDArray[np.int64]":
        """How many others were in flight when each was sent."""
        gone = np.sort(self.gone_ms)
        before = np.searchsorted(np.sort(self.sent_ms), self.sent_ms, side="left")
        found: NDArray[np.int64] = np.maximum(0, before - np.searchsorted(gone, self.sent_ms, side="right"))
        return found

    def rest_first_ms(self) -> "Floats":
        """Time to first token that neither headers nor the engine's queue and prefill explain: pick-up and way out."""
        return self.first_ms - self.queue_ms - self.prefill_ms - self.headers_ms

    def known(self) -> "NDArray[np.bool_]":
        """Rows that hold all it takes."""
        return np.isfinite(self.rest_first_ms()) & np.isfinite(self.last_ms + self.end_ms)


def serial_waits(sent_ms: "Floats", serial_ms: float) -> "Floats":
    """Wait and service in a server that takes one request at a time, `serial_ms` each (Lindley 1952).

    >>> serial_waits(np.array([0.0, 0.0, 5.0]), 2.0).tolist()
    [2.0, 4.0, 2.0]
    """
    order = np.argsort(sent_ms, kind="stable")
    work = serial_ms * np.arange(1, len(sent_ms) + 1)
    done = work + np.maximum.accumulate(sent_ms[order] - (work - serial_ms))
    waits = np.empty(len(sent_ms))
    waits[order] = done - sent_ms[order]
    return waits


def fit_serial(runs: Sequence[FrontTimes]) -> float:
    """The service time of one request that explains best how the headers of bursts come one after the other.

    Nobody is served faster than that: times at which more than `FASTER` of the requests would have been are not looked at.
    """
    best, least = SERIAL_MS[0], np.inf
    for serial_ms in SERIAL_MS:
        left = [run.headers_ms - serial_waits(run.sent_ms, serial_ms) for run in runs]
        known = np.concatenate([rest[np.isfinite(rest)] for rest in left])
        if serial_ms > SERIAL_MS[0] and (known < 0).mean() > FASTER:
            break
        misfit = sum(
            run.weight * float(np.nansum(np.abs(rest - np.nanmedian(rest))))
            for run, rest in zip(runs, left, strict=True)
            if np.isfinite(rest).any()
        )
        if misfit < least * (1 - 1e-6):
            best, least = serial_ms, misfit
    return best


NOTHING = FrontLaw(
    serial_ms=0.0,
    bins=(
        Outside(
            in_flight_min=0, enter_ms=(0.0,), first_ms=(0.0,), last_ms=(0.0,), end_ms=(0.0,), weight=(1.0,)
        ),
    ),
)
"""A front end that takes no time: what is known when a recording says nothing of it."""


def fit_front(runs: Sequence[FrontTimes]) -> FrontLaw:
    """The front end's law from recorded requests, `hop_ms` still 0; `NOTHING` when no request tells anything.

    Where the engine's own times are not recorded, the rows hold nothing but the loads: all of it is left to `hop_ms`.
    """
    told = [run for run in runs if run.known().any()]
    serial_ms = fit_serial(told) if told else 0.0
    tables = [_rows(run, serial_ms) for run in told] or [_bare_rows(run) for run in runs]
    rows = np.vstack(tables)
    if not len(rows):
        return NOTHING
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    bins = [_bin(part) for part in _parts(rows)]
    bins[0] = msgspec.structs.replace(bins[0], in_flight_min=0)
    law = FrontLaw(serial_ms=serial_ms, bins=tuple(bins))
    return msgspec.structs.replace(law, level_spread=round(_spread(law, tables), 4))


def _spread(law: FrontLaw, tables: Sequence["Floats"]) -> float:
    """Standard deviation over runs of the median log of a request's time against that of its load."""
    usual = [float(np.median(np.asarray(one.enter_ms) + np.asarray(one.first_ms))) for one in law.bins]
    levels = []
    for rows in tables:
        own = rows[:, 1] + rows[:, 2]
        expected = np.array([usual[law.bin_of(int(n))] for n in rows[:, 0]])
        good = (own > 0) & (expected > 0)
        if good.sum() >= LEVEL_LEAST:
            levels.append(float(np.median(np.log(own[good] / expected[good]))))
    return float(np.std(levels, ddof=1)) if len(levels) > 1 else 0.0


def _rows(run: FrontTimes, serial_ms: float) -> "Floats":
    """In flight, enter, excess of the first and of the last token's way out, end after the last token, weight."""
    in_flight = run.in_flight()
    first = run.rest_first_ms()
    generation = np.where(np.isfinite(run.generation_ms), run.generation_ms, 0.0)
    last = run.last_ms - run.headers_ms - run.queue_ms - run.prefill_ms - generation
    apart = last - first
    usual = np.nanmedian(apart)
    idle = in_flight == 0
    out_first = np.where(idle, first, np.maximum(0.0, usual - apart))
    out_last = np.where(idle, last, np.maximum(0.0, apart - usual))
    enter = np.maximum(0.0, run.headers_ms - serial_waits(run.sent_ms, serial_ms))
    table = np.c_[
        in_flight, enter, out_first, out_last, run.end_ms - run.last_ms, np.full(len(first), run.weight)
    ]
    told: Floats = table[run.known()]
    return told


def _bare_rows(run: FrontTimes) -> "Floats":
    """Rows of a run whose callers tell their times and whose engine tells none."""
    nothing = np.zeros(len(run.sent_ms))
    weight = np.full(len(run.sent_ms), run.weight)
    table = np.c_[run.in_flight(), nothing, nothing, nothing, run.end_ms - run.last_ms, weight]
    told: Floats = table[np.isfinite(run.first_ms) & np.isfinite(run.end_ms)]
    return told


def _parts(rows: "Floats") -> list["Floats"]:
    """Rows cut by load: idle ones apart where there are enough, the others in parts of equal size."""
    idle = int((rows[:, 0] == 0).sum())
    parts = [rows[:idle]] if idle >= ROWS_LEAST // 2 else []
    busy = rows[idle:] if parts else rows
    if not len(busy):
        return parts
    count = max(1, min(BINS_MOST - 1, len(busy) // ROWS_LEAST))
    edges = sorted({int(busy[len(busy) * i // count, 0]) for i in range(count)})
    for low, high in zip(edges, [*edges[1:], np.inf], strict=True):
        parts.append(busy[(busy[:, 0] >= low) & (busy[:, 0] < high)])
    return [part for part in parts if len(part)]


def _bin(part: "Floats") -> Outside:
    kept = part[:: -(-len(part) // ROWS_MOST)]
    columns = [tuple(np.round(kept[:, i], 3).tolist()) for i in range(1, 6)]
    return Outside(
        in_flight_min=int(part[:, 0].min()),
        enter_ms=columns[0],
        first_ms=columns[1],
        last_ms=columns[2],
        end_ms=columns[3],
        weight=columns[4],
    )
