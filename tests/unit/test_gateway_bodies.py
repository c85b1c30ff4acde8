"""What is held of requests that are not all here: one budget over all connections, heads judged early, slow clients cut off."""

import asyncio
import gc
import tracemalloc
import types
import weakref

import orjson
import pytest

from core_fleets import FLEET
from gateway_upstream import CHAT, SSE_HEAD, STREAM, House, chunked, live, post, says, until
from sits.core.config import load_fleet
from sits.core.errors import ConfigError
from sits.core.units import SECOND
from sits.gateway.bodies import COUNTED_BYTES, PATIENCE_NS, Bodies
from sits.gateway.connection import LINGER_MAX
from sits.gateway.http import HttpReader
from sits.gateway.server import HEAD_NS, PAGE_BODY_BYTES, REQUEST_NS

KB = 1024
LARGE = post(CHAT | {"pad": "x" * (300 * KB)})
TE = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


class Someone:
    """A holder as the budget sees it."""

    def __init__(self, bodies, since_ns=0):
        self.bodies, self.charged, self.since_ns, self.refused = bodies, 0, since_ns, False

    def refuse(self, error):
        self.refused = True
        assert self.bodies.hold(self, 0, False, 0)


def test_the_budget_is_never_exceeded_and_nothing_changes_when_there_is_no_room():
    bodies = Bodies(100)
    one, two = Someone(bodies), Someone(bodies)
    assert bodies.hold(one, 60, True, 0)
    assert not bodies.hold(two, 41, True, 0)
    assert (bodies.held, two.charged) == (60, 0)
    assert bodies.hold(two, 40, True, 0)
    assert bodies.hold(one, 0, False, 0)
    bodies.let_go(two)
    assert bodies.held == 0


def test_who_takes_long_to_arrive_gives_way_and_who_is_whole_does_not():
    bodies, late = Bodies(100), PATIENCE_NS + 10
    whole, old, older, young = (Someone(bodies, ns) for ns in (0, 2, 1, late))
    assert bodies.hold(whole, 20, False, 0)
    assert bodies.hold(older, 30, True, 0)
    assert bodies.hold(old, 30, True, 0)
    assert bodies.hold(young, 20, True, 0)
    assert not bodies.hold(young, 21, True, PATIENCE_NS)
    assert not bodies.fits(1, PATIENCE_NS)
    assert bodies.fits(30, late)
    assert bodies.hold(young, 40, True, late)
    assert (whole.refused, older.refused, old.refused) == (False, True, False)
    assert not bodies.hold(young, 81, True, 9 * late)
    assert bodies.hold(young, 70, True, 9 * late)
    assert old.refused
    assert not whole.refused


def test_a_budget_holds_at_least_one_body():
    text = "  body_limit: 2MiB\n  body_memory: 1MiB\n"
    with pytest.raises(ConfigError, match="holds no body"):
        load_fleet(FLEET.replace("  workers: 2\n", text))


class Client:
    """A raw connection."""

    def __init__(self, house):
        self.house = house

    async def __aenter__(self):
        self.reader, self.writer = await self.house.connect()
        return self

    async def __aexit__(self, *exc):
        self.writer.transport.abort()

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self):
        """Status and error of what comes."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        body = orjson.loads(await self.reader.readexactly(length))
        return int(head.split(b" ")[1]), body.get("error", {}).get("code"), head.lower()


@live
async def test_who_has_no_key_is_told_before_his_body_is_read():
    traced = post(CHAT | {"pad": "x" * (300 * KB)}, traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
    async with House(keys=("sk-1",)) as house, Client(house) as client:
        await client.send(traced[: 20 * KB])
        assert (await client.answer())[:2] == (401, "missing_api_key")
        assert await client.reader.read() == b""
        assert house.server.bodies.held == 0
        rows = await house.settled()
        assert [(row["outcome"], row["detail"]) for row in rows] == [("refused", "missing_api_key")]
        assert [(row["trace_id"], row["parent_id"]) for row in rows] == [("ab" * 16, "cd" * 8)]
        await client.send(b"x" * 100)  # taken and dropped, so that the answer was not lost to a reset
    assert not house.up.hits


@live
async def test_who_has_one_is_read():
    async with House(keys=("sk-1",)) as house, Client(house) as client:
        text = post(CHAT | {"pad": "x" * (300 * KB)}, authorization="Bearer sk-1")
        await client.send(text[:200])
        await client.send(text[200:])
        assert (await client.answer())[0] == 200
        assert house.up.hits[0].body == text.partition(b"\r\n\r\n")[2]


@live
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/nowhere HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab", 404),
        (b"GET /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab", 405),
        (b"GET /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\nab" % (PAGE_BODY_BYTES + 1), 413),
        (b"GET /healthz HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n", 100),
        (b"POST /nowhere HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n", 404),
    ],
)
async def test_what_is_wrong_with_a_head_is_said_at_once(head, status):
    async with House() as house, Client(house) as client:
        await client.send(head)
        assert int((await client.reader.readline()).split(b" ")[1]) == status


@live
async def test_what_does_not_fit_is_refused_by_its_head_and_else_at_the_byte_too_much():
    async with House(says("hang"), body_memory=400 * KB, body_limit=400 * KB) as house:
        bodies = house.server.bodies
        async with Client(house) as first, Client(house) as second, Client(house) as third:
            await first.send(LARGE)
            await until(house.up.hanging.is_set)
            assert 300 * KB < bodies.held < 320 * KB
            await second.send(LARGE[:1000])
            status, code, head = await second.answer()
            assert (status, code) == (503, "body_memory")
            assert b"retry-after: 1" in head
            await third.send(TE)
            for _ in range(10):
                await third.send(chunked(b"x" * 16 * KB))
            assert (await third.answer())[:2] == (503, "body_memory")
            assert bodies.held < 320 * KB
            assert bodies.refused == 2
        await house.settled(3)
        await until(lambda: not house.server.connections)
        assert bodies.held == 0


@live
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_stream_that_has_begun_holds_nothing_of_what_was_asked(path):
    prompt = [{"role": "user", "content": "x" * (300 * KB)}]
    asked = post({"model": "m", "stream": True, "max_tokens": 9, "messages": prompt}, path)
    async with House(says(SSE_HEAD + chunked(STREAM[1]), "hang")) as house, Client(house) as client:
        bodies = house.server.bodies
        for turn in (1, 2):  # the first of its standing is remembered with what its headers said
            await client.send(asked)
            await until(house.up.hanging.is_set)
            await client.reader.readuntil(b"Hel")
            assert bodies.held == 0
            (connection,) = house.server.connections
            assert not any(type(one) is bytes and len(one) > 100 * KB for one in reachable(connection))
            client.writer.transport.abort()
            await house.settled(turn)
            house.up.hanging.clear()
            client.reader, client.writer = await house.connect()
        assert [b"x" * (300 * KB) in hit.body for hit in house.up.hits] == [True, True]


SHARED = (type, types.ModuleType, types.FunctionType, asyncio.AbstractEventLoop, asyncio.Task)


def reachable(root):
    """What an object holds, by way of others too."""
    seen, ahead = {}, [root]
    while ahead:
        one = ahead.pop()
        if id(one) not in seen and not isinstance(one, SHARED):
            seen[id(one)] = one
            ahead += gc.get_referents(one)
    return seen.values()


@live
async def test_what_comes_whole_and_does_not_fit_is_refused_too():
    async with House(body_memory=64 * KB, body_limit=64 * KB) as house:
        connection = Fake(house)
        connection.data_received(post(b"x" * (60 * KB)) + post(b"x" * (30 * KB)))
        assert b"HTTP/1.1 503" in connection.written
        assert house.server.bodies.held == 0
        connection.connection_lost(None)


@live
async def test_many_slow_clients_hold_no_more_than_the_budget():
    limit = 512 * KB
    async with House(body_memory=limit, body_limit=limit) as house:
        bodies, told, clients = house.server.bodies, 0, []
        for i in range(40):
            client = await Client(house).__aenter__()
            clients.append(client)
            await client.send(TE + chunked(b"x" * 40 * KB) if i % 2 else LARGE[: 40 * KB])
            await until(lambda: len(house.server.connections) == len(clients) - told or bodies.refused)
            assert bodies.held <= limit
        await until(lambda: bodies.refused >= 26)
        assert limit - 41 * KB <= bodies.held <= limit
        for client in clients:
            client.writer.transport.abort()
        await until(lambda: not house.server.connections)
        assert bodies.held == 0
        assert not bodies._arriving


@live
async def test_clients_that_stop_before_their_last_byte_give_way_after_a_while():
    clock = [0]
    async with House(body_memory=400 * KB, body_limit=400 * KB) as house:
        house.server.now_ns = lambda: clock[0]
        async with Client(house) as stuck, Client(house) as late:
            await stuck.send(LARGE[:-1])
            await until(lambda: house.server.bodies.held > 300 * KB)
            clock[0] += PATIENCE_NS + 1
            await late.send(LARGE)
            assert (await late.answer())[0] == 200
            assert (await stuck.answer())[:2] == (503, "body_memory")


@live
async def test_small_requests_that_come_whole_are_not_counted_and_leave_nothing():
    async with House(body_memory=64 * KB, body_limit=64 * KB) as house, Client(house) as client:
        for _ in range(3):
            await client.send(post(CHAT))
            assert (await client.answer())[0] == 200
        assert len(post(CHAT)) < COUNTED_BYTES
        many = post(CHAT) * 5
        await client.send(many + many[:40])
        for _ in range(5):
            assert (await client.answer())[0] == 200
        await client.send(many[40 : len(post(CHAT))])
        assert (await client.answer())[0] == 200
        assert house.server.bodies.held == 0


@live
async def test_the_budget_is_on_the_page_of_metrics_and_changes_with_the_configuration():
    async with House(body_memory=64 * KB, body_limit=64 * KB) as house, Client(house) as client:
        await client.send(LARGE[:1000])
        assert (await client.answer())[0] == 413
        house.server.bodies.refused, house.server.bodies.held = 3, 17
        vitals = house.server.vitals()
        assert (vitals["sits_request_bytes"][""], vitals["sits_requests_without_room_total"][""]) == (17, 3)
        house.server.bodies.held = 0


# -- slow and lingering clients ---------------------------------------------------------------------------------


@live
@pytest.mark.parametrize(
    ("sent", "limit_ns"),
    [
        (b"P", HEAD_NS),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX:", HEAD_NS),
        (b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\nGET /hea", HEAD_NS),
        (LARGE[:300], REQUEST_NS),
        (TE + b"1\r\nx\r\n", REQUEST_NS),
    ],
)
async def test_a_request_that_dribbles_is_cut_off(sent, limit_ns):
    clock = [SECOND]
    async with House() as house:
        house.server.now_ns = lambda: clock[0]
        async with Client(house) as client:
            await client.send(sent)
            if b"/healthz" in sent:
                assert (await client.answer())[0] == 200
            (connection,) = await some_connection(house)
            await until(lambda: not connection.reader.idle)
            clock[0] += limit_ns
            await client.send(b"a")
            house.server._sweep()
            clock[0] += 1
            house.server._sweep()
            assert (await client.answer())[:2] == (408, "timeout")
            assert await client.reader.read() == b""
        assert house.server.bodies.held == 0


@live
async def test_a_request_dribbled_behind_one_that_runs_is_cut_off_too_and_that_one_goes_on():
    clock = [SECOND]
    async with House(says("hang")) as house:
        house.server.now_ns = lambda: clock[0]
        async with Client(house) as client:
            await client.send(post(CHAT))
            await until(house.up.hanging.is_set)
            await client.send(LARGE[:2000])
            await until(lambda: house.server.bodies.held)
            clock[0] += REQUEST_NS + 1
            house.server._sweep()
            assert house.server.bodies.held == 0
            (connection,) = house.server.connections
            assert connection.task is not None


async def some_connection(house):
    await until(lambda: house.server.connections)
    return list(house.server.connections)


class Fake:
    """A connection whose transport is a list."""

    def __init__(self, house):
        from sits.gateway.connection import Connection

        self.connection, self.written, self.closed, self.ended = Connection(house.server), b"", False, False
        self.connection.connection_made(self)

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def set_write_buffer_limits(self, *_):
        pass

    def write(self, data):
        self.written += data

    def write_eof(self):
        self.ended = True

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close

    def pause_reading(self):
        pass

    resume_reading = pause_reading


@live
async def test_lingering_is_bounded_and_ends_with_the_connection():
    async with House() as house:
        many = [Fake(house) for _ in range(LINGER_MAX + 3)]
        for one in many:
            one.data_received(b"\x00")
        assert house.server.lingering == LINGER_MAX
        assert [one.closed for one in many[-4:]] == [False, True, True, True]
        assert all(b"HTTP/1.1 400" in one.written for one in many)
        gone = weakref.ref(many[0].connection)
        for one in many:
            one.connection_lost(None)
        assert house.server.lingering == 0
        del one, many
        gc.collect()
        assert gone() is None  # not held by a timer


# -- large bodies ---------------------------------------------------------------------------------------------------


MB = 2**20


@pytest.mark.parametrize("piece", [4 * KB, 64 * KB, 256 * KB])
def test_a_large_body_takes_little_more_than_twice_its_size(piece):
    size = 8 * MB
    text = post(b"x" * size)
    pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
    reader = HttpReader(64 * KB, size)
    tracemalloc.start()
    try:
        events = [event for one in pieces for event in reader.feed(one)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(events[0].body) == size
    assert peak < 2.3 * size


@live
async def test_twenty_megabytes_and_a_hundred_thousand_tokens_go_on_byte_for_byte():
    odd = b'{ "model" : "m",\n "messages":[{"role":"user","content":"%b"}], "x": 1.50, "x": "\\u00e9", "max_tokens": 1}'
    for text in (odd % (b"word " * 100_000), odd % (b"y" * 20 * MB)):
        async with House() as house, Client(house) as client:
            pieces = [text[at : at + MB] for at in range(0, len(text), MB)]
            te = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            for request in (post(text), te + b"".join(map(chunked, pieces)) + b"0\r\n\r\n"):
                await client.send(request)
                assert (await client.answer())[0] == 200
            assert [hit.body == text for hit in house.up.hits] == [True, True]
            assert house.server.bodies.held == 0
