"""Both dialects as their makers describe them: requests are checked against the types of the official SDKs, strictly,
and against the rules of the APIs that types cannot say; answers are folded from their streams as the SDKs do.

Written without a look at `sits.engine.dialect`: it is what that is judged by.
"""

import json
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import typing_extensions

BEYOND_SDK = {
    "messages": {
        "temperature",
        "top_p",
        "top_k",
    },  # sampling: older models take it, the newest SDK no longer names it
    "chat": {"top_k"},  # engines take it
    "assistant": {"reasoning", "reasoning_content"},  # vLLM and others
}

ENVELOPE = {"stream"}


@cache
def _hints(kind):
    return typing_extensions.get_type_hints(kind, include_extras=True)


def unfit(value, hint, at="", beyond=frozenset()):
    """Why `value` is not of the type `hint`, as strictly as an API checks it; "" when it is."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Annotated, typing_extensions.Required, typing_extensions.NotRequired):
        return unfit(value, args[0], at)
    if origin in (typing.Union, types.UnionType):
        told = []
        for arg in args:
            told.append(unfit(value, arg, at))
            if not told[-1]:
                return ""
        return max(told, key=lambda text: (text.count("."), text.count("[")))
    if hint in (object, typing.Any):
        return ""
    if typing_extensions.is_typeddict(hint):
        return _unfit_object(value, hint, at, beyond)
    if origin is typing.Literal:
        return "" if value in args and type(value) in map(type, args) else f"{at}: {value!r} not in {args}"
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            return f"{at}: no object"
        return next(filter(None, (unfit(v, args[1], f"{at}.{k}") for k, v in value.items())), "")
    if isinstance(origin, type) and issubclass(origin, Iterable | Sequence):
        if not isinstance(value, list):
            return f"{at}: no list"
        return next(filter(None, (unfit(v, args[0], f"{at}[{i}]") for i, v in enumerate(value))), "")
    if hint is float:
        return "" if type(value) in (int, float) else f"{at}: {value!r} is no number"
    return "" if type(value) is hint else f"{at}: {value!r} is no {hint}"


def _unfit_object(value, hint, at, beyond):
    if not isinstance(value, dict):
        return f"{at}: no object"
    hints = _hints(hint)
    extra = getattr(hint, "__pydantic_config__", {}).get("extra") == "allow"
    if value.get("role") == "assistant":
        beyond = beyond | BEYOND_SDK["assistant"]
    for key, inner in value.items():
        if key in hints:
            told = unfit(inner, hints[key], f"{at}.{key}")
            if told:
                return told
        elif not extra and key not in beyond:
            return f"{at}.{key}: unknown field"
    missing = [key for key in hint.__required_keys__ if key not in value]
    return f"{at}.{missing[0]}: missing" if missing else ""


def unfit_messages(body):
    """Why Anthropic would refuse this request; "" when it would not."""
    from anthropic.types.message_create_params import MessageCreateParamsBase

    plain = {k: v for k, v in body.items() if k not in ENVELOPE}
    return unfit(plain, MessageCreateParamsBase, "", BEYOND_SDK["messages"]) or _messages_rules(body)


def _messages_rules(body):
    if not body["max_tokens"] >= 1:
        return "max_tokens: too small"
    if not 0 <= body.get("temperature", 1) <= 1:
        return "temperature: range: 0..1"
    if "tool_choice" in body and not body.get("tools"):
        return "tool_choice: may only be specified while providing tools"
    for i, tool in enumerate(body.get("tools", [])):
        if tool["input_schema"].get("type") != "object":
            return f"tools.{i}.input_schema.type: should be 'object'"
    owed = []
    for i, message in enumerate(body["messages"]):
        at = f"messages.{i}"
        if not message["content"] and i < len(body["messages"]) - 1:
            return f"{at}: all messages must have non-empty content"
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [block for block in blocks if block["type"] == "tool_result"]
        if blocks[: len(results)] != results:
            return f"{at}: tool_result blocks come first"
        if owed != [block["tool_use_id"] for block in results]:
            return f"{at}: tool_use ids without tool_result blocks immediately after"
        owed = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for block in blocks:
            if block["type"] == "text" and not block["text"]:
                return f"{at}: text content blocks must be non-empty"
            if block["type"] == "tool_use" and not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
                return f"{at}: tool_use.id: string should match pattern"
    return ""


def unfit_chat(body):
    """Why OpenAI would refuse this request; "" when it would not (but for `top_k` and reasoning, which engines take)."""
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase

    plain = {k: v for k, v in body.items() if k not in ENVELOPE}
    told = unfit(plain, CompletionCreateParamsBase, "", BEYOND_SDK["chat"])
    if told:
        return told
    if "max_tokens" in body and "max_completion_tokens" in body:
        return "max_tokens: not at the same time as max_completion_tokens"
    if "stream_options" in body and not body.get("stream"):
        return "stream_options: only with stream"
    if ("tool_choice" in body or "parallel_tool_calls" in body) and not body.get("tools"):
        return "tool_choice: only with tools"
    owed = set()
    for i, message in enumerate(body["messages"]):
        if message["role"] == "tool":
            if message["tool_call_id"] not in owed:
                return f"messages.{i}: a tool message answers a call before it"
            owed.remove(message["tool_call_id"])
        elif owed:
            return f"messages.{i}: tool_call_ids without a response"
        for call in message.get("tool_calls") or ():
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                return f"messages.{i}: arguments are no object"
            owed.add(call["id"])
    return f"messages: {owed} have no response" if owed else ""


def sse(stream):
    """The events of a stream: (name, data) with data as JSON, or as text where it is none; comments are left out."""
    found = []
    for event in stream.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in event.split("\n") if not line.startswith(":"))
        if "data" in fields:
            data = fields["data"]
            found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    assert stream == b"" or stream.endswith(b"\n\n")
    return found


def fold_chunks(stream):
    """The whole answer that a stream of OpenAI's chunks tells, checked for their order."""
    told = [data for _, data in sse(stream)]
    assert told[-1] == "[DONE]"
    chunks = told[:-1]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    message = {"role": "assistant", "content": None, "refusal": None}
    choice, usage, calls = {}, None, []
    for chunk in chunks:
        assert {chunk["id"], chunk["model"], chunk["created"]} == {
            chunks[0]["id"],
            chunks[0]["model"],
            chunks[0]["created"],
        }
        assert chunk["object"] == "chat.completion.chunk"
        usage = chunk.get("usage") or usage
        for piece in chunk["choices"]:
            assert usage is None, "usage comes last"
            assert not choice, "nothing comes after the finish reason but usage"
            delta = piece["delta"]
            for key in ("content", "refusal", "reasoning_content"):
                if delta.get(key):
                    message[key] = (message.get(key) or "") + delta[key]
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(calls):
                    calls.append({"id": call["id"], "type": "function", "function": dict(call["function"])})
                else:
                    assert call["index"] == len(calls) - 1
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
            if piece["finish_reason"]:
                choice = {k: v for k, v in piece.items() if k not in ("delta", "index", "logprobs")}
    if calls:
        message["tool_calls"] = calls
    first = chunks[0]
    return {
        "id": first["id"],
        "object": "chat.completion",
        "created": first["created"],
        "model": first["model"],
        "choices": [{"index": 0, "message": message, "logprobs": None, **choice}],
        "usage": usage,
    }


def fold_events(stream):
    """The whole answer that a stream of Anthropic's events tells, checked for their order."""
    told = sse(stream)
    assert all(name == data["type"] for name, data in told)
    told = [data for _, data in told if data["type"] != "ping"]
    assert (told[0]["type"], told[-2]["type"], told[-1]["type"]) == (
        "message_start",
        "message_delta",
        "message_stop",
    )
    message = {**told[0]["message"]}
    assert message["content"] == []
    assert message["stop_reason"] is None
    blocks, opened, text = [], None, ""
    for event in told[1:-2]:
        kind = event["type"]
        if kind == "content_block_start":
            assert opened is None
            assert event["index"] == len(blocks)
            opened, text = dict(event["content_block"]), ""
            blocks.append(opened)
        elif kind == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                assert opened["type"] == "tool_use"
                text += delta["partial_json"]
            else:
                key = {"text_delta": "text", "thinking_delta": "thinking"}[delta["type"]]
                assert opened["type"] == key
                opened[key] += delta[key]
        else:
            assert kind == "content_block_stop"
            assert event["index"] == len(blocks) - 1
            if opened["type"] == "tool_use" and text:
                opened["input"] = json.loads(text)
            opened = None
    assert opened is None
    usage = {**message["usage"], **{k: v for k, v in told[-2]["usage"].items() if v is not None}}
    return {**message, **told[-2]["delta"], "content": blocks, "usage": usage}
