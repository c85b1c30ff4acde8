"""Identities of a request: its id, which answers carry as decision id, and its W3C trace context.

Rules: ids are 32 hex digits, unique within a process and different after a restart; a valid `traceparent` is continued
(same trace, our own span as the parent of what follows), anything else starts a new trace whose id is the request's.
Source: W3C Trace Context, level 1.  An id costs a multiplication, not a UUID.

A continued trace's `tracestate` goes with it, unread.

Deliberately absent: sampling decisions (the flags of the caller are kept, our own traces are sampled).
"""

import re
from typing import Final

from sits.core.ports import World

_ODD: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835
_MASK: Final = (1 << 128) - 1
_PARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)

STATE_MAX: Final = 4096
"""Bytes of `tracestate` that are sent on; the specification asks for 512."""


class Ids:
    """A counter that looks random: an odd multiple is a bijection on 128 bits, so no two are equal."""

    def __init__(self, world: World) -> None:
        self._next = (world.nonce() << 64) ^ world.wall_ns()

    def new(self) -> str:
        """The next request id."""
        self._next += 1
        return f"{self._next * _ODD & _MASK:032x}"


def begun(request_id: str) -> str:
    """The `traceparent` of a new trace, whose id is the request's."""
    return f"00-{request_id}-{request_id[16:]}-01"


def continued(traceparent: bytes, request_id: str) -> tuple[str, str, str]:
    """The `traceparent` to send on, the trace it continues, and the caller's span in it: both empty when it continues none.

    >>> continued(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "0af7651916cd43dd8448eb211c80319c")[1:]
    ('4bf92f3577b34da6a3ce929d0e0e4736', '00f067aa0ba902b7')
    """
    match = _PARENT.fullmatch(traceparent)
    if match is None or (match[4] and match[0].startswith(b"00")):  # only versions to come may be longer
        return begun(request_id), "", ""
    trace = match[1].decode()
    return f"00-{trace}-{request_id[16:]}-{match[3].decode()}", trace, match[2].decode()


def state_line(tracestate: bytes | None) -> str:
    """The line that sends a continued trace's `tracestate` on as it came, its line end first; empty without one, or when it is beyond all use."""
    if not tracestate or len(tracestate) > STATE_MAX:
        return ""
    return f"\r\ntracestate: {tracestate.decode('latin-1')}"
