"""An embedding engine that batches by call, in virtual time: for the tests of windows.

`Embedder` runs one call after the other, `fixed_ms + item_ms * texts` each; a text's vector is the text's length and a checksum, so
that whoever gets somebody else's sees it.  `calls` holds the texts of each call.  Its ills: `fails` raises, `refuses(texts)`
gives a status, `garbles` spoils answers to more than one text.
"""

import asyncio
import zlib

import orjson

from gateway_heads import head_lines
from sits.core.breakpoints import API_RECV, ENGINE_RECV, PARSED
from sits.core.fleet import Fleet, Objective, OpenAIEngine, Policies
from sits.core.request import Chunk, Request, Usage
from sits.core.timeline import Timeline
from sits.core.units import MS
from sits.gateway.merging import EMBEDDINGS
from sits.gateway.pipeline import Gateway
from sits.testing.loop import MemoryRecorder


def vector_of(text):
    return [len(text), zlib.crc32(text.encode())]


def embed_body(texts, **more):
    return orjson.dumps({"model": "m", "input": texts, **more})


class Embedder:
    def __init__(self, name="e", *, fixed_ms=8, item_ms=1, fails=None, refuses=None, garbles=None):
        self.name = name
        self.fixed_ms, self.item_ms = fixed_ms, item_ms
        self.fails, self.refuses, self.garbles = fails, refuses, garbles
        self.calls, self.prompt_tokens = [], []
        self.cancelled = 0
        self._turn = asyncio.Lock()

    async def generate(self, request, timeline):
        timeline.mark(ENGINE_RECV, self.world.now_ns())
        body = orjson.loads(request.body)
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        self.calls.append(texts)
        self.prompt_tokens.append(request.prompt_tokens)
        try:
            async with self._turn:
                await asyncio.sleep((self.fixed_ms + self.item_ms * len(texts)) / 1000)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails is not None:
            raise self.fails
        status = self.refuses(texts) if self.refuses is not None else 200
        if status != 200:
            yield Chunk(data=b'{"error":{"message":"no"}}', last=True, status=status, retry_after=b"7")
            return
        data = [
            {"object": "embedding", "index": i, "embedding": vector_of(text)} for i, text in enumerate(texts)
        ]
        tokens = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        whole = {"object": "list", "data": data, "model": "m", "usage": usage}
        if self.garbles is not None and len(texts) > 1:
            whole = self.garbles(whole)
        yield Chunk(
            data=orjson.dumps(whole),
            tokens=1,
            last=True,
            usage=Usage(input=tokens),
            content_type=b"application/json",
        )

    async def close(self):
        pass


class Reply:
    """A sink."""

    def __init__(self):
        self.status, self.data, self.headers = 0, b"", {}

    def start(self, status, content_type, lines=b""):
        self.status, self.headers = status, head_lines(lines)

    def write(self, data):
        self.data += data

    def finish(self):
        pass

    def abort(self):
        raise AssertionError("an embedding is never cut")

    @property
    def vectors(self):
        items = orjson.loads(self.data)["data"]
        assert [item["index"] for item in items] == list(range(len(items)))
        return [item["embedding"] for item in items]


class EmbeddingHouse:
    """A gateway before embedders."""

    def __init__(self, world, *engines, window, batches="by_call", before=None):
        for engine in engines:
            engine.world = world
        self.world = world
        self.rows = MemoryRecorder()
        fleet = Fleet(
            name="t",
            objective=Objective(p99=200 * MS),
            policy=Policies(window=window),
            engines=tuple(OpenAIEngine(name=e.name, models=("m",), batches=batches) for e in engines),
        )
        self.gateway = Gateway(world, fleet, {e.name: e for e in engines}, self.rows, before=before)

    async def ask(self, texts, id="r", deadline_ns=0, endpoint=EMBEDDINGS, body=None, **more):  # noqa: A002
        body = embed_body(texts, **more) if body is None else body
        tokens = max(1, len(body) // 4)
        request = Request(
            id=id,
            model="m",
            endpoint=endpoint,
            stream=False,
            prompt_tokens=tokens,
            deadline_ns=deadline_ns,
            body=body,
        )
        timeline, reply = Timeline(), Reply()
        timeline.mark(API_RECV, self.world.now_ns())
        timeline.mark(PARSED, self.world.now_ns())
        exchange = await self.gateway.handle(request, timeline, reply)
        assert exchange.timeline.disorder() is None
        return reply, exchange

    async def late(self, ms, texts, **more):
        await asyncio.sleep(ms / 1000)
        return await self.ask(texts, **more)

    def check(self):
        """Nothing is left when nothing is inside."""
        gateway = self.gateway
        assert gateway.idle
        assert not any(gateway.pending().values())
        assert all(holder.under_way == 0 for holder in gateway.holders.values())
        assert (gateway.places.inflight_requests, gateway.places.inflight_tokens) == (0, 0)
