"""Quotas: which balances a request is charged to, what it costs there, and whether all of them have room.

Knows: the limits, a caller's names, token counts, and what is left of each balance.
Rules: a quota with tokens and requests has two meters, each a balance of its own.  A request reserves the most it can take
(all input, all output it may ask for) and is charged what it took:

    cost = ceil((w_in * (input - cached) + w_cached * cached + w_out * output) / 1000)      weights in thousandths

Either every balance has room and all are charged, or none is.  A request that is larger than a whole window's grant never fits,
and is told so instead of being sent to wait.  Windows are fixed and aligned to the wall clock, window n = [n * per,
(n + 1) * per): they can be audited, and need one counter each; the price is that within any stretch as long as `per` that
crosses a boundary up to twice the limit can pass.  What was reserved in a window is settled in it, even after its end.

Deliberately absent: clocks, leases and files (policy.lease, gateway.ledger).
"""

from collections.abc import Iterable, Sequence

import msgspec

from sits.core.caller import Caller
from sits.core.decision import Decision
from sits.core.fleet_quota import FIELDS, MILLI, Quota, QuotaMatch, QuotaWeights, inherited, milli, period_ns

FOREVER_NS = 2**62
"""The end of a window that has none."""

VALUE_CHARACTERS = 200
"""A longer name of a caller shares one balance with all others that begin alike; names come from the configuration or from
verified tokens, so this is a bound on memory, not a rule for honest callers."""

RESERVED = Decision(policy="quota", outcome="reserved")
UNLIMITED = Decision(policy="quota", outcome="unlimited")


class Meter(msgspec.Struct, frozen=True, kw_only=True):
    """One thing one quota limits, compiled.  A cost is `(input * w_input + cached * w_cached + output * w_output + base) // 1000`."""

    quota: str
    unit: str
    limit: int
    per: str
    per_ns: int
    match: QuotaMatch
    each: tuple[str, ...] = ()
    w_input: int = 0
    w_output: int = 0
    w_cached: int = 0
    base: int = MILLI

    def cost(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> int:
        """What these tokens count here; `cached_tokens` are part of `input_tokens`."""
        fresh = input_tokens - cached_tokens
        return (
            fresh * self.w_input + cached_tokens * self.w_cached + output_tokens * self.w_output + self.base
        ) // MILLI

    def window(self, wall_ns: int) -> int:
        """The window `wall_ns` lies in; 0 when there is only one."""
        return wall_ns // self.per_ns if self.per_ns else 0

    def ends_ns(self, window: int) -> int:
        """Wall time of the end of `window`."""
        return (window + 1) * self.per_ns if self.per_ns else FOREVER_NS


def compile_quotas(quotas: Iterable[Quota]) -> tuple[Meter, ...]:
    """The meters of checked quotas, the parents' matches handed down."""
    by_name = {quota.name: quota for quota in quotas}
    found = []
    for quota in by_name.values():
        if quota.tokens:
            found.append(_meter(quota, "tokens", quota.tokens, by_name))
        if quota.requests:
            found.append(_meter(quota, "requests", quota.requests, by_name))
    return tuple(found)


def _meter(quota: Quota, unit: str, limit: int, by_name: dict[str, Quota]) -> Meter:
    by_tokens = unit == "tokens"
    weights = quota.weights if by_tokens else QuotaWeights(input=0, output=0, cached=0)
    return Meter(
        quota=quota.name,
        unit=unit,
        limit=limit,
        per=quota.per,
        per_ns=period_ns(quota.per),
        match=inherited(quota, by_name),
        each=tuple(name for name in FIELDS if name in quota.each),
        w_input=milli(weights.input),
        w_output=milli(weights.output),
        w_cached=milli(weights.cached),
        base=MILLI - 1 if by_tokens else MILLI,
    )


def account(meter: Meter, caller: Caller, model: str) -> str:
    """The name of the balance this meter charges for this caller; empty when it does not count them.

    >>> meter = Meter(quota="q", unit="tokens", limit=1, per="1m", per_ns=60, match=QuotaMatch(tenant="a"), each=("key",))
    >>> account(meter, Caller(tenant="a", key_id="k:1"), "m"), account(meter, Caller(tenant="b"), "m")
    ('q|tokens|1m|key=k%3A1', '')
    """
    values = {"tenant": caller.tenant, "team": caller.team, "key": caller.key_id, "model": model}
    split = values | {"team": f"{caller.tenant}/{caller.team}" if caller.team else ""}
    match = meter.match
    for name, value in values.items():
        wanted = getattr(match, name)
        if wanted and wanted != value:
            return ""
    parts = [meter.quota, meter.unit, meter.per]
    parts += [f"{name}={_escaped(split[name][:VALUE_CHARACTERS])}" for name in meter.each]
    return "|".join(parts)


def _escaped(text: str) -> str:
    return "".join(
        c if (c.isascii() and c.isalnum()) or c in "._-/@+" else "".join(f"%{b:02X}" for b in c.encode())
        for c in text
    )


class Room(msgspec.Struct, frozen=True):
    """What is known of one balance when a request asks: `left` here, `free` at the authority when it last told, `total` granted
    in the window, and the wall time `ends_ns` of its end.
    """

    meter: Meter
    left: int
    free: int
    total: int
    ends_ns: int


def decide(rooms: Sequence[Room], input_tokens: int, output_tokens: int, wall_ns: int) -> Decision:
    """Whether a request may be reserved in all of `rooms`.

    Outcomes: `reserved`; `short` (here is too little, the authority may have more); `refused_quota`;
    `refused_too_large` (never fits).  A refusal names the first balance that stands in the way.

    >>> meter = compile_quotas([Quota(name="q", tokens=100)])[0]
    >>> decide([Room(meter, 30, 0, 100, 60)], 20, 20, 0).outcome
    'refused_quota'
    """
    short = False
    for room in rooms:
        need = room.meter.cost(input_tokens, output_tokens)
        if need <= room.left:
            continue
        if need > room.total:
            return _refuse("refused_too_large", room, need, wall_ns)
        if need > room.left + room.free:
            return _refuse("refused_quota", room, need, wall_ns)
        short = True
    return Decision(policy="quota", outcome="short") if short else RESERVED if rooms else UNLIMITED


def _refuse(outcome: str, room: Room, need: int, wall_ns: int) -> Decision:
    meter, free = room.meter, max(0, room.left + room.free)
    reasons = {
        "unit": meter.unit,
        "per": meter.per,
        "limit": room.total,
        "used": max(0, room.total - free),
        "need": need,
        "reset_ns": room.ends_ns - wall_ns if meter.per_ns else 0,
    }
    return Decision(policy="quota", outcome=outcome, choice=meter.quota, reasons=reasons)
