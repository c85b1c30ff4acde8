"""The live path as a visible list: what happens to a request between its last byte in and its answer out.

`PIPELINE` is the order.  Each stage has one shape, `(gateway, exchange) -> None`, or what to await before the next one (only
the window and the engine make a request wait), and ends a request early by raising an error of `core.errors`.  Decisions come from `policy.*`; time, engines, CPU and the recorder are given, so
the same list runs on sockets, in a simulation on a virtual loop, and in a replay.

Rules:
- Every request ends in exactly one outcome, and is recorded once, whatever happens; what it holds is let go once.
- An error before the first byte becomes JSON of the caller's dialect.  After it: an SSE error event and a proper end *without*
  `[DONE]` or `message_stop`, so that no client takes half an answer for a whole one.
- What an engine's dialect has no words for goes to a replica of another dialect, if there is one, before it is refused.
- An engine that fails before the first byte is retried once, on another replica; never after the first byte, never for
  4xx or 429 (those pass through), never after a time-out (the caller has waited enough).
- The timeline points 0 and 1 are the caller's, 5..16 the engine's; the others are marked here.  A failed first try leaves no
  engine points behind: its time shows as unattributed after `dispatched`.
- An answer for an adapter that is not that adapter's is no answer (`gateway.adapters.stage`): it is retried as a failed engine is.

Deliberately absent: HTTP (gateway.http, gateway.server), the policies, and any buffer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from sits.core.breakpoints import (
    API_RECV,
    DISPATCHED,
    FIRST_TOKEN,
    SENT,
)
from sits.core.errors import BugError, CallerError, CapacityError, EngineError, SitsError
from sits.core.fleet import Fleet
from sits.core.ports import Engine, World
from sits.core.request import Request
from sits.core.timeline import Timeline
from sits.core.units import SECOND
from sits.engine.translated import UNSAYABLE
from sits.gateway.access import Access
from sits.gateway.adapters.service import Adapters
from sits.gateway.adapters.stage import need_adapter
from sits.gateway.adapters.view import Report
from sits.gateway.catalog import catalog, loadable, replicas_of
from sits.gateway.choosing import choose_replica, let_go, retry_elsewhere, say_elsewhere, take
from sits.gateway.decisions import Add, Decisions, headers_read
from sits.gateway.endpoints import LAYERS
from sits.gateway.exchange import (
    CLIENT_LEFT,
    NO_HEADERS,
    OUTCOMES,
    Cpu,
    Exchange,
    NoRecorder,
    Recorder,
    Sink,
)
from sits.gateway.holding import Holder, hold_in_window, holders_of
from sits.gateway.holding import vitals_of as windows_vitals
from sits.gateway.inject import inject_faults
from sits.gateway.ledger.quotas import Quotas
from sits.gateway.metrics import Metrics, Vitals, engine_vitals
from sits.gateway.places import BREAKER_CODES, Place, Places
from sits.gateway.quota import Ask, quotas_of, reserve_quota, settle_quota
from sits.gateway.refusing import answer_error
from sits.gateway.relay import MEASURED, relay
from sits.gateway.routing import Routing, routing_of
from sits.gateway.standing import Standings, authorize
from sits.gateway.versions import (
    Answered,
    assign_release,
    cache_of,
    keep_answer,
    look_in_cache,
    vitals_of,
)
from sits.policy.admit import refusal
from sits.policy.inject import Injector
from sits.policy.release import Assigner

JSON: Final = b"application/json"


def admit(gateway: "Gateway", exchange: Exchange) -> None:
    """Is there room?  From here on the request counts as in flight."""
    limits, now_ns = gateway.limits, gateway.now_ns()
    requests, tokens = gateway.places.inflight()
    exchange.admitted_on = (requests, tokens, now_ns)
    refused = refusal(limits, requests, tokens, exchange.need_tokens, exchange.request.deadline_ns, now_ns)
    if refused:
        late = refused == "refused_deadline"
        raise CapacityError(
            "the answer would come after its deadline" if late else f"the gateway is full: {refused}",
            code=refused,
            retry_after_s=None if late else limits.retry_after / SECOND,
        )
    take(gateway, exchange)


async def forward(gateway: "Gateway", exchange: Exchange) -> None:
    """Send it, relay the answer; once more elsewhere when the engine failed before its first byte."""
    places, timeline = gateway.places, exchange.timeline
    timeline.at[DISPATCHED], timeline.how[DISPATCHED] = gateway.now_ns(), MEASURED
    failure: EngineError | None = None
    while True:
        try:
            await relay(gateway, exchange)
        except EngineError as error:
            assert exchange.replica is not None
            model, tenant = exchange.request.model, exchange.tenant
            places.failed(exchange.replica, error, gateway.now_ns(), model, tenant)
            if gateway.adapters is not None and error.code in BREAKER_CODES:
                gateway.adapters.desk.doubt(exchange.replica.id)
            engine = exchange.replica.id
            if not retry_elsewhere(gateway, exchange, error):
                raise
            failure = error
            if gateway.tell_attempt is not None:
                request = exchange.request
                gateway.tell_attempt(
                    request.id, request.trace_id, model, engine, error.code or "", exchange.replica.id
                )
        except CallerError as error:
            if error.code not in UNSAYABLE or not say_elsewhere(gateway, exchange):
                raise failure or error from None
        else:
            if places.trips or not places.budget.full:
                assert exchange.replica is not None
                places.succeeded(exchange.replica, exchange.request.model, exchange.tenant)
            return


Stage = Callable[["Gateway", Exchange], Awaitable[None] | None]

PIPELINE: tuple[Stage, ...] = (
    authorize,
    inject_faults,
    assign_release,
    look_in_cache,
    reserve_quota,
    need_adapter,
    choose_replica,
    admit,
    hold_in_window,
    forward,
)
"""The order, to be read top to bottom.  A gateway skips what its configuration does not use."""


class Gateway:
    """The pipeline with everything it works on.

    Args:
        world: clock; fleet: the configuration; engines: by the names used in the fleet.
        recorder: gets one row a request; cpu: what the gateway's own work costs, where that is not simply burnt.
        generation: name of the configuration, for answers and records.
        before: the gateway of the generation before this one, whose counts, breakers and balances go on.
        place: what this process shares with its siblings; alone without.
        record: takes the rows of decision records; none are made without.
        tell_adapters: the way to the process that keeps runtime adapters; this one without.
        ask: the way to the process that keeps the ledger of quotas; this one without.
        tell_attempt: told of a first attempt that failed and goes to another engine: request, trace, model, engine, code, the other engine.

    `counts` is finished requests by outcome; `offered - sum(counts)` are still inside.

    Making one does nothing but make it: timers and connections begin with `start` and end with `close`.

    """

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        engines: Mapping[str, Engine],
        recorder: Recorder | None = None,
        cpu: Cpu | None = None,
        *,
        generation: str = "",
        before: "Gateway | None" = None,
        place: "Place | None" = None,
        record: Add | None = None,
        tell_adapters: Callable[[Report], object] | None = None,
        ask: Ask | None = None,
        tell_attempt: Callable[[str, str, str, str, str, str], object] | None = None,
    ) -> None:
        self.world = world
        self.now_ns = world.now_ns
        self.fleet = fleet
        self.engines = engines
        self.generation = generation
        self.recorder: Recorder = NoRecorder() if recorder is None else recorder
        self.cpu = cpu
        self.tell_attempt = tell_attempt
        self.access: Access = Access(fleet, world, None if before is None else before.access)
        self.standings = Standings(fleet, open_to_all=self.access.open)
        self.access.forgotten = self.standings.clear
        self.places: Places = Places(
            replicas_of(fleet, engines),
            place,
            before=None if before is None else before.places,
            now_ns=world.now_ns(),
        )
        self.adapters: Adapters | None = (
            Adapters(
                fleet,
                world,
                self.places.replicas,
                changed=self.places.changed,
                tell=tell_adapters,
                before=None if before is None else before.adapters,
            )
            if fleet.runtime_adapters.adapters
            else None
        )
        self.catalog = loadable(fleet) | catalog(self.places.replicas)
        policy = fleet.policy
        self.assigner = Assigner(policy.release, policy.releases, self.catalog)
        self.cached = cache_of(fleet, before)
        self.quotas: Quotas | None = quotas_of(fleet, world, ask, None if before is None else before.quotas)
        self.holders: dict[str, Holder] = holders_of(fleet, world, None if before is None else before.holders)
        self.decisions: Decisions | None = None
        if record is not None:
            self.decisions = Decisions(record, world.nonce(), headers_read(fleet), generation)
        self.injector = Injector(fleet) if fleet.injections else None
        self.routing: Routing | None = routing_of(fleet, self.catalog)
        if self.routing is not None:
            for name in self.routing.matcher.names:
                self.catalog.setdefault(name, (name, ""))
        unneeded: set[Stage] = {look_in_cache} if self.cached is None else set()
        if self.injector is None:
            unneeded.add(inject_faults)
        if self.quotas is None:
            unneeded.add(reserve_quota)
        if not self.holders:
            unneeded.add(hold_in_window)
        if self.adapters is None:
            unneeded.add(need_adapter)
        self.stages = tuple(stage for stage in PIPELINE if stage not in unneeded)
        self.metrics: Metrics | None = None
        if place is None:  # else rows are counted where those of all processes arrive
            self.metrics = (before and before.metrics) or Metrics()
            self.metrics.judge(fleet.objective.metric, fleet.objective.p99, [e.name for e in fleet.engines])
        self.limits = policy.admit
        self.offered = 0
        self.counts = dict.fromkeys(OUTCOMES, 0)
        self.turn = -1
        self._after_ns = fleet.gateway.cost.request - fleet.gateway.cost.request // 2

    def start(self) -> None:
        """Begin what goes on beside requests."""
        self.access.start()
        if self.quotas is not None:
            self.quotas.start()
        if self.adapters is not None:
            self.adapters.start()

    async def close(self, engines: Iterable[Engine]) -> None:
        """End it, and close those engines."""
        self.access.close()
        if self.adapters is not None:
            await self.adapters.close()
        if self.quotas is not None:
            await self.quotas.close()
        for engine in engines:
            await engine.close()

    @property
    def idle(self) -> bool:
        """Whether nothing it has begun is unfinished."""
        return self.offered == sum(self.counts.values())

    async def handle(
        self,
        request: Request,
        timeline: Timeline,
        sink: Sink,
        *,
        headers: Mapping[bytes, bytes] = NO_HEADERS,
        problem: SitsError | None = None,
    ) -> Exchange:
        """Answer `request` into `sink`; returns when the answer is flushed.

        The caller has marked points 0 and 1.  `headers` are the request's, by lower-case name; `problem` is what made
        it unreadable, to be answered (and recorded) like any other refusal.  The request is ours from here on: its body is
        let go of when a stream begins.

        Raises:
            CancelledError: the caller cancelled, because the client left; the exchange is recorded all the same.

        """
        exchange = Exchange(
            request, timeline, sink, headers, problem, request.model, request.tenant, request.prompt_tokens
        )
        self.offered += 1
        try:
            try:
                for stage in self.stages:
                    waiting = stage(self, exchange)
                    if waiting is not None:
                        await waiting
            except Answered as answered:
                if answered.waiting is not None:
                    await answered.waiting
            if self.cpu is not None:
                await self.cpu.spend(self._after_ns)
            waiting = sink.finish()
            if waiting is not None:
                await waiting
            timeline.at[SENT], timeline.how[SENT] = self.now_ns(), MEASURED
            if not exchange.outcome:
                exchange.outcome = "completed"
        except asyncio.CancelledError as error:
            if exchange.answered:  # the client had all of it, and did not wait for the frame around it to end
                timeline.mark(SENT, self.now_ns())
                exchange.end("completed", exchange.status)
            exchange.end("cancelled", CLIENT_LEFT, str(error.args[0]) if error.args else "client_left")
            raise
        except SitsError as error:
            await answer_error(self, exchange, error)
            error.__traceback__ = None  # its frames hold the exchange, and that may hold it
        except Exception as error:  # noqa: BLE001  (the last fence: a bug costs one answer, never the server)
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"bug while answering request {request.id}", "exception": error}
            )
            await answer_error(self, exchange, BugError("internal error", code="bug"))
        finally:
            self._settle(exchange)
        return exchange

    def pending(self) -> dict[str, int]:
        """Requests held in each engine's window."""
        return {name: holder.pending for name, holder in self.holders.items()}

    def vitals(self) -> Vitals:
        """What is counted here, by family and labels; over all processes of a gateway it adds up."""
        mine: Vitals = {"sits_retries_total": {"": self.places.budget.spent}}
        if self.holders:
            mine |= windows_vitals(self.holders)
        if self.cached is not None:
            mine |= vitals_of(self.cached)
        if self.adapters is not None:
            mine |= self.adapters.vitals()
        if self.quotas is not None:
            mine |= self.quotas.vitals()
        if self.metrics is None:
            return mine
        place = self.places.place
        return mine | self.metrics.vitals() | engine_vitals(place.shared, place.slots, self.now_ns())

    def _settle(self, exchange: Exchange) -> None:
        let_go(self, exchange)
        if exchange.seat is not None:
            exchange.seat.leave()
        self.counts[exchange.outcome] += 1
        if self.cached is not None:
            keep_answer(self.cached, exchange, self.now_ns())
        request, timeline = exchange.request, exchange.timeline
        quotas = self.quotas if exchange.reserved else None
        if self.decisions is not None:
            held = () if quotas is None else quotas.book.held(request.id)
            self.decisions.record(exchange, self.now_ns(), held)
        if quotas is not None:
            settle_quota(quotas, exchange)
        engine = exchange.replica.id if exchange.replica is not None else ""
        if self.metrics is not None:
            self.metrics.count(
                exchange.outcome,
                engine,
                exchange.detail,
                exchange.output_tokens,
                timeline.span_ns(API_RECV, FIRST_TOKEN),
                timeline.span_ns(API_RECV, SENT),
                exchange.status,
            )
        self.recorder.record(
            (
                request.id,
                exchange.tenant,
                exchange.model,
                request.adapter,
                engine,
                exchange.arm,
                exchange.outcome,
                exchange.status,
                exchange.detail,
                exchange.prompt_tokens,
                exchange.output_tokens,
                exchange.cached_tokens,
                exchange.preemptions,
                request.prompt_hash,
                exchange.standing.layer or LAYERS.get(request.endpoint, ""),
                request.trace_id,
                request.parent_id,
                timeline.at.tobytes(),
                timeline.how,
            )
        )
