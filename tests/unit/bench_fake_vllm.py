"""A small server that looks like vLLM from outside: models, streamed completions, a metrics page.  For tests.

It keeps vLLM's own histograms about what it really does: holds a request `outside_s` before it counts as queued, `queue_s`
and then for one of `seats` until it is scheduled, `prefill_s` until the first token, `pace_s` between tokens.  `pages`, when given, are served as
`/metrics` instead: which one goes by the first word of the last request's id.  Listens on loopback, in a thread of its own.
"""

import asyncio
import json
import threading
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sits.world import RealWorld

now_ns = RealWorld.now_ns


class FakeVllm:
    def __init__(
        self, *, outside_s=0.0, queue_s=0.0, prefill_s=0.001, pace_s=0.001, seats=64, pages=None, fail=None
    ):
        self.outside_s, self.queue_s, self.prefill_s, self.pace_s = outside_s, queue_s, prefill_s, pace_s
        self.seats = asyncio.Semaphore(seats)
        self.pages = pages or {}
        self.phase = "warm"
        self.fail = fail or (lambda number: None)
        self.metrics = True
        self.kv_usage = 0.1
        self.bodies = []
        self.authorizations = set()
        self.url = ""
        registry = self.registry = CollectorRegistry()
        names = {"labelnames": ["model_name"], "registry": registry}
        self.running = Gauge("vllm:num_requests_running", "", **names).labels("tiny")
        self.waiting = Gauge("vllm:num_requests_waiting", "", **names).labels("tiny")
        self.kv = Gauge("vllm:kv_cache_usage_perc", "", **names).labels("tiny")
        self.preemptions = Counter("vllm:num_preemptions", "", **names).labels("tiny")
        self.queue = Histogram("vllm:request_queue_time_seconds", "", **names).labels("tiny")
        self.prefill = Histogram("vllm:request_prefill_time_seconds", "", **names).labels("tiny")
        self.ttft = Histogram("vllm:time_to_first_token_seconds", "", **names).labels("tiny")

    async def handle(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path = head.split(" ", 2)[1]
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                self.authorizations.add(fields.get("authorization", ""))
                if path == "/v1/models":
                    models = [{"id": "tiny", "max_model_len": 2048}, {"id": "tiny-lora"}]
                    self.plain(writer, 200, json.dumps({"object": "list", "data": models}))
                elif path == "/metrics" and self.metrics:
                    self.plain(writer, 200, self.page())
                elif path.endswith("completions"):
                    self.phase = fields.get("x-request-id", "").split("-")[0]
                    await self.complete(writer, json.loads(body))
                else:
                    self.plain(writer, 404, '{"error": {"message": "no such path"}}')
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def page(self):
        if self.pages:
            return self.pages[self.phase]
        self.kv.set(self.kv_usage)
        return generate_latest(self.registry).decode()

    def plain(self, writer, status, text):
        data = text.encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    async def complete(self, writer, body):
        self.bodies.append(body)
        status = self.fail(len(self.bodies))
        if status:
            self.plain(writer, status, '{"error": {"message": "as the test wishes"}}')
            return
        arrived = now_ns()
        await asyncio.sleep(self.outside_s)
        queued = now_ns()
        self.waiting.inc()
        await asyncio.sleep(self.queue_s)
        async with self.seats:
            self.waiting.dec()
            self.running.inc()
            await self.run(writer, body, arrived, queued)
            self.running.dec()

    async def run(self, writer, body, arrived, queued):
        scheduled = now_ns()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await asyncio.sleep(self.prefill_s)
        # A request counts as vLLM counts it: with its first token already out, both times are known.
        self.queue.observe((scheduled - queued) / 1e9)
        self.prefill.observe((now_ns() - scheduled) / 1e9)
        self.ttft.observe((now_ns() - arrived) / 1e9)
        chat = "messages" in body
        for i in range(body["max_tokens"]):
            if i:
                await asyncio.sleep(self.pace_s)
            self.event(writer, {"choices": [{"delta": {"content": "w "}} if chat else {"text": "w "}]})
            await writer.drain()
        usage = {"prompt_tokens": len(body.get("prompt", "1")), "completion_tokens": body["max_tokens"]}
        self.event(writer, {"choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def event(self, writer, event):
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    @contextmanager
    def serving(self):
        started, box = threading.Event(), []

        async def serve():
            server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            stop = asyncio.Event()
            box.extend((asyncio.get_running_loop(), stop))
            started.set()
            await stop.wait()
            server.close()

        thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
        thread.start()
        assert started.wait(10)
        loop, stop = box
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(10)
