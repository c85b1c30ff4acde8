"""A Line: one balance in one window, as one process holds it; and the Slots through which requests find theirs.

Exactly and always `granted = used + returned + left + reserved`, where `reserved` is what open requests hold; it is not kept
but follows from the others.  `left` below 0: more was used than was lent.

What to keep in hand (`block`) doubles when it ran low since the last report and halves when it did not for a second.  What
is not needed is returned: what exceeds two blocks; all of it when others are refused (`scarce`), when nobody came for a second,
or when the window is over.

Deliberately absent: requests (gateway.ledger.book) and messages (gateway.ledger.lines).
"""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from sits.core.fleet_quota import MILLI, QuotaMatch
from sits.core.units import MS, SECOND
from sits.policy.lease import AskLine, GrantLine
from sits.policy.quota import Meter

IDLE_NS: Final = SECOND
"""After so long without a request nothing is kept in hand; after so long without running low, half."""

DRY_NS: Final = SECOND // 10
"""How long a refusal of the authority is repeated to others without asking it again."""

REQUESTS_IN_HAND: Final = 4
"""The first block, in requests like the first one."""

BLOCK_SHARE: Final = 8
"""One holder never keeps more in hand than this part of a limit asks for."""

LOOK_NS: Final = SECOND // 10
"""How long it is taken for granted that a lease has not been given up."""


class Line:
    """One balance in one window.

    Attributes:
        left: what may still be reserved; until_ns: until when, by this process's clock.
        plain: a token counts as one, whichever it is.
        low: when `left` falls below it, more is asked for; 0 once it is.
        plain, fixed: a request costs its tokens, or always so much; else as the meter says.
        told_used, told_returned, told_reserved: what the authority has heard.
        free, elsewhere, total, scarce: what the authority last said about the balance.
        dry_ns: until when that is taken as its answer to more.
        waits: what requests that wait for this line need.

    """

    __slots__ = (
        "account",
        "block",
        "dry_ns",
        "elsewhere",
        "fixed",
        "free",
        "granted",
        "heard_seq",
        "hungry",
        "hungry_ns",
        "left",
        "life",
        "low",
        "meter",
        "moved",
        "moved_ns",
        "need_seq",
        "plain",
        "returned",
        "scarce",
        "seq",
        "told_reserved",
        "told_returned",
        "told_used",
        "total",
        "until_ns",
        "used",
        "valid_ns",
        "waits",
        "window",
    )

    def __init__(self, meter: Meter, account: str, window: int, life: int, since_ns: int) -> None:
        self.account = account
        self.window = window
        self.life = life
        self.granted = self.used = self.returned = self.left = 0
        self.told_used = self.told_returned = self.told_reserved = 0
        self.seq = self.heard_seq = self.need_seq = 0
        self.hungry = self.scarce = False
        self.until_ns = self.valid_ns = self.dry_ns = 0
        self.low = self.block = 0
        self.free = self.elsewhere = 0
        self.waits: list[int] = []
        self.moved = 0
        self.moved_ns = self.hungry_ns = since_ns
        self.total = 0
        self.meter = meter
        self.measure(meter)

    def measure(self, meter: Meter) -> None:
        """Count by `meter` from now on: the first one, or that of a new configuration."""
        self.total += meter.limit - (self.meter.limit if self.total else 0)
        self.dry_ns = 0
        self.meter = meter
        self.fixed = 0 if meter.w_input or meter.w_output or meter.w_cached else meter.base // MILLI
        self.plain = meter.w_input == meter.w_output == meter.w_cached == MILLI > meter.base
        self.hungry = True

    @property
    def reserved(self) -> int:
        """What open requests hold."""
        return self.granted - self.used - self.returned - self.left

    def run_low(self, now_ns: int) -> None:
        """More is wanted before it is all gone, and twice as much as last time."""
        self.low = 0
        self.hungry = True
        self.hungry_ns = now_ns
        self.block = min(2 * self.block, self.meter.limit // BLOCK_SHARE)

    def busy(self, now_ns: int) -> bool:
        """Whether requests came lately."""
        return now_ns - self.moved_ns < IDLE_NS

    def ask(self, now_ns: int, ends_ns: int, renew_ns: int) -> AskLine | None:
        """What to tell the authority now; None when it knows all.  `renew_ns` is how long before its end a lease is renewed."""
        self._adapt(now_ns)
        need = max(0, min(self.waits) - self.left) if self.waits else 0
        waiting = sum(self.waits)
        idle = not self.busy(now_ns)
        spare = 0 if self.scarce or idle or now_ns >= ends_ns else self.block
        self._give_back(waiting, spare)
        want = max(0, waiting + spare - self.left) if need or (self.hungry and not idle) else 0
        reserved = self.reserved
        lent = self.granted - self.used - self.returned
        due = lent > 0 and now_ns >= self.valid_ns - renew_ns
        if not (want or due or self.hungry or reserved != self.told_reserved or self.untold):
            return None
        self.seq += 1
        self.need_seq = (self.need_seq or self.seq) if need else 0
        self.told_reserved = reserved
        return AskLine(
            account=self.account,
            window=self.window,
            per_ns=self.meter.per_ns,
            limit=self.meter.limit,
            life=self.life,
            seq=self.seq,
            granted=self.granted,
            used=self.used,
            returned=self.returned,
            reserved=reserved,
            need=need,
            want=max(need, want),
        )

    def _adapt(self, now_ns: int) -> None:
        moved = self.used + self.reserved
        if moved != self.moved:
            self.moved, self.moved_ns = moved, now_ns
        if not self.block and (self.waits or moved):
            self.block = REQUESTS_IN_HAND * max(self.waits, default=moved)
        if now_ns - self.hungry_ns >= IDLE_NS:
            self.block = max(1, self.block // 2)
            self.hungry_ns = now_ns

    def _give_back(self, waiting: int, spare: int) -> None:
        more = self.left - waiting - spare
        if more > spare:
            self.left -= more
            self.returned += more
            self.free += more

    def hear(self, told: GrantLine, now_ns: int, valid_ns: int, window_ends_ns: int) -> None:
        """Take in what the authority says of this life; `valid_ns`, `window_ends_ns` by this process's clock."""
        if told.granted > self.granted:
            self.left += told.granted - self.granted
            self.granted = told.granted
        if told.returned > self.returned:
            self.left -= told.returned - self.returned
            self.returned = told.returned
        self.told_used = max(self.told_used, told.used)
        self.told_returned = max(self.told_returned, told.returned)
        self.valid_ns = max(self.valid_ns, valid_ns)
        self.until_ns = min(self.valid_ns, window_ends_ns)
        if told.seq < self.heard_seq:
            return
        self.heard_seq = told.seq
        self.hungry = self.hungry and told.seq != self.seq
        self.total, self.free, self.elsewhere, self.scarce = (
            told.total,
            told.free,
            told.elsewhere,
            told.scarce,
        )
        self.low = max(0, min(self.block, self.left) // 2)
        refused = 0 < self.need_seq <= told.seq and told.free < min(self.waits, default=0) - self.left
        self.dry_ns = now_ns + DRY_NS if refused else 0

    def begin_again(self, life: int) -> None:
        """The authority must have forgotten this lease by now: what it had counted stays counted, the rest is told anew."""
        reserved = self.reserved
        self.life = life
        self.used -= self.told_used
        self.granted = self.returned = self.told_used = self.told_returned = self.until_ns = self.valid_ns = 0
        self.left = -self.used - reserved
        self.hungry = True

    @property
    def untold(self) -> bool:
        """Whether the authority has yet to hear of something that was used or returned."""
        return self.used != self.told_used or self.returned != self.told_returned

    @property
    def remaining(self) -> int:
        """What a request might still get: what is here, and what the authority had when it last spoke."""
        return self.left + self.free

    def tighter(self, other: "Line") -> bool:
        """Whether a smaller part of this balance remains."""
        return self.remaining * other.total < other.remaining * self.total

    @property
    def settled(self) -> bool:
        """Whether nothing is held and nothing is left to tell."""
        lent = self.granted - self.used - self.returned
        return not (self.waits or self.reserved or self.untold or lent > 0)


NOTHING: Final = Line(
    Meter(quota="", unit="", limit=0, per="", per_ns=0, match=QuotaMatch(), base=0), "", 0, 0, 0
)
"""What a slot points at before it was used: nothing left, and no time to spend it."""

Costs = tuple[tuple[Line, int], ...]
"""Lines, and what a request costs in each."""


class Slot:
    """A balance some caller's requests are charged to, and the line that stands for it now."""

    __slots__ = ("account", "line", "meter")

    def __init__(self, meter: Meter, account: str) -> None:
        self.meter = meter
        self.account = account
        self.line = NOTHING


class Clock(Protocol):
    """Knows the authority's wall clock minus this process's monotonic clock."""

    offset_ns: int


class Slots:
    """The balances that one caller's requests for one model are charged to, and what their answers say of them.

    `all` of them.  As long as it is not `until_ns` these stand for them: the `plain` lines, where a request costs its tokens; `fixed`
    ones with what a request always costs there; and those that are `weighed` by their meters.
    """

    __slots__ = (
        "_clock",
        "_form",
        "_form_until_ns",
        "_text",
        "_text_until_ns",
        "_told",
        "all",
        "fixed",
        "plain",
        "until_ns",
        "weighed",
    )

    def __init__(self, clock: Clock, slots: Iterable[Slot]) -> None:
        self._clock = clock
        self.all = tuple(slots)
        self._form = self._text = b""
        self._told: tuple[Line, ...] = ()
        self.forget()

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def forget(self) -> None:
        """Look anew at the next request."""
        self.plain: tuple[Line, ...] = ()
        self.fixed: Costs = ()
        self.weighed: tuple[Line, ...] = ()
        self.until_ns = self._form_until_ns = self._text_until_ns = 0

    def look(self, now_ns: int) -> bool:
        """Whether there is a lease in every balance."""
        lines = [slot.line for slot in self.all]
        self.plain = tuple(line for line in lines if line.plain)
        self.fixed = tuple((line, line.fixed) for line in lines if line.fixed)
        self.weighed = tuple(line for line in lines if not (line.plain or line.fixed))
        self.until_ns = min([now_ns + LOOK_NS, *(line.until_ns for line in lines)])
        return now_ns < self.until_ns

    def others(self, input_tokens: int, output_tokens: int) -> Costs:
        """What a request costs in all lines that are not plain."""
        cost = [(line, line.meter.cost(input_tokens, output_tokens)) for line in self.weighed]
        return (*self.fixed, *cost)

    def told(self, now_ns: int) -> bytes:
        """Lines of a head, `x-ratelimit-*`: the tightest balance of each unit, as far as this process knows.

        What remains is told as of a millisecond ago at most; which balance is the tightest, its limit, and its window's end, as of a
        second ago.
        """
        if now_ns >= self._text_until_ns:
            if now_ns >= self._form_until_ns:
                self._tell(now_ns, now_ns + self._clock.offset_ns)
            self._text = self._form % tuple(max(0, line.remaining) for line in self._told)
            self._text_until_ns = min(now_ns + MS, self._form_until_ns)
        return self._text

    def _tell(self, now_ns: int, wall_ns: int) -> None:
        tightest: dict[str, Line] = {}
        for line in (slot.line for slot in self.all if slot.line is not NOTHING):
            unit = line.meter.unit
            if unit not in tightest or line.tighter(tightest[unit]):
                tightest[unit] = line
        self._told, self._form = tuple(tightest.values()), b""
        self._form_until_ns = now_ns + SECOND if tightest else 0
        for unit, line in tightest.items():
            name = b"\r\nx-ratelimit-%%s-%b: " % unit.encode()
            self._form += name % b"limit" + b"%d" % line.total + name % b"remaining" + b"%d"
            if line.meter.per_ns:
                left_s, rest_ns = divmod(line.meter.ends_ns(line.window) - wall_ns - 1, SECOND)
                self._form += name % b"reset" + b"%ds" % max(0, left_s + 1)
                self._form_until_ns = min(self._form_until_ns, now_ns + rest_ns + 1)
