"""What happened to adapters so far, counted by words of a closed set.

A load is one attempt from its first byte to READY, and has succeeded or failed for one reason: `success_share` is the figure the
objective (more than 99.95 %) speaks of.

Deliberately absent: times (rows and metrics have them), and rates (boards difference these).
"""

from collections import Counter

import msgspec

from sits.gateway.metrics import escaped


class Counts(msgspec.Struct):
    """Loads by (engine, adapter) and by reason; READY lost; evictions; base models that answered as an adapter.

    `failed` and `withdrawn` are by (engine, adapter, reason), `mixed` by engine, the others by (engine, adapter).
    """

    attempted: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    succeeded: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    failed: Counter[tuple[str, str, str]] = msgspec.field(default_factory=Counter)
    withdrawn: Counter[tuple[str, str, str]] = msgspec.field(default_factory=Counter)
    evicted: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    mixed: Counter[str] = msgspec.field(default_factory=Counter)

    def success_share(self) -> float | None:
        """Loads that ended READY of all that ended; None before the first."""
        good, bad = self.succeeded.total(), self.failed.total()
        return good / (good + bad) if good + bad else None

    def vitals(self) -> dict[str, dict[str, float]]:
        """The counters as families of a metrics page: {family: {labels: value}}."""
        return {
            "sits_adapter_loads_total": {labels(*key): n for key, n in self.attempted.items()},
            "sits_adapter_loads_succeeded_total": {labels(*key): n for key, n in self.succeeded.items()},
            "sits_adapter_loads_failed_total": {labels(*key): n for key, n in self.failed.items()},
            "sits_adapter_withdrawn_total": {labels(*key): n for key, n in self.withdrawn.items()},
            "sits_adapter_evicted_total": {labels(*key): n for key, n in self.evicted.items()},
            "sits_adapter_base_mixed_total": {labels(engine): n for engine, n in self.mixed.items()},
        }


def labels(engine: str, adapter: str = "", reason: str = "", state: str = "") -> str:
    """The labels of one number.

    >>> labels("e", "a", "denied")
    'engine="e",adapter="a",reason="denied"'
    """
    pairs = (("engine", engine), ("adapter", adapter), ("state", state), ("reason", reason))
    return ",".join(f'{name}="{escaped(value)}"' for name, value in pairs if value)
