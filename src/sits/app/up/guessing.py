"""Who has tried wrong keys at the door, and how long they have to wait: the memory of `policy.guesses`.

Rules: an address is one IPv4, or the 64 bits of an IPv6 that one household has; what is no address (a proxy may forward anything) is one address
for all of them.  At most `ADDRESSES` are remembered, those that were wrong last; whoever is forgotten so is still counted among all.  A key that
has expired, or none at all, is no guess.

Deliberately absent: looking at keys.
"""

import ipaddress

from sits.core.errors import AuthError, RateLimitError
from sits.core.ports import World
from sits.core.units import SECOND
from sits.policy.guesses import ALL_EVERY_NS, OWN_EVERY_NS, charged, judge

ADDRESSES = 4_096
NO_GUESS = frozenset(
    {
        "missing_api_key",
        "unsupported_scheme",
        "conflicting_credentials",
        "expired_api_key",
        "token_expired",
        "token_not_yet_valid",
    }
)
"""What is wrong with a request that tries no key, or one that was right once."""


class Guesses:
    """What was wrong lately."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._own_ns: dict[str, int] = {}
        self._all_ns = 0

    def may_try(self, address: str) -> None:
        """Do nothing if a key from there may be looked at.

        Raises:
            RateLimitError: not yet.

        """
        decision = judge(self._own_ns.get(_place(address), 0), self._all_ns, self._world.now_ns())
        if decision.outcome == "may_try":
            return
        wait_s = -(-decision.reasons["wait_ns"] // SECOND)
        whence = "this address" if decision.outcome == "address_waits" else "many addresses"
        raise RateLimitError(
            f"too many wrong keys came from {whence}",
            code="too_many_wrong_keys",
            hint=f"try again in {wait_s} s; who has signed in already need not wait",
            retry_after_s=wait_s,
        )

    def was_wrong(self, address: str, error: AuthError) -> None:
        """A key from there was refused."""
        if error.code in NO_GUESS:
            return
        place, now_ns = _place(address), self._world.now_ns()
        self._own_ns[place] = charged(self._own_ns.pop(place, 0), OWN_EVERY_NS, now_ns)
        self._all_ns = charged(self._all_ns, ALL_EVERY_NS, now_ns)
        while len(self._own_ns) > ADDRESSES:
            del self._own_ns[next(iter(self._own_ns))]


def _place(address: str) -> str:
    """Where an address belongs.

    >>> _place("10.0.0.1"), _place("::ffff:10.0.0.1"), _place("2001:db8:1:2:3::4"), _place("<b>")
    ('10.0.0.1', '10.0.0.1', '2001:db8:1:2::/64', '')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
