"""The arithmetic of one balance: what was granted, and who holds how much of it.

A balance (`Account`) belongs to one quota in one window.  Holders (gateway processes) spend from leases, so that a request
costs no round trip.  All a holder and the authority tell each other are totals that only grow:

    granted to it (told by the authority) - used - returned (told by the holder) = outstanding

so a message that is lost, repeated or overtaken does no harm: the larger total stands, on both sides.  An authority that
lost its memory learns it anew from the holders that live.  At every moment, exactly:

    total granted + debt = settled + outstanding leases + free            free = 0 or debt = 0

Settled is what was really taken.  It may exceed what was reserved (an engine that ignores `max_tokens`); then there is debt, and
nothing is granted until a window ends or a grant covers it.

Rules:
- A grant covers the holder's need or is nothing: two holders that each sit on half of what a third request needs would
  refuse it together.  Above the need it is at most an equal share of half of what is free, so that the last tokens
  do not lie where nobody asks for them.  Whoever is refused makes the balance `scarce` for a while, and holders give back
  what they do not need now.
- A lease that is not renewed is taken back whole.  What its holder took and had not told is then granted again, so real use can
  exceed the limit by no more than the leases outstanding at a crash; `expired` adds up what was taken back.
- A holder that comes back late is still believed: its totals settle, as debt if need be.

The same steps stand in Lua in `gateway.ledger.redis_script`, tested to agree.  Sources: pending transfers that post, void or
time out as in TigerBeetle; leases with shares as in Doorman.  Deliberately absent: clocks, requests, and files.
"""

import msgspec

SCARCE_NS = 1_000_000_000
"""How long after a refusal holders keep nothing to spare."""

FORGET_NS = 86_400_000_000_000
"""How long a lease with nothing outstanding is remembered after its end, for reports that come late.  A holder that heard
nothing for half of that begins a new life."""

EARLY_NS = 5_000_000_000
"""How long before a window begins its first leases are given out."""

SHARE = 2
"""Above its need a holder gets at most `free / (SHARE * holders)`."""


class AskLine(msgspec.Struct, array_like=True, frozen=True):
    """What a holder tells about one balance, and how much more it wants.

    `life` numbers the holder's leases of this balance: a new one begins new totals.  `granted`, `used`, `returned` are totals,
    `reserved` is held by requests that run (for display).  `need` must be covered for the next request to pass; `want`
    includes it and what to keep in hand.
    """

    account: str
    window: int
    per_ns: int
    limit: int
    life: int
    seq: int
    granted: int
    used: int
    returned: int
    reserved: int
    need: int
    want: int


class GrantLine(msgspec.Struct, array_like=True, frozen=True):
    """What the authority tells: the lease's totals, and the state of the balance.

    `used` is what it has counted as settled of this lease, `elsewhere` what other holders have in hand and no request needs.
    """

    account: str
    window: int
    life: int
    seq: int
    granted: int
    used: int
    returned: int
    total: int
    free: int
    elsewhere: int
    scarce: bool


class Lease(msgspec.Struct):
    """What one holder has of one balance; totals only grow."""

    granted: int = 0
    used: int = 0
    returned: int = 0
    reserved: int = 0
    seq: int = 0
    until_ns: int = 0

    @property
    def outstanding(self) -> int:
        """What the holder may still spend, or has reserved."""
        return max(0, self.granted - self.used - self.returned)


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """A balance at a glance: `granted + debt == settled + reserved + leased + free`.

    `leased` is in hand and not reserved; `expired` is what was taken back from holders that fell silent, a bound of what may have
    been used without being settled.
    """

    granted: int
    settled: int
    reserved: int
    leased: int
    free: int
    debt: int
    expired: int
    holders: int


class Account(msgspec.Struct):
    """One balance: limit and gifts, leases by `holder.life`, and the settled use of leases long gone."""

    limit: int = 0
    folded: int = 0
    expired: int = 0
    scarce_ns: int = 0
    gifts: dict[str, int] = {}
    leases: dict[str, Lease] = {}

    def total(self) -> int:
        """Everything that may be spent in this window."""
        return self.limit + sum(self.gifts.values())

    def room(self) -> int:
        """What is neither settled nor lent; negative is debt."""
        leases = self.leases.values()
        return self.total() - self.folded - sum(lease.used + lease.outstanding for lease in leases)


def ask(account: Account, holder: str, line: AskLine, now_ns: int, ttl_ns: int) -> GrantLine:
    """Take a holder's report, grant what it may have, and renew its lease."""
    expire(account, now_ns)
    account.limit = line.limit
    lease = account.leases.setdefault(f"{holder}.{line.life}", Lease())
    lease.until_ns = max(lease.until_ns, now_ns + ttl_ns)
    if line.seq > lease.seq:
        _report(lease, line)
        if line.want > 0 and _is_open(line, now_ns):
            _grant(account, lease, line, now_ns)
    return GrantLine(
        account=line.account,
        window=line.window,
        life=line.life,
        seq=line.seq,
        granted=lease.granted,
        used=lease.used,
        returned=lease.returned,
        total=account.total(),
        free=max(0, account.room()),
        elsewhere=sum(max(0, x.outstanding - x.reserved) for x in account.leases.values() if x is not lease),
        scarce=now_ns < account.scarce_ns,
    )


def _report(lease: Lease, line: AskLine) -> None:
    lease.seq = line.seq
    lease.granted = max(lease.granted, line.granted)
    lease.used = max(lease.used, line.used)
    lease.returned = max(lease.returned, line.returned)
    lease.reserved = line.reserved


def _is_open(line: AskLine, now_ns: int) -> bool:
    """Whether this is a window that runs, or is about to."""
    begins_ns = line.window * line.per_ns
    return not line.per_ns or begins_ns - EARLY_NS <= now_ns < begins_ns + line.per_ns


def _grant(account: Account, lease: Lease, line: AskLine, now_ns: int) -> None:
    free = account.room()
    if line.need > free:
        account.scarce_ns = now_ns + SCARCE_NS
        return
    holders = sum(1 for other in account.leases.values() if other.until_ns > now_ns)
    more = max(line.need, min(line.want, free // (SHARE * holders)))
    if more > 0:
        lease.granted = lease.used + lease.returned + lease.outstanding + more


def expire(account: Account, now_ns: int) -> bool:
    """Take back what silent holders have, and forget those long gone; whether anything changed."""
    changed = False
    for holder, lease in list(account.leases.items()):
        if lease.until_ns > now_ns:
            continue
        if lease.outstanding:
            account.expired += lease.outstanding
            lease.returned = max(lease.returned, lease.granted - lease.used)
            changed = True
        elif now_ns - lease.until_ns > FORGET_NS:
            account.folded += lease.used
            del account.leases[holder]
            changed = True
        lease.reserved = 0
    return changed


def release(account: Account, holder: str, now_ns: int) -> bool:
    """Take back what a holder has that is known to be dead; whether it had anything."""
    ours = [lease for name, lease in account.leases.items() if name.rpartition(".")[0] == holder]
    for lease in ours:
        lease.until_ns = min(lease.until_ns, now_ns)
    return bool(ours) and expire(account, now_ns)


def balance(account: Account, now_ns: int) -> Balance:
    """The account at a glance."""
    leases = [lease for lease in account.leases.values() if lease.until_ns > now_ns or lease.outstanding]
    outstanding = sum(lease.outstanding for lease in leases)
    reserved = sum(min(lease.reserved, lease.outstanding) for lease in leases)
    room = account.room()
    return Balance(
        granted=account.total(),
        settled=account.folded + sum(lease.used for lease in account.leases.values()),
        reserved=reserved,
        leased=outstanding - reserved,
        free=max(0, room),
        debt=max(0, -room),
        expired=account.expired,
        holders=len(leases),
    )
