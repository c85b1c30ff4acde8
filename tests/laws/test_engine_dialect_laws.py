"""Laws of the two dialects: a translation keeps the meaning and is what the other side's makers accept; a stream tells what
the whole answer does; the cut decides nothing.

With SITS_SOAK=1 there are 20,000 cases of each.
"""

import itertools
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialect_examples import answers, asks, chats, chunks, completions, events
from dialects import fold_chunks, fold_events, unfit_chat, unfit_messages
from sits.engine.answer import StreamReader
from sits.engine.dialect.answer_anthropic import MessageStream, message
from sits.engine.dialect.answer_openai import CompletionStream, completion
from sits.engine.dialect.ask_anthropic import to_messages
from sits.engine.dialect.ask_openai import to_chat
from sits.engine.dialect.messages_reader import MessagesReader

SOAK = os.environ.get("SITS_SOAK") == "1"
CASES = settings(max_examples=20_000 if SOAK else 50)
pytestmark = pytest.mark.timeout(14_400 if SOAK else 120)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def cut(text, places):
    bounds = [0, *sorted(p % (len(text) + 1) for p in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


def listed(content, empty=()):
    """Content as a list of (kind, what) without what only hints."""
    if content is None or content == "":
        return list(empty)
    if isinstance(content, str):
        return [("text", content)]
    found = []
    for part in content:
        kind = part["type"]
        if kind == "text":
            found.append(("text", part["text"]))
        elif kind == "image_url":
            found.append(("image", part["image_url"]["url"]))
        elif kind == "image":
            source = part["source"]
            url = source.get("url") or f"data:{source['media_type']};base64,{source['data']}"
            found.append(("image", url))
        elif kind == "file":
            found.append(("file", part["file"]["file_data"], part["file"]["filename"]))
        elif kind == "document":
            source = part["source"]
            found.append(("file", f"data:{source['media_type']};base64,{source['data']}", part["title"]))
    return found


def meaning_of_chat(body):
    """What a request in OpenAI's dialect asks for, in neither's words."""
    said, system = [], []
    for m in body["messages"]:
        role = "system" if m["role"] == "developer" else m["role"]
        if role == "system" and not said:
            system += listed(m["content"])
        elif role == "tool":
            said.append((role, m["tool_call_id"], listed(m["content"])))
        else:
            calls = [
                (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
                for c in m.get("tool_calls") or ()
            ]
            said.append((role, listed(m["content"]), calls))
    form = body.get("response_format") or {}
    stop = body.get("stop") or []
    tools = body.get("tools") or []
    choice = body.get("tool_choice") if tools else None
    alone = bool(tools) and body.get("parallel_tool_calls") is False and choice != "none"
    effort = body.get("reasoning_effort")
    return {
        "model": body["model"],
        "said": said,
        "system": system,
        "limit": body.get("max_completion_tokens") or body.get("max_tokens") or 4096,
        "stop": [stop] if isinstance(stop, str) else stop,
        "stream": bool(body.get("stream")),
        "sampling": [body.get(k) for k in ("temperature", "top_p", "top_k")],
        "tools": [
            tuple(t["function"].get(k) for k in ("name", "description", "parameters", "strict"))
            for t in tools
        ],
        "choice": (choice or ("auto" if alone else None))
        if isinstance(choice, str | None)
        else choice["function"],
        "alone": alone,
        "schema": form.get("json_schema", {}).get("schema"),
        "effort": effort,
        "user": body.get("user") or None,
        "tier": "default" if body.get("service_tier") == "default" else None,
    }


def meaning_of_messages(body):
    """What a request in Anthropic's dialect asks for, in neither's words."""
    said = []
    for m in body["messages"]:
        blocks = m["content"] if isinstance(m["content"], list) else []
        results = [b for b in blocks if b["type"] == "tool_result"]
        said += [("tool", b["tool_use_id"], listed(b["content"])) for b in results]
        calls = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        thought = "".join(b["thinking"] for b in blocks if b["type"] == "thinking")
        words = listed(m["content"])
        if words or calls or not results:
            said.append((m["role"], words, calls, thought) if thought else (m["role"], words, calls))
    tools = body.get("tools") or []
    choice = body.get("tool_choice", {}) if tools else {}
    config = body.get("output_config") or {}
    kind = {"any": "required", "tool": {"name": choice.get("name")}}.get(
        choice.get("type"), choice.get("type")
    )
    off = body.get("thinking", {}).get("type") == "disabled"
    return {
        "model": body["model"],
        "said": said,
        "system": listed(body.get("system")),
        "limit": body["max_tokens"],
        "stop": body.get("stop_sequences") or [],
        "stream": bool(body.get("stream")),
        "sampling": [body.get(k) for k in ("temperature", "top_p", "top_k")],
        "tools": [tuple(t.get(k) for k in ("name", "description", "input_schema", "strict")) for t in tools],
        "choice": kind,
        "alone": bool(choice.get("disable_parallel_tool_use")),
        "schema": (config.get("format") or {}).get("schema"),
        "effort": "none" if off else config.get("effort"),
        "user": (body.get("metadata") or {}).get("user_id"),
        "tier": "default" if body.get("service_tier") == "standard_only" else None,
    }


def without_thought(meaning):
    """Reasoning of earlier turns reaches engines of OpenAI's dialect, and does not come back: its signature stays there."""
    return meaning | {"said": [turn[:3] for turn in meaning["said"]]}


@CASES
@given(chats())
def test_a_request_for_anthropic_means_the_same_there_and_back(asked):
    there = json.loads(to_messages(json.dumps(asked).encode(), 4096)[0])
    assert unfit_messages(there) == ""
    assert meaning_of_messages(there) == meaning_of_chat(asked)
    back = json.loads(to_chat(json.dumps(there).encode()))
    assert unfit_chat(back) == ""
    assert meaning_of_chat(back) == meaning_of_chat(asked)


@CASES
@given(asks())
def test_a_request_for_openai_means_the_same_there_and_back(asked):
    assert unfit_messages(asked) == ""
    there = json.loads(to_chat(json.dumps(asked).encode()))
    assert unfit_chat(there) == ""
    assert meaning_of_chat(there) == without_thought(meaning_of_messages(asked))
    thoughts = [turn[3] for turn in meaning_of_messages(asked)["said"] if len(turn) > 3]
    assert [m["reasoning"] for m in there["messages"] if "reasoning" in m] == thoughts
    back = json.loads(to_messages(json.dumps(there).encode(), 4096)[0])
    assert unfit_messages(back) == ""
    assert meaning_of_messages(back) == without_thought(meaning_of_messages(asked))


@CASES
@given(st.data())
def test_a_stream_of_anthropics_tells_openais_clients_what_the_whole_answer_tells(data):
    whole = data.draw(answers())
    stream = data.draw(events(whole))
    there = CompletionStream(7, usage=True)
    told = b"".join(there.take(piece) for piece in cut(stream, data.draw(CUTS)))
    assert fold_chunks(told) == json.loads(completion(json.dumps(whole).encode(), 7))


@CASES
@given(st.data())
def test_a_stream_of_openais_tells_anthropics_clients_what_the_whole_answer_tells(data):
    whole = data.draw(completions())
    stream = data.draw(chunks(whole))
    there = MessageStream()
    told = b"".join(there.take(piece) for piece in cut(stream, data.draw(CUTS)))
    assert fold_events(told) == json.loads(message(json.dumps(whole).encode()))


@CASES
@given(st.data())
def test_the_cut_decides_nothing(data):
    for stream, kind in (
        (
            data.draw(events(data.draw(answers()))),
            lambda: CompletionStream(7, usage=data.draw(st.booleans())),
        ),
        (data.draw(chunks(data.draw(completions()))), MessageStream),
    ):
        one, many = kind(), kind()
        if isinstance(one, CompletionStream):
            many = CompletionStream(7, usage=one._asked)
        pieces = cut(stream, data.draw(CUTS))
        assert one.take(stream) == b"".join(map(many.take, pieces))


@CASES
@given(completions())
def test_an_answer_for_anthropics_clients_comes_back_the_same(whole):
    there = message(json.dumps(whole).encode())
    back = json.loads(completion(there, 7))
    (was,), (now) = whole["choices"], back["choices"][0]
    for key in ("content", "refusal", "reasoning_content"):
        assert (now["message"].get(key) or None) == (was["message"].get(key) or None)
    calls = [was["message"].get("tool_calls", []), now["message"].get("tool_calls", [])]
    for call in itertools.chain(*calls):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert calls[0] == calls[1]
    counts = ("prompt_tokens", "completion_tokens")
    assert [back["usage"][k] for k in counts] == [whole["usage"][k] for k in counts]
    details = whole["usage"].get("prompt_tokens_details") or {}
    for key in ("cached_tokens", "cache_write_tokens"):
        assert back["usage"]["prompt_tokens_details"].get(key, 0) == (details.get(key) or 0)
    if not calls[0] and not was["message"].get("refusal"):
        assert now["finish_reason"] == {"tool_calls": "tool_calls"}.get(
            was["finish_reason"], was["finish_reason"]
        )
        assert now.get("stop_reason") == ("###" if was.get("stop_reason") == "###" else None)


@CASES
@given(answers())
def test_an_answer_for_openais_clients_comes_back_the_same_but_for_its_order(whole):
    back = json.loads(message(completion(json.dumps(whole).encode(), 7)))

    def of(kind, key, blocks):
        return "".join(block[key] for block in blocks if block["type"] == kind)

    for kind, key in (("text", "text"), ("thinking", "thinking")):
        assert of(kind, key, back["content"]) == of(kind, key, whole["content"])
    uses = [[b for b in one["content"] if b["type"] == "tool_use"] for one in (whole, back)]
    assert uses[0] == uses[1]
    assert (back["id"], back["model"]) == (whole["id"], whole["model"])
    if not uses[0] and whole["stop_reason"] != "of_next_year":
        assert back["stop_reason"] == whole["stop_reason"]
        assert back["stop_sequence"] == whole["stop_sequence"]
    for key in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert (back["usage"].get(key) or 0) == (whole["usage"].get(key) or 0)


@CASES
@given(st.data())
def test_both_readers_see_the_same_usage_and_pass_every_byte(data):
    whole = data.draw(answers())
    stream = data.draw(events(whole))
    reader = MessagesReader(200, b"text/event-stream")
    seen = [chunk for piece in cut(stream, data.draw(CUTS)) if (chunk := reader.take(piece))]
    reader.end(cut=data.draw(st.booleans()))
    assert reader.problem is None
    assert b"".join(chunk.data for chunk in seen) == stream
    assert [chunk.last for chunk in seen].count(True) == 1
    deltas = sum(line == "event: content_block_delta" for line in stream.decode().split("\n"))
    assert sum(chunk.tokens for chunk in seen) == deltas
    counted = [chunk.usage for chunk in seen if chunk.usage]

    there = CompletionStream(7, usage=True)
    translated = StreamReader(200, b"text/event-stream")
    again = [chunk for piece in cut(stream, data.draw(CUTS)) if (chunk := translated.take(there.take(piece)))]
    assert translated.problem is None
    assert translated.done
    assert [chunk.usage for chunk in again if chunk.usage] == counted


@CASES
@given(st.data())
def test_a_stream_that_dies_has_no_end(data):
    stream = data.draw(events(data.draw(answers())))
    end = stream.rindex(b"event: message_stop")
    reader = MessagesReader(200, b"text/event-stream")
    for piece in cut(stream[: data.draw(st.integers(0, end))], data.draw(CUTS)):
        reader.take(piece)
    reader.end(cut=False)
    assert reader.problem is not None
    assert reader.problem[0] == "engine_died"
