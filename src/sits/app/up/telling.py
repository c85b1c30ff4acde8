"""What the keeper tells of requests that went wrong, and of engines that nobody is sent to: one line each, made from rows.

```
packed rows ─> kinds that failed, or that we answered with 5xx ─> a line with its trace, bounded by kind
lines of workers about first attempts (`app.up.attempts`) ─> remembered as what failed last at their engine
the shared table ─> an engine's breaker opened, closed ─> a line, with the trace of the request that failed last there
```
Rules: a request that went well has no line, and costs nothing here: only the few kinds of a batch are looked at.  A refusal below 500
is the caller's own business and is in the metrics.  Per outcome, detail and engine there are `log_bounds.BURST` lines a minute, then their count.

A breaker counts as open from when it opened until its engine has answered (`gateway.liveness`), however long nobody asks it.

Deliberately absent: rows (the books have them), and judging what was wrong (`sitsctl why`).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sits.core.breakpoints import API_RECV, POINT_COUNT, SENT
from sits.core.ports import World
from sits.core.units import MS, SECOND
from sits.gateway.liveness import UP, engine_state
from sits.gateway.shared import Shared
from sits.telemetry.log_bounds import Bounds, Suppressed
from sits.telemetry.logs import ATTEMPT, Say
from sits.telemetry.packing import KIND, Packed
from sits.telemetry.recorder import OWN_TEXTS

_ID, _TRACE, _PARENT = map(OWN_TEXTS.index, ("id", "trace_id", "parent_id"))


class Failed(NamedTuple):
    """The last request that failed at an engine."""

    trace_id: str
    request_id: str
    detail: str


class Telling:
    """Tells through `say`, at most so many lines of a kind."""

    def __init__(self, world: World, say: Say) -> None:
        self._world = world
        self._say = say
        self._bounds = Bounds()
        self._last: dict[str, Failed] = {}
        self._open: set[str] = set()

    def see(self, parts: Sequence[Packed]) -> None:
        """Tell of the requests among these rows that deserve it."""
        for part in parts:
            bad = {
                at: named
                for at, named in enumerate(_named(tuple(kind)) for kind in part.kinds)
                if _deserves(named)
            }
            if bad:
                for row, kind in enumerate(part.kind):
                    if kind in bad:
                        self._tell(part, row, bad[kind])

    def hear(self, lines: Sequence[Sequence[Any]]) -> None:
        """Remember what workers said of attempts that failed and were made good elsewhere: rows of table `logs`."""
        for _, _, _, trace_id, request_id, event, line in lines:
            if event.startswith(ATTEMPT):
                engine = str(msgspec.json.decode(line).get("engine", ""))
                self._last[engine] = Failed(trace_id, request_id, event.removeprefix(ATTEMPT))

    def look(self, shared: Shared, slots: Mapping[str, int]) -> None:
        """Tell of breakers that have opened or closed, and of what was suppressed; to be called about once a second."""
        now_ns = self._world.now_ns()
        for name, slot in slots.items():
            up = engine_state(shared, slot, now_ns) == UP
            if name not in self._open and not up:
                self._open.add(name)
                last = self._last.get(name, Failed("", "", ""))
                caused = {"trace_id": last.trace_id, "request_id": last.request_id, "detail": last.detail}
                self._say("breaker opened", "warning", logger="sits.breaker", engine=name, **caused)
            elif name in self._open and up:
                self._open.remove(name)
                self._say("breaker closed", "info", logger="sits.breaker", engine=name)
        self._open &= slots.keys()
        for one in self._bounds.over(now_ns):
            self._say_suppressed(one)

    def close(self) -> None:
        """Tell what was suppressed and not told yet."""
        for one in self._bounds.rest():
            self._say_suppressed(one)

    def _tell(self, part: Packed, row: int, named: Mapping[str, object]) -> None:
        detail, engine, outcome = str(named["detail"]), str(named["engine"]), str(named["outcome"])
        request_id = part.texts[_ID][row]
        trace_id = part.texts[_TRACE][row] or request_id
        if engine and outcome == "failed":
            self._last[engine] = Failed(trace_id, request_id, detail)
        if not self._bounds.allows((outcome, detail, engine), self._world.now_ns()):
            return
        told = {
            name: named[name]
            for name in ("engine", "model", "tenant", "adapter", "arm", "status")
            if named[name]
        }
        self._say(
            f"request {outcome}: {detail}",
            "error" if outcome == "failed" else "warning",
            logger="sits.request",
            trace_id=trace_id,
            request_id=request_id,
            parent_id=part.texts[_PARENT][row],
            e2e_ms=_e2e_ms(part, row),
            **told,
        )

    def _say_suppressed(self, one: Suppressed) -> None:
        self._say(
            "lines suppressed",
            "warning",
            logger="sits.request",
            kind=" ".join(part for part in one.kind if part),
            suppressed=one.lines,
            over_s=round((self._world.now_ns() - one.since_ns) / SECOND, 1),
        )


@functools.lru_cache(1024)
def _named(kind: tuple[object, ...]) -> Mapping[str, object]:
    return dict(zip(KIND, kind, strict=True))


def _deserves(kind: Mapping[str, object]) -> bool:
    status = kind["status"]
    return kind["outcome"] == "failed" or (isinstance(status, int) and status >= 500)


def _e2e_ms(part: Packed, row: int) -> float | None:
    """First byte in to answer flushed; None where one of them was not seen."""
    how = part.how[row * POINT_COUNT : (row + 1) * POINT_COUNT]
    if not (how[API_RECV] and how[SENT]):
        return None
    at = memoryview(part.at).cast("q")
    return round((at[row * POINT_COUNT + SENT] - at[row * POINT_COUNT + API_RECV]) / MS, 3)
