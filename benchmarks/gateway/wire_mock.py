"""Engines that misbehave on request: what they do is named in the prompt as `#do=WORD#`.

Each engine has a port of its own and counts what it was asked, so that retries can be counted by engine.  It runs on an
event loop in a thread of its own; the counters are plain integers that the cases read when nothing is in flight.
"""

import asyncio
import contextlib
import json
import re
import threading
from dataclasses import dataclass, field

DO = re.compile(rb"#do=([a-z0-9-]+)#")
CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" w%d"},"finish_reason":null}]}\n\n'
LAST = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
PLAIN = b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}'
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BIG = 200_000_000
FLOOD_CHUNK = CHUNK % 7


def framed(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(status: int, body: bytes, *fields: bytes) -> bytes:
    """A whole answer of known length."""
    more = b"".join(field + b"\r\n" for field in fields)
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (status, len(body))
    return head + more + b"\r\n" + body


@dataclass
class Mock:
    """One engine."""

    port: int
    override: str = ""
    """Does this whatever the prompt says."""
    tries: int = 0
    taken: int = 0
    """Bytes of a big answer or of a flood that were accepted."""
    heads: list[bytes] = field(default_factory=list)
    server: asyncio.Server | None = None
    writers: set = field(default_factory=set)

    async def open(self) -> None:
        """Listen."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**26)

    async def shut(self) -> None:
        """Close the port and every connection; a hung answer is cancelled with its connection's task."""
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._one(reader, writer):
                pass
        self.writers.discard(writer)
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await _body(head, reader)
        if not head.startswith(b"POST") or b"/render" in head.split(b"\r\n")[0]:
            writer.write(answer(200, b'{"object":"list","data":[{"id":"m","object":"model"}]}'))
            return True
        self.tries += 1
        self.heads.append(head)
        found = DO.search(body)
        word = self.override or (found[1].decode() if found else "ok")
        return await self._do(word, b'"stream": true' in body or b'"stream":true' in body, writer)

    async def _do(self, word: str, stream: bool, writer: asyncio.StreamWriter) -> bool:
        name, _, value = word.partition("-")
        if name == "status":
            text = {"error": {"message": "the engine says so", "type": "engine_said", "code": int(value)}}
            more = (b"Retry-After: 7",) if value in {"429", "503"} else ()
            writer.write(answer(int(value), json.dumps(text).encode(), *more))
            return True
        if name == "hang":
            await asyncio.sleep(600)
        if name == "garbage":
            writer.write(b"\x16\x03 what is this\r\n\r\n")
        if name == "short":
            writer.write(answer(200, b"x" * 1000)[:-900])
        if name == "die":
            writer.write(SSE + b"".join(framed(CHUNK % i) for i in range(3)))
            await writer.drain()
            await asyncio.sleep(0.1)
        if name == "big":
            await self._pour(
                writer,
                answer(200, b"")[:-23] + b"Content-Length: %d\r\n\r\n" % BIG,
                b"x" * 65536,
                BIG // 65536,
            )
        if name == "flood":
            await self._pour(writer, SSE, framed(FLOOD_CHUNK) * 64, 10**6)
        if name not in {"ok", "slow"}:
            return False
        if name == "slow":
            await asyncio.sleep(1.0)
        if stream:
            writer.write(SSE)
            for i in range(5):
                writer.write(framed(CHUNK % i))
                await asyncio.sleep(0.2 if name == "slow" else 0.005)
            writer.write(framed(LAST + b"data: [DONE]\n\n") + b"0\r\n\r\n")
        else:
            writer.write(answer(200, PLAIN % b"fine"))
        return True

    async def _pour(self, writer: asyncio.StreamWriter, head: bytes, piece: bytes, times: int) -> None:
        writer.write(head)
        for _ in range(times):
            writer.write(piece)
            await writer.drain()
            self.taken += len(piece)


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    lower = head.lower()
    if found := re.search(rb"\r\ncontent-length: *(\d+)", lower):
        return await reader.readexactly(int(found[1]))
    if b"transfer-encoding: chunked" not in lower:
        return b""
    whole = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        whole += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return whole


class Engines:
    """Two of them, in a thread."""

    def __init__(self, ports: tuple[int, ...]):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.mocks = tuple(Mock(port) for port in ports)
        for mock in self.mocks:
            self.call(mock.open())

    def call(self, what):
        """Run a coroutine there, and wait."""
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(10)

    def reset(self) -> None:
        """Forget counters and overrides."""
        for mock in self.mocks:
            mock.override, mock.tries, mock.taken = "", 0, 0
            mock.heads.clear()

    @property
    def tries(self) -> list[int]:
        """How often each was asked."""
        return [mock.tries for mock in self.mocks]

    def close(self) -> None:
        """End both."""
        for mock in self.mocks:
            self.call(mock.shut())
        self.call(_cancel_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


async def _cancel_others() -> None:
    """End what still waits: hung answers, idle connections."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
