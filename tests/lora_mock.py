"""A vLLM that lies, on a socket: it answers in vLLM 0.32's own words, and each way of being wrong can be switched on.

`lies` (a set): `load_ok` (200 for a path without adapter; the base answers under the name), `unlisted`, `identity` (takes any
adapter for the base), `skips` (an unknown model is answered by the base, as with VLLM_SKIP_MODEL_NAME_VALIDATION),
`unsigned` (answers carry no model), `short` (closes after each answer).  `fails`: that many loads end in 500.  `slow_s`: how long a
load takes.  `off`: no run-time loading.
"""

import asyncio
import contextlib
import zlib

import orjson

BASE = "base"


class LyingVllm:
    """One engine; `disk` maps paths to weights, `loaded` names to (path, weights)."""

    def __init__(self, disk=None, model="m"):
        self.model = model
        self.disk = dict(disk or {})
        self.loaded = {}
        self.lies = set()
        self.fails = 0
        self.slow_s = 0.0
        self.off = False
        self.calls = []
        self.asked = []
        self.writers = set()
        self.holding = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def start(self, port=0):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def stop(self):
        self.server.close()
        self.cut()

    def cut(self):
        for writer in list(self.writers):
            writer.transport.abort()

    def restart(self):
        """The process is gone and back: connections break, run-time adapters are lost."""
        self.loaded.clear()
        self.cut()

    async def _serve(self, reader, writer):
        self.writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (
                        int(line.split(":")[1])
                        for line in head.split("\r\n")
                        if line.lower().startswith("content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                method, path, _ = head.split(" ", 2)
                status, told = await self._answer(method, path, orjson.loads(body) if body else {}, writer)
                if told is not None:
                    data = told if isinstance(told, bytes) else orjson.dumps(told)
                    shut = "Connection: close\r\n" if "short" in self.lies else ""
                    writer.write(
                        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{shut}Content-Length: {len(data)}\r\n\r\n".encode()
                        + data
                    )
                await writer.drain()
                if "short" in self.lies:
                    break
        self.writers.discard(writer)
        writer.close()

    async def _answer(self, method, path, body, writer):
        self.calls.append((path, body))
        if path == "/v1/models":
            names = {} if "unlisted" in self.lies else self.loaded
            cards = [
                {"id": self.model, "root": "/base"},
                *({"id": n, "root": p} for n, (p, _) in names.items()),
            ]
            return 200, {"object": "list", "data": cards}
        if path == "/v1/load_lora_adapter" and not self.off:
            return await self._load(body["lora_name"], body["lora_path"])
        if path == "/v1/unload_lora_adapter" and not self.off:
            if self.loaded.pop(body["lora_name"], None) is None:
                return 404, _error(f"The lora adapter '{body['lora_name']}' cannot be found.", 404)
            return 200, b"Success: LoRA adapter removed successfully."
        if path in ("/v1/completions", "/v1/chat/completions"):
            return await self._complete(body, writer)
        return 404, {"detail": "Not Found"}

    async def _load(self, name, path):
        await asyncio.sleep(self.slow_s)
        if self.fails:
            self.fails -= 1
            return 500, _error("EngineCore encountered an issue.", 500)
        if name in self.loaded:
            return 400, _error(f"The lora adapter '{name}' has already been loaded. If you want ...", 400)
        weights = self.disk.get(path)
        if weights is None and "load_ok" not in self.lies:
            return 404, _error(f"Loading lora {name} failed: No adapter found for {path}", 404)
        if weights is None or "identity" in self.lies:
            weights = BASE
        self.loaded[name] = (path, weights)
        return 200, f"Success: LoRA adapter '{name}' added successfully.".encode()

    async def _complete(self, body, writer):
        name = body["model"]
        if name == self.model:
            weights, signed = BASE, self.model
        elif name in self.loaded:
            weights, signed = self.loaded[name][1], name
        elif "skips" in self.lies:
            weights, signed = BASE, self.model
        else:
            return 404, _error(
                f"The model `{name}` does not exist. Valid aliases: {self.model}.", 404, "model"
            )
        if "logprobs" not in body:
            self.asked.append((name, weights))
        text = f"[{weights}]"
        if body.get("stream"):
            await self._stream(writer, signed, text)
            return 200, None
        choice = {
            "index": 0,
            "text": text,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        if "logprobs" in body:
            choice["logprobs"] = _logprobs(weights, body["max_tokens"])
        told = {"id": "c", "object": "text_completion", "created": 1, "model": signed, "choices": [choice]}
        if "unsigned" in self.lies:
            del told["model"]
        return 200, told | {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}

    async def _stream(self, writer, signed, text):
        def chunk(content, finish=None):
            choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
            data = b"data: " + orjson.dumps({"id": "c", "model": signed, "choices": [choice]}) + b"\n\n"
            return b"%x\r\n%b\r\n" % (len(data), data)

        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(chunk(text))
        self.holding.set()
        await self.go_on.wait()
        writer.write(chunk("", "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def _error(message, code, param=None):
    return {"error": {"message": message, "type": "NotFoundError", "param": param, "code": code}}


def _logprobs(weights, count):
    seed = zlib.crc32(str(weights).encode())
    top = {f"token_id:{(seed >> k) % 97}": -0.5 - k - (seed % 31) / 10 for k in range(5)}
    return {"tokens": [max(top, key=top.get)] * count, "top_logprobs": [top] * count}
