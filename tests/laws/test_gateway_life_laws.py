"""Nothing leaks: whatever clients and engines do to each other, in any order, when they have gone everything is at zero.

A real server on real sockets stands between raw clients and two engines that do what the game tells them.  Clients ask well and
badly, whole, in pieces and several at once, read slowly or not at all, close half, close, and cut; engines answer, stream, stall, send
garbage, close and cut; the configuration is changed meanwhile and the sweeper comes by.  Windows, quotas and the cache are on.

At every step: no count is negative, the bytes held are the sum of what connections are charged with and within the budget, and what
has been offered is finished or still inside.  At the end, when all have left: requests and tokens in flight, reservations, seats in
windows, connections, lingering ones, held bytes, watched engine connections and tasks are none; each request offered was recorded
once; an ordinary request is answered although four are the limit; and after the server has closed no file descriptor is left.

With SITS_SOAK=1 there are fifty times as many games.
"""

import asyncio
import os
import socket
from pathlib import Path

import httptools
import orjson
import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway_upstream import (
    CHAT,
    DONE,
    LAST,
    PATIENCE_S,
    PLAIN,
    SSE_HEAD,
    Rows,
    answer,
    chunked,
    event,
    post,
    until,
)
from http_streams import Rolls
from sits.core.fleet import Admit, Fleet, OpenAIEngine, Policies, Window
from sits.core.fleet import Gateway as GatewayConfig
from sits.core.fleet_cache import ResponseCache
from sits.core.fleet_quota import Quota
from sits.engine.openai import OpenAIEngine as Engine
from sits.gateway import connection as connections
from sits.gateway.pipeline import Gateway
from sits.gateway.server import Server
from sits.world import RealWorld

SOAK = 50 if os.environ.get("SITS_SOAK") == "1" else 1
pytestmark = pytest.mark.timeout(7200 if SOAK > 1 else 120)

KB = 1024
BUDGET = 400 * KB
TURNS = 12
"""Rounds of the loop after each move; enough for a byte to pass through, and nothing depends on it."""

STREAM = CHAT | {"stream": True}
CACHED = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "same"}]}
EMBED = {"model": "m", "input": "a"}
EMBEDDED = orjson.dumps(
    {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
)  # fmt: skip
KEY = {"authorization": "Bearer sk-1"}
PAGE = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"
BIG = post(CHAT | {"pad": "x" * (90 * KB)}, **KEY)
MOVES = {
    "plain": post(CHAT, **KEY),
    "stream": post(STREAM, **KEY),
    "cached": post(CACHED, **KEY),
    "embed": post(EMBED, path="/v1/embeddings", **KEY),
    "messages": post(STREAM | {"max_tokens": 9}, path="/v1/messages", x_api_key="sk-1"),
    "big": BIG,
    "last": post(STREAM, connection="close", **KEY),
    "late": post(CHAT, x_sits_deadline_ms="1", **KEY),
    "page": PAGE,
    "no key": post(CHAT),
    "no key, big": BIG.replace(b"sk-1", b"sk-2"),
    "no model": post(CHAT | {"model": "q"}, **KEY),
    "no JSON": post(b"{", **KEY),
    "no HTTP": b"\x00\x01\r\n\r\n",
    "too much": b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n",
    "many": post(CHAT, **KEY) + post(STREAM, **KEY) + PAGE + post(CHAT, **KEY),
    "many pages": PAGE * 30,
    "in chunks": b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nAuthorization: Bearer sk-1\r\n\r\n"
    + chunked(orjson.dumps(STREAM)) + b"0\r\n\r\n",
    "waits for 100": post(CHAT, expect="100-continue", **KEY),
}  # fmt: skip
GOOD = ("plain", "stream", "cached", "embed", "messages", "big", "last", "many", "in chunks", "waits for 100")
ACTS = {
    "answer": answer(PLAIN),
    "answer, and close": answer(PLAIN, connection="close"),
    "embedding": answer(EMBEDDED),
    "first": SSE_HEAD + chunked(event("a", role="assistant")) + chunked(event("b")),
    "token": chunked(event("c")),
    "much": chunked(event("x" * 300 * KB)),
    "done": chunked(LAST) + chunked(DONE) + b"0\r\n\r\n",
    "end without done": b"0\r\n\r\n",
    "whole stream": SSE_HEAD + chunked(event("a") + LAST + DONE) + b"0\r\n\r\n",
    "error event": chunked(b'data: {"error": {"message": "oom"}}\n\n'),
    "half": answer(PLAIN)[:-20],
    "too busy": answer(b'{"error": {"message": "busy"}}', 429, retry_after="1"),
    "broken": answer(b"no", 500),
    "garbage": b"SSH-2.0-OpenSSH\r\n\r\n",
    "nothing": b"HTTP/1.1 204 No Content\r\n\r\n",
    "huge": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900000\r\n\r\n" + b"x" * 500_000,
}  # fmt: skip


class Puppet:
    """An engine that does what it is told, on whichever of its connections."""

    async def start(self):
        self.writers, self.asked = [], {}
        self.good = False
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer):
        self.writers.append(writer)
        try:
            while data := await reader.read(65_536):
                self.asked[writer] = True
                if self.good:
                    writer.write(ACTS["whole stream"] if b'"stream":true' in data else answer(PLAIN))
        except ConnectionError:
            pass
        finally:
            self.writers.remove(writer)
            self.asked.pop(writer, None)
            writer.close()

    def act(self, which, what):
        """Do it where something was asked, and now and then where nothing was."""
        there = list(self.asked) if self.asked and which else self.writers
        if there:
            writer = there[which % len(there)]
            if "stream" in what or "answer" in what or what == "done":
                self.asked.pop(writer, None)
            if what == "cut":
                writer.transport.abort()
            elif what == "close":
                writer.close()
            else:
                writer.write(ACTS[what])


class Client(asyncio.Protocol):
    """A client with a small window, that reads or does not; what it reads must be HTTP."""

    async def start(self, host, port):
        self.parser, self.answers, self.wrong = httptools.HttpResponseParser(self), 0, ""
        self.got, self.gone, self.mute, self.rest = 0, False, False, b""
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(link, (host, port))
        self.transport, _ = await loop.create_connection(lambda: self, sock=link)
        return self

    def data_received(self, data):
        self.got += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.wrong = f"{error}: {data}"

    def on_message_complete(self):
        if self.parser.get_status_code() >= 200:
            self.answers += 1

    def connection_lost(self, exc):
        self.gone = True
        self.parser = None


class World:
    """The server, its engines and its clients."""

    async def start(self):
        self.puppets = [Puppet(), Puppet()]
        for puppet in self.puppets:
            await puppet.start()
        self.world, self.rows, self.clients = RealWorld(), Rows(), []
        self.generations = 0
        gateway = self.generation(None)
        self.server = Server(gateway, gateway.fleet)
        self.host, self.port = await self.server.start()

    def generation(self, before):
        self.generations += 1
        fleet = Fleet(
            name="life",
            gateway=GatewayConfig(
                listen="127.0.0.1:0",
                keys=("t:sk-1",),
                drain_timeout=10**9,
                body_memory=BUDGET,
                body_limit=BUDGET,
            ),
            quotas=(Quota(name="all", tokens=10**9, per="1h"),),
            policy=Policies(
                admit=Admit(max_inflight=4),
                cache=ResponseCache(kind="exact"),
                window=Window(kind="fixed", base=10**6, endpoints=("/v1/embeddings",)),
            ),
            engines=tuple(OpenAIEngine(name=f"e{i}", models=("m",)) for i in range(2)),
        )
        engines = (before and before.engines) or {
            f"e{i}": Engine(f"e{i}", f"http://127.0.0.1:{puppet.port}", world=self.world, first_byte_timeout=PATIENCE_S * 10**9)
            for i, puppet in enumerate(self.puppets)
        }  # fmt: skip
        return Gateway(
            self.world, fleet, engines, self.rows, before=before, generation=f"{self.generations:012x}"
        )

    def check(self):
        """What holds at every moment."""
        server, bodies = self.server, self.server.bodies
        assert not [client.wrong for client in self.clients if client.wrong]
        charged = [one.charged for one in server.connections]
        assert min(charged, default=0) >= 0
        assert bodies.held == sum(charged)
        assert bodies.held <= BUDGET
        assert set(bodies._arriving) <= server.connections
        assert server.lingering == sum(one._farewell is not None for one in server.connections)
        for gateway in server.gateways:
            inside = gateway.offered - sum(gateway.counts.values())
            assert inside >= 0
            requests, tokens = gateway.places.inflight()
            assert 0 <= requests <= 4
            assert tokens >= 0
        for one in server.connections:
            whole = [e for e in one._queue if isinstance(e, connections.Incoming)]
            assert one._waiting == sum(len(e.body) + connections.REQUEST_BYTES for e in whole)

    async def end(self, answering):
        """All leave, in one way or another; then everything is at zero."""
        if answering:
            for puppet in self.puppets:
                for _ in range(2):
                    for which in range(len(puppet.writers)):
                        puppet.act(which, "whole stream")
            await turns()
        for client in self.clients:
            if not client.gone:
                client.transport.resume_reading()
                client.transport.abort()
        server = self.server
        await until(lambda: not server.connections and all(gateway.idle for gateway in server.gateways))
        await until(lambda: len(server.gateways) == 1)
        self.check()
        gateway = server.gateway
        assert gateway.places.inflight() == (0, 0)
        gateway.places.refresh(self.world.now_ns() + 10**9)
        for replica in gateway.places.replicas:
            assert replica.inflight_tokens == 0
        assert len(gateway.quotas.book) == 0
        assert not any(gateway.pending().values())
        assert (server.bodies.held, server.lingering, list(server.bodies._arriving)) == (0, 0, [])
        for engine in gateway.engines.values():
            assert not engine._silence.watched
            assert not any(one.pieces or one._waiter.waiting for one in engine._pool)
        kept = sum(len(engine._pool) for engine in gateway.engines.values())
        await until(lambda: sum(len(puppet.writers) for puppet in self.puppets) <= kept)
        ids = [row["id"] for row in self.rows]
        assert len(ids) == len(set(ids))
        assert {row["outcome"] for row in self.rows} <= {"completed", "failed", "cancelled", "refused"}
        await self.still_works()

    async def still_works(self):
        """As many at once as are let in, and not one place has got lost."""
        for puppet in self.puppets:
            puppet.good = True
            for writer in list(puppet.writers):
                writer.transport.abort()
        await until(lambda: not any(puppet.writers for puppet in self.puppets))
        gateway, before = self.server.gateway, len(self.rows)
        gateway.places.trips.clear()
        clients = [await Client().start(self.host, self.port) for _ in range(4)]
        for i, client in enumerate(clients):
            client.transport.write(post(STREAM | {"messages": [i]}, **KEY))
        await until(lambda: len(self.rows) == before + 4)
        assert [(row["outcome"], row["detail"]) for row in self.rows[before:]] == [("completed", "")] * 4
        for client in clients:
            client.transport.abort()
        await until(lambda: not self.server.connections)

    async def stop(self):
        await self.server.drain()
        for puppet in self.puppets:
            puppet.server.close()
            for writer in list(puppet.writers):
                writer.transport.abort()
        await until(lambda: not any(puppet.writers for puppet in self.puppets))
        await turns()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left


async def turns():
    for _ in range(TURNS):
        await asyncio.sleep(0)


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


WHICH = st.integers(0, 7)


class LifeMachine(RuleBasedStateMachine):
    """The game."""

    @initialize()
    def begin(self):
        uvloop.new_event_loop().close()  # libuv opens a pipe, once a process
        self.files = open_files()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.told = []
        self.runner.get_loop().set_exception_handler(lambda _, context: self.told.append(context))
        self.limits = connections.WRITE_BUFFER_BYTES, connections.CROWDED_NS
        connections.WRITE_BUFFER_BYTES, connections.CROWDED_NS = 8 * KB, 10**8
        self.town, self.moves = World(), 0
        self.run(self.town.start())
        self.come(3)

    def run(self, work):
        async def bounded():
            async with asyncio.timeout(PATIENCE_S):
                await work
                await turns()

        self.moves += 1
        self.runner.run(bounded())
        assert not self.told, self.told

    def client(self, which):
        there = [client for client in self.town.clients if not client.gone]
        return there[which % len(there)] if there else None

    @invariant()
    def holds(self):
        if hasattr(self, "town"):
            self.town.check()

    def come(self, count):
        async def come():
            server = self.town.server
            for _ in range(count):
                self.town.clients.append(await Client().start(self.town.host, self.town.port))
            await turns()
            for one in server.connections:
                one.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

        self.run(come())

    @precondition(lambda self: len([c for c in self.town.clients if not c.gone]) < 12)
    @rule(count=st.integers(1, 3))
    def connect(self, count):
        self.come(count)

    def send(self, which, data):
        client = self.client(which)
        if client is not None and not client.mute and not client.transport.is_closing():

            async def say():
                client.transport.write(data)

            self.run(say())

    @rule(which=WHICH, what=st.sampled_from(sorted(MOVES)))
    def ask(self, which, what):
        self.send(which, MOVES[what])

    @rule(
        which=WHICH,
        what=st.sampled_from(sorted(GOOD)),
        acts=st.lists(st.sampled_from(sorted(ACTS)), max_size=4),
    )
    def converse(self, which, what, acts):
        """One asks well, and the engines do this and that."""
        self.send(which, MOVES[what])
        for act in acts:
            for who in (0, 1):
                self.engine_does(who, which, act)

    @rule(which=WHICH, what=st.sampled_from(sorted(MOVES)), share=st.floats(0, 1))
    def ask_in_part(self, which, what, share):
        client = self.client(which)
        if client is not None:
            cut = int(len(MOVES[what]) * share)
            client.rest = MOVES[what][cut:]
            self.send(which, MOVES[what][:cut])

    @rule(which=WHICH)
    def ask_the_rest(self, which):
        client = self.client(which)
        if client is not None:
            data, client.rest = client.rest, b""
            self.send(which, data)

    @rule(which=WHICH, how=st.sampled_from(["stop", "read", "half", "close", "cut"]))
    def client_does(self, which, how):
        client = self.client(which)
        if client is None or client.transport.is_closing():
            return

        async def do():
            transport = client.transport
            if how == "stop":
                transport.pause_reading()
            elif how == "read":
                transport.resume_reading()
            elif how == "half":
                client.mute = True
                transport.write_eof()
            elif how == "close":
                transport.close()
            else:
                transport.abort()

        self.run(do())

    @rule(who=st.integers(0, 1), which=WHICH, what=st.sampled_from([*sorted(ACTS), "cut", "close"]))
    def engine_does(self, who, which, what):
        async def do():
            self.town.puppets[who].act(which, what)

        self.run(do())

    @rule()
    def reload(self):
        async def do():
            self.town.server.swap(self.town.generation(self.town.server.gateway))

        if len(self.town.server.gateways) < 4:
            self.run(do())

    @rule()
    def sweep(self):
        async def do():
            self.town.server._sweeper.cancel()
            self.town.server._sweep()

        self.run(do())

    @rule(ms=st.integers(1, 3))
    def wait(self, ms):
        """So that a window, or a deadline, may pass."""
        self.run(asyncio.sleep(ms / 1000))

    @precondition(lambda self: self.moves > 40)
    @rule(answering=st.booleans())
    def all_leave(self, answering):
        self.run(self.town.end(answering))
        for puppet in self.town.puppets:
            puppet.good = False
        self.town.clients.clear()
        self.moves = 0
        self.come(2)

    def teardown(self):
        if not hasattr(self, "town"):
            return
        try:
            self.run(self.town.end(answering=False))
            self.run(self.town.stop())
        finally:
            connections.WRITE_BUFFER_BYTES, connections.CROWDED_NS = self.limits
            self.runner.close()
        assert open_files() == self.files


TestLife = LifeMachine.TestCase
TestLife.settings = settings(
    max_examples=15 * SOAK, stateful_step_count=80, suppress_health_check=list(HealthCheck), deadline=None
)


def walk(dice, moves):
    """The same game without hypothesis: it finds nothing small, and comes further in a second."""
    game = LifeMachine()
    game.begin()
    try:
        for _ in range(moves):
            which, kind = dice.number(0, 7), dice.number(0, 99)
            if kind < 8:
                if len([client for client in game.town.clients if not client.gone]) < 12:
                    game.connect(dice.number(1, 3))
            elif kind < 30:
                game.converse(
                    which, dice.choice(GOOD), [dice.choice(sorted(ACTS)) for _ in range(dice.number(0, 3))]
                )
            elif kind < 45:
                game.ask(which, dice.choice(sorted(MOVES)))
            elif kind < 52:
                game.ask_in_part(which, dice.choice(sorted(MOVES)), dice.number(0, 100) / 100)
            elif kind < 58:
                game.ask_the_rest(which)
            elif kind < 66:
                game.client_does(which, dice.choice(["stop", "read", "half", "close", "cut"]))
            elif kind < 94:
                game.engine_does(dice.number(0, 1), which, dice.choice([*sorted(ACTS), "cut", "close"]))
            elif kind < 95:
                game.reload()
            elif kind < 96:
                game.sweep()
            elif kind < 98:
                game.wait(dice.number(1, 3))
            elif kind < 99 and game.moves > 60:
                game.all_leave(bool(dice.number(0, 1)))
            game.holds()
        answers = sum(client.answers for client in game.town.clients)
        outcomes = {row["outcome"] for row in game.town.rows}
    finally:
        game.teardown()
    return outcomes, answers


def test_a_long_walk():
    seed = RealWorld().nonce() if SOAK > 1 else 3
    dice, outcomes = Rolls(RealWorld(seed).rng("life")), set()
    answers = 0
    for i in range(4 * SOAK):
        try:
            ended, answered = walk(dice, 250)
        except BaseException as error:
            error.add_note(f"seed {seed}, game {i}")
            raise
        outcomes |= ended
        answers += answered
    assert answers > 20
    assert outcomes == {"completed", "failed", "cancelled", "refused"}
