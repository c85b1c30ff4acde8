"""Many streams at once, none lost, none mixed: each client gets its own bytes, all of them, in order, and a proper end.

All streams are open before any of them goes on; then engines send token by token, in rounds, with some clients reading late and some
leaving.  There are 2,000, which is what one worker promises.
"""

import asyncio
import resource

import orjson
import pytest
import uvloop

from gateway_upstream import DONE, SSE_HEAD, House, chunked, event, post, until
from sits.core.fleet import Admit, Policies

STREAMS = 2_000
TOKENS = 12
FILES = 4 * STREAMS + 200
"""Both ends of both connections of a stream are in this process."""


class Choir:
    """An engine whose streams all wait for the next beat."""

    def __init__(self):
        self.beats = [asyncio.Event() for _ in range(TOKENS)]
        self.open = 0

    async def play(self, hit, writer):
        """One stream: its own name with each token."""
        name = orjson.loads(hit.body)["user"]
        writer.write(SSE_HEAD)
        self.open += 1
        for i, beat in enumerate(self.beats):
            await beat.wait()
            writer.write(chunked(event(f"{name}:{i} ")))
        writer.write(chunked(DONE) + b"0\r\n\r\n")


@pytest.fixture(autouse=True)
def _files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"{STREAMS} streams need {FILES} open files, and {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def words(answer):
    """The text a client got."""
    found = []
    for line in answer.split(b"\n"):
        if line.startswith(b"data: {"):
            found += [choice["delta"].get("content") or "" for choice in orjson.loads(line[6:])["choices"]]
    return "".join(found)


async def crowd():
    choir = Choir()
    policy = Policies(admit=Admit(max_inflight=STREAMS))
    async with House(None, None, policy=policy) as house:
        for up in house.upstreams:
            up.script = lambda hit: hit
            up._play = lambda hit, writer: sing(choir, hit, writer)
        links = []
        for i in range(STREAMS):
            reader, writer = await house.connect()
            writer.write(post({"model": "m", "messages": [1], "stream": True, "user": f"u{i}"}))
            links.append((reader, writer))
        await until(lambda: choir.open == STREAMS)
        assert house.gateway.places.inflight_requests == STREAMS
        full = await house.raw(post({"model": "m", "messages": [1]}, connection="close"))
        assert b"refused_inflight" in full
        for i, beat in enumerate(choir.beats):
            beat.set()
            if i == TOKENS // 2:
                for _, writer in links[::10]:
                    writer.transport.abort()
            await asyncio.sleep(0)
        for i, (reader, writer) in enumerate(links):
            if i % 10:
                got = await reader.readuntil(b"\r\n0\r\n\r\n")
                assert words(got) == "".join(f"u{i}:{n} " for n in range(TOKENS))
                assert got.count(DONE) == 1
                writer.close()
        rows = await house.settled(STREAMS + 1)
        by_outcome = [row["outcome"] for row in rows]
        assert by_outcome.count("refused") == 1
        assert by_outcome.count("failed") == 0
        assert by_outcome.count("completed") >= STREAMS - len(links[::10])
        assert len({row["id"] for row in rows}) == STREAMS + 1


async def sing(choir, hit, writer):
    await choir.play(hit, writer)
    return "next"


@pytest.mark.timeout(600)
def test_many_streams_at_once():
    async def bounded():
        async with asyncio.timeout(500):
            await crowd()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
