"""A small OpenAI-compatible server with scripted behaviours, and a raw HTTP client, for the live path's tests."""

import asyncio
import contextlib
import functools

import orjson
import pytest
import uvloop

from sits.core.fleet import Fleet, OpenAIEngine, Policies
from sits.core.fleet import Gateway as GatewayConfig
from sits.core.fleet_access import Access
from sits.engine.openai import OpenAIEngine as Engine
from sits.gateway.pipeline import Gateway
from sits.gateway.server import Server
from sits.testing.loop import by_name
from sits.world import RealWorld

PATIENCE_S = 20
"""Nothing is timed; this only ends a test that hangs."""


def event(text, finish=None, role=None, **more):
    delta = {"content": text} if role is None else {"role": role, "content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 4},
}
LAST = (
    b"data: "
    + orjson.dumps(
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [],
            "usage": USAGE,
        }
    )
    + b"\n\n"
)
STREAM = [event("", role="assistant"), event("Hel"), event("lo"), event("", finish="stop"), LAST, DONE]
PLAIN = orjson.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
        ],
        "usage": USAGE,
    }
)
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(body, status=200, content_type="application/json", **headers):
    extra = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
    head = (
        f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode() + body


def whole_stream(events=STREAM):
    return SSE_HEAD + b"".join(map(chunked, events)) + b"0\r\n\r\n"


class Hit:
    """One request the upstream got."""

    def __init__(self, head, body):
        lines = head.decode().split("\r\n")
        self.method, self.path, _ = lines[0].split(" ")
        self.headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:] if line)}
        self.body = body


class Upstream:
    """Plays `script(hit)`: a list of bytes to send, numbers to sleep (s), or the words `hang`, `die`, `close`."""

    def __init__(self, script=None):
        self.script = script or default_script
        self.hits = []
        self.left = asyncio.Event()
        self.hanging = asyncio.Event()
        self.connections = 0
        self.writers = []
        self.sent = 0

    async def start(self, port=0):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def stop(self):
        self.server.close()

    async def _serve(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                hit = Hit(head, b"")
                hit.body = await reader.readexactly(int(hit.headers.get("content-length", 0)))
                self.hits.append(hit)
                play = asyncio.ensure_future(self._play(self.script(hit), writer))
                watch = asyncio.ensure_future(reader.read(1))
                await asyncio.wait((play, watch), return_when=asyncio.FIRST_COMPLETED)
                if watch.done():
                    self.left.set()
                    play.cancel()
                    return
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
                if play.result() == "over":
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _play(self, steps, writer):
        for step in steps:
            if step == "hang":
                self.hanging.set()
                await asyncio.sleep(3600)
            elif step == "die":
                writer.transport.abort()
                return "over"
            elif step == "close":
                return "over"
            elif isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
                self.sent += len(step)
            else:
                await asyncio.sleep(step)
        return "next"


def default_script(hit):
    wants = orjson.loads(hit.body)
    return [whole_stream()] if wants.get("stream") else [answer(PLAIN)]


def says(*steps):
    return lambda hit: steps


class Rows(list):
    def record(self, row):
        self.append(by_name(row))


class House:
    """A gateway server in front of upstreams, on real sockets."""

    def __init__(self, *scripts, policy=None, access=None, first_byte_timeout=PATIENCE_S * 10**9, **gateway):
        self.scripts = scripts or (None,)
        self.policy = policy or Policies()
        self.access = access or Access()
        self.timeout = first_byte_timeout
        self.config = GatewayConfig(listen="127.0.0.1:0", **{"drain_timeout": 10**9, **gateway})

    async def __aenter__(self):
        self.upstreams = [await Upstream(script).start() for script in self.scripts]
        names = [f"e{i}" for i in range(len(self.upstreams))]
        fleet = Fleet(
            name="t",
            gateway=self.config,
            access=self.access,
            policy=self.policy,
            engines=tuple(OpenAIEngine(name=name, models=("m",), adapters=("lora-x",)) for name in names),
        )
        world = RealWorld()
        self.rows = Rows()
        engines = {
            name: Engine(name, up.url, world=world, api_key="engine-key", first_byte_timeout=self.timeout)
            for name, up in zip(names, self.upstreams, strict=True)
        }
        self.gateway = Gateway(world, fleet, engines, self.rows)
        self.server = Server(self.gateway, fleet)
        self.host, self.port = await self.server.start()
        return self

    async def __aexit__(self, *exc):
        await self.server.drain()
        for upstream in self.upstreams:
            await upstream.stop()

    @property
    def up(self):
        return self.upstreams[0]

    async def connect(self):
        return await asyncio.open_connection(self.host, self.port)

    async def raw(self, *pieces, until=None):
        """Send pieces, read until `until` appears or the server closes."""
        reader, writer = await self.connect()
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            got = b""
            while until is None or until not in got:
                data = await reader.read(65536)
                if not data:
                    break
                got += data
            return got
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def settled(self, count=1):
        """Wait until so many requests were recorded."""
        await until(lambda: len(self.rows) >= count)
        places = self.gateway.places
        assert (places.inflight_requests, places.inflight_tokens) == (0, 0)
        return self.rows


async def until(true):
    """Come back when `true()`; a hang is ended by `live`."""
    while not true():  # noqa: ASYNC110  (any condition, without an event for each)
        await asyncio.sleep(0.002)


def post(body, path="/v1/chat/completions", **headers):
    body = orjson.dumps(body) if isinstance(body, dict) else body
    extra = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def live(test):
    """Run an async test on uvloop, the loop of production."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def bounded():
            async with asyncio.timeout(PATIENCE_S):
                await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())

    return run


@pytest.fixture(autouse=True, params=["pulled", "pushed"])
def mode(request, monkeypatch):
    """Every test that imports this runs twice: chunks are asked for one by one, or handed over as they come."""
    monkeypatch.setattr(Chunks, "pushed", request.param == "pushed")


class Chunks:
    """Reads answers in the mode of the test."""

    pushed = False

    @classmethod
    async def of(cls, stream, into=None):
        """All chunks of an answer; `into` has those that came before an error."""
        got = [] if into is None else into
        if cls.pushed:
            try:
                await stream.push(got.append)
            finally:
                await stream.aclose()
        else:
            async for chunk in stream:
                got.append(chunk)
        return got
