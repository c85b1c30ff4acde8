"""Requests and answers of both dialects, drawn from the part that has a meaning in the other."""

import json

from hypothesis import strategies as st

TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    st.sampled_from(
        ["data: [DONE]\n\n", "event: content_block_delta\n", '"finish_reason":null', '{"a":', "\r\n\r\n: x"]
    ),
)
ID = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
NAME = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXT | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAME, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(NAME, JSON_VALUE, max_size=3)
SCHEMA = st.dictionaries(NAME, JSON_VALUE, max_size=2).map(
    lambda more: {"type": "object", "properties": more, "required": list(more)}
)
DATA = st.binary(min_size=1, max_size=6).map(lambda raw: raw.hex())
COUNT = st.integers(0, 5000)


def optional(**fields):
    """Some of the fields, each unset at times and null at others."""
    return st.fixed_dictionaries({}, optional=fields)


# -- OpenAI ------------------------------------------------------------------------------------------------------

TEXT_PART = st.builds(lambda text: {"type": "text", "text": text}, TEXT)
IMAGE_PART = st.builds(
    lambda url: {"type": "image_url", "image_url": {"url": url}},
    st.one_of(NAME.map("https://h/{}.png".format), DATA.map("data:image/png;base64,{}".format)),
)
FILE_PART = st.builds(
    lambda data, name: {
        "type": "file",
        "file": {"file_data": f"data:application/pdf;base64,{data}", "filename": name},
    },
    DATA,
    NAME,
)
TEXTS = TEXT | st.lists(TEXT_PART, min_size=1, max_size=3)
USER = st.builds(
    lambda content: {"role": "user", "content": content},
    TEXT | st.lists(TEXT_PART | IMAGE_PART | FILE_PART, min_size=1, max_size=3),
)
SYSTEM = st.builds(
    lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "developer"]), TEXTS
)


@st.composite
def exchanges(draw):
    """A turn of the assistant, and what answers it: the results of its calls, and words of the user."""
    text = draw(st.none() | TEXTS)
    ids = draw(st.lists(ID, unique=True, max_size=3, min_size=0 if text else 1))
    said = {"role": "assistant", "content": text}
    if ids:
        said["tool_calls"] = [
            {
                "id": i,
                "type": "function",
                "function": {"name": draw(NAME), "arguments": json.dumps(draw(ARGUMENTS))},
            }
            for i in ids
        ]
    results = [{"role": "tool", "tool_call_id": i, "content": draw(TEXTS)} for i in ids]
    user = draw(st.lists(USER, min_size=0 if ids else 1, max_size=1))
    return [said, *results, *user, *draw(st.lists(SYSTEM, max_size=1) if user else st.just([]))]


TOOL = st.builds(
    lambda name, description, parameters, strict: {
        "type": "function",
        "function": {"name": name, "parameters": parameters, **description, **strict},
    },
    NAME,
    optional(description=TEXT),
    SCHEMA,
    optional(strict=st.booleans()),
)


@st.composite
def chats(draw):
    """A request in OpenAI's dialect."""
    said = [*draw(st.lists(SYSTEM, max_size=2)), draw(USER)]
    for exchange in draw(st.lists(exchanges(), max_size=2)):
        said += exchange
    while said[-1]["role"] in ("system", "developer"):
        said.pop()
    tools = draw(st.lists(TOOL, max_size=2, unique_by=lambda tool: tool["function"]["name"]))
    body = {"model": draw(NAME), "messages": said}
    if tools:
        one = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
        body["tools"] = tools
        body |= draw(
            optional(
                tool_choice=st.sampled_from(["auto", "none", "required", one]),
                parallel_tool_calls=st.booleans(),
            )
        )
    form = st.builds(
        lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, SCHEMA
    )
    return body | draw(
        optional(
            max_tokens=st.integers(1, 5000),
            temperature=st.floats(0, 1) | st.none(),
            top_p=st.floats(0, 1),
            top_k=st.integers(1, 50),
            stop=st.none() | TEXT | st.lists(TEXT, min_size=1, max_size=4),
            stream=st.booleans(),
            user=ID,
            reasoning_effort=st.sampled_from(["none", "low", "medium", "high", "xhigh", "max", None]),
            response_format=st.just({"type": "text"}) | form,
            service_tier=st.sampled_from(["auto", "default"]),
            seed=st.none(),
            n=st.just(1),
            frequency_penalty=st.just(0),
            logit_bias=st.just({}) | st.none(),
            logprobs=st.just(False),
            store=st.just(False),
            metadata=st.just({"run": "x"}),
        )
    )


# -- Anthropic ---------------------------------------------------------------------------------------------------

CACHE = optional(cache_control=st.just({"type": "ephemeral"}) | st.none())
TEXT_BLOCK = st.builds(lambda text, cache: {"type": "text", "text": text, **cache}, TEXT, CACHE)
SOURCE = st.one_of(
    NAME.map(lambda name: {"type": "url", "url": f"https://h/{name}.png"}),
    DATA.map(lambda data: {"type": "base64", "media_type": "image/png", "data": data}),
)
IMAGE = st.builds(lambda source, cache: {"type": "image", "source": source, **cache}, SOURCE, CACHE)
PDF = st.builds(
    lambda data, title: {
        "type": "document",
        "title": title,
        "source": {"type": "base64", "media_type": "application/pdf", "data": data},
    },
    DATA,
    NAME,
)
BLOCKS = st.lists(TEXT_BLOCK, min_size=1, max_size=3)
ASKED = TEXT | st.lists(TEXT_BLOCK | IMAGE | PDF, min_size=1, max_size=3)


@st.composite
def turns(draw):
    """A turn of the assistant, and the user's that answers it."""
    ids = draw(st.lists(ID, unique=True, max_size=3))
    uses = [{"type": "tool_use", "id": i, "name": draw(NAME), "input": draw(ARGUMENTS)} for i in ids]
    thought = draw(
        st.lists(
            st.builds(
                lambda text: {"type": "thinking", "thinking": text, "signature": "s"},
                TEXT,
            ),
            max_size=1,
        )
    )
    texts = draw(BLOCKS if not ids else st.lists(TEXT_BLOCK, max_size=1))
    results = [
        {"type": "tool_result", "tool_use_id": i, "content": draw(TEXT | BLOCKS), **draw(CACHE)} for i in ids
    ]
    asked = draw(ASKED) if not ids else draw(st.lists(TEXT_BLOCK | IMAGE, max_size=1))
    content = asked if not ids else [*results, *asked]
    return [
        {"role": "assistant", "content": [*thought, *texts, *uses]},
        {"role": "user", "content": content},
    ]


ANTHROPIC_TOOL = st.builds(
    lambda name, schema, more: {"name": name, "input_schema": schema, **more},
    NAME,
    SCHEMA,
    optional(
        description=TEXT,
        strict=st.booleans(),
        type=st.just("custom"),
        cache_control=st.just({"type": "ephemeral"}),
    ),
)


@st.composite
def asks(draw):
    """A request in Anthropic's dialect."""
    said = [{"role": "user", "content": draw(ASKED)}]
    for turn in draw(st.lists(turns(), max_size=2)):
        said += turn
    body = {"model": draw(NAME), "max_tokens": draw(st.integers(1, 5000)), "messages": said}
    tools = draw(st.lists(ANTHROPIC_TOOL, max_size=2, unique_by=lambda tool: tool["name"]))
    if tools:
        body["tools"] = tools
        alone = draw(optional(disable_parallel_tool_use=st.booleans()))
        choices = [
            {"type": "auto"} | alone,
            {"type": "any"} | alone,
            {"type": "none"},
            {"type": "tool", "name": tools[0]["name"]} | alone,
        ]
        body |= draw(optional(tool_choice=st.sampled_from(choices)))
    config = optional(
        effort=st.sampled_from(["low", "medium", "high", "xhigh", "max"]),
        format=st.builds(lambda schema: {"type": "json_schema", "schema": schema}, SCHEMA),
    )
    return body | draw(
        optional(
            system=TEXT | BLOCKS,
            stream=st.booleans(),
            stop_sequences=st.lists(TEXT, min_size=1, max_size=3),
            temperature=st.floats(0, 1),
            top_p=st.floats(0, 1),
            top_k=st.integers(1, 50),
            output_config=config,
            metadata=st.builds(lambda user: {"user_id": user}, ID | st.none()),
            service_tier=st.sampled_from(["auto", "standard_only"]),
            thinking=st.sampled_from(
                [{"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 2048}]
            ),
            cache_control=st.just({"type": "ephemeral"}),
            speed=st.just("standard"),
        )
    )


# -- answers -----------------------------------------------------------------------------------------------------


@st.composite
def completions(draw):
    """A whole answer in OpenAI's dialect."""
    message = {"role": "assistant", "content": draw(st.none() | st.just("") | TEXT)}
    message |= draw(optional(reasoning_content=TEXT, refusal=st.none() | TEXT))
    calls = draw(st.lists(st.tuples(ID, NAME, ARGUMENTS), max_size=3, unique_by=lambda call: call[0]))
    if calls:
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for i, name, given in calls
        ]
    choice = {"index": 0, "message": message, "logprobs": None}
    choice |= draw(
        st.sampled_from(
            [
                {"finish_reason": "stop"},
                {"finish_reason": "stop", "stop_reason": "###"},
                {"finish_reason": "stop", "stop_reason": 128001},
                {"finish_reason": "length"},
                {"finish_reason": "tool_calls"},
                {"finish_reason": "content_filter"},
                {"finish_reason": "stop", "native_finish_reason": "completed"},
            ]
        )
    )
    usage = {"prompt_tokens": draw(COUNT) + 9000, "completion_tokens": draw(COUNT), "total_tokens": 1}
    usage |= draw(
        optional(
            prompt_tokens_details=st.none()
            | optional(cached_tokens=COUNT | st.none(), cache_write_tokens=st.integers(0, 3000)),
            completion_tokens_details=st.none() | optional(reasoning_tokens=COUNT),
        )
    )
    return {
        "id": draw(ID),
        "object": "chat.completion",
        "created": 7,
        "model": draw(NAME),
        "choices": [choice],
        "usage": usage,
    }


@st.composite
def answers(draw):
    """A whole answer in Anthropic's dialect."""
    block = st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, TEXT),
        st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, TEXT),
        st.just({"type": "redacted_thinking", "data": "x"}),
        st.builds(
            lambda i, name, given: {"type": "tool_use", "id": i, "name": name, "input": given},
            ID,
            NAME,
            ARGUMENTS,
        ),
    )
    reason = draw(
        st.sampled_from(
            [
                {"stop_reason": "end_turn"},
                {"stop_reason": "max_tokens"},
                {"stop_reason": "tool_use"},
                {"stop_reason": "stop_sequence", "stop_sequence": "###"},
                {"stop_reason": "refusal", "stop_details": {"type": "refusal", "explanation": "no"}},
                {"stop_reason": "model_context_window_exceeded"},
                {"stop_reason": "of_next_year"},
            ]
        )
    )
    usage = {"input_tokens": draw(COUNT), "output_tokens": draw(COUNT)}
    usage |= draw(
        optional(
            cache_read_input_tokens=COUNT,
            cache_creation_input_tokens=COUNT | st.none(),
            output_tokens_details=st.builds(lambda n: {"thinking_tokens": n}, COUNT),
            service_tier=st.just("standard"),
        )
    )
    return {
        "id": draw(ID),
        "type": "message",
        "role": "assistant",
        "model": draw(NAME),
        "content": draw(st.lists(block, max_size=4)),
        "stop_sequence": None,
        **reason,
        "usage": usage,
    }


def _pieces(draw, text):
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=2))) if text else []
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def chunks(draw, whole):
    """A stream of OpenAI's that tells the answer `whole`."""
    head = {k: whole[k] for k in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    (choice,) = whole["choices"]
    message = choice["message"]
    deltas = [{"role": "assistant", "content": ""}]
    key = draw(st.sampled_from(["reasoning_content", "reasoning"]))
    deltas += [{key: piece} for piece in _pieces(draw, message.get("reasoning_content") or "")]
    deltas += [{"content": piece} for piece in _pieces(draw, message["content"] or "")]
    deltas += [{"refusal": piece} for piece in _pieces(draw, message.get("refusal") or "")]
    for i, call in enumerate(message.get("tool_calls", ())):
        first, *more = _pieces(draw, call["function"]["arguments"])
        function = {"name": call["function"]["name"], "arguments": first}
        deltas.append(
            {"tool_calls": [{"index": i, "id": call["id"], "type": "function", "function": function}]}
        )
        deltas += [{"tool_calls": [{"index": i, "function": {"arguments": piece}}]} for piece in more]
    ending = {k: v for k, v in choice.items() if k != "message"}
    told = [{**head, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    told.append({**head, "choices": [{**ending, "delta": {}}]})
    told.append({**head, "choices": [], "usage": whole["usage"]})
    space = draw(st.sampled_from(["data: ", "data:"]))
    lines = [f"{space}{json.dumps(one)}\n\n" for one in told]
    lines.insert(draw(st.integers(1, len(lines))), ": keep-alive\n\n")
    return "".join([*lines, f"{space}[DONE]\n\n"]).encode()


@st.composite
def events(draw, whole):
    """A stream of Anthropic's that tells the answer `whole`."""
    usage = whole["usage"]
    late = {"output_tokens": usage["output_tokens"]} | {
        k: usage[k] for k in draw(st.sets(st.sampled_from(sorted(usage)))) if k != "service_tier"
    }
    early = {k: v for k, v in usage.items() if k not in late} | {
        "input_tokens": usage["input_tokens"],
        "output_tokens": 1,
    }
    if "output_tokens_details" in usage:
        late["output_tokens_details"] = usage["output_tokens_details"]
    message = {**whole, "content": [], "usage": early, "stop_reason": None, "stop_sequence": None}
    message.pop("stop_details", None)
    told = [{"type": "message_start", "message": message}, {"type": "ping"}, {"type": "of_next_year", "x": 1}]
    for i, block in enumerate(whole["content"]):
        kind, deltas, start = block["type"], [], dict(block)
        if kind == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(draw, block["text"])]
            start["text"] = ""
        elif kind == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": p} for p in _pieces(draw, block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            start |= {"thinking": "", "signature": ""}
        elif kind == "tool_use":
            pieces = _pieces(draw, json.dumps(block["input"])) if block["input"] else [""]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            start["input"] = {}
        told.append({"type": "content_block_start", "index": i, "content_block": start})
        told += [{"type": "content_block_delta", "index": i, "delta": delta} for delta in deltas]
        told.append({"type": "content_block_stop", "index": i})
    delta = {k: whole.get(k) for k in ("stop_reason", "stop_sequence", "stop_details") if k in whole}
    told += [{"type": "message_delta", "delta": delta, "usage": late}, {"type": "message_stop"}]
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in told).encode()
