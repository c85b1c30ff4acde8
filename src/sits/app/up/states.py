"""What engines told of themselves last, as gauges of the metrics page: KV use, requests running and waiting, and how old that is.

Rules: what is older than `STALE_NS` is not on the page at all: a number that nobody tells any more would look like a quiet engine.  Sources that are no
engines of the configuration in use (GPUs, the machine) are not looked at.

Deliberately absent: asking engines (`app.up.watch`), and keeping what they told (table `signals` of the store).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sits.core.units import SECOND
from sits.gateway.metrics import Vitals, engine_label

STALE_NS = 10 * SECOND
FAMILY_OF = {
    "kv_usage": "sits_engine_kv_usage",
    "requests_running": "sits_engine_requests_running",
    "requests_waiting": "sits_engine_requests_waiting",
}
AGE = "sits_engine_state_age_seconds"


class States:
    """The newest of each."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, float]] = {}
        self._engines: Collection[str] = ()

    def adopt(self, engines: Collection[str]) -> None:
        """These are the engines now; what others told is forgotten."""
        self._engines = frozenset(engines)
        self._known = {key: told for key, told in self._known.items() if key[0] in self._engines}

    def see(self, rows: Iterable[Sequence[Any]]) -> None:
        """Rows of table `signals`: when (monotonic, ns), who, what, how much."""
        for t_ns, source, name, value in rows:
            if name in FAMILY_OF and source in self._engines:
                self._known[source, name] = (t_ns, value)

    def vitals(self, now_ns: int) -> Vitals:
        """What is not stale."""
        found: Vitals = {}
        for (source, name), (t_ns, value) in sorted(self._known.items()):
            if now_ns - t_ns > STALE_NS:
                continue
            label = engine_label(source)
            found.setdefault(FAMILY_OF[name], {})[label] = value
            ages = found.setdefault(AGE, {})
            ages[label] = max(ages.get(label, 0.0), (now_ns - t_ns) / SECOND)
        return found
