"""How many bytes of requests a worker holds: one budget over all its connections.

```
held = what is arriving (heads and bodies not all here) + what waits behind an answer + large bodies being answered
```
Limits of one connection bound one client; many clients together are bounded here, by `gateway.body_memory`.

Rules:
- Bytes are counted when they are here, not when they are announced: a client that announces much and sends nothing takes nothing.
- What does not fit is refused (503, `body_memory`, to be tried again): by its head if it announces more than there is room for,
  else at the byte that is too much.  Nothing waits: whoever is told can go elsewhere, and a socket that is not read tells nothing.
- Who is whole stays.  Of those still arriving, the ones that take longer than `PATIENCE_NS` give way, oldest first, to bytes that need
  the room: else a few clients that send all but their last byte would keep everybody out for as long as a request may take.
- A request that comes whole in a packet smaller than `COUNTED_BYTES` is not counted while it is answered: that is nearly every
  request, `policy.admit.max_inflight` bounds them, and counting would cost each of them more than it protects.

Deliberately absent: waiting for room, shares of tenants (the bytes of strangers are refused by their head, for want of a key), and
what answers take (the connection's write buffer, bounded by itself).
"""

from typing import Protocol

from sits.core.errors import CapacityError, SitsError
from sits.core.units import SECOND

COUNTED_BYTES = 16 * 1024
PATIENCE_NS = 10 * SECOND


class Holder(Protocol):
    """A connection: what it is charged with, and since when its request is arriving."""

    charged: int
    since_ns: int

    def refuse(self, error: SitsError) -> None:
        """Let go of what is arriving."""


class Bodies:
    """The budget.  `limit` bytes; `held` of them are; `refused` counts what did not fit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.refused = 0
        self._arriving: dict[Holder, None] = {}

    def hold(self, holder: Holder, size: int, arriving: bool, now_ns: int) -> bool:
        """Charge `holder` with `size` bytes in all; False, and nothing has changed, when they do not fit."""
        more = size - holder.charged
        if more > 0 and self.held + more > self.limit:
            self._make_room(more, holder, now_ns)
            if self.held + more > self.limit:
                return False
        self.held += more
        holder.charged = size
        if arriving:
            self._arriving.setdefault(holder)
        else:
            self._arriving.pop(holder, None)
        return True

    def let_go(self, holder: Holder) -> None:
        """It has gone."""
        self.held -= holder.charged
        holder.charged = 0
        self._arriving.pop(holder, None)

    def fits(self, size: int, now_ns: int) -> bool:
        """Whether so many bytes more could be held, if they came now."""
        room = self.limit - self.held
        if size > room:
            room += sum(one.charged for one in self._arriving if now_ns - one.since_ns > PATIENCE_NS)
        return size <= room

    def _make_room(self, more: int, but: Holder, now_ns: int) -> None:
        for one in list(self._arriving):
            if self.held + more <= self.limit:
                return
            if one is not but and now_ns - one.since_ns > PATIENCE_NS:
                self.refused += 1
                one.refuse(no_room())


def no_room() -> CapacityError:
    """What is told to whoever does not fit."""
    return CapacityError(
        "the gateway holds as many bytes of requests as it may", code="body_memory", retry_after_s=1.0
    )
