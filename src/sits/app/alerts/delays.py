"""How soon an alert can be there: the times between a bad answer and a message, chosen so that together they keep `alert_within`.

```
answer sent ─ scrape ─ window fills ─ evaluation ─ for ─ group ─ delivery ─> told
             <= step    W t / s        <= step     step   <= step   2 s
```
step = alert_within / 9, within 1..15 s, and W the longest window that still fits, at most 5 min.  The fast rule fires when of the answers of
the last W a share of t or more was bad.  When a share s of the answers turns bad at once, the window says t after W t / s; the
slowest case is s = t, which takes all of W, and that is what is kept within the promise.

Rules: scrape, evaluation, `for` and the waiting of a group are one length, for the longest of them is the one that counts; a window has four
scrapes at least, so that one lost scrape does not blind it.

Deliberately absent: the time a request takes.  A slow answer is seen when it has been sent (one that never ends, when it fails).
"""

import msgspec

from sits.core.units import SECOND

DELIVERY_S = 2
"""From Prometheus to Alertmanager to a receiver on the same network, generously."""

SCRAPES = 4
WINDOW_MAX_S = 300


class Delays(msgspec.Struct, frozen=True, kw_only=True):
    """The lengths, s: `step` for scrape, evaluation, `for` and group; `window` of the fast rule."""

    within_s: int
    step_s: int
    window_s: int

    def worst_s(self, threshold: float, share: float = 1.0) -> float:
        """The longest time until somebody is told, when `share` of the answers turns bad at once, s."""
        return 4 * self.step_s + DELIVERY_S + self.window_s * min(1.0, threshold / share)


def delays(alert_within_ns: int) -> Delays:
    """The lengths that keep `alert_within`.

    >>> delays(45 * 10**9), delays(300 * 10**9).window_s
    (Delays(within_s=45, step_s=5, window_s=20), 225)
    """
    within_s = alert_within_ns // SECOND
    step_s = min(15, max(1, within_s // 9))
    room_s = min(WINDOW_MAX_S, within_s - 4 * step_s - DELIVERY_S)
    return Delays(within_s=within_s, step_s=step_s, window_s=max(SCRAPES, room_s // step_s) * step_s)
