"""However a connection ends, nothing is left for the garbage collector, so that it may run rarely and memory does not grow meanwhile."""

import asyncio
import gc

import pytest

from gateway_upstream import CHAT, House, answer, live, post, says
from sits.gateway.strand import Strand

ENDS = {
    "a page": (b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n", None),
    "an answer": (post(CHAT), None),
    "a stream": (post(CHAT | {"stream": True}), None),
    "no HTTP": (b"\x00\x01garbage\r\n\r\n", None),
    "half a head": (b"POST /v1/chat", None),
    "half a body": (post(CHAT)[:-10], None),
    "wrong JSON": (post(b'{"model": '), None),
    "left while the engine thinks": (post(CHAT), says("hang")),
    "left in mid-stream": (post(CHAT | {"stream": True}), says(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n", "hang")),
    "an engine that dies": (post(CHAT), says("die")),
    "an engine that refuses": (post(CHAT), says(answer(b"{}", 429))),
    "an engine that fails": (post(CHAT), says(answer(b"{}", 500))),
}  # fmt: skip
TIMES = 20


@pytest.mark.parametrize("end", ENDS)
def test_a_connection_leaves_no_cycles_behind(end):
    request, script = ENDS[end]

    @live
    async def run():
        async with House(script) as house:

            async def visit():
                reader, writer = await house.connect()
                writer.write(request)
                if script is not None and "left" in end:
                    await house.up.hanging.wait()
                    house.up.hanging.clear()
                elif "half" not in end:
                    await reader.read(1)
                writer.transport.abort()
                while house.server.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0)

            await visit()
            await asyncio.sleep(0.01)
            gc.collect()
            gc.disable()
            try:
                for _ in range(TIMES):
                    await visit()
                await asyncio.sleep(0.01)
                ours = {type(one).__module__ for one in collected()}
                assert not {module for module in ours if module.startswith(("sits.", "httptools."))}
            finally:
                gc.enable()

    run()


def collected():
    """What only the collector can free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@live
async def test_a_wake_up_on_its_way_when_a_strand_is_cancelled_comes_to_nothing():
    """The future it waits for is done, its call-back in the loop's queue, and then the strand is cancelled: it ended, and once."""
    ends, waits = [], asyncio.get_running_loop().create_future()

    async def work():
        try:
            await waits
        finally:
            await asyncio.sleep(0)

    strand = Strand(work(), ends.append)
    waits.set_result(None)
    strand.cancel("client_left")
    for _ in range(5):
        await asyncio.sleep(0)
    assert strand.ended
    assert [type(end) for end in ends] == [asyncio.CancelledError]
