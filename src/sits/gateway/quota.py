"""Quotas on the live path: reserve before the engine is asked, settle by what it took.

`reserve_quota` reserves the prompt and the most the caller lets the engine generate; a request the cache answers never gets here.  On
the way out `settle_quota` charges by what really happened:

| the request | is charged |
|---|---|
| answered, or broken off while it was | the prompt and what was generated, as the engine told |
| left by its client before the first byte, after it was sent on | the prompt: the engine has worked on it |
| refused by us or by the engine, or lost with the engine before the first byte | nothing |

Deliberately absent: the arithmetic (policy.quota, policy.lease) and the ledger (gateway.ledger).
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from sits.core.breakpoints import DISPATCHED
from sits.core.decision import Decision
from sits.core.errors import BugError, SitsError
from sits.core.fleet import Fleet
from sits.core.ports import World
from sits.core.quota_rules import asked_names
from sits.gateway.exchange import UNKNOWN_OUTPUT_TOKENS, Exchange
from sits.gateway.ledger.book import Book
from sits.gateway.ledger.client import Client
from sits.gateway.ledger.embedded import Embedded
from sits.gateway.ledger.lines import Lines
from sits.gateway.ledger.messages import Answer, LeaseAsk, decode_answer, encode
from sits.gateway.ledger.quotas import Quotas, refusal
from sits.policy.quota import RESERVED

if TYPE_CHECKING:
    from sits.gateway.pipeline import Gateway

Ask = Callable[[str, bytes], Awaitable[bytes]]
"""Asks the process that keeps: a kind of question, and its bytes."""

QUESTION: Final = "lease"
EMBEDDINGS: Final = "/v1/embeddings"
TOO_MUCH: Final = "quota_exceeded"


def reserve_quota(gateway: "Gateway", exchange: Exchange) -> Awaitable[None] | None:
    """May the caller take that much?  Only a lease that has to be fetched makes it wait."""
    quotas, standing, request = gateway.quotas, exchange.standing, exchange.request
    assert quotas is not None
    slots = standing.slots
    if slots is None:
        slots = standing.slots = quotas.slots(standing.caller, standing.asked)
    if not slots.all:
        return None
    most = 0 if request.endpoint == EMBEDDINGS else request.output_tokens_max or UNKNOWN_OUTPUT_TOKENS
    decision = quotas.book.reserve(request.id, slots, exchange.prompt_tokens, most, gateway.now_ns())
    if decision is RESERVED:
        exchange.reserved = True
        return None
    return _reserve(quotas, exchange, decision, most)


async def _reserve(quotas: Quotas, exchange: Exchange, decision: Decision, most: int) -> None:
    if decision.outcome == "short":
        exchange.reserved = True  # from now on it may be, even if the client leaves while we wait
        decision = await quotas.wait(
            decision,
            exchange.request.id,
            exchange.standing.caller,
            exchange.standing.asked,
            exchange.prompt_tokens,
            most,
        )
    if decision is not RESERVED:
        raise refusal(decision)


def settle_quota(quotas: Quotas, exchange: Exchange) -> None:
    """Charge what was taken, give back the rest."""
    outcome = exchange.outcome
    if outcome == "completed" or (
        outcome != "refused"
        and (exchange.started or (outcome == "cancelled" and exchange.timeline.at[DISPATCHED]))
    ):
        prompt, cached = exchange.prompt_tokens, exchange.cached_tokens
        cached = min(cached, prompt)
        quotas.settle(exchange.request.id, prompt, exchange.output_tokens, cached)
    else:
        quotas.void(exchange.request.id)


def quota_head(gateway: "Gateway", exchange: Exchange, error: SitsError) -> bytes:
    """The `x-ratelimit-*` of an error, where a quota counted the request or refused it."""
    slots = exchange.standing.slots
    if slots is None or not (exchange.reserved or error.code == TOO_MUCH):
        return b""
    return slots.told(gateway.now_ns())


def quotas_of(fleet: Fleet, world: World, ask: Ask | None, before: Quotas | None) -> Quotas | None:
    """The quotas of a configuration, if it has any; the book and the client go on from one generation to the next.

    Without `ask` the ledger is in this process and lives no longer: for simulations and tests.
    """
    if not fleet.quotas:
        return None
    ledger, models = fleet.ledger, asked_names(fleet)
    if before is not None:
        before.client.adopt(ledger.report, ledger.wait, ledger.on_outage)
        return Quotas(fleet.quotas, before.client, models=models, before=before)
    lines = Lines(f"{world.nonce():016x}", world.wall_ns() - world.now_ns())
    book = Book(lines, ledger.on_outage)
    carry = Embedded(world, ledger.lease, None).answer if ask is None else _carrier(ask)
    client = Client(world, book, carry, report_ns=ledger.report, wait_ns=ledger.wait)
    return Quotas(fleet.quotas, client, models=models)


def _carrier(ask: Ask) -> Callable[[LeaseAsk], Awaitable[Answer]]:
    async def carry(question: LeaseAsk) -> Answer:
        answer = decode_answer(await ask(QUESTION, encode(question)))
        if answer.sent_ns != question.sent_ns:
            raise BugError(f"the answer to question {question.sent_ns} is one to {answer.sent_ns}")
        return answer

    return carry
