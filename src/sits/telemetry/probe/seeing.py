"""What one process saw of a request becomes a span: whose request it is, when its points were, how each was known.

A process has one `Seeing`: the clock, the way out, and the switch that ends it all.  Times are read from the monotonic clock and told as Unix ns with an
offset that was sampled once, at the start, so points of one process never run backwards, whatever the wall clock does.  The processes of an engine share
their machine's clocks: their spans name the host as their instance, which makes them one source with one clock.

Rules: the trace is the one of the `traceparent` that came with the request (our gateway sends one always).  A request without one gets a trace
of its own whose id is a digest of vLLM's request id, the same in every process.  Trouble in a wrapper ends the probe in this
process, with one warning, and never reaches vLLM.

Deliberately absent: sending (`telemetry.spans_out`).
"""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sits.core.breakpoints import Exactness
from sits.core.otel_names import point_attributes
from sits.telemetry.spans_json import INTERNAL, Span

MEASURED, DERIVED = int(Exactness.MEASURED), int(Exactness.DERIVED)
REQUEST = "sits.vllm.request_id"
LOG = "sits.probe"

Points = dict[int, int]
"""Monotonic ns (of this machine) by point."""


class Whose(NamedTuple):
    """The trace a request belongs to, and the span that is its parent there (empty: none)."""

    trace_id: str
    parent_id: str = ""


def whose(request_id: str, headers: Mapping[str, str] | None) -> Whose:
    """Of which trace a request is.

    >>> whose("cmpl-1-0", {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
    Whose(trace_id='4bf92f3577b34da6a3ce929d0e0e4736', parent_id='00f067aa0ba902b7')
    >>> whose("cmpl-1-0", None) == whose("cmpl-1-0", {"traceparent": "nonsense"}) != whose("cmpl-2-0", None)
    True
    """
    parts = headers.get("traceparent", "").split("-") if headers else ()
    if len(parts) >= 4 and len(parts[1]) == 32 and len(parts[2]) == 16:
        return Whose(parts[1].lower(), parts[2].lower())
    return Whose(hashlib.blake2b(request_id.encode(), digest_size=16).hexdigest())


class Seeing:
    """The probe of one process.

    Args:
        put: takes a span, never waits, never raises.
        now_ns, wall_ns: the clocks.

    Attributes:
        on_trouble: called once, when a wrapper went wrong.

    """

    def __init__(
        self, put: Callable[[Span], Any], now_ns: Callable[[], int], wall_ns: Callable[[], int]
    ) -> None:
        self.put = put
        self.now_ns = now_ns
        self.wall_ns = wall_ns
        self.offset_ns = offset(now_ns, wall_ns)
        self.on_trouble: Callable[[], None] = lambda: None
        self.ended = False

    def tell(
        self,
        name: str,
        request_id: str,
        whose_: Whose,
        at: Points,
        how: Mapping[int, int],
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """A span named `name` with the points `at`; `how` names those that were not measured."""
        if not at:
            return
        by = self.offset_ns
        wall = {point: when + by for point, when in at.items()}
        told: dict[str, Any] = {REQUEST: request_id, **(more or {})}
        told.update(point_attributes(wall, {point: how.get(point, MEASURED) for point in wall}))
        first, last = min(wall.values()), max(wall.values())
        self.put(
            Span(
                whose_.trace_id, os.urandom(8).hex(), whose_.parent_id, name, first, last, told, kind=INTERNAL
            )
        )

    def trouble(self, error: Exception) -> None:
        """A wrapper went wrong: the probe ends in this process."""
        if not self.ended:
            self.ended = True
            logging.getLogger(LOG).warning(
                "the probe stands down in process %d: %s: %s", os.getpid(), type(error).__name__, error
            )
            self.on_trouble()


def offset(now_ns: Callable[[], int], wall_ns: Callable[[], int], tries: int = 9) -> int:
    """Wall clock minus monotonic clock, ns: of the try whose two readings of the monotonic clock were closest together."""
    best, found = 2**63, 0
    for _ in range(tries):
        before = now_ns()
        wall = wall_ns()
        after = now_ns()
        if after - before < best:
            best, found = after - before, wall - (before + after) // 2
    return found
