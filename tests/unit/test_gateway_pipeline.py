"""The pipeline on fake engines and a virtual loop: outcomes, counts, marks, windows, retries, cancellation."""

import asyncio
import copy

import orjson
import pytest

from gateway_heads import head_lines
from sits.core.breakpoints import (
    API_RECV,
    AUTHORIZED,
    DISPATCHED,
    ENGINE_RECV,
    FIRST_TOKEN,
    LAST_TOKEN,
    PARSED,
    ROUTED,
    SENT,
)
from sits.core.errors import CallerError, CapacityError, EngineError, EngineTimeoutError
from sits.core.fleet import Adapters as AdapterFamily
from sits.core.fleet import Admit, Arm, Fleet, GatewayCost, OpenAIEngine, Policies, Release, Route, Window
from sits.core.fleet import Gateway as GatewayConfig
from sits.core.request import Chunk, Request, Usage
from sits.core.timeline import Timeline
from sits.core.units import MS
from sits.gateway.metrics import page
from sits.gateway.pipeline import Gateway
from sits.gateway.places import BREAKER_FAILURES, BREAKER_OPEN_NS
from sits.sim.cpu import VirtualCpu
from sits.sim.loop import run_virtual
from sits.testing.loop import MemoryRecorder

SSE = b"text/event-stream"


class Script:
    """An engine that plays a list: a number sleeps that many ms, an exception is raised, a Chunk is yielded."""

    def __init__(self, name, *steps):
        self.name = name
        self.steps = steps
        self.seen = []
        self.closed = 0

    async def generate(self, request, timeline):
        self.seen.append(copy.copy(request))  # its body is let go of later
        timeline.mark(ENGINE_RECV, self.world.now_ns())
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, Chunk):
                    yield step
                else:
                    await asyncio.sleep(step / 1000)
        finally:
            self.closed += 1

    async def close(self):
        pass


class Answer:
    """A sink that keeps everything."""

    def __init__(self):
        self.status = 0
        self.headers = {}
        self.data = b""
        self.finished = self.aborted = False

    def start(self, status, content_type, lines=b""):
        assert not self.status
        self.status, self.content_type, self.headers = status, content_type, head_lines(lines)

    def write(self, data):
        assert self.status
        self.data += data

    def finish(self):
        self.finished = True

    def abort(self):
        self.aborted = True

    @property
    def error(self):
        return orjson.loads(self.data)["error"]


TOKENS = (
    5,
    Chunk(data=b"data: a\n\n", tokens=1, content_type=SSE),
    5,
    Chunk(data=b"data: b\n\n", tokens=2),
    Chunk(data=b"data: [DONE]\n\n", last=True, usage=Usage(input=7, output=3, cached=4), preemptions=2),
)


class House:
    """A gateway with scripted engines on a virtual world."""

    def __init__(self, world, *engines, policy=None, gateway=None, adapters=(), models=("m",), cpu=None):
        for engine in engines:
            engine.world = world
        fleet = Fleet(
            name="t",
            gateway=gateway or GatewayConfig(),
            policy=policy or Policies(),
            adapters=tuple(adapters),
            engines=tuple(
                OpenAIEngine(name=e.name, models=models, adapters=tuple(a.name for a in adapters))
                for e in engines
            ),
        )
        self.world = world
        self.rows = MemoryRecorder()
        self.gateway = Gateway(world, fleet, {e.name: e for e in engines}, self.rows, cpu)

    async def ask(self, answer=None, credential=None, problem=None, **fields):
        request = Request(
            **{"id": "r1", "model": "m", "prompt_tokens": 10, "output_tokens_max": 20, **fields}
        )
        timeline = Timeline()
        timeline.mark(API_RECV, self.world.now_ns())
        timeline.mark(PARSED, self.world.now_ns())
        answer = answer or Answer()
        exchange = await self.gateway.handle(
            request,
            timeline,
            answer,
            headers={b"authorization": credential} if credential else {},
            problem=problem,
        )
        self.check()
        return answer, exchange

    def check(self):
        """Laws that hold whenever nothing is inside."""
        g = self.gateway
        inside = g.offered - sum(g.counts.values())
        assert len(self.rows.rows) == sum(g.counts.values())
        if inside == 0:
            assert (g.places.inflight_requests, g.places.inflight_tokens) == (0, 0)
            assert not any(r.inflight_tokens for r in g.places.replicas)
            assert not any(g.pending().values())


def virtual(test):
    """Run an async test on the virtual loop."""

    def run():
        run_virtual(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtual
async def test_a_stream_passes_through_and_is_marked_in_order(world):
    house = House(world, Script("e", *TOKENS))
    answer, exchange = await house.ask()
    assert answer.status == 200
    assert answer.data == b"data: a\n\ndata: b\n\ndata: [DONE]\n\n"
    assert answer.headers[b"x-sits-engine"] == b"e"
    line = exchange.timeline
    for point in (
        API_RECV,
        PARSED,
        AUTHORIZED,
        ROUTED,
        DISPATCHED,
        ENGINE_RECV,
        FIRST_TOKEN,
        LAST_TOKEN,
        SENT,
    ):
        assert line.has(point)
    assert line.disorder() is None
    assert line.span_ns(DISPATCHED, FIRST_TOKEN) == 5 * MS
    assert line.span_ns(FIRST_TOKEN, LAST_TOKEN) == 5 * MS
    (row,) = house.rows.rows
    assert (row["outcome"], row["status"], row["detail"], row["engine"]) == ("completed", 200, "", "e")
    assert (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"], row["preemptions"]) == (
        7,
        3,
        4,
        2,
    )
    assert row["arm"] == "stable"
    assert exchange.admitted_on == (0, 0, world.now_ns() - 10 * MS)
    assert exchange.routed_on == ()  # nobody records decisions here


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_comes_whole_has_no_first_token(stream):
    @virtual
    async def run(world):
        whole = Chunk(data=b"{}", tokens=3, last=True, content_type=b"application/json")
        house = House(world, Script("e", 40, whole))
        _, exchange = await house.ask(stream=stream)
        line = exchange.timeline
        assert (exchange.outcome, exchange.output_tokens) == ("completed", 3)
        assert not line.has(FIRST_TOKEN)
        assert line.span_ns(DISPATCHED, LAST_TOKEN) == 40 * MS
        shown = page(house.gateway.vitals()).decode()
        assert 'sits_e2e_seconds_count{engine="e"} 1' in shown
        assert 'sits_ttft_seconds_count{engine="e"}' not in shown

    run()


@virtual
async def test_without_usage_the_counted_tokens_stand(world):
    house = House(world, Script("e", *TOKENS[:-1]))
    await house.ask()
    assert house.rows.rows[0]["output_tokens"] == 3
    assert house.rows.rows[0]["prompt_tokens"] == 10


@virtual
async def test_the_pipeline_charges_the_half_of_the_cpu_that_comes_after_the_engine(world):
    """The half before belongs to parsing, and so to whoever marks `parsed`."""
    config = GatewayConfig(cost=GatewayCost(request=3 * MS + 1))
    house = House(world, Script("e", *TOKENS), gateway=config, cpu=VirtualCpu(world))
    _, exchange = await house.ask()
    assert exchange.timeline.span_ns(PARSED, AUTHORIZED) == 0
    assert exchange.timeline.span_ns(LAST_TOKEN, SENT) == 3 * MS + 1 - (3 * MS + 1) // 2


@virtual
async def test_unknown_model_is_404_and_names_the_field(world):
    house = House(world, Script("e", *TOKENS))
    answer, exchange = await house.ask(model="nope")
    assert answer.status == 404
    assert answer.error["param"] == "model"
    assert "nope" in answer.error["message"]
    assert (exchange.outcome, exchange.detail) == ("refused", "model_not_found")
    assert answer.finished


@virtual
async def test_keys_give_the_tenant_and_refuse_strangers_before_anything_else(world):
    config = GatewayConfig(keys=("acme:s3cret", "bare"))
    house = House(world, Script("e", *TOKENS), gateway=config)
    problem = CallerError("bad body", field="messages")
    for credential in (None, b"Bearer wrong", b"Basic s3cret", b"Bearer ", b"Bearer acme:s3cret"):
        answer, _ = await house.ask(credential=credential, problem=problem)
        assert answer.status == 401, credential
    _, exchange = await house.ask(credential=b"bearer s3cret")
    assert exchange.tenant == "acme"
    _, exchange = await house.ask(credential=b"Bearer bare", tenant="mallory")
    assert exchange.tenant == "default"
    answer, exchange = await house.ask(credential=b"Bearer bare", problem=problem)
    assert (answer.status, answer.error["param"], exchange.outcome) == (400, "messages", "refused")


@virtual
async def test_the_limit_refuses_with_a_time_to_come_back(world):
    policy = Policies(admit=Admit(max_inflight=1, retry_after=3_000_000_000))
    house = House(world, Script("e", *TOKENS), policy=policy)
    (first, _), (second, refused) = await asyncio.gather(house.ask(), house.ask(id="r2"))
    assert (first.status, second.status) == (200, 503)
    assert second.headers[b"retry-after"] == b"3"
    assert (refused.outcome, refused.detail) == ("refused", "refused_inflight")
    answer, _ = await house.ask()
    assert answer.status == 200


@virtual
async def test_a_passed_deadline_is_refused(world):
    house = House(world, Script("e", *TOKENS))
    answer, exchange = await house.ask(deadline_ns=world.now_ns() - 1)
    assert (answer.status, exchange.detail) == (503, "refused_deadline")
    assert b"retry-after" not in answer.headers


@virtual
async def test_a_fixed_window_releases_the_batch_together(world):
    policy = Policies(window=Window(kind="fixed", base=100 * MS, max_batch=3))
    house = House(world, Script("e", *TOKENS), policy=policy)

    async def late(ms, name):
        await asyncio.sleep(ms / 1000)
        return (await house.ask(id=name))[1].timeline

    one, two = await asyncio.gather(late(0, "a"), late(30, "b"))
    assert one.at[DISPATCHED] == two.at[DISPATCHED]
    assert one.span_ns(ROUTED, DISPATCHED) == 100 * MS
    assert two.span_ns(ROUTED, DISPATCHED) == 70 * MS
    lines = await asyncio.gather(late(0, "a"), late(10, "b"), late(20, "c"))
    assert [line.span_ns(ROUTED, DISPATCHED) for line in lines] == [20 * MS, 10 * MS, 0]
    assert house.gateway.counts["completed"] == 5


@virtual
async def test_an_adaptive_window_waits_for_batches_that_fill_and_for_no_others(world):
    window = Window(kind="adaptive", reaction="fill", base=50 * MS, low=5 * MS, high=100 * MS, max_batch=4)
    policy = Policies(window=window)
    house = House(world, Script("e", *TOKENS), policy=policy)

    async def late(ms, name):
        await asyncio.sleep(ms / 1000)
        return (await house.ask(id=name))[1].timeline.span_ns(ROUTED, DISPATCHED)

    assert await late(0, "a") == 50 * MS
    sparse = await asyncio.gather(*(late(60 * i, f"s{i}") for i in range(20)))
    assert max(sparse[4:]) == 5 * MS
    steady = await asyncio.gather(*(late(20 * i, f"m{i}") for i in range(40)))
    assert max(steady[20:32]) == 60 * MS
    dense = await asyncio.gather(*(late(2 * i, f"d{i}") for i in range(60)))
    assert max(dense[20:]) == 6 * MS


@virtual
async def test_a_client_that_leaves_the_window_frees_its_place(world):
    policy = Policies(window=Window(kind="fixed", base=100 * MS, max_batch=2))
    engine = Script("e", *TOKENS)
    house = House(world, engine, policy=policy)
    task = asyncio.ensure_future(house.ask())
    await asyncio.sleep(0.01)
    assert house.gateway.pending() == {"e": 1}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    house.check()
    assert house.rows.rows[0]["outcome"] == "cancelled"
    assert house.rows.rows[0]["status"] == 499
    assert engine.seen == []
    _, exchange = await house.ask()
    assert exchange.timeline.span_ns(ROUTED, DISPATCHED) == 100 * MS


@virtual
async def test_a_client_that_leaves_with_the_whole_answer_in_hand_was_answered(world):
    """SDKs hang up at `[DONE]`, before the engine has ended its stream."""
    assert TOKENS[-1].last
    house = House(world, Script("e", *TOKENS, 1000))
    task = asyncio.ensure_future(house.ask())
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    house.check()
    assert (house.rows.rows[0]["outcome"], house.rows.rows[0]["status"]) == ("completed", 200)


@pytest.mark.parametrize("after_ms", [1, 7])
def test_a_client_that_leaves_cancels_the_engine_at_once(after_ms):
    @virtual
    async def run(world):
        engine = Script("e", *TOKENS)
        house = House(world, engine)
        task = asyncio.ensure_future(house.ask())
        await asyncio.sleep(after_ms / 1000)
        task.cancel("gateway_draining")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.closed == 1
        house.check()
        assert house.rows.rows[0]["detail"] == "gateway_draining"

    run()


@virtual
async def test_an_engine_that_dies_before_the_first_byte_is_retried_once_elsewhere(world):
    dead = Script("a", 2, EngineError("engine 'a' is gone", code="engine_unreachable"))
    good = Script("b", *TOKENS)
    house = House(world, dead, good)
    answer, exchange = await house.ask()
    assert (answer.status, exchange.replica.id, exchange.tried) == (200, "b", ("a",))
    assert exchange.timeline.disorder() is None
    assert exchange.timeline.span_ns(DISPATCHED, ENGINE_RECV) == 2 * MS
    assert house.gateway.places.budget.spent == 1


@virtual
async def test_two_dead_engines_are_a_502_after_two_tries(world):
    engines = [Script(n, EngineError(f"{n} is gone", code="engine_unreachable")) for n in "abc"]
    house = House(world, *engines)
    answer, exchange = await house.ask()
    assert (answer.status, exchange.outcome, exchange.detail) == (502, "failed", "engine_unreachable")
    assert sum(len(e.seen) for e in engines) == 2
    assert answer.error["type"] == "engine_error"


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (CapacityError("no room", code="engine_full", retry_after_s=0.2), 503, "refused"),
        (EngineTimeoutError("too slow", code="engine_timeout"), 504, "failed"),
        (CallerError("too large", code="never_fits"), 400, "refused"),
    ],
)
def test_refusals_and_time_outs_of_an_engine_are_not_retried(error, status, outcome):
    @virtual
    async def run(world):
        house = House(world, Script("a", error), Script("b", error))
        answer, exchange = await house.ask()
        assert (answer.status, exchange.outcome, exchange.tried) == (status, outcome, ())
        assert house.gateway.places.budget.spent == 0

    run()


@virtual
async def test_the_engines_own_429_passes_through_unchanged(world):
    body = b'{"error": {"message": "slow down"}}'
    refusal = Chunk(data=body, status=429, content_type=b"application/json", last=True, retry_after=b"7")
    house = House(world, Script("a", refusal), Script("b", refusal))
    answer, exchange = await house.ask()
    assert (answer.status, answer.data, answer.headers[b"retry-after"]) == (429, body, b"7")
    assert (exchange.outcome, exchange.detail, exchange.tried) == ("refused", "engine_429", ())
    assert not exchange.timeline.has(FIRST_TOKEN)


@virtual
async def test_death_in_mid_stream_ends_with_an_error_event_and_without_done(world):
    engine = Script("a", *TOKENS[:2], 1, EngineError("engine 'a' died", code="engine_died"))
    house = House(world, engine, Script("b", *TOKENS))
    answer, exchange = await house.ask()
    assert answer.status == 200
    first, second = answer.data.split(b"\n\n")[:2]
    assert first == b"data: a"
    assert orjson.loads(second.removeprefix(b"data: "))["error"]["type"] == "engine_error"
    assert b"[DONE]" not in answer.data
    assert answer.finished
    assert (exchange.outcome, exchange.status, exchange.tried) == ("failed", 502, ())
    assert exchange.output_tokens == 1


@virtual
async def test_half_a_plain_answer_is_cut_off(world):
    half = Chunk(data=b'{"half":', content_type=b"application/json")
    house = House(world, Script("a", half, EngineError("died", code="engine_died")))
    answer, exchange = await house.ask(stream=False)
    assert answer.aborted
    assert not answer.finished
    assert exchange.outcome == "failed"


@virtual
async def test_an_engine_without_any_chunk_is_a_502(world):
    answer, exchange = await House(world, Script("a")).ask()
    assert (answer.status, exchange.outcome) == (502, "failed")


@virtual
async def test_a_bug_costs_one_answer_and_is_reported(world):
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    house = House(world, Script("a", ZeroDivisionError("oops")))
    answer, exchange = await house.ask()
    assert (answer.status, exchange.outcome, exchange.detail) == (500, "failed", "bug")
    assert "oops" not in answer.data.decode()
    assert isinstance(reports[0]["exception"], ZeroDivisionError)


@virtual
async def test_the_breaker_opens_on_connection_failures_and_probes_again(world):
    engine = Script("a", EngineError("refused", code="engine_unreachable"))
    house = House(world, engine)
    for _ in range(BREAKER_FAILURES):
        answer, _ = await house.ask()
        assert answer.status == 502
    answer, exchange = await house.ask()
    assert (answer.status, exchange.detail) == (503, "no_healthy_engine")
    assert answer.headers[b"retry-after"] == b"1"
    assert len(engine.seen) == BREAKER_FAILURES
    await asyncio.sleep(BREAKER_OPEN_NS / 1e9)
    engine.steps = TOKENS
    answer, _ = await house.ask()
    assert answer.status == 200


@virtual
async def test_requests_that_kill_connections_are_led_past_that_engine_and_nobody_is_refused_for_them(world):
    dies, lives = Script("a", EngineError("died", code="engine_died")), Script("b", *TOKENS)
    house = House(world, dies, lives, policy=Policies(route=Route(kind="round_robin")))
    for _ in range(4 * BREAKER_FAILURES):
        answer, _ = await house.ask()
        assert answer.status == 200
    assert len(dies.seen) == BREAKER_FAILURES, "then it is left alone"
    await house.ask(tenant="other")
    await house.ask(tenant="other")
    assert len(dies.seen) == BREAKER_FAILURES + 1, "by those requests only"
    lives.steps = dies.steps
    for _ in range(3 * BREAKER_FAILURES):
        answer, exchange = await house.ask()
        assert (answer.status, exchange.detail) == (502, "engine_died"), "asked, not refused"
    assert all(replica.healthy for replica in house.gateway.places.replicas)
    dies.steps = lives.steps = TOKENS
    answer, _ = await house.ask()
    assert answer.status == 200


@virtual
async def test_answered_errors_never_open_the_breaker(world):
    house = House(world, Script("a", EngineError("poison", code="engine_500")))
    for _ in range(3 * BREAKER_FAILURES):
        answer, _ = await house.ask()
        assert answer.status == 502
    assert house.gateway.places.by_id["a"].healthy


@virtual
async def test_retries_have_a_budget(world):
    bad = [Script(n, EngineError("500", code="engine_500")) for n in "ab"]
    house = House(world, *bad)
    for _ in range(50):
        await house.ask()
    assert house.gateway.places.budget.spent == 10
    assert sum(len(e.seen) for e in bad) == 60


@virtual
async def test_an_arm_asks_engines_for_its_own_model_and_the_row_keeps_the_asked_one(world):
    policy = Policies(release=Release(arms=(Arm(name="canary", weight=1.0, model="m-next"),)))
    engine = Script("e", *TOKENS)
    house = House(world, engine, policy=policy, models=("m", "m-next"))
    await house.ask(body=b'{"model": "m", "x": [1, 2.5]}')
    assert engine.seen[0].model == "m-next"
    assert orjson.loads(engine.seen[0].body) == {"model": "m-next", "x": [1, 2.5]}
    assert (house.rows.rows[0]["model"], house.rows.rows[0]["arm"]) == ("m", "canary")


@virtual
async def test_adapters_of_a_family_are_routable_by_name_and_others_are_not(world):
    house = House(world, Script("e", *TOKENS), adapters=[AdapterFamily(name="lora", model="m", count=2)])
    assert house.gateway.catalog == {"m": ("m", ""), "lora-0": ("m", "lora-0"), "lora-1": ("m", "lora-1")}
    answer, exchange = await house.ask(adapter="lora-1")
    assert (answer.status, house.rows.rows[0]["adapter"]) == (200, "lora-1")
    answer, exchange = await house.ask(adapter="lora-2")
    assert (answer.status, exchange.detail) == (404, "model_not_found")
    assert "lora-2" in answer.error["message"]


@virtual
async def test_the_metrics_page_counts_what_happened(world):
    house = House(world, Script("e", *TOKENS))
    await house.ask()
    await house.ask(model="nope")
    shown = page(house.gateway.vitals()).decode()
    assert 'sits_requests_total{outcome="completed",engine="e",detail=""} 1' in shown
    assert 'sits_requests_total{outcome="refused",engine="",detail="model_not_found"} 1' in shown
    assert 'sits_ttft_seconds_bucket{engine="e",le="0.005"} 1' in shown
    assert 'sits_e2e_seconds_sum{engine="e"} 0.01' in shown
    assert 'sits_engine_healthy{engine="e"} 1' in shown


@virtual
async def test_chaos_leaves_nothing_in_flight(world):
    """Many clients, three engines of different ills, random leaving: counts add up and nothing leaks."""
    engines = [
        Script("a", *TOKENS),
        Script("b", 3, EngineError("x", code="engine_unreachable")),
        Script("c", *TOKENS[:2], EngineError("y", code="engine_died")),
    ]
    policy = Policies(
        window=Window(kind="fixed", base=4 * MS, max_batch=5),
        admit=Admit(max_inflight=40, max_inflight_tokens=450),
    )
    house = House(world, *engines, policy=policy)
    rng = world.rng("chaos")

    async def client(i):
        await asyncio.sleep(float(rng.uniform(0, 0.3)))
        task = asyncio.ensure_future(house.ask(id=f"r{i}"))
        if rng.random() < 0.4:
            await asyncio.sleep(float(rng.uniform(0, 0.02)))
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(client(i) for i in range(400)))
    house.check()
    counts = house.gateway.counts
    assert sum(counts.values()) == house.gateway.offered
    assert all(counts[outcome] > 0 for outcome in ("completed", "failed", "cancelled", "refused"))
    for row in house.rows.rows:
        assert row["timeline"].disorder() is None
