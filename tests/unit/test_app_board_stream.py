"""Streams of the board: the newest of each kind, bounded clients, and whoever does not take it is left behind."""

import asyncio

import pytest

from sits.app.board import stream
from sits.app.board.stream import Client, Feed, Streaming, Streams
from sits.telemetry.duck import StoreError


async def never():
    await asyncio.Event().wait()


def test_a_slow_client_gets_the_newest_and_nothing_old():
    async def main():
        client = Client()
        for i in range(1000):
            client.put("a", b"a%d" % i)
            client.put("b", b"b%d" % i)
        events = client.taken()
        assert [await anext(events), await anext(events)] == [b"a999", b"b999"]
        client.put("a", b"more")
        assert await anext(events) == b"more"
        client.end()
        assert [one async for one in events] == []

    asyncio.run(main())


def test_who_joins_later_gets_what_there_is_and_an_idle_feed_makes_nothing():
    async def main():
        made = []

        async def make():
            made.append(len(made))
            return b"%d" % made[-1]

        feed, first, second = Feed("n", make, 3600.0), Client(), Client()
        feed.join(first)
        event = await anext(first.taken())
        assert event == b"event: n\nid: n-1\ndata: 0\n\n"
        feed.join(second)
        assert await anext(second.taken()) == event
        feed.leave(first)
        feed.leave(second)
        assert (made, feed.idle) == ([0], True)

    asyncio.run(main())


def test_trouble_is_told_and_the_feed_goes_on():
    async def main():
        async def make():
            raise StoreError("a file is gone", hint="look at the disk")

        feed, client = Feed("n", make, 0.0), Client()
        feed.join(client)
        events = client.taken()
        numbers = []
        for _ in range(2):
            event = await anext(events)
            assert event.startswith(b"event: trouble\nid: n-")
            assert b"look at the disk" in event
            numbers.append(int(event.split(b"\n")[1].rpartition(b"-")[2]))
        assert numbers[0] < numbers[1]
        feed.leave(client)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["it stalls", "it leaves"])
def test_a_client_that_does_not_take_or_leaves_is_forgotten(monkeypatch, how):
    monkeypatch.setattr(stream, "STALL_S", 0.0 if how == "it stalls" else 3600.0)

    async def main():
        streams, sent = Streams(), []

        async def make():
            return b"{}"

        async def send(message):
            sent.append(message["type"])
            if message["type"] == "http.response.body":
                await never()

        async def receive():
            if how == "it stalls":
                await never()
            return {"type": "http.disconnect"}

        feed = Feed("n", make, 3600.0)
        await Streaming(streams, [feed])({}, receive, send)
        assert (streams.clients, feed.idle, streams.dropped) == (set(), True, int(how == "it stalls"))

    asyncio.run(main())


def test_there_is_room_for_so_many():
    streams = Streams()
    streams.clients = {Client() for _ in range(stream.CLIENTS_MAX - 1)}
    assert not streams.full
    streams.clients.add(Client())
    assert streams.full


def test_places_are_taken_at_once_and_not_when_the_stream_begins():
    async def main():
        streams = Streams()
        answers = [Streaming(streams, []) for _ in range(stream.CLIENTS_MAX)]
        assert streams.full

        async def gone():
            return {"type": "http.disconnect"}

        async def send(_):
            await never()

        for answer in answers:
            await answer({}, gone, send)
        assert streams.clients == set()

    asyncio.run(main())
