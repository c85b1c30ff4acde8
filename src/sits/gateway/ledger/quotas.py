"""The quotas of one configuration generation: what the pipeline asks.

A `Quotas` has the meters of its generation and the slots of callers seen; the book and the client behind it belong to the
process and outlive generations, so requests of an old one are settled as they were reserved.  `before` is the generation they
come from.  `models` are the names that can be asked for: all others share one balance where there is one for each, and none is
remembered, for callers may send whatever they like.

```
decision = quotas.reserve(request.id, caller, model, input_tokens, output_tokens, now_ns)
if decision.outcome == "short":
    decision = await quotas.wait(decision, request.id, caller, model, input_tokens, output_tokens)
if decision.outcome.startswith("refused"):
    raise refusal(decision)
...
quotas.settle(request.id, input_tokens, output_tokens, cached_tokens)      or      quotas.void(request.id)
```

Deliberately absent: how many tokens a request may take; the pipeline knows that, or guesses.
"""

import asyncio
from collections.abc import Iterable

from sits.core.caller import Caller
from sits.core.decision import Decision
from sits.core.errors import CallerError, CapacityError, RateLimitError, SitsError
from sits.core.fleet_quota import Quota
from sits.core.remember import Remember
from sits.core.units import SECOND, show_duration
from sits.gateway.ledger.client import Client
from sits.gateway.ledger.line import Slots
from sits.policy.quota import UNLIMITED, compile_quotas

CALLERS_MAX = 16_384
"""Callers (with the model they ask for) whose slots are remembered."""

CALLER_CHARACTERS = 600
"""Callers with longer names are looked up anew each time."""

RETRY_LEDGER_S = 1.0

_WHY = {
    "outage": "the quota ledger does not answer",
    "slow": "the quota ledger answers too slowly",
    "too_many_waiting": "too many requests wait for the quota ledger",
    "too_many_balances": "there are too many quota balances",
    "closing": "the gateway is closing",
}


class Quotas:
    """Who is charged what, by one generation of the configuration."""

    def __init__(
        self,
        quotas: Iterable[Quota],
        client: Client,
        *,
        models: frozenset[str] | None = None,
        before: "Quotas | None" = None,
    ) -> None:
        self.client = client
        self._models = models
        self._before = before
        self._handed_on = False
        self.book = client.book
        self.settle = client.book.settle
        self.void = client.book.void
        self._meters = compile_quotas(quotas)
        self._slots: Remember[tuple[Caller, str], Slots] = Remember(CALLERS_MAX)

    def reserve(
        self, request_id: str, caller: Caller, model: str, input_tokens: int, output_tokens: int, now_ns: int
    ) -> Decision:
        """Reserve what the request may take; see `Book.reserve`.  `unlimited` when no quota counts it."""
        slots = self.slots(caller, model)
        if not slots:
            return UNLIMITED
        return self.book.reserve(request_id, slots, input_tokens, output_tokens, now_ns)

    def wait(
        self,
        short: Decision,
        request_id: str,
        caller: Caller,
        model: str,
        input_tokens: int,
        output_tokens: int,
    ) -> "asyncio.Future[Decision]":
        """Wait for a lease, after `reserve` said `short`."""
        return self.client.wait(request_id, self.slots(caller, model), input_tokens, output_tokens, short)

    def start(self) -> None:
        """Begin to report; from now on this generation, and not the one before, closes what they share."""
        self.client.start()
        if self._before is not None:
            self._before._handed_on, self._before = True, None

    async def close(self) -> None:
        """Report what is settled and give the rest back, unless a later generation goes on with it."""
        if not self._handed_on:
            await self.client.close()

    def vitals(self) -> dict[str, dict[str, float]]:
        """What this process counts about its ledger."""
        counts, asked = self.book.counts, self.client.counts
        return {
            "sits_ledger_outages_total": {"": asked["outages"]},
            "sits_ledger_down": {"": int(self.book.down)},
            "sits_ledger_waits_total": {"": asked["waited"]},
            "sits_ledger_opened_total": {"": counts["opened"]},
            "sits_ledger_expired_total": {"": counts["expired"]},
            "sits_ledger_over_use_total": {"": counts["over"]},
            "sits_ledger_reserved": {"": len(self.book)},
        }

    def slots(self, caller: Caller, model: str) -> Slots:
        """The balances that a caller's requests for a model are charged to; false when there are none."""
        if self._models is not None and model not in self._models:
            model = ""
        slots = self._slots.get((caller, model))
        if slots is None:
            slots = self.book.lines.slots(self._meters, caller, model)
            if len(caller.tenant) + len(caller.team) + len(caller.key_id) <= CALLER_CHARACTERS:
                self._slots.put((caller, model), slots)
        return slots


def refusal(decision: Decision) -> SitsError:
    """The error behind a decision that is neither `reserved` nor `unlimited`."""
    told, quota = decision.reasons, decision.choice
    if decision.outcome == "refused_duplicate":
        return CallerError("a request with this id has ended already", code="duplicate_request")
    if decision.outcome == "refused_ledger":
        return CapacityError(
            _WHY.get(told["why"], told["why"]),
            field=quota or None,
            code="quota_ledger_unavailable",
            retry_after_s=RETRY_LEDGER_S,
        )
    window = "in all" if told["per"] == "total" else f"per {told['per']}"
    granted = f"the quota {quota!r} grants {told['limit']:,} {told['unit']} {window}"
    if decision.outcome == "refused_too_large":
        return CallerError(
            f"{granted}; this request needs {told['need']:,}",
            field=quota,
            value=told["need"],
            code="quota_too_small",
            hint="ask for fewer output tokens (max_tokens) or send a shorter prompt",
        )
    left = max(0, told["limit"] - told["used"])
    reset_ns = told["reset_ns"]
    begins = f"it begins anew in {show_duration(reset_ns)}" if reset_ns else "it does not begin anew"
    return RateLimitError(
        f"{granted}; {told['used']:,} are used or reserved, {left:,} are left, this request needs {told['need']:,}",
        field=quota,
        value=told["need"],
        hint=begins,
        code="quota_exceeded",
        retry_after_s=reset_ns / SECOND if reset_ns else None,
    )
