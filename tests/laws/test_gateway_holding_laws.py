"""Laws of held requests: a holder under any sequence of arrivals, departures and time; bodies joined and answers shared out."""

import asyncio

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from embedders import Embedder, EmbeddingHouse, vector_of
from sits.core.breakpoints import DISPATCHED, ROUTED
from sits.core.fleet_window import Window
from sits.core.request import Request
from sits.core.units import MS
from sits.gateway.holding import Holder
from sits.gateway.merging import asked, merged, parts
from sits.sim.calls import replay
from sits.sim.loop import run_virtual

REACTIONS = ["fixed", "free", "fill", "burst", "slack"]


@st.composite
def windows(draw):
    reaction = draw(st.sampled_from(REACTIONS))
    low, high = draw(st.sampled_from([(0, 20), (5, 100), (1, 1)]))
    return Window(
        kind="fixed" if reaction == "fixed" else "adaptive",
        reaction="free" if reaction == "fixed" else reaction,
        low=low * MS,
        base=draw(st.integers(low, high)) * MS,
        high=high * MS,
        objective=draw(st.sampled_from([0, 30, 200])) * MS,
        max_batch=draw(st.integers(1, 5)),
    )


# what happens: a request comes, somebody leaves, the oldest sent is answered, or time passes
STEPS = st.lists(
    st.one_of(
        st.just(("come",)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("answer"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.integers(0, 40)),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(windows(), STEPS)
def test_a_holder_under_any_sequence(config, steps):
    """Nobody waits past the bound, full batches go at once and in order, counts add up, and nothing is left behind."""

    async def run(world):
        holder = Holder(config, world, 100 * MS)
        bound = config.base if config.kind == "fixed" else config.high
        held, sent, order = {}, [], []
        came = ended = 0

        def look():
            now = world.now_ns()
            for seat in [seat for seat in held if seat.call is not None]:
                del held[seat]
                sent.append(seat)
                order.append(seat)
                assert seat.call.sent_ns - seat.arrived_ns <= bound
                assert seat.call.size <= config.max_batch
            assert holder.pending == len(held)
            assert holder.under_way == len(sent)
            assert len(held) < config.max_batch
            assert all(now - seat.arrived_ns <= bound for seat in held)
            assert came == ended + len(held) + len(sent)
            if config.kind == "adaptive" and config.reaction == "free":
                assert sent or not held, "nobody waits before a free engine"

        for step in [*steps, ("wait", 10_000)]:
            if step[0] == "come":
                came += 1
                held[holder.hold(Request(id=f"r{came}", model="m"))] = came
            elif step[0] == "leave" and held:
                seat = list(held)[step[1] % len(held)]
                del held[seat]
                ended += 1
                seat.leave()
            elif step[0] == "answer" and sent:
                ended += 1
                sent.pop(step[1] % len(sent)).leave()
            elif step[0] == "wait":
                await asyncio.sleep(step[1] / 1000)
            look()
        assert not held
        for seat in sent:
            seat.leave()
        assert (holder.pending, holder.under_way) == (0, 0)
        arrived = [seat.arrived_ns for seat in order]
        assert arrived == sorted(arrived), "sent in the order they came"
        assert holder.requests == len(order)

    run_virtual(run)


@settings(max_examples=40)
@given(windows(), st.lists(st.integers(0, 30), min_size=1, max_size=40))
def test_the_gateway_holds_as_the_replay_says(config, gaps):
    """The same window, pace and engine in the gateway on a virtual clock and in the replay: the same waits, to the nanosecond."""
    times, now = [], 0
    for i, gap in enumerate(gaps):
        now += gap * MS + 1009 * (i + 1)  # no two things at one instant, whose order the two need not share
        times.append(now)
    fixed, item = 7 * MS + 333, MS

    async def run(world):
        engine = Embedder(fixed_ms=fixed / MS, item_ms=item / MS)
        house = EmbeddingHouse(world, engine, window=config)
        start = world.now_ns()

        async def one(i, at):
            loop = asyncio.get_running_loop()
            wake = loop.create_future()
            loop.call_at((start + at) / 1e9, wake.set_result, None)
            await wake
            return (await house.ask(f"t{i}"))[1].timeline.span_ns(ROUTED, DISPATCHED)

        waits = await asyncio.gather(*(one(i, at) for i, at in enumerate(times)))
        house.check()
        return waits, [len(call) for call in engine.calls]

    waits, sizes = run_virtual(run)
    seen = replay(times, config, fixed_ns=fixed, item_ns=item, objective_ns=200 * MS)
    assert sizes == seen.sizes.tolist()
    assert (
        max(abs(a - b) for a, b in zip(waits, seen.waited_ns.tolist(), strict=True)) <= 2
    )  # ns; timers are floats


TEXTS = st.text(max_size=20)
INPUTS = st.one_of(TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
EXTRA = st.fixed_dictionaries(
    {}, optional={"dimensions": st.integers(1, 99), "user": TEXTS, "encoding_format": st.just("float")}
)


@given(
    st.lists(INPUTS, min_size=1, max_size=6),
    EXTRA,
    st.lists(st.integers(0, 1000), min_size=6, max_size=6),
    st.integers(0, 10**6),
    st.randoms(),
)
def test_whoever_asked_gets_the_vectors_of_their_own_texts(inputs, extra, weights, tokens, order):
    bodies = [orjson.dumps({"model": "m", "input": one, **extra}) for one in inputs]
    members = [asked(body, weight) for body, weight in zip(bodies, weights, strict=False)]
    if any(body.count(b'"input"') != 1 for body in bodies):
        return  # a text that says "input" in quotes goes alone
    whole = orjson.loads(merged(members))
    texts = [text for one in inputs for text in ([one] if isinstance(one, str) else one)]
    assert whole.pop("input") == texts
    assert whole == {"model": "m", **extra}
    data = [{"index": i, "embedding": vector_of(text), "object": "embedding"} for i, text in enumerate(texts)]
    order.shuffle(data)
    answer = {"data": data, "model": "m", "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    shares = parts(orjson.dumps(answer), members)
    for one, share in zip(inputs, shares, strict=True):
        told = orjson.loads(share.body)
        mine = [one] if isinstance(one, str) else one
        assert [item["embedding"] for item in told["data"]] == [vector_of(text) for text in mine]
        assert [item["index"] for item in told["data"]] == list(range(len(mine)))
        assert told["usage"]["prompt_tokens"] == share.usage.input
    assert sum(share.usage.input for share in shares) == tokens, (
        "what was counted is neither lost nor invented"
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_none(body):
    one = asked(body, 1)
    if one is not None:
        again = orjson.loads(merged([one]))
        assert again["input"] == [orjson.loads(text) for text in one.texts]


def encoded(value):
    """JSON of a value; of one that has none, no JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return b"{"


LIKE_ANSWERS = st.recursive(
    st.none() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "index", "usage", "embedding"]), inner, max_size=4)
    ),
    max_leaves=12,
).map(encoded)


@given(st.binary(max_size=200) | LIKE_ANSWERS)
def test_any_answer_is_shared_out_or_none(answer):
    members = [asked(b'{"input":"a"}', 1), asked(b'{"input":"b"}', 1)]
    shares = parts(answer, members)
    assert shares is None or len(shares) == 2
