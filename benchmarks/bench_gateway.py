"""What the gateway costs: CPU per plain request, CPU per streamed chunk, cancellation delay, memory, start-up.

    python benchmarks/bench_gateway.py [--seconds 3] [--repeats 3] [--json FILE]

The gateway runs in its own process, pinned to one core; a mock engine and the load generator share another process on
another core.  The figure is the gateway's CPU time (`/proc/PID/task/*/schedstat`) over a measured window divided by what
was served in it: it hardly depends on how fast the load generator is, as long as the gateway is busy.

Phases: `plain` = 32 connections in a closed loop, 1 KB prompt, 0.5 KB answer.  `chunks` = 32 streams of 128 chunks of 200
bytes, where the engine sends a chunk only when the client has got the one before, so that none are coalesced (the hard
case).  `flood` = the engine sends all it can.  `cancel` = from the client's close to the engine's end of connection.
"""

import argparse
import asyncio
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import uvloop

from sits.core.fleet import Arm, Fleet, OpenAIEngine, Policies, Release
from sits.core.fleet import Gateway as GatewayConfig
from sits.engine.openai import OpenAIEngine as Engine
from sits.gateway.pipeline import Gateway
from sits.gateway.server import Server
from sits.telemetry.recorder import Recorder
from sits.world import RealWorld

STREAMS = 32
CHUNKS = 128
PROMPT = "You are a helpful assistant. " * 9 + "x" * 600
CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"padding":"%s"}\n\n' % (b"p" * 30)
)
DONE = b"data: [DONE]\n\n"
PLAIN_BODY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":"%s"},"finish_reason":"stop"}],"usage":{"prompt_tokens":250,"completion_tokens":60,'
    b'"total_tokens":310}}' % (b"y" * 270)
)
PLAIN = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(PLAIN_BODY)
    + PLAIN_BODY
)
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def framed(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def body(name, stream):
    fields = {"model": "m", "user": name, "stream": stream, "messages": [{"role": "user", "content": PROMPT}]}
    return json.dumps(fields).encode()


class Mock(asyncio.Protocol):
    """The engine: plain answers at once; streams by credit (`grant`) or all at once."""

    streams: dict[bytes, "Mock"] = {}  # noqa: RUF012
    flood = False
    gone_ns = 0

    def connection_made(self, transport):
        self.transport = transport
        self.buffer = b""
        self.left = 0

    def connection_lost(self, exc):
        Mock.gone_ns = time.monotonic_ns()

    def data_received(self, data):
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self.buffer.index(b"ontent-Length: ") + 15
        size = int(self.buffer[at : self.buffer.index(b"\r\n", at)])
        if len(self.buffer) < end + 4 + size:
            return
        request, self.buffer = self.buffer[end + 4 :], b""
        if b'"stream": false' in request:
            self.transport.write(PLAIN)
            return
        at = request.index(b'"user": "') + 9
        Mock.streams[request[at : request.index(b'"', at)]] = self
        self.left = CHUNKS
        if Mock.flood:
            self.transport.write(SSE_HEAD + framed(CHUNK) * CHUNKS + framed(DONE) + b"0\r\n\r\n")
        else:
            self.transport.write(SSE_HEAD)
            self.grant()

    def grant(self):
        self.left -= 1
        if self.left > 0:
            self.transport.write(framed(CHUNK))
        elif self.left == 0:
            self.transport.write(framed(CHUNK) + framed(DONE) + b"0\r\n\r\n")


class Client(asyncio.Protocol):
    """One connection of the load generator, in a closed loop."""

    served = 0
    errors = 0

    def __init__(self, name, stream):
        self.name = name.encode()
        self.stream = stream
        self.done = False
        content = body(name, stream)
        self.request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nAuthorization: Bearer bench-key\r\nContent-Length: %d\r\n\r\n" % len(content) + content  # fmt: skip

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data):
        if not self.stream:
            if not data.startswith(b"HTTP/1.1 200"):
                Client.errors += 1
            Client.served += 1
            self.transport.write(self.request)
            return
        count = data.count(b'data: {"id"')
        Client.served += count
        self.done = self.done or b"[DONE]" in data
        if data.endswith(b"0\r\n\r\n"):
            Client.errors += not self.done
            self.done = False
            self.transport.write(self.request)
        elif not Mock.flood:
            for _ in range(count):
                Mock.streams[self.name].grant()


def cpu_ns(pid):
    """CPU time of all threads of a process, ns."""
    tasks = pathlib.Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())


def rss_mb(pid):
    """Resident memory of a process, MB."""
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def spin_ms():
    """A fixed piece of work, to tell a slow minute of the machine from a slow program."""
    start = time.process_time_ns()
    sum(range(300_000))
    return (time.process_time_ns() - start) / 1e6


async def load(pid, port, stream, seconds):
    """CPU us of the gateway per request or chunk, and the rate, over `seconds`."""
    loop = asyncio.get_running_loop()
    Client.served = Client.errors = 0
    links = [
        (await loop.create_connection(lambda i=i: Client(f"s{i}", stream), "127.0.0.1", port))[0]
        for i in range(STREAMS)
    ]
    await asyncio.sleep(0.5)
    before, served, start = cpu_ns(pid), Client.served, time.monotonic()
    await asyncio.sleep(seconds)
    used, served, passed = cpu_ns(pid) - before, Client.served - served, time.monotonic() - start
    for link in links:
        link.abort()
    await asyncio.sleep(0.2)
    return {
        "cpu_us": used / served / 1e3,
        "per_s": served / passed,
        "busy": used / passed / 1e9,
        "errors": Client.errors,
    }


async def cancel_ms(port, waiting):
    """Delays from a client's close to the engine's end of connection, in mid-stream or while waiting for more."""
    delays = []
    for i in range(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = Client(f"c{i}", stream=True)
        writer.write(client.request)
        await reader.readuntil(b"data:")
        if not waiting:
            Mock.streams[client.name].grant()
        await asyncio.sleep(0.02)
        Mock.gone_ns, start = 0, time.monotonic_ns()
        writer.transport.abort()
        while not Mock.gone_ns:  # noqa: ASYNC110
            await asyncio.sleep(0)
        delays.append((Mock.gone_ns - start) / 1e6)
    return delays


async def run_once(seconds):
    loop = asyncio.get_running_loop()
    engine = await loop.create_server(Mock, "127.0.0.1", 0, backlog=1024)
    start = time.monotonic()
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--serve", str(engine.sockets[0].getsockname()[1]), stdout=subprocess.PIPE
    )
    port = int(await gateway.stdout.readline())
    row = {"start_s": time.monotonic() - start, "rss_idle_mb": rss_mb(gateway.pid), "spin_ms": spin_ms()}
    try:
        Mock.flood = False
        row["plain"] = await load(gateway.pid, port, False, seconds)
        row["chunks"] = await load(gateway.pid, port, True, seconds)
        Mock.flood = True
        row["flood"] = await load(gateway.pid, port, True, seconds)
        Mock.flood = False
        row["cancel_ms"] = statistics.median(await cancel_ms(port, waiting=False))
        row["rss_loaded_mb"] = rss_mb(gateway.pid)
    finally:
        gateway.terminate()
        await gateway.wait()
        engine.close()
    return row


async def serve(port):
    """The gateway process: keys, release, routing, admission, metrics and the recorder are on."""
    names = ("e0", "e1")
    fleet = Fleet(
        name="bench",
        gateway=GatewayConfig(listen="127.0.0.1:0", keys=("bench:bench-key",)),
        policy=Policies(
            release=Release(arms=(Arm(name="stable", weight=0.9), Arm(name="canary", weight=0.1)))
        ),
        engines=tuple(OpenAIEngine(name=name, models=("m",)) for name in names),
    )
    world = RealWorld(1)
    engines = {name: Engine(name, f"http://127.0.0.1:{port}", world=world) for name in names}
    recorder = Recorder(65_536, world, "bench")
    server = Server(Gateway(world, fleet, engines, recorder), fleet)

    async def drain():
        while True:
            await asyncio.sleep(0.25)
            recorder.drain()

    draining = asyncio.ensure_future(drain())
    await server.run(lambda host, bound: print(bound, flush=True))
    draining.cancel()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if args.serve:
        os.sched_setaffinity(0, {cores[0]})
        uvloop.run(serve(args.serve))
        return
    runs = []
    for _ in range(args.repeats):
        runs.append(uvloop.run(run_once(args.seconds)))
        print(json.dumps(runs[-1]), file=sys.stderr)
    for phase, what in (
        ("plain", "request"),
        ("chunks", "chunk, one by one"),
        ("flood", "chunk, engine floods"),
    ):
        us = [run[phase]["cpu_us"] for run in runs]
        rate = max(run[phase]["per_s"] for run in runs)
        errors = sum(run[phase]["errors"] for run in runs)
        print(
            f"CPU us per {what:22}{statistics.median(us):8.1f}   best {min(us):.1f}   {rate:,.0f}/s seen   {errors} errors"
        )
    print(f"cancel, median ms              {statistics.median(run['cancel_ms'] for run in runs):8.2f}")
    print(f"RSS idle / loaded, MB          {runs[-1]['rss_idle_mb']:8.1f} / {runs[-1]['rss_loaded_mb']:.1f}")
    print(f"start, s                       {min(run['start_s'] for run in runs):8.2f}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
