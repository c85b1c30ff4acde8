"""Links: messages arrive whole and in order or not at all, whoever is killed when; nobody waits and nothing grows without end."""

import asyncio
import functools

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.app.up.link import BACKLOG_BYTES, FRAME_BYTES, Assembler, AwayError, Link, frames, pair
from sits.app.up.outbox import CHUNK, ROWS_MAX, TEXT_MAX, Outbox
from sits.core.breakpoints import API_RECV
from sits.core.errors import UnknownError
from sits.core.timeline import Timeline
from sits.telemetry.packing import KIND, Packed
from sits.telemetry.recorder import LABELS, row_of
from sits.telemetry.tables import REQUESTS
from sits.world import RealWorld


def live(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        async def bounded():
            async with asyncio.timeout(30):
                await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())

    return run


async def until(true):
    while not true():  # noqa: ASYNC110  (any condition, without an event for each)
        await asyncio.sleep(0)


@given(sizes=st.lists(st.integers(1, 3 * FRAME_BYTES), max_size=4), killed=st.integers(0, 6), data=st.data())
@settings(max_examples=60)
def test_a_sender_killed_between_two_frames_costs_only_the_message_it_was_sending(sizes, killed, data):
    messages = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    sent = [(i, frame) for i, message in enumerate(messages) for frame in frames(message)][:killed]
    whole = [
        i for i in range(len(messages)) if len([1 for j, _ in sent if j == i]) == len(frames(messages[i]))
    ]
    after = data.draw(st.binary(min_size=1, max_size=10))
    assembler = Assembler()
    got = [assembler.take(frame) for frame in (*(frame for _, frame in sent), *frames(after))]
    assert [bytes(message) for message in got if message is not None] == [
        *(messages[i] for i in whole),
        after,
    ]


def test_a_reader_that_begins_in_the_middle_of_a_message_begins_with_the_next_one():
    long, short = b"x" * (3 * FRAME_BYTES), b"next"
    assembler = Assembler()
    assert [assembler.take(frame) for frame in frames(long)[1:]] == [None, None]
    [frame] = frames(short)
    assert bytes(assembler.take(frame)) == short


@live
async def test_messages_of_every_size_arrive_in_order_both_ways():
    one, two = pair()
    heard = {"a": [], "b": []}
    a = Link(one, {"told": heard["a"].append})
    b = Link(two, {"told": heard["b"].append})
    bodies = [i * "x" for i in (0, 1, 1000, FRAME_BYTES, 5 * FRAME_BYTES, 7)]
    for body in bodies:
        assert a.send("told", body)
        assert b.send("told", body)
    await until(lambda: len(heard["a"]) + len(heard["b"]) == 2 * len(bodies))
    assert heard == {"a": bodies, "b": bodies}
    assert a.empty
    a.close()
    b.close()


@live
async def test_questions_are_answered_refused_and_dropped():
    async def double(body):
        return body * 2

    async def never(body):
        raise UnknownError(f"nobody knows {body}", hint="ask somebody else")

    one, two = pair()
    a, b = Link(one), Link(two, serves={"double": double, "never": never})
    assert await a.ask("double", 21) == 42
    assert await asyncio.gather(*(a.ask("double", [i]) for i in range(50))) == [[i, i] for i in range(50)]
    with pytest.raises(AwayError, match=r"nobody knows it \(ask somebody else\)"):
        await a.ask("never", "it")
    waiting = a.ask("double", 1)
    a.drop_questions("the keeper died")
    with pytest.raises(AwayError, match="the keeper died"):
        await waiting
    assert await a.ask("double", 2) == 4, "the answer to what was dropped is nobody's"
    b.close()
    a.close()


@live
async def test_a_reader_that_does_not_read_is_not_waited_for_and_what_was_taken_arrives():
    one, two = pair()
    a = Link(one)
    body, taken = "x" * 1000, 0
    while a.send("told", f"{taken} {body}"):
        taken += 1
    assert a.refused == 1
    assert BACKLOG_BYTES / 1100 < taken < 2 * BACKLOG_BYTES / 1000
    with pytest.raises(AwayError, match="too far behind"):
        await a.ask("page", "x" * 100_000)
    heard = []
    b = Link(two, {"told": heard.append})
    await until(lambda: len(heard) == taken)
    assert [int(text.split()[0]) for text in heard] == list(range(taken))
    assert a.empty
    assert a.send("told", "again")
    a.close()
    b.close()


@live
async def test_the_end_of_the_other_end_is_told_and_questions_fail():
    one, two = pair()
    ended = asyncio.Event()
    a, b = Link(one, ended=ended.set), Link(two)
    waiting = a.ask("page")
    b.close()
    two.close()
    await ended.wait()
    with pytest.raises(AwayError, match="gone"):
        await waiting
    a.send("told", "to nobody")
    assert a.refused == 1
    a.close()


class Rows(list):
    """What a keeper hears."""

    def hear(self, body):
        table, run_id, rows = body
        self.append((table, run_id, Packed(*rows) if table == "requests" else rows))

    @property
    def ids(self):
        return [name for table, _, part in self if table == "requests" for name in part.texts[0]]

    @property
    def models(self):
        return [part.kinds[kind][KIND.index("model")] for _, _, part in self for kind in part.kind]


def record(run, name, model="m"):
    timeline = Timeline()
    timeline.mark(API_RECV, 1)
    row = {label: 0 if REQUESTS[label] == "INTEGER" else "some text" for label in LABELS}
    return run.recorder.record(row_of(timeline, **row | {"id": name, "model": model}))


@live
async def test_an_outbox_sends_rows_of_every_generation_in_order_and_ends_with_all_of_them():
    one, two = pair()
    rows, beside = Rows(), []
    a, b = Link(one), Link(two, {"rows": rows.hear})
    outbox = Outbox(a, RealWorld(), lambda: beside.append(1))
    first = outbox.run("run-1")
    outbox.start()
    for i in range(2 * CHUNK + 1):
        record(first, f"r{i}")
    second = outbox.run("run-2")
    record(second, "s0")
    record(first, "late")
    second.add("steps", ("step", 1, 2))
    await outbox.stop()
    b.drain()
    assert rows.ids == [*(f"r{i}" for i in range(2 * CHUNK + 1)), "late", "s0"]
    assert {run for name, run, _ in rows if name == "steps"} == {"run-2"}
    assert len(beside) == 2
    assert outbox.dropped == 0
    outbox.keep({"run-2"})
    assert outbox.newest is second
    a.close()
    b.close()


@live
async def test_what_finds_no_room_is_counted_and_a_made_up_text_costs_no_other_row():
    one, two = pair()
    rows = Rows()
    a, b = Link(one), Link(two, {"rows": rows.hear})
    outbox = Outbox(a, RealWorld(), lambda: None)
    run = outbox.run("run")
    record(run, "before")
    record(run, "hostile", model="m" * (BACKLOG_BYTES + 1))
    record(run, "after")
    outbox.flush()
    b.drain()
    assert rows.ids == ["before", "hostile", "after"]
    assert [len(model) for model in rows.models] == [1, TEXT_MAX, 1]
    record(run, "half", model="half a \ud83d character")
    record(run, "next")
    outbox.flush()
    b.drain()
    assert rows.ids[-2:] == ["half", "next"]
    assert rows.models[-2:] == ["half a ? character", "m"]
    run.add("steps", ("e0", 2**70))
    outbox.flush()
    b.drain()
    assert rows[-1] == ("steps", "run", [["e0", 2**63 - 1]])
    assert outbox.dropped == 0

    b.close()  # now nobody reads
    stored = 0
    for _ in range(12):
        stored += sum(record(run, f"r{i}") for i in range(ROWS_MAX // 4))
        outbox.flush()
    assert 0 < outbox.dropped < stored
    before = outbox.dropped
    kept = sum(record(run, f"r{i}") for i in range(ROWS_MAX + 10))
    assert kept == ROWS_MAX
    assert outbox.dropped == before + 10
    a.close()


@live
async def test_rows_of_usual_length_are_packed_small_enough_for_one_frame():
    one, two = pair()
    link = Link(one)
    outbox = Outbox(link, RealWorld(), lambda: None)
    run = outbox.run("service-name-1767225600-0123456789ab")
    for i in range(CHUNK):
        record(run, f"{i:032x}", model="meta-llama/llama-3.3-70b-instruct")
    outbox.flush()
    assert len(two.recv(2 * FRAME_BYTES)) <= FRAME_BYTES + 1
    with pytest.raises(BlockingIOError):
        two.recv(1)
    link.close()
