"""What tests of `sitsctl up` share: the process and what it says, its notice, and an engine whose answers wait for a word.

Nothing here is timed: what is waited for is awaited, and the test's own time-out ends what hangs.
"""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import openai
from prometheus_client.parser import text_string_to_metric_families

from sits.app.up.notice import notice_of


def sitsctl(*arguments):
    return [sys.executable, "-m", "sits.app.cli", *map(str, arguments)]


class Up:
    """A running `sitsctl up`; `said` is what it wrote to stderr, as far as it was read."""

    def __init__(self, file, *more):
        self.file = file
        self.process = subprocess.Popen(
            sitsctl("up", file, "--log-format", "text", *more), stderr=subprocess.PIPE, text=True
        )
        self.said = [self.process.stderr.readline()]
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.said[0])
        assert found, self.said[0] + self.process.stderr.read()
        self.url, self.port = found.group(), int(found[1])
        self.sdk = openai.OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0, timeout=60)

    def tell(self, number):
        self.process.send_signal(number)

    def hear(self, pattern):
        """Read on until a line says it; the line."""
        for line in self.process.stderr:
            self.said.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"it ended without {pattern!r}: {self.said}")

    def end(self):
        self.said += self.process.stderr.readlines()
        return self.process.wait(60)

    def stop(self):
        self.tell(signal.SIGTERM)
        assert self.end() == 0, self.said
        return self.said[-1]

    def notice(self, store):
        return notice_of(store, self.file)

    def get(self, path):
        """A page over a connection of its own, so that any worker may get it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def samples(self):
        """The metrics page as {(name, (label value, ...)): value}."""
        head, _, body = self.get("/metrics").partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }


@contextmanager
def serving(tmp_path, text, *arguments, **more):
    file = tmp_path / "fleet.yaml"
    file.write_text(text.format(store=tmp_path / "store", **more))
    up = Up(file, *arguments)
    try:
        yield up
    finally:
        up.sdk.close()
        if up.process.poll() is None:
            up.process.kill()
            up.process.wait()
        up.process.stderr.close()


class GatedEngine:
    """An OpenAI-compatible engine in a thread; plain answers name the model asked for.

    While `gate` is shut, an answer stops after its head (a stream: after its first token).  `begun` counts requests that
    have come, `connections` and `left` the connections on which they came and those of them that ended.
    """

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.left = threading.Semaphore(0)
        self.connections = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._gate = asyncio.Event()
        self._gate.set()

    def shut(self):
        self._loop.call_soon_threadsafe(self._gate.clear)

    def open(self):
        self._loop.call_soon_threadsafe(self._gate.set)

    @contextmanager
    def serving(self):
        started = threading.Event()

        async def main():
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._ended = asyncio.Event()
            started.set()
            await self._ended.wait()
            server.close()

        thread = threading.Thread(target=self._loop.run_until_complete, args=(main(),))
        thread.start()
        started.wait()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._ended.set)
            thread.join()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
                self._loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            self._loop.close()

    async def _serve(self, reader, writer):
        asked_here = 0
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = re.search(r"content-length: (\d+)", head.lower())
                body = await reader.readexactly(int(size[1])) if size else b""
                if head.startswith("GET"):
                    writer.write(b"HTTP/1.1 404 N\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.connections += not asked_here
                asked_here += 1
                self.begun.release()
                asked = json.loads(body)
                await (self._stream if asked.get("stream") else self._plain)(writer, asked)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            if asked_here:
                self.left.release()
        except asyncio.CancelledError:  # the test is over
            return
        finally:
            writer.close()

    async def _plain(self, writer, asked):
        await self._gate.wait()
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": asked["model"]},
            "finish_reason": "stop",
        }
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        whole = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": asked["model"],
            "choices": [choice],
        }
        data = json.dumps(whole | {"usage": usage}).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
            + data
        )

    async def _stream(self, writer, asked):
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for i, word in enumerate(("one ", "two ", "three")):
            if i:
                await self._gate.wait()
            delta = {"index": 0, "delta": {"content": word}, "finish_reason": "stop" if i == 2 else None}
            event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": asked["model"]}
            data = b"data: " + json.dumps(event | {"choices": [delta]}).encode() + b"\n\n"
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
