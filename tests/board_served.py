"""A board over a store of one's own, without a gateway: its room, served on a free port by a thread."""

import asyncio
import socket
import threading
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from sits.app.board.room import BoardRoom
from sits.app.up.door import with_headers
from sits.app.up.generation import Generation
from sits.app.up.link import AwayError
from sits.app.up.rooms import House
from sits.core.config import load_fleet
from sits.gateway.shared import INFLIGHT, ONE, Shared, assign_slots, column
from sits.world import RealWorld

FLEET = """
name: generated
objective: {{metric: ttft, p99: {objective}}}
gateway: {{store: "{store}"}}
engines:
  - {{kind: openai, name: a0, url: 'http://10.0.0.1:8000', models: [llama-3-8b]}}
  - {{kind: openai, name: a1, like: a0, url: 'http://10.0.0.2:8000'}}
  - {{kind: openai, name: b0, like: a0, url: 'http://10.0.0.3:8000'}}
  - {{kind: openai, name: b1, like: a0, url: 'http://10.0.0.4:8000'}}
"""


class NoKeeper:
    """A keeper that is being started again."""

    def ask(self, what):
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(AwayError("nobody is there"))
        return answer


def house_of(store, objective="1.2s", world=None, more=0):
    """`more` engines beside the four."""
    others = "".join(
        f"  - {{kind: openai, name: c{i}, url: 'http://10.0.1.{i}:8000', models: [m{i % 3}]}}\n"
        for i in range(more)
    )
    fleet = load_fleet(FLEET.format(store=store, objective=objective) + others)
    shared = Shared(1, 64 + more)
    slots = assign_slots(shared, {}, [engine.name for engine in fleet.engines])
    generation = Generation(
        number=3, name="g3", run_id="generated-1", fleet=fleet, written=fleet, slots=slots
    )
    return House(generation, world or RealWorld(), shared, NoKeeper(), ("127.0.0.1:1", "127.0.0.1:2"), print)


def in_flight(house, engine, requests, tokens):
    """Say that so much is in flight at an engine, and nothing else anywhere."""
    row = house.shared.row(0)
    row[0] = row[column(house.generation.slots[engine], INFLIGHT)] = requests * ONE + tokens


class Told(uvicorn.Server):
    """A server that says when it has started."""

    def __init__(self, config, told):
        super().__init__(config)
        self._told = told

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self._told.set()


@contextmanager
def listening(routes, port=0, closes=None):
    """The origin at which some routes are served until the end; `closes` is awaited then."""
    started = threading.Event()
    config = uvicorn.Config(
        with_headers(Starlette(routes=list(routes))),
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = Told(config, started)
    ear = socket.create_server(("127.0.0.1", port))

    async def main():
        await server.serve([ear])
        if closes is not None:
            await closes()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    started.wait()
    try:
        yield f"http://127.0.0.1:{ear.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def serving(house, port=0):
    """The URL of the board and its room, served until the end."""
    room = BoardRoom(house)
    asyncio.run(room.start())
    with listening(room.routes(), port, room.close) as origin:
        try:
            yield f"{origin}/board/", room
        finally:
            room._streams.end()
