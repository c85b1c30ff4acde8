"""How exactly an injected delay is kept, and how late a timer is: real sockets, real clock.

    python benchmarks/bench_inject.py [--requests 200]

For each delay: the gateway's own time between `authorized` and `routed`, less the delay that was ordered, ms.
"""

import argparse
import asyncio
import json

import numpy as np
import uvloop

from sits.core.breakpoints import AUTHORIZED, NAMES, ROUTED
from sits.core.config import load_fleet
from sits.engine.openai import OpenAIEngine
from sits.gateway.pipeline import Gateway
from sits.gateway.server import Server
from sits.telemetry.recorder import Recorder
from sits.world import RealWorld

DELAYS_MS = (1, 5, 20, 50, 100)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


async def engine(reader, writer):
    """An engine that answers anything at once."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(ANSWER)


async def main(requests):
    """Ask, one after the other, and print the table."""
    served = await asyncio.start_server(engine, "127.0.0.1", 0)
    port = served.sockets[0].getsockname()[1]
    rules = "\n".join(
        f"  - {{name: d{ms}, match: {{headers: [{{name: x-delay, exact: '{ms}'}}]}}, delay: {ms}ms}}"
        for ms in DELAYS_MS
    )
    fleet = load_fleet(
        f"name: b\ngateway: {{listen: '127.0.0.1:0'}}\ninjections:\n{rules}\n"
        f"engines: [{{kind: openai, name: e, url: 'http://127.0.0.1:{port}', models: [m]}}]\n",
        "bench",
    )
    world = RealWorld(1)
    recorder = Recorder(100_000, world, "bench")
    gateway = Gateway(
        world, fleet, {"e": OpenAIEngine("e", f"http://127.0.0.1:{port}", world=world)}, recorder
    )
    server = Server(gateway, fleet)
    host, bound = await server.start()
    reader, writer = await asyncio.open_connection(host, bound)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    print("delay ms   error ms: P50   P99   max")
    for ms in DELAYS_MS:
        for _ in range(requests):
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nx-delay: {ms}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await reader.readuntil(b"\r\n\r\n{}")
        rows = recorder.drain()
        late = (rows[NAMES[ROUTED]] - rows[NAMES[AUTHORIZED]]) / 1e6 - ms
        p50, p99 = np.quantile(late, [0.5, 0.99])
        print(f"{ms:8}   {p50:13.2f} {p99:5.2f} {late.max():5.2f}")
    writer.close()
    await server.drain()
    served.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    uvloop.run(main(parser.parse_args().requests))
