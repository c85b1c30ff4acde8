"""Which version answers, and whether it has answered already: the stages around the release and the cache.

`assign_release` aims an exchange at the target of its unit's arm; `look_in_cache` answers it from that target's stored answers;
`fall_back` aims it at the next arm when no engine of this one is up, and looks there too; `keep_answer` stores what
was answered, under the artefact that answered.  All read the one `Assignment` (policy.release).

Rules:
- What is aimed at and what is recorded are one: `exchange.arm` is the arm that answers, also after a fallback.
- An answer from the cache ends the exchange before it costs quota or room: it is `completed` with the detail `cache_hit`,
  and its prompt tokens count as cached.
- The body is written anew only where an arm asks engines for another name.

Deliberately absent: choosing a replica (gateway.pipeline), and whether an answer may be kept (policy.cacheable).
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sits.core.breakpoints import FIRST_TOKEN, LAST_TOKEN
from sits.core.fleet import Fleet
from sits.core.request import Usage
from sits.gateway.cache import Answer
from sits.gateway.cached import Cached
from sits.gateway.exchange import Exchange
from sits.gateway.metrics import Vitals
from sits.gateway.openai_api import with_model
from sits.policy.release import Target
from sits.policy.release import fall_back as next_target

if TYPE_CHECKING:
    from sits.gateway.pipeline import Gateway


class Answered(Exception):  # noqa: N818  (no error: the rest of the pipeline has nothing to do)
    """The client has its answer; `waiting` is what to await until it has been taken."""

    def __init__(self, waiting: Awaitable[None] | None) -> None:
        super().__init__()
        self.waiting = waiting


def assign_release(gateway: "Gateway", exchange: Exchange) -> None:
    """Which arm of the release does the unit belong to?  An arm may ask engines for another model name."""
    standing, unit, headers = exchange.standing, exchange.request.unit, exchange.headers
    session, hint = headers.get(b"x-sits-session"), headers.get(b"x-model-version")
    if session or hint:
        exchange.session, exchange.hint = (session or b"").decode("latin-1"), (hint or b"").decode("latin-1")
        given = None
    else:
        given = standing.assigner.young.get((standing.name, standing.tenant, standing.key, unit))
    if given is None:
        given = standing.assigner.assign(
            standing.name, standing.tenant, unit, exchange.session, standing.key, exchange.hint
        )
    exchange.assignment = given
    exchange.target = target = given.target
    exchange.arm = target.arm
    if target.name != standing.asked:
        _ask_for(exchange, target)


def look_in_cache(gateway: "Gateway", exchange: Exchange) -> None:
    """Has the same question been answered to this tenant, by this artefact?"""
    cached, given = gateway.cached, exchange.assignment
    if cached is None or given is None or exchange.target is None:
        return
    request = exchange.request
    exchange.lookup = cached.ask(
        request.body,
        request.endpoint,
        asked=exchange.standing.asked,
        tenant=exchange.tenant,
        assignment=given,
        cache_control=exchange.headers.get(b"cache-control"),
    )
    _answer_from(gateway, cached, exchange, exchange.target)


def fall_back(gateway: "Gateway", exchange: Exchange) -> bool:
    """Aim at the next arm that answers for this one, if there is one."""
    found = None if exchange.assignment is None else next_target(exchange.assignment, exchange.fallen)
    if found is None:
        return False
    target, exchange.fell_back = found
    exchange.fallen += 1
    aim(exchange, target)
    if gateway.cached is not None and exchange.lookup is not None:
        _answer_from(gateway, gateway.cached, exchange, target)
    return True


def copier_of(cached: Cached | None, exchange: Exchange) -> Callable[[bytes], None] | None:
    """What takes a copy of each piece the client gets; None when nobody wants one."""
    lookup = exchange.lookup
    if cached is None or lookup is None or lookup.copy is None:
        return None
    return partial(cached.take, lookup)


def aim_back(exchange: Exchange, target: Target | None) -> None:
    """Undo what `fall_back` did since the exchange was aimed at `target`, where it has led to nothing."""
    if target is not None and exchange.target is not target:
        exchange.fell_back = None
        aim(exchange, target)


def keep_answer(cached: Cached, exchange: Exchange, now_ns: int) -> None:
    """Store a finished answer where the next equal question finds it; let go of any other."""
    lookup, target, replica = exchange.lookup, exchange.target, exchange.replica
    if lookup is None or lookup.copy is None:
        return
    if exchange.outcome != "completed" or target is None or replica is None:
        cached.leave(lookup)
        return
    cached.keep(
        lookup,
        target,
        status=exchange.status,
        content_type=exchange.content_type,
        usage=Usage(exchange.prompt_tokens, exchange.output_tokens, exchange.cached_tokens),
        engine=replica.id,
        now_ns=now_ns,
    )


def cache_of(fleet: Fleet, before: "Gateway | None") -> Cached | None:
    """The cache a configuration asks for; the one of the generation before when it asks for the same."""
    config = fleet.policy.cache
    if config.kind == "none":
        return None
    old = None if before is None else before.cached
    return old if old is not None and old.config == config else Cached(config)


def vitals_of(cached: Cached) -> Vitals:
    """What the cache counts."""
    cache = cached.cache
    return {
        "sits_cache_requests_total": {f'verdict="{verdict}"': n for verdict, n in cached.counts.items()},
        "sits_cache_answers": {"": len(cache)},
        "sits_cache_bytes": {"": cache.cost},
        "sits_cache_removed_total": {
            'why="evicted"': cache.evicted,
            'why="expired"': cache.expired,
            'why="purged"': cache.purged,
        },
    }


def aim(exchange: Exchange, target: Target) -> None:
    """Make the exchange a request to `target`."""
    exchange.target, exchange.arm = target, target.arm
    if target.name != (exchange.request.adapter or exchange.request.model):
        _ask_for(exchange, target)


def _ask_for(exchange: Exchange, target: Target) -> None:
    """Ask for the target by its own name, which is another."""
    request = exchange.request
    exchange.request = msgspec.structs.replace(
        request, model=target.model, adapter=target.adapter, body=with_model(request.body, target.name)
    )


def _answer_from(gateway: "Gateway", cached: Cached, exchange: Exchange, target: Target) -> None:
    """Answer from the cache, if it has the answer.  Raises Answered."""
    lookup = exchange.lookup
    assert lookup is not None
    now_ns = gateway.world.now_ns()
    answer = cached.find(lookup, target, now_ns)
    if answer is not None:
        _give(exchange, answer, now_ns)


def _give(exchange: Exchange, answer: Answer, now_ns: int) -> None:
    lines = b"\r\nx-sits-cache: hit\r\nage: %d" % ((now_ns - answer.stored_ns) // 1_000_000_000)
    exchange.started = exchange.answered = True
    exchange.replica = None  # one that failed just now has no part in it
    exchange.status = 200
    exchange.streaming = answer.content_type.startswith(b"text/event-stream")
    exchange.spent(0, answer.usage_again)
    exchange.end("completed", 200, "cache_hit")
    exchange.sink.start(200, answer.content_type, lines)
    waiting = exchange.sink.write(answer.data)
    if exchange.streaming:
        exchange.timeline.mark(FIRST_TOKEN, now_ns)
    exchange.timeline.mark(LAST_TOKEN, now_ns)
    raise Answered(waiting)
