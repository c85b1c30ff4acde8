"""What changed in a window: generations that came to serve, processes that died and came back, breakers, shifts that halted.

The first question about a P99 that rose is what happened then.  The gateway has told it in its log: lines of the supervisor, of breakers and of
shifts are changes, lines about requests are not.

Rules: the newest `LISTED` are told, and how many there were before; with an engine chosen, what is said of another one is left out.

Deliberately absent: what changed outside of the gateway, which it cannot know.
"""

from typing import Any

import msgspec

from sits.app.board.window import Look
from sits.core.fleet import Fleet
from sits.core.units import MS
from sits.telemetry.store import DuckStore

LISTED = 60
READ_MAX = 500


def changes(store: DuckStore, _: Fleet, look: Look, now_ns: int) -> dict[str, Any]:
    """Those of the window, the newest first: `at_ms`, `level`, `text`.

    Raises:
        StoreError: the store cannot be read.

    """
    window = look.window(now_ns)
    rows = store.scan(
        "board_changes",
        since_wall_ns=window.since_ns,
        until_wall_ns=window.until_ns,
        limit=READ_MAX + 1,
    )
    told = []
    for row in rows[:READ_MAX]:
        engine = _engine(row["line"])
        if engine and look.only.engine and engine != look.only.engine:
            continue
        event = row["event"].removesuffix(":")  # what follows is in the log
        text = f"{event}: {engine}" if engine else event
        told.append({"at_ms": row["wall_ns"] // MS, "level": row["level"], "text": text})
    return {
        "changes": told[:LISTED],
        "more": max(0, len(told) - LISTED),
        "whole": len(rows) <= READ_MAX,
    }


def _engine(line: str) -> str:
    """The engine a line is about; empty when it is about none."""
    try:
        return _LINE.decode(line).engine
    except msgspec.MsgspecError:
        return ""


class _Line(msgspec.Struct):
    engine: str = ""


_LINE = msgspec.json.Decoder(_Line)
