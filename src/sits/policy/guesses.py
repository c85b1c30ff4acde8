"""How fast keys may be tried: a wrong one costs time, the more of them the more, of whoever tries and of all together.

Knows: until when each purse is spent, and the time now.  A purse is one number, the virtual time of GCRA (ITU-T I.371): every wrong key moves
it on by `every_ns`, the clock catches up, and who is `burst` wrong keys ahead of the clock has to wait until it is not.

| Purse | Burst | Then one each |
|---|---|---|
| of one address | 10 | 6 s |
| of all, for an address that was wrong lately | 100 | 0.1 s |
| of all, for an address that was not | 200 | 0.1 s |

So addresses which guess cannot keep out one that has not: only 100 more wrong keys, each from another new address, within a few seconds do, and
then for as long as they keep coming.  10 guesses a second are 3 x 10^8 in a year; the keys `sitsctl keys` makes have 2^256.

Deliberately absent: the keys, the addresses, and the clock.
"""

from sits.core.decision import Decision
from sits.core.units import MS, SECOND

OWN_EVERY_NS, OWN_BURST = 6 * SECOND, 10
ALL_EVERY_NS, ALL_BURST, ALL_BURST_NEW = 100 * MS, 100, 200


def charged(spent_ns: int, every_ns: int, now_ns: int) -> int:
    """A purse after one more wrong key.

    >>> charged(0, 6, 100), charged(112, 6, 100)
    (106, 118)
    """
    return max(spent_ns, now_ns) + every_ns


def judge(own_ns: int, all_ns: int, now_ns: int) -> Decision:
    """Whether a key may be tried; `reasons` has how long to wait where it may not.

    >>> judge(0, 0, 100).outcome
    'may_try'
    >>> full = charged(OWN_BURST * OWN_EVERY_NS, 0, 0)
    >>> judge(full, 0, 1).outcome, judge(full, 0, OWN_EVERY_NS).outcome
    ('address_waits', 'may_try')
    """
    new = own_ns <= now_ns
    own_wait_ns = own_ns - now_ns - (OWN_BURST - 1) * OWN_EVERY_NS
    all_wait_ns = all_ns - now_ns - ((ALL_BURST_NEW if new else ALL_BURST) - 1) * ALL_EVERY_NS
    outcome = "address_waits" if own_wait_ns > 0 else "all_wait" if all_wait_ns > 0 else "may_try"
    wait_ns = max(0, own_wait_ns, all_wait_ns)
    return Decision(policy="guesses", outcome=outcome, reasons={"wait_ns": wait_ns, "new": new})
