"""Upstreams of both dialects that refuse what their makers would, and a gateway in front of them with the official clients."""

import json
import os
import re

import anthropic
import openai

from dialects import unfit_chat, unfit_messages
from gateway_upstream import PATIENCE_S, SSE_HEAD, House, Rows, Upstream, answer, chunked
from sits.core.config import load_fleet
from sits.gateway.pipeline import Gateway
from sits.gateway.server import Server
from sits.wire import build_engine
from sits.world import RealWorld

MESSAGES_USAGE = {
    "input_tokens": 5,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 20,
    "output_tokens": 7,
}
CHAT_USAGE = {
    "prompt_tokens": 125,
    "completion_tokens": 7,
    "total_tokens": 132,
    "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 20},
}

CALLS = [("toolu_1", "weather", {"city": "Köln", "days": 3}), ("toolu_2", "clock", {})]
TEXT = "Let me look.\n\ndata: [DONE]"
THOUGHT = "They want\nthe weather."


def message(asked):
    """Anthropic's whole answer: thinking, text and two calls when tools are offered, else text."""
    content = [{"type": "text", "text": TEXT}]
    reason = "end_turn"
    if asked.get("thinking"):
        content.insert(0, {"type": "thinking", "thinking": THOUGHT, "signature": "c2ln"})
    if asked.get("tools"):
        content += [{"type": "tool_use", "id": i, "name": n, "input": given} for i, n, given in CALLS]
        reason = "tool_use"
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": MESSAGES_USAGE,
    }


def events_of(whole):
    """The stream of it, in Anthropic's order."""
    head = {**whole, "content": [], "stop_reason": None, "usage": MESSAGES_USAGE | {"output_tokens": 1}}
    yield {"type": "message_start", "message": head}
    yield {"type": "ping"}
    for i, block in enumerate(whole["content"]):
        kind = block["type"]
        empty = {
            "text": {"text": ""},
            "thinking": {"thinking": "", "signature": ""},
            "tool_use": {"input": {}},
        }
        yield {"type": "content_block_start", "index": i, "content_block": block | empty[kind]}
        if kind == "tool_use":
            text = json.dumps(block["input"], ensure_ascii=False) if block["input"] else ""
            deltas = [
                {"type": "input_json_delta", "partial_json": text[k : k + 5]}
                for k in range(0, len(text) or 1, 5)
            ]
        elif kind == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": word} for word in block["thinking"].split(" ")]
            deltas = [d | {"thinking": d["thinking"] + " " * (d is not deltas[-1])} for d in deltas]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            deltas = [
                {"type": "text_delta", "text": block["text"][k : k + 3]}
                for k in range(0, len(block["text"]), 3)
            ]
        for delta in deltas:
            yield {"type": "content_block_delta", "index": i, "delta": delta}
        yield {"type": "content_block_stop", "index": i}
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}}
    yield {"type": "message_stop"}


def event(told):
    return b"event: %b\ndata: %b\n\n" % (told["type"].encode(), json.dumps(told).encode())


def messages_stream(asked):
    return [event(told) for told in events_of(message(asked))]


def completion(asked):
    """OpenAI's whole answer, of the same meaning."""
    said = {"role": "assistant", "content": TEXT}
    reason = "stop"
    if asked.get("reasoning_effort", "none") != "none":
        said["reasoning"] = THOUGHT
    if asked.get("tools"):
        said["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(given)}}
            for i, n, given in CALLS
        ]
        reason = "tool_calls"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": asked["model"],
        "choices": [{"index": 0, "message": said, "finish_reason": reason}],
        "usage": CHAT_USAGE,
    }


def chunks_of(whole, usage):
    """The stream of it, in OpenAI's order."""
    said = whole["choices"][0]["message"]
    head = {"id": whole["id"], "object": "chat.completion.chunk", "created": 1, "model": whole["model"]}
    deltas = [{"role": "assistant", "content": ""}]
    deltas += [
        {"reasoning": said["reasoning"][k : k + 4]} for k in range(0, len(said.get("reasoning", "")), 4)
    ]
    deltas += [{"content": said["content"][k : k + 3]} for k in range(0, len(said["content"]), 3)]
    for i, call in enumerate(said.get("tool_calls", ())):
        first = {"name": call["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": i, "id": call["id"], "type": "function", "function": first}]})
        text = call["function"]["arguments"]
        deltas += [
            {"tool_calls": [{"index": i, "function": {"arguments": text[k : k + 5]}}]}
            for k in range(0, len(text), 5)
        ]
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {
        **head,
        "choices": [{"index": 0, "delta": {}, "finish_reason": whole["choices"][0]["finish_reason"]}],
    }
    if usage:
        yield {**head, "choices": [], "usage": whole["usage"]}


def chat_stream(asked):
    usage = (asked.get("stream_options") or {}).get("include_usage")
    told = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks_of(completion(asked), usage)]
    return [*told, b"data: [DONE]\n\n"]


def as_stream(events):
    return [SSE_HEAD, *map(chunked, events), b"0\r\n\r\n"]


def anthropic_error(status, kind, text, **headers):
    body = json.dumps({"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_1"})
    return [answer(body.encode(), status, **headers)]


def openai_error(status, kind, text, **headers):
    body = json.dumps({"error": {"message": text, "type": kind, "param": None, "code": None}})
    return [answer(body.encode(), status, **headers)]


def anthropic_server(hit):
    """The Messages API, strict."""
    asked = json.loads(hit.body)
    if hit.headers.get("x-api-key") != "upstream-key" or "authorization" in hit.headers:
        return anthropic_error(401, "authentication_error", "invalid x-api-key")
    if not re.fullmatch(r"20\d\d-\d\d-\d\d", hit.headers.get("anthropic-version", "")):
        return anthropic_error(400, "invalid_request_error", "anthropic-version: header is required")
    if hit.path == "/v1/messages/count_tokens":
        return [answer(b'{"input_tokens":42}')]
    if hit.path != "/v1/messages":
        return anthropic_error(404, "not_found_error", f"no {hit.path}")
    unfit = unfit_messages(asked)
    if unfit:
        return anthropic_error(400, "invalid_request_error", unfit)
    if asked.get("stream"):
        return as_stream(messages_stream(asked))
    return [answer(json.dumps(message(asked)).encode())]


def openai_server(hit):
    """Chat Completions, strict."""
    asked = json.loads(hit.body)
    if hit.headers.get("authorization") != "Bearer upstream-key" or "x-api-key" in hit.headers:
        return openai_error(401, "invalid_request_error", "Incorrect API key provided")
    if hit.path != "/v1/chat/completions":
        return openai_error(404, "invalid_request_error", f"no {hit.path}")
    if any(name.startswith("anthropic-") for name in hit.headers):
        return openai_error(400, "invalid_request_error", "headers of another dialect")
    unfit = unfit_chat(asked)
    if unfit:
        return openai_error(400, "invalid_request_error", unfit)
    if asked.get("stream"):
        return as_stream(chat_stream(asked))
    return [answer(json.dumps(completion(asked)).encode())]


os.environ["SITS_TEST_UPSTREAM_KEY"] = "upstream-key"
FLEET = """
name: dialects
gateway: {{listen: "127.0.0.1:0", drain_timeout: 1s, first_byte_timeout: {timeout}s{more}}}
engines:
  - {{kind: anthropic, name: claude, url: "{claude}", models: [claude, both], api_key_env: SITS_TEST_UPSTREAM_KEY, max_tokens: 1234}}
  - {{kind: openai, name: vllm, url: "{vllm}/v1", models: [llama], api_key_env: SITS_TEST_UPSTREAM_KEY}}
  - {{kind: openai, name: vllm11, url: "{vllm11}", models: [qwen], api_key_env: SITS_TEST_UPSTREAM_KEY, speaks: [openai, anthropic]}}
  - {{kind: openai, name: last, url: "{last}", models: [both], api_key_env: SITS_TEST_UPSTREAM_KEY, weight: 0.001}}
"""


class DialectHouse(House):
    """A gateway with one engine of each dialect, one of both, and a second replica of the other dialect for model `both`."""

    def __init__(
        self,
        *,
        claude=anthropic_server,
        vllm=openai_server,
        vllm11=None,
        last=openai_server,
        more="",
    ):
        super().__init__(claude, vllm, vllm11 or openai_server, last)
        self.more = more

    async def __aenter__(self):
        self.upstreams = [await Upstream(script).start() for script in self.scripts]
        self.claude, self.vllm, self.vllm11, self.last = self.upstreams
        urls = {name: getattr(self, name).url for name in ("claude", "vllm", "vllm11", "last")}
        fleet = load_fleet(FLEET.format(**urls, timeout=PATIENCE_S, more=self.more))
        world = RealWorld()
        self.rows = Rows()
        engines = {
            one.name: build_engine(fleet, one, world, lengths=lambda request: 1) for one in fleet.engines
        }
        self.gateway = Gateway(world, fleet, engines, self.rows)
        self.server = Server(self.gateway, fleet)
        self.host, self.port = await self.server.start()
        return self

    def messages(self, **more):
        """Anthropic's client."""
        url = f"http://127.0.0.1:{self.port}"
        return anthropic.AsyncAnthropic(base_url=url, api_key="callers-key", max_retries=0, **more)

    def chat(self, **more):
        """OpenAI's client."""
        url = f"http://127.0.0.1:{self.port}/v1"
        return openai.AsyncOpenAI(base_url=url, api_key="callers-key", max_retries=0, **more)
