"""The embedded authority: every balance of this gateway, in memory.

Knows the accounts; settles reports and grants leases by the arithmetic of `policy.lease`; says what has to be written so that it
can be rebuilt.  What is written are states, not steps (`Whole`: an account; `Part`: one lease of it), so reading a record
twice changes nothing, and the last one of each account or lease stands.

Rules: limits come with the question, so a new configuration needs no word here.  A window is dropped a minute after its
end, when nobody can report on it any more; `total` stays.  The number of accounts is bounded; beyond it nothing is granted.

Deliberately absent: files and sockets (gateway.ledger.journal, .embedded).
"""

from collections.abc import Iterable, Iterator

import msgspec

from sits.core.units import SECOND
from sits.gateway.ledger.messages import LeaseAsk, LeaseGrant
from sits.policy import lease as arithmetic
from sits.policy.lease import Account, AskLine, Balance, GrantLine, Lease

ACCOUNTS_MAX = 262_144
GRACE_NS = 60 * SECOND
"""How long an ended window is kept, at least; and longer than any lease."""


class Whole(msgspec.Struct, array_like=True, frozen=True, tag="account"):
    """All of one account."""

    account: str
    window: int
    per_ns: int
    state: Account


class Part(msgspec.Struct, array_like=True, frozen=True, tag="lease"):
    """One lease of an account, and its limit."""

    account: str
    window: int
    per_ns: int
    limit: int
    holder: str
    state: Lease


class Gone(msgspec.Struct, array_like=True, frozen=True, tag="gone"):
    """An account whose window is over."""

    account: str
    window: int


Record = Whole | Part | Gone


class Row(msgspec.Struct, frozen=True):
    """One account for people to read."""

    account: str
    window: int
    per_ns: int
    balance: Balance


class Accounts:
    """The balances, by account name and window.

    Attributes:
        refused: questions that found too many accounts.
        late: reports on windows that were dropped already.

    """

    def __init__(self, ttl_ns: int) -> None:
        self.refused = self.late = 0
        self._ttl_ns = ttl_ns
        self._accounts: dict[tuple[str, int], Account] = {}
        self._per_ns: dict[tuple[str, int], int] = {}
        self._changed: list[Record] = []

    def __len__(self) -> int:
        return len(self._accounts)

    def answer(self, question: LeaseAsk, wall_ns: int) -> tuple[LeaseGrant, bool]:
        """The answer, and whether it grants anything: then it must not be told before `drain()` is on the disk."""
        lines = []
        grew = False
        for line in question.lines:
            told, more = self._line(question.holder, line, wall_ns)
            lines.append(told)
            grew = grew or more
        return LeaseGrant(question.sent_ns, wall_ns, self._ttl_ns, tuple(lines)), grew

    def _line(self, holder: str, line: AskLine, wall_ns: int) -> tuple[GrantLine, bool]:
        key = (line.account, line.window)
        account = self._accounts.get(key)
        if account is None:
            if self._is_over(line.window, line.per_ns, wall_ns):
                self.late += 1
                return _nothing(line), False
            if len(self._accounts) >= ACCOUNTS_MAX:
                self.refused += 1
                return _nothing(line), False
            account = self._accounts[key] = Account()
            self._per_ns[key] = line.per_ns
        whole = arithmetic.expire(account, wall_ns)
        name = f"{holder}.{line.life}"
        before = account.leases[name].granted if name in account.leases else 0
        told = arithmetic.ask(account, holder, line, wall_ns, self._ttl_ns)
        if whole:
            self._changed.append(Whole(*key, line.per_ns, account))
        else:
            self._changed.append(Part(*key, line.per_ns, line.limit, name, account.leases[name]))
        return told, told.granted > before

    def release(self, holder: str, wall_ns: int) -> None:
        """Take back what a dead holder has."""
        for key, account in self._accounts.items():
            if arithmetic.release(account, holder, wall_ns):
                self._changed.append(Whole(*key, self._per_ns[key], account))

    def give(self, account: str, window: int, per_ns: int, limit: int, gift: str, amount: int) -> None:
        """Add `amount` to a balance, once for each name of a `gift`."""
        key = (account, window)
        found = self._accounts.get(key)
        if found is None:
            found = self._accounts[key] = Account(limit=limit)
            self._per_ns[key] = per_ns
        if gift not in found.gifts:
            found.gifts[gift] = amount
            self._changed.append(Whole(*key, per_ns, found))

    def sweep(self, wall_ns: int) -> None:
        """Drop windows that ended a while ago."""
        for key in [k for k, per_ns in self._per_ns.items() if self._is_over(k[1], per_ns, wall_ns)]:
            self._drop(key)
            self._changed.append(Gone(*key))

    def drain(self) -> list[Record]:
        """What has changed since the last time, to be written in this order."""
        changed, self._changed = self._changed, []
        return changed

    def dump(self) -> Iterator[Record]:
        """Everything, as records."""
        return (Whole(*key, self._per_ns[key], account) for key, account in self._accounts.items())

    def load(self, records: Iterable[Record]) -> None:
        """Take in what was written."""
        for record in records:
            key = (record.account, record.window)
            if isinstance(record, Gone):
                self._drop(key)
                continue
            self._per_ns[key] = record.per_ns
            if isinstance(record, Whole):
                self._accounts[key] = record.state
            else:
                account = self._accounts.setdefault(key, Account())
                account.limit = record.limit
                account.leases[record.holder] = record.state

    def rows(self, wall_ns: int) -> list[Row]:
        """Every account, in the order of names."""
        found = self._accounts.items()
        rows = [Row(*key, self._per_ns[key], arithmetic.balance(account, wall_ns)) for key, account in found]
        return sorted(rows, key=lambda row: (row.account, row.window))

    def _is_over(self, window: int, per_ns: int, wall_ns: int) -> bool:
        return bool(per_ns) and (window + 1) * per_ns <= wall_ns - max(GRACE_NS, 2 * self._ttl_ns)

    def _drop(self, key: tuple[str, int]) -> None:
        self._accounts.pop(key, None)
        self._per_ns.pop(key, None)


def _nothing(line: AskLine) -> GrantLine:
    """Nothing is granted, and the report counts as heard, so that nobody repeats it for ever."""
    return GrantLine(
        account=line.account,
        window=line.window,
        life=line.life,
        seq=line.seq,
        granted=0,
        used=line.used,
        returned=line.returned,
        total=line.limit,
        free=0,
        elsewhere=0,
        scarce=False,
    )
