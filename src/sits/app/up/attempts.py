"""What a worker says of a first attempt that failed at one engine and was made good at another.

Such a request ends well, so its row names the second engine only; without a line nobody could say later why the first one's breaker opened.

Rules: it is said where retries happen, which is no hot path.  Per engine and code stderr gets `log_bounds.BURST` lines a minute, then their count;
the store gets every line, those beyond the bound at level `debug`, so that each trace tells why its first attempt failed and an outage does not
fill `sitsctl logs`.  How many there can be is bounded by the budget of retries (`gateway.retry_budget`), and `sits_retries_total` counts them all.
The keeper hears the lines on their way to the store (`app.up.telling`).

Deliberately absent: attempts that ended the request: its row has them.
"""

from collections.abc import Sequence

from sits.core.ports import World
from sits.core.units import SECOND
from sits.telemetry.log_bounds import Bounds, Suppressed
from sits.telemetry.logs import ATTEMPT, Log


class Attempts:
    """Says it through `log`."""

    def __init__(self, world: World, log: Log) -> None:
        self._world = world
        self._log = log
        self._bounds = Bounds()

    def __call__(
        self, request_id: str, trace_id: str, model: str, engine: str, code: str, next_engine: str
    ) -> None:
        """`engine` failed with `code`; the request goes to `next_engine` now."""
        facts = {
            "logger": "sits.request",
            "trace_id": trace_id or request_id,
            "request_id": request_id,
            "engine": engine,
            "model": model,
            "next_engine": next_engine,
        }
        if self._bounds.allows((engine, code), self._world.now_ns()):
            self._log(f"{ATTEMPT}{code}", "warning", **facts)
        else:
            self._log.quietly(f"{ATTEMPT}{code}", "debug", **facts)

    def look(self) -> None:
        """Say what was suppressed; to be called about once a second."""
        self._say_suppressed(self._bounds.over(self._world.now_ns()))

    def close(self) -> None:
        """Say what was suppressed and not told yet."""
        self._say_suppressed(self._bounds.rest())

    def _say_suppressed(self, some: Sequence[Suppressed]) -> None:
        now_ns = self._world.now_ns()
        for one in some:
            self._log(
                "lines suppressed",
                "warning",
                logger="sits.request",
                kind=" ".join((ATTEMPT.strip(), *one.kind)),
                suppressed=one.lines,
                over_s=round((now_ns - one.since_ns) / SECOND, 1),
            )
