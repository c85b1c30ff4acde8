"""Windows on the live path: who is held, how long, what is sent as one call, and what becomes of its answer."""

import asyncio
import functools

import pytest

from embedders import Embedder, EmbeddingHouse, embed_body, vector_of
from sits.core.breakpoints import DISPATCHED, ENGINE_RECV, ROUTED, SENT
from sits.core.errors import EngineError, EngineTimeoutError
from sits.core.fleet_window import ENDPOINTS, Window
from sits.core.units import MS
from sits.gateway.endpoints import PARSERS
from sits.gateway.holding import PAUSE_NS, REFUSALS_MOST
from sits.gateway.metrics import page
from sits.gateway.places import BREAKER_FAILURES
from sits.sim.loop import run_virtual

FIXED = Window(kind="fixed", base=20 * MS, max_batch=8)
FREE = Window(kind="adaptive", max_batch=8)


def virtual(test):
    @functools.wraps(test)
    def run(**arguments):
        run_virtual(lambda world: test(world, **arguments))

    del run.__wrapped__  # else `world` is taken for a fixture
    return run


def waited(exchange):
    return exchange.timeline.span_ns(ROUTED, DISPATCHED)


def test_the_endpoints_a_window_can_name_are_those_that_are_served():
    assert {path.decode() for path in PARSERS} == {*ENDPOINTS, "/v1/messages/count_tokens"}


@virtual
async def test_what_is_sent_together_is_one_call_and_everybody_gets_their_own(world):
    engine = Embedder()
    house = EmbeddingHouse(world, engine, window=FIXED)
    answers = await asyncio.gather(
        house.late(0, "one"), house.late(5, ["two two", "three"]), house.late(10, "four")
    )
    assert engine.calls == [["one", "two two", "three", "four"]]
    assert [reply.vectors for reply, _ in answers] == [
        [vector_of("one")], [vector_of("two two"), vector_of("three")], [vector_of("four")],
    ]  # fmt: skip
    assert [waited(exchange) for _, exchange in answers] == [20 * MS, 15 * MS, 10 * MS]
    assert sum(exchange.prompt_tokens for _, exchange in answers) == 5, "what the engine counted, shared out"
    assert engine.prompt_tokens == [sum(exchange.request.prompt_tokens for _, exchange in answers)]
    assert all(exchange.timeline.has(ENGINE_RECV) for _, exchange in answers)
    assert [row["outcome"] for row in house.rows.rows] == ["completed"] * 3
    house.check()
    shown = page(house.gateway.vitals()).decode()
    assert 'sits_window_calls_total{engine="e"} 1' in shown
    assert 'sits_window_requests_total{engine="e"} 3' in shown


@virtual
async def test_a_full_batch_goes_at_once(world):
    engine = Embedder()
    house = EmbeddingHouse(world, engine, window=FIXED)
    answers = await asyncio.gather(*(house.late(i, f"t{i}") for i in range(8)))
    assert engine.calls == [[f"t{i}" for i in range(8)]]
    assert [waited(exchange) for _, exchange in answers] == [(7 - i) * MS for i in range(8)]


@virtual
async def test_a_free_engine_is_not_waited_for_and_a_busy_one_gathers(world):
    engine = Embedder(fixed_ms=10, item_ms=1)
    house = EmbeddingHouse(world, engine, window=FREE)
    answers = await asyncio.gather(*(house.late(3 * i, f"t{i}") for i in range(6)))
    assert engine.calls == [["t0"], ["t1", "t2", "t3"], ["t4", "t5"]]
    assert waited(answers[0][1]) == 0
    assert waited(answers[1][1]) == (11 - 3) * MS
    house.check()


@virtual
async def test_nobody_waits_for_a_call_longer_than_the_bound(world):
    engine = Embedder(fixed_ms=500)
    house = EmbeddingHouse(world, engine, window=FREE)
    answers = await asyncio.gather(house.late(0, "slow"), house.late(10, "a"), house.late(90, "b"))
    assert [waited(exchange) for _, exchange in answers] == [0, 100 * MS, 20 * MS]


@virtual
async def test_slack_waits_as_long_as_the_deadline_lets_it(world):
    window = Window(kind="adaptive", reaction="slack", objective=60 * MS, max_batch=8)
    engine = Embedder(fixed_ms=8, item_ms=1)
    house = EmbeddingHouse(world, engine, window=window)
    for k in (1, 2, 4, 3) * 4:  # it learns what a call takes
        await asyncio.gather(*(house.ask(f"t{i}") for i in range(k)))
    _, exchange = await house.ask("alone")
    assert waited(exchange) == pytest.approx((60 - 8 - 2) * MS, abs=MS // 10)
    assert exchange.timeline.at[SENT] - exchange.timeline.at[ROUTED] <= 60 * MS
    _, hurried = await house.ask("hurried", deadline_ns=world.now_ns() + 30 * MS)
    assert waited(hurried) == pytest.approx((30 - 8 - 2) * MS, abs=MS // 10)


@virtual
async def test_only_the_endpoints_a_window_names_are_held(world):
    window = Window(kind="fixed", base=20 * MS, endpoints=("/v1/embeddings",))
    house = EmbeddingHouse(world, Embedder(), window=window, batches="unknown")
    _, held = await house.ask("a")
    _, passed = await house.ask("a", endpoint="/v1/completions")
    assert (waited(held), waited(passed)) == (20 * MS, 0)


@virtual
async def test_a_continuous_engine_is_never_held_for_and_costs_no_stage(world):
    house = EmbeddingHouse(world, Embedder(), window=FIXED, batches="continuous")
    _, exchange = await house.ask("a")
    assert (waited(exchange), exchange.seat) == (0, None)
    assert "hold_in_window" not in [stage.__name__ for stage in house.gateway.stages]
    held = EmbeddingHouse(world, Embedder(), window=FIXED)
    assert "hold_in_window" in [stage.__name__ for stage in held.gateway.stages]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"texts": "a"}, {"texts": "b", "dimensions": 64}),
        ({"texts": "a", "user": "ann"}, {"texts": "b", "user": "bob"}),
        ({"texts": "a"}, {"texts": [1, 2, 3]}),
        ({"texts": "a"}, {"texts": []}),
        ({"texts": "a"}, {"body": b'{"model":"m","input":"b","input":"c"}', "texts": ""}),
        ({"texts": "a"}, {"texts": "b", "endpoint": "/v1/completions"}),
    ],
)
def test_what_cannot_be_one_request_goes_side_by_side(one, other):
    @virtual
    async def run(world):
        engine = Embedder(refuses=lambda texts: 200)
        engine.generate = asks(engine)
        house = EmbeddingHouse(world, engine, window=FIXED)
        (_, first), (_, second) = await asyncio.gather(house.ask(**one), house.ask(**other))
        assert len(engine.bodies) == 2
        assert first.timeline.at[DISPATCHED] == second.timeline.at[DISPATCHED]
        house.check()

    run()


def asks(engine):
    """`generate` of an engine that only keeps bodies."""
    engine.bodies = []

    async def generate(request, timeline):
        from sits.core.request import Chunk

        engine.bodies.append(request.body)
        yield Chunk(data=b"{}", tokens=1, last=True)

    return generate


@virtual
async def test_texts_and_not_requests_are_counted_into_a_call(world):
    engine = Embedder()
    house = EmbeddingHouse(world, engine, window=Window(kind="fixed", base=20 * MS, max_batch=4))
    await asyncio.gather(house.ask(["a", "b"]), house.ask(["c", "d", "e"]), house.ask(list("fghijk")))
    assert engine.calls == [["a", "b"], ["c", "d", "e"], list("fghijk")]


@virtual
async def test_one_wrong_text_spoils_no_other(world):
    engine = Embedder(refuses=lambda texts: 400 if "too long" in texts else 200)
    house = EmbeddingHouse(world, engine, window=FIXED)
    answers = await asyncio.gather(house.ask("a"), house.ask("too long"), house.ask("b"))
    assert engine.calls == [["a", "too long", "b"], ["a"], ["too long"], ["b"]]
    assert [reply.status for reply, _ in answers] == [200, 400, 200]
    assert [exchange.outcome for _, exchange in answers] == ["completed", "refused", "completed"]
    house.check()


@virtual
async def test_a_refusal_of_the_engine_is_everybodys(world):
    engine = Embedder(refuses=lambda texts: 429)
    house = EmbeddingHouse(world, engine, window=FIXED)
    answers = await asyncio.gather(house.ask("a"), house.ask("b"))
    assert len(engine.calls) == 1
    assert [(reply.status, reply.headers[b"retry-after"]) for reply, _ in answers] == [(429, b"7")] * 2


GARBLED = {
    "one vector short": lambda whole: {**whole, "data": whole["data"][1:]},
    "an index twice": lambda whole: {**whole, "data": whole["data"][:1] * len(whole["data"])},
    "no data": lambda whole: {"object": "list"},
    "indices that are words": lambda whole: {
        **whole,
        "data": [{**one, "index": "0"} for one in whole["data"]],
    },
    "a list": lambda whole: [whole],
}


@pytest.mark.parametrize("what", GARBLED)
def test_an_answer_that_cannot_be_shared_out_is_asked_for_one_by_one(what):
    @virtual
    async def run(world):
        engine = Embedder(garbles=GARBLED[what])
        house = EmbeddingHouse(world, engine, window=FIXED)
        answers = await asyncio.gather(house.ask("a"), house.ask("bb"))
        assert engine.calls == [["a", "bb"], ["a"], ["bb"]]
        assert [reply.vectors for reply, _ in answers] == [[vector_of("a")], [vector_of("bb")]]

    run()


@virtual
async def test_an_engine_that_takes_no_lists_is_soon_spared_them_and_asked_again_later(world):
    engine = Embedder(refuses=lambda texts: 422 if len(texts) > 1 else 200)
    house = EmbeddingHouse(world, engine, window=FIXED)
    for _ in range(REFUSALS_MOST + 2):
        await asyncio.gather(house.ask("a"), house.ask("b"))
    assert [len(call) for call in engine.calls].count(2) == REFUSALS_MOST
    assert 'sits_window_apart_total{engine="e"} 3' in page(house.gateway.vitals()).decode()
    await asyncio.sleep(PAUSE_NS / 1e9)
    await asyncio.gather(house.ask("a"), house.ask("b"))
    assert [len(call) for call in engine.calls].count(2) == REFUSALS_MOST + 1


@virtual
async def test_vectors_in_another_order_find_their_owners(world):
    engine = Embedder(garbles=lambda whole: {**whole, "data": whole["data"][::-1]})
    house = EmbeddingHouse(world, engine, window=FIXED)
    answers = await asyncio.gather(*(house.ask("x" * i) for i in range(1, 6)))
    assert [reply.vectors for reply, _ in answers] == [[vector_of("x" * i)] for i in range(1, 6)]
    assert len(engine.calls) == 1


@virtual
async def test_a_call_that_fails_is_tried_elsewhere_by_each_for_itself(world):
    bad = Embedder("a", fails=EngineError("died", code="engine_died"))
    good = Embedder("b")
    house = EmbeddingHouse(world, bad, good, window=FIXED)
    answers = await asyncio.gather(*(house.ask(f"t{i}") for i in range(4)))
    assert [reply.status for reply, _ in answers] == [200] * 4
    assert [reply.vectors for reply, _ in answers] == [[vector_of(f"t{i}")] for i in range(4)]
    assert len(bad.calls) == 1
    house.check()


@virtual
async def test_a_call_that_fails_is_one_failure_to_breakers_however_many_shared_it(world):
    bad = Embedder("a", fails=EngineError("died", code="engine_died"))
    house = EmbeddingHouse(world, bad, Embedder("b"), window=FIXED)
    places = house.gateway.places
    for calls in range(1, BREAKER_FAILURES + 1):
        assert not any(places.closed_to(*key, world.now_ns()) for key in places.trips)
        while len(bad.calls) < calls:  # in turns with the other engine
            await asyncio.gather(*(house.ask(f"t{i}") for i in range(4)))
    assert any(places.closed_to(*key, world.now_ns()) == ("a",) for key in places.trips)


@virtual
async def test_a_silent_engine_is_not_tried_again(world):
    engines = [Embedder(name, fails=EngineTimeoutError("silent", code="engine_timeout")) for name in "ab"]
    house = EmbeddingHouse(world, *engines, window=FIXED)
    answers = await asyncio.gather(*(house.ask(f"t{i}") for i in range(4)))
    assert [reply.status for reply, _ in answers] == [504] * 4
    assert sum(len(engine.calls) for engine in engines) == 2


@virtual
async def test_who_leaves_takes_only_itself_away(world):
    engine = Embedder(fixed_ms=50)
    house = EmbeddingHouse(world, engine, window=FIXED)
    tasks = [asyncio.ensure_future(house.ask(f"t{i}")) for i in range(4)]
    await asyncio.sleep(0.01)
    assert house.gateway.pending() == {"e": 4}
    tasks[0].cancel()  # held
    await asyncio.sleep(0.03)
    tasks[2].cancel()  # under way
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert engine.calls == [["t1", "t2", "t3"]]
    assert [answer[0].vectors for answer in answers if isinstance(answer, tuple)] == [
        [vector_of("t1")], [vector_of("t3")],
    ]  # fmt: skip
    assert engine.cancelled == 0
    house.check()


@virtual
async def test_a_call_nobody_waits_for_is_given_up(world):
    engine = Embedder(fixed_ms=50)
    house = EmbeddingHouse(world, engine, window=FIXED)
    tasks = [asyncio.ensure_future(house.ask(f"t{i}")) for i in range(3)]
    await asyncio.sleep(0.03)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert engine.cancelled == 1
    house.check()


@virtual
async def test_who_left_the_window_is_not_waited_for(world):
    engine = Embedder()
    house = EmbeddingHouse(world, engine, window=Window(kind="fixed", base=100 * MS, max_batch=2))
    gone = asyncio.ensure_future(house.ask("gone"))
    await asyncio.sleep(0.01)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    _, exchange = await house.ask("a")
    assert waited(exchange) == 100 * MS
    assert engine.calls == [["a"]]


@virtual
async def test_feedback_lengthens_a_window_whose_calls_are_too_small_for_the_engine(world):
    """5 ms before an engine of 8 ms a call at 150 requests a second: calls queue until the window grows."""
    window = Window(
        kind="adaptive", reaction="burst", base=5 * MS, low=5 * MS, objective=100 * MS, max_batch=16
    )
    engine = Embedder()
    house = EmbeddingHouse(world, engine, window=window)
    answers = await asyncio.gather(*(house.late(1000 / 200 * i, f"t{i}") for i in range(200 * 40)))
    pace = house.gateway.holders["e"].pace
    assert pace.scale > 1.0
    whole = [exchange.timeline.at[SENT] - exchange.timeline.at[ROUTED] for _, exchange in answers]
    assert max(whole[: 200 * 20]) > 100 * MS
    assert max(whole[-200 * 10 :]) < 100 * MS


@virtual
async def test_what_was_learnt_outlives_a_reload_of_the_same_window_only(world):
    house = EmbeddingHouse(world, Embedder(), window=FREE)
    await asyncio.gather(*(house.ask("a") for _ in range(3)))
    learnt = house.gateway.holders["e"].pace
    assert learnt.call.fixed_ns > 0
    same = EmbeddingHouse(world, Embedder(), window=FREE, before=house.gateway)
    other = EmbeddingHouse(world, Embedder(), window=FIXED, before=house.gateway)
    assert same.gateway.holders["e"].pace is learnt
    assert other.gateway.holders["e"].pace is not learnt


def test_the_body_of_a_call_says_what_the_requests_said():
    assert embed_body(["a"], dimensions=4) == b'{"model":"m","input":["a"],"dimensions":4}'
