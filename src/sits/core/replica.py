"""A Replica: a place that can serve, with an aged snapshot of its state.

Two kinds of knowledge, kept apart: what the gateway counted itself a moment ago (`inflight_*`: exact, local)
and what it scraped from the engine (`running`, `waiting`, `kv_usage`: true at `observed_ns`).  A snapshot
that is too old is *unknown*, not saturated: policies look at the age.
"""

from collections.abc import Collection

import msgspec


class Replica(msgspec.Struct, kw_only=True):
    """One engine as a policy sees it.

    Attributes:
        id: engine name of the configuration.
        models: model names it serves; adapters: adapters proven loaded there.
        healthy: False while its breaker is open or it is draining.
        inflight_tokens: sent by this gateway and unfinished (prompt + allowed output).
        running, waiting, kv_usage: scraped engine state (requests, requests, share 0..1).
        observed_ns: when that state was true, monotonic ns; 0 = never scraped.
        capacity_tokens: KV pool in tokens as the engine itself states it; 0 = unknown.

    """

    id: str
    models: tuple[str, ...] = ()
    adapters: Collection[str] = ()
    region: str = ""
    weight: float = 1.0
    healthy: bool = True
    inflight_tokens: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    observed_ns: int = 0
    capacity_tokens: int = 0

    def age_ns(self, now_ns: int) -> int | None:
        """Age of the scraped state in ns, or None when it was never scraped."""
        return now_ns - self.observed_ns if self.observed_ns else None
