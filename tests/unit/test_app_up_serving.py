"""The admin process's web server: whoever stays without asking, telling or reading is let go, and keeps nobody out meanwhile."""

import asyncio
import contextlib
import json
import socket

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from sits.app.up import serving
from sits.app.up.serving import BODY_S, HEAD_BYTES, HEAD_S, STALL_S, Served, Waits

GIVE_UP_S = 60.0
ASK = b"GET /plain HTTP/1.1\r\nhost: here\r\n\r\n"


async def _plain(_):
    return PlainTextResponse("seen")


async def _body(request):
    return PlainTextResponse(str(len(await request.body())))


async def _endless(_):
    async def much():
        while True:
            yield b"x" * 65_536
            await asyncio.sleep(0)  # where one that has left is noticed

    return StreamingResponse(much())


@contextlib.asynccontextmanager
async def served():
    """Its port, and the server."""
    ready, ear = asyncio.Event(), socket.create_server(("127.0.0.1", 0))
    paths = {"/plain": _plain, "/body": _body, "/endless": _endless}
    routes = [Route(path, answer, methods=["GET", "POST"]) for path, answer in paths.items()]
    server = Served(Starlette(routes=routes), ready.set)
    running = asyncio.create_task(server.serve([ear]))
    await ready.wait()
    try:
        yield ear.getsockname()[1], server
    finally:
        server.should_exit = True
        await running


async def connected(port, sent=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(sent)
    return reader, writer


async def until(true):
    """Let the loop go on until something is so; what is not so in `GIVE_UP_S`, however busy the machine is, never will be."""
    async with asyncio.timeout(GIVE_UP_S):
        while not true():  # noqa: ASYNC110  (the loop is what is waited for)
            await asyncio.sleep(0)


def those(server):
    return [one for one in server.server_state.connections if isinstance(one, Waits)]


async def closed(reader):
    """What came before the end."""
    with contextlib.suppress(ConnectionError):
        return await reader.read()
    return b""


@pytest.mark.parametrize(
    ("sent", "waits", "limit_s", "said"),
    [
        (b"", "head", HEAD_S, b"408"),
        (b"GET /plain HTTP/1.1\r\nhost: h", "head", HEAD_S, b"408"),
        (b"POST /body HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nabc", "body", BODY_S, b""),
        (b"GET /endless HTTP/1.1\r\nhost: h\r\n\r\n", "reader", STALL_S, None),
    ],
)
def test_who_waits_too_long_is_let_go(sent, waits, limit_s, said):
    async def main():
        async with served() as (port, server):
            reader, _ = await connected(port, sent)
            await until(lambda: those(server) and those(server)[0].waits_for == waits)
            (one,) = those(server)
            if waits == "head":
                await until(lambda: one.conn.trailing_data[0] == sent)
            one.look(one.since_s)  # what it waits for is seen first
            since_s = one.since_s
            one.look(since_s + limit_s)
            assert not one.transport.is_closing()
            one.look(since_s + limit_s + 1)
            assert one.transport.is_closing()
            if said is not None:
                assert (await closed(reader)).partition(b" ")[2][:3] == said
            await until(lambda: not those(server))

    asyncio.run(main())


def test_who_asks_again_and_again_is_not_taken_for_one_who_waits():
    async def main():
        async with served() as (port, server):
            reader, writer = await connected(port)
            await until(lambda: those(server))
            (one,) = those(server)
            one.since_s -= 10 * HEAD_S
            writer.write(ASK)
            await reader.readuntil(b"seen")
            one.look(one.loop.time())
            assert not one.transport.is_closing()

    asyncio.run(main())


def test_a_head_without_end_is_not_kept():
    async def main():
        async with served() as (port, server):
            reader, _ = await connected(port, b"GET /plain HTTP/1.1\r\nx: " + b"a" * 4 * HEAD_BYTES)
            await until(lambda: not those(server))
            assert (await closed(reader))[9:12] in (b"400", b"")

    asyncio.run(main())


def test_silent_ones_make_room_and_busy_ones_do_not(monkeypatch):
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 3)

    async def main():
        async with served() as (port, server):
            silent, _ = await connected(port)
            await until(lambda: len(those(server)) == 1)
            busy = [
                await connected(port, b"POST /body HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n")
                for _ in range(2)
            ]
            await until(lambda: [one.waits_for for one in those(server)].count("body") == 2)
            reader, writer = await connected(port, ASK)
            assert await reader.readuntil(b"seen")
            assert await closed(silent) == b""
            writer.write(b"POST /body HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n")
            await until(lambda: [one.waits_for for one in those(server)].count("body") == 3)
            refused, _ = await connected(port)
            head, _, body = (await closed(refused)).partition(b"\r\n\r\n")
            assert (head[9:12], json.loads(body)["error"]["code"]) == (b"503", "too_many_connections")
            assert b"\r\nretry-after: 5" in head
            for _, one in busy:
                one.write(b"123456789")
            assert await busy[0][0].readuntil(b"9")

    asyncio.run(main())
