"""Callers that mean no good: nested without end, numbers without end, pages never read, bodies in crumbs."""

import asyncio

import orjson
import pytest

from gateway_upstream import CHAT, DONE, PLAIN, House, answer, event, live, post, says, until, whole_stream
from sits.core.errors import CallerError
from sits.core.fleet import Arm, Policies, Release
from sits.gateway.connection import PIPELINED_BYTES, WRITE_BUFFER_BYTES, Connection
from sits.gateway.http import HttpReader, Incoming, Refusal
from sits.gateway.openai_api import parse_chat, parse_completion, with_model
from sits.gateway.openai_bodies import COUNT_MAX
from sits.gateway.trace import continued

DEEP = b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
CRUMB = b"2\r\nab\r\n"


def said(got):
    """Status and error code of a raw answer."""
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), orjson.loads(body)["error"]["code"]


# -- what is read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (DEEP, None),
        (b'{"model":"m","messages":[1],"x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", None),
        (b'{"model":"m","messages":[1],"max_tokens":%d}' % (COUNT_MAX + 1), "max_tokens"),
        (b'{"model":"m","messages":[1],"max_completion_tokens":%d}' % 10**400, "max_completion_tokens"),
        (b'{"model":"%b","messages":[1]}' % (b"m" * 257), "model"),
        (b'{"model":"m","messages":[ \n ]}', "messages"),
    ],
    ids=["deep list", "deep map", "2^31", "10^400", "long name", "spaced empty"],
)
def test_bodies_that_would_make_the_books_lie(body, field):
    with pytest.raises(CallerError) as caught:
        parse_chat(body)
    assert caught.value.field == field
    assert len(str(caught.value)) < 200


def test_why_a_long_body_is_no_json_is_not_looked_for_at_any_price():
    half = b'{"model": "m", "messages": ["' + b"\\n" * 1000 + b"\\ud800" + b'"]}'
    with pytest.raises(CallerError, match="half of a character"):
        parse_chat(half)
    with pytest.raises(CallerError) as caught:
        parse_chat(half.replace(b"\\n", b"\\n" * 1000))
    assert "half" not in str(caught.value)


def test_the_largest_counts_that_are_believed():
    assert (
        parse_chat(b'{"model":"m","messages":[1],"max_tokens":%d}' % COUNT_MAX).output_tokens_max == COUNT_MAX
    )
    with pytest.raises(CallerError, match="max_tokens"):
        parse_completion(b'{"model":"m","prompt":"x","max_tokens":%d}' % (COUNT_MAX + 1))


@pytest.mark.parametrize("odd", [b"1e999", b"%d" % 2**70, b"[" * 900 + b"]" * 900, b'"\xff"', b"1.50", b"-0"])
def test_another_model_name_leaves_every_other_byte_of_a_field_alone(odd):
    body = b'{"model": "m", "odd": %b, "model": "n"}' % odd
    assert with_model(body, 'z"\n') == b'{"model":"z\\"\\n","odd":%b}' % odd


def test_a_body_too_deep_for_the_stack_that_is_left_is_the_callers_too():
    with pytest.raises(CallerError, match="nested too deeply"):
        with_model(DEEP, "z")


@live
async def test_what_cannot_be_read_is_answered_and_counted_once():
    async with House() as house:
        for body, headers in (
            (DEEP, {}),
            (CHAT, {"x_sits_deadline_ms": "9" * 5000}),
            (CHAT, {"x_sits_deadline_ms": "1" * 16}),
        ):
            got = await house.raw(post(body, connection="close", **headers))
            assert said(got)[0] == 400
        rows = await house.settled(3)
        assert [row["outcome"] for row in rows] == ["refused"] * 3
        assert house.gateway.offered == sum(house.gateway.counts.values()) == 3
        assert not house.up.hits


@pytest.mark.patches
@live
async def test_a_bug_in_reading_is_answered_and_counted_too(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    async with House() as house:
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        monkeypatch.setattr(house.server, "_request", broken)
        assert said(await house.raw(post(CHAT, connection="close"))) == (500, "bug")
        assert isinstance(told[0], ZeroDivisionError)
        assert house.gateway.counts["failed"] == house.gateway.offered == 1


@live
async def test_an_arm_with_another_model_takes_any_body_a_parser_takes():
    policy = Policies(release=Release(arms=(Arm(name="new", weight=1.0, model="lora-x"),)))
    body = b'{"model": "m", "messages": [1], "seed": %d, "temperature": 1e999}' % 2**70
    async with House(says(answer(PLAIN)), policy=policy) as house:
        assert (await house.raw(post(body, connection="close"))).startswith(b"HTTP/1.1 200")
        assert (
            house.up.hits[0].body
            == b'{"model":"lora-x","messages":[1],"seed":%d,"temperature":1e999}' % 2**70
        )


def test_a_trace_parent_of_version_0_has_no_more_fields():
    parent = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    assert continued(parent, "c" * 32)[0].split("-")[1] == "a" * 32
    assert continued(parent + b"-x", "c" * 32)[0].split("-")[1] == "c" * 32
    assert continued(b"01" + parent[2:] + b"-x", "c" * 32)[0].split("-")[1] == "a" * 32


# -- what is kept -------------------------------------------------------------------------------------------------


@live
async def test_long_units_are_assigned_and_not_remembered():
    async with House() as house:
        assigner = house.gateway.assigner
        assert assigner.assign("m", "t", "u" * 4096) == assigner.assign("m", "t", "u" * 4096)
        assigner.assign("m", "t", "ann")
        assert [unit for *_, unit in assigner.young] == ["ann"]


def read(*pieces, limit=1000):
    reader = HttpReader(65_536, limit)
    return reader, [event for piece in pieces for event in reader.feed(piece)]


TE = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_body_in_crumbs_is_one_buffer():
    reader, events = read(TE, CRUMB * 400)
    assert not events
    assert isinstance(reader._body, bytearray)
    (request,) = reader.feed(b"0\r\n\r\n")
    assert request.body == b"ab" * 400
    assert type(request.body) is bytes
    _, events = read(TE, CRUMB * 501)
    assert events[0].error.status == 413


def test_a_reader_at_rest_holds_nothing_of_its_last_request():
    reader, (request,) = read(post(b"x" * 500))
    assert request.body
    assert not reader._events
    assert not reader._body
    reader.feed(TE + CRUMB)
    reader.close()
    assert not reader._body
    assert not reader.feed(CRUMB)


@pytest.mark.parametrize("length", [b"0" * 6000 + b"2", b"9" * 19])
def test_lengths_longer_than_any_length(length):
    _, (event,) = read(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %b\r\n\r\nhi" % length)
    assert isinstance(event, Refusal)
    assert event.error.message == "Content-Length is not a number"


def test_http_1_0_gets_no_100():
    _, (event,) = read(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi")
    assert isinstance(event, Incoming)


def test_only_methods_with_a_body_need_a_length():
    _, (event,) = read(b"TRACE / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert isinstance(event, Incoming)
    _, (event,) = read(b"PUT / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert event.error.status == 411


class Wire(asyncio.Transport):
    """A client that reads nothing until told, as its connection sees it."""

    def __init__(self, connection):
        super().__init__()
        self.connection, self.held, self.reading, self.aborted = connection, 0, True, False

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = high

    def write(self, data):
        self.held += len(data)
        if self.held > self.high:
            self.connection.pause_writing()

    def read_all(self):
        self.held = 0
        self.connection.resume_writing()

    def is_closing(self):
        return self.aborted

    def close(self):
        self.aborted = True

    def abort(self):
        self.aborted = True

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


@live
async def test_pages_never_read_are_not_rendered():
    async with House() as house:
        connection = Connection(house.server)
        wire = Wire(connection)
        connection.connection_made(wire)
        page = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"
        connection.data_received(page * 5000)
        once = wire.held
        assert once < 2 * WRITE_BUFFER_BYTES
        assert not wire.reading
        wire.read_all()
        assert 0 < wire.held < 2 * WRITE_BUFFER_BYTES
        while wire.held:
            wire.read_all()
        assert wire.reading
        connection.connection_lost(None)


@live
async def test_large_bodies_wait_outside():
    async with House(says("hang")) as house:
        connection = Connection(house.server)
        wire = Wire(connection)
        connection.connection_made(wire)
        connection.data_received(post(CHAT))
        await until(house.up.hanging.is_set)
        connection.data_received(post(b"x" * (PIPELINED_BYTES // 2)))
        assert wire.reading
        connection.data_received(post(b"x" * (PIPELINED_BYTES // 2 + 1)))
        assert not wire.reading
        connection.connection_lost(None)
        await house.settled()


@live
async def test_who_leaves_while_nothing_is_read_of_him_has_left_all_the_same():
    """More is pipelined than is taken, so the socket is not read and tells nothing; the engine would have been kept busy."""
    async with House(says("hang")) as house:
        _, writer = await house.connect()
        writer.write(post(CHAT) + b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n" * 60)
        await until(house.up.hanging.is_set)
        (connection,) = house.server.connections
        await until(lambda: not connection.reading)
        writer.close()
        await until(house.up.left.is_set)
        assert (await house.settled())[0]["detail"] == "client_left"


@live
async def test_who_pipelines_more_than_is_taken_for_long_is_told_and_what_comes_is_dropped(monkeypatch):
    """His leaving may be behind bytes nobody takes."""
    monkeypatch.setattr("sits.gateway.connection.CROWDED_NS", 0)
    async with House(says("hang")) as house:
        _, writer = await house.connect()
        writer.write(post(CHAT) + b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n" * 200_000)
        await until(house.up.hanging.is_set)
        await writer.drain()
        (connection,) = house.server.connections
        await until(lambda: connection.reader.ended)
        assert [event.error.code for event in connection._queue if isinstance(event, Refusal)] == [
            "pipelined"
        ]
        writer.close()
        await until(house.up.left.is_set)
        assert (await house.settled())[0]["detail"] == "client_left"


@pytest.mark.patches
@live
async def test_a_closed_connection_whose_client_never_reads_is_cut(monkeypatch):
    async with House() as house:
        connection = Connection(house.server)
        wire = Wire(connection)
        connection.connection_made(wire)
        wire.close = lambda: None
        wire.is_closing = lambda: True
        house.server._sweep()
        assert not wire.aborted
        monkeypatch.setattr("sits.gateway.server.STALL_NS", -1)
        house.server._sweep()
        assert wire.aborted
        connection.connection_lost(None)


# -- what callers choose never splits an answer or a page ---------------------------------------------------------


@live
async def test_no_header_and_no_label_is_the_callers():
    evil = 'x\r\nSet-Cookie: a=b\r\n\r\nHTTP/1.1 200 OK\u0000"\\\U0001f600'
    async with House(says(whole_stream([event("a"), DONE]))) as house:
        for i in range(300):
            got = await house.raw(post({"model": f"{evil}{i}", "messages": [1], "user": evil}, connection="close",
                                       x_request_id=f"evil{i}", traceparent="00-zz-\u00ff-01"))  # fmt: skip
            head = got.partition(b"\r\n\r\n")[0]
            assert b"Set-Cookie" not in head
            assert b"evil" not in head
        page = (await house.raw(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")).decode()
        assert "Set-Cookie" not in page
        assert page.count("sits_requests_total{") == 1
        assert 'detail="model_not_found"} 300' in page
