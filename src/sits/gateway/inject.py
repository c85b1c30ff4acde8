"""Injected faults on the path of a request: it waits, or is refused, because somebody wanted to see what happens then."""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from sits.core.decision import Decision
from sits.core.errors import EngineError
from sits.core.units import SECOND
from sits.gateway.exchange import Exchange
from sits.policy.inject import drawn

if TYPE_CHECKING:
    from sits.gateway.pipeline import Gateway


class InjectedError(EngineError):
    """An answer that somebody ordered; `status` is the one they asked for."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"injected by {name!r}", code="injected_fault")
        self.status = status


def inject_faults(gateway: "Gateway", exchange: Exchange) -> Awaitable[None] | None:
    """Is a fault to be put into this request?"""
    assert gateway.injector is not None
    request = exchange.request
    decision = gateway.injector.decide(
        exchange.standing.caller,
        request.model,
        request.adapter,
        request.endpoint,
        exchange.headers,
        drawn(request.id),
    )
    if decision.outcome == "none":
        return None
    exchange.injected = decision
    if decision.reasons["delay_ns"]:
        return _delayed(decision)
    raise InjectedError(decision.choice, decision.reasons["abort"])


async def _delayed(decision: Decision) -> None:
    await asyncio.sleep(decision.reasons["delay_ns"] / SECOND)
    if decision.reasons["abort"]:
        raise InjectedError(decision.choice, decision.reasons["abort"])
