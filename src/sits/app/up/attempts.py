"""What a worker says of a first attempt that failed at one engine and was made good at another.

Such a request ends well, so its row names the second engine only; without a line nobody could say later why the first one's breaker opened.

Rules: it is said where retries happen, which is no hot path; per engine and code there are `log_bounds.BURST` lines a minute, then their
count.  The keeper hears the lines on their way to the store (`app.up.telling`).

Deliberately absent: attempts that ended the request: its row has them.
"""

from sits.core.ports import World
from sits.core.units import SECOND
from sits.telemetry.log_bounds import Bounds, Suppressed
from sits.telemetry.logs import ATTEMPT, Say


class Attempts:
    """Says it through `say`."""

    def __init__(self, world: World, say: Say) -> None:
        self._world = world
        self._say = say
        self._bounds = Bounds()

    def __call__(
        self, request_id: str, trace_id: str, model: str, engine: str, code: str, next_engine: str
    ) -> None:
        """`engine` failed with `code`; the request goes to `next_engine` now."""
        now_ns = self._world.now_ns()
        if self._bounds.allows((engine, code), now_ns):
            self._say(
                f"{ATTEMPT}{code}",
                "warning",
                logger="sits.request",
                trace_id=trace_id or request_id,
                request_id=request_id,
                engine=engine,
                model=model,
                next_engine=next_engine,
            )

    def look(self) -> None:
        """Say what was suppressed; to be called about once a second."""
        now_ns = self._world.now_ns()
        for one in self._bounds.over(now_ns):
            self._told(one, now_ns)

    def _told(self, one: Suppressed, now_ns: int) -> None:
        over_s = round((now_ns - one.since_ns) / SECOND, 1)
        kind = " ".join((ATTEMPT.strip(), *one.kind))
        self._say(
            "lines suppressed",
            "warning",
            logger="sits.request",
            kind=kind,
            suppressed=one.lines,
            over_s=over_s,
        )
