"""Which spans and sightings of others are kept for long, where only a share of ordinary requests is: those of traces that are kept.

They come before or after the request they are about, so they enter the store whole and are thinned when their hour is merged, once the hour after it is over
too.  A row stays when a request of its trace is in the store (of its own hour, the one before, or the one after), when its trace is of the
share that is kept anyway (`policy.sample`: the same rule that the requests were kept by), when a span of its trace ended in an error, or when its trace's
id is none.  A trace that never was a request of ours is thus thinned to the same share.

Rules: a file that is there is not changed: rows go when files are merged to one of another name, and a table of one file in an hour stays whole.

Deliberately absent: requests, whose rows are thinned before they are written (`telemetry.thinning`).
"""

# ruff: noqa: S608 - only our own names and quoted file names are put into SQL

from pathlib import Path
from typing import Any

from sits.policy.sample import DIGITS, threshold
from sits.telemetry.duck import empty_table, rows_from
from sits.telemetry.parts import HOUR_NS, current, hour_end_ns, hour_of, parts_in

THINNED = frozenset({"spans", "sightings"})

AFTER_NS = HOUR_NS
"""So much later than others these tables are merged: requests are written when they are over."""


def kept(db: Any, hour: Path, share: float) -> str:
    """SQL that says whether a row of this hour stays; it refers to a temporary table that is made here of the traces that do."""
    db.execute(f"""CREATE OR REPLACE TEMP TABLE traces_kept AS
SELECT DISTINCT coalesce(nullif(trace_id, ''), id) AS trace_id FROM ({_around(db, hour, "requests")})
UNION SELECT trace_id FROM ({_around(db, hour, "spans")}) WHERE starts_with(status, 'ERROR')""")
    random = f"TRY_CAST('0x' || right(trace_id, {DIGITS}) AS UBIGINT)"
    return (
        f"NOT regexp_full_match(coalesce(trace_id, ''), '[0-9a-f]{{32}}') OR {random} >= {threshold(share)}"
        " OR trace_id IN (SELECT trace_id FROM traces_kept)"
    )


def _around(db: Any, hour: Path, table: str) -> str:
    """A select of all that a table has of an hour and its neighbours."""
    end_ns = hour_end_ns(hour.name) or 0
    hours = [hour_of(end_ns + step * HOUR_NS - 1) for step in (-1, 0, 1)]
    files = [
        str(part.path) for name in hours for part in current(parts_in(hour.parent.parent / table / name))
    ]
    db.execute(empty_table(f"no_{table}", table))
    return rows_from(f"no_{table}", table, files)
