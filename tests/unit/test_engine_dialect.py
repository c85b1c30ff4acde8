"""What each dialect can say of the other, field by field: what is refused and by which name, what only hints, and what is
said in another way.  That meaning is kept at large is in the laws."""

import doctest
import json

import pytest

from dialects import fold_chunks, fold_events, unfit_chat, unfit_messages
from sits.core.errors import CallerError
from sits.engine.dialect import ask_anthropic, ask_openai, ending, usage
from sits.engine.dialect.answer_anthropic import CALLS_MAX, MessageStream, message
from sits.engine.dialect.answer_openai import CompletionStream, completion
from sits.engine.dialect.ask_anthropic import to_messages
from sits.engine.dialect.ask_openai import to_chat
from sits.engine.dialect.messages_reader import MessagesReader
from sits.engine.dialect.reading import AnswerError

HI = [{"role": "user", "content": "hi"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USED = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
A_TOOL = {"name": "f", "input_schema": {"type": "object"}}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def for_anthropic(messages=HI, **more):
    told = json.loads(to_messages(json.dumps({"model": "m", "messages": messages, **more}).encode(), 4096)[0])
    assert unfit_messages(told) == ""
    return told


def for_openai(messages=HI, **more):
    body = {"model": "m", "max_tokens": 9, "messages": messages, **more}
    told = json.loads(to_chat(json.dumps(body).encode()))
    assert unfit_chat(told) == ""
    return told


@pytest.mark.parametrize("module", [ask_anthropic, ask_openai, ending, usage])
def test_the_examples_in_the_sources_hold(module):
    tried = doctest.testmod(module)
    assert tried.attempted
    assert not tried.failed


# -- refused, by name --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("seed", {"seed": 7}),
        ("n", {"n": 2}),
        ("temperature", {"temperature": 1.5}),
        ("frequency_penalty", {"frequency_penalty": 0.5}),
        ("presence_penalty", {"presence_penalty": -1}),
        ("logit_bias", {"logit_bias": {"50256": -100}}),
        ("logprobs", {"logprobs": True}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("modalities", {"modalities": ["text", "audio"]}),
        ("audio", {"audio": {"voice": "alloy", "format": "wav"}}),
        ("prediction", {"prediction": {"type": "content", "content": "x"}}),
        ("store", {"store": True}),
        ("verbosity", {"verbosity": "low"}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("function_call", {"function_call": "auto"}),
        ("web_search_options", {"web_search_options": {}}),
        ("moderation", {"moderation": {"model": "x"}}),
        ("service_tier", {"service_tier": "flex"}),
        ("reasoning_effort", {"reasoning_effort": "minimal"}),
        ("response_format.type", {"response_format": {"type": "json_object"}}),
        (
            "response_format.json_schema.schema",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        ),
        ("stream_options.of_next_year", {"stream": True, "stream_options": {"of_next_year": 1}}),
        ("tools[1].type", {"tools": [TOOL, {"type": "custom", "custom": {"name": "g"}}]}),
        (
            "tool_choice.type",
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        ),
        ("tool_choice", {"tools": [TOOL], "tool_choice": "maybe"}),
        ("of_next_year", {"of_next_year": {}}),
        ("repetition_penalty", {"repetition_penalty": 1.1}),
        ("messages[0].name", {"messages": [{"role": "user", "content": "hi", "name": "ann"}]}),
        ("messages[0].role", {"messages": [{"role": "function", "content": "hi", "name": "f"}]}),
        (
            "messages[0].content[0].type",
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        ),
        (
            "messages[0].content[1].image_url.url",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "x"},
                            {"type": "image_url", "image_url": {"url": "data:image/png,plain"}},
                        ],
                    }
                ]
            },
        ),
        (
            "messages[0].content[0].file.file_id",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "file", "file": {"file_id": "file-1", "file_data": "x"}}],
                    }
                ]
            },
        ),
        (
            "messages[0].content[0].file.file_data",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "file", "file": {"file_data": "data:text/csv;base64,AA=="}}],
                    }
                ]
            },
        ),
        ("messages[1].audio", {"messages": [*HI, {"role": "assistant", "audio": {"id": "a"}}]}),
        (
            "messages[1].tool_calls[0].type",
            {"messages": [*HI, {"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
        ),
    ],
)
def test_what_anthropic_has_no_words_for_is_refused_by_its_name(field, body):
    with pytest.raises(CallerError) as told:
        for_anthropic(**body)
    assert (told.value.field, told.value.code) == (field, "untranslatable_field")
    assert field in str(told.value)
    assert "Anthropic" in str(told.value)


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("max_tokens", {"max_tokens": 0}),
        ("speed", {"speed": "fast"}),
        ("inference_geo", {"inference_geo": "eu"}),
        ("container", {"container": "c"}),
        ("mcp_servers[0]", {"mcp_servers": [{"type": "url"}]}),
        ("diagnostics", {"diagnostics": {"previous_message_id": "x"}}),
        ("of_next_year", {"of_next_year": 1}),
        ("thinking.type", {"thinking": {"type": "of_next_year"}}),
        ("output_config.of_next_year", {"output_config": {"of_next_year": 1}}),
        ("output_config.format.type", {"output_config": {"format": {"type": "yaml"}}}),
        ("tools[0].type", {"tools": [{"type": "web_search_20260318", "name": "web_search"}]}),
        ("tools[0].defer_loading", {"tools": [A_TOOL | {"defer_loading": True}]}),
        ("tools[0].input_examples", {"tools": [A_TOOL | {"input_examples": [{}]}]}),
        (
            "tools[0].allowed_callers[0]",
            {"tools": [A_TOOL | {"allowed_callers": ["code_execution_20260521"]}]},
        ),
        ("tool_choice.type", {"tools": [A_TOOL], "tool_choice": {"type": "some"}}),
        ("messages[1].role", {"messages": [*HI, {"role": "assistant", "content": "The answer is ("}]}),
        ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
        (
            "messages[0].content[0].type",
            {"messages": [{"role": "user", "content": [{"type": "search_result"}]}]},
        ),
        (
            "messages[0].content[0].source.type",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}],
                    }
                ]
            },
        ),
        (
            "messages[0].content[0].transformations",
            {
                "messages": [
                    {"role": "user", "content": [PNG | {"transformations": {"oversized_image": "error"}}]}
                ]
            },
        ),
        (
            "messages[0].content[0].citations",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "document",
                                "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="},
                                "citations": {"enabled": True},
                            }
                        ],
                    }
                ]
            },
        ),
        (
            "messages[0].content[0].title",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "document",
                                "title": "t",
                                "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                            }
                        ],
                    }
                ]
            },
        ),
        (
            "messages[1].content[0].type",
            {
                "messages": [
                    *HI,
                    {"role": "assistant", "content": [{"type": "server_tool_use", "id": "x"}]},
                    *HI,
                ]
            },
        ),
        (
            "messages[1].content[0].caller.type",
            {
                "messages": [
                    *HI,
                    {
                        "role": "assistant",
                        "content": [USED | {"caller": {"type": "code_execution_20260521"}}],
                    },
                    *HI,
                ]
            },
        ),
    ],
)
def test_what_openai_has_no_words_for_is_refused_by_its_name(field, body):
    with pytest.raises(CallerError) as told:
        for_openai(**body)
    assert (told.value.field, told.value.code) == (field, "untranslatable_field")
    assert field in str(told.value)
    assert "OpenAI" in str(told.value)


@pytest.mark.parametrize(
    ("field", "translate", "body"),
    [
        ("temperature", for_anthropic, {"temperature": "hot"}),
        ("messages[0].content", for_anthropic, {"messages": [{"role": "user"}]}),
        ("messages[0]", for_anthropic, {"messages": ["hi"]}),
        (
            "messages[1].tool_calls[0].function.arguments",
            for_anthropic,
            {
                "messages": [
                    *HI,
                    {
                        "role": "assistant",
                        "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{"}}],
                    },
                ]
            },
        ),
        (
            "messages[1].tool_calls[0].function.arguments",
            for_anthropic,
            {
                "messages": [
                    *HI,
                    {
                        "role": "assistant",
                        "tool_calls": [CALL | {"function": {"name": "f", "arguments": "[1]"}}],
                    },
                ]
            },
        ),
        ("max_tokens", for_openai, {"max_tokens": "9"}),
        (
            "messages[0].content[0].text",
            for_openai,
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        ),
        ("thinking.type", for_openai, {"thinking": {}}),
        ("tools[0].input_schema", for_openai, {"tools": [{"name": "f"}]}),
    ],
)
def test_what_is_wrong_in_any_dialect_is_told_as_wrong(field, translate, body):
    with pytest.raises(CallerError) as told:
        translate(**body)
    assert (told.value.field, told.value.code) == (field, "invalid_field")


def test_a_body_that_is_no_json_is_the_callers():
    for translate in (lambda body: to_messages(body, 9), to_chat):
        for body in (b"{", b"\xff", b'{"thinking": ' + b"[" * 100_000):
            with pytest.raises(CallerError) as told:
                translate(body)
            assert told.value.code == "invalid_json"


# -- only hints --------------------------------------------------------------------------------------------------


def test_null_means_unset():
    fields = [
        "seed",
        "logprobs",
        "tools",
        "tool_choice",
        "stop",
        "user",
        "metadata",
        "thinking",
        "functions",
        "n",
    ]
    assert for_anthropic(**dict.fromkeys(fields)) == for_anthropic()
    fields = [
        "tools",
        "tool_choice",
        "system",
        "thinking",
        "metadata",
        "speed",
        "container",
        "context_management",
    ]
    assert for_openai(**dict.fromkeys(fields)) == for_openai()


def test_what_only_hints_is_left_behind():
    hints = {
        "metadata": {"run": "7"},
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "implicit"},
        "n": 1,
        "logit_bias": {},
        "verbosity": "medium",
        "parallel_tool_calls": False,
    }
    assert for_anthropic(**hints) == for_anthropic()
    hints = {
        "thinking": {"type": "enabled", "budget_tokens": 4096},
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": []},
        "metadata": {"user_id": "u" * 65},
        "service_tier": "auto",
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    assert for_openai(**hints) == for_openai()


# -- said in another way -----------------------------------------------------------------------------------------


def test_anthropic_gets_the_limit_it_requires():
    assert for_anthropic()["max_tokens"] == 4096
    assert for_anthropic(max_tokens=7)["max_tokens"] == 7
    assert for_anthropic(max_tokens=7, max_completion_tokens=8)["max_tokens"] == 8


def test_whether_a_stream_tells_its_usage_is_the_callers_wish():
    def asked(**more):
        return to_messages(json.dumps({"model": "m", "messages": HI, **more}).encode(), 9)[1]

    assert not asked()
    assert not asked(stream=True, stream_options={"include_obfuscation": True})
    assert asked(stream=True, stream_options={"include_usage": True})
    assert for_openai(stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in for_openai()


def test_results_of_parallel_calls_and_the_users_words_are_one_turn():
    calls = [CALL | {"id": "a"}, CALL | {"id": "b"}]
    told = for_anthropic(
        [*HI, {"role": "assistant", "tool_calls": calls}]
        + [{"role": "tool", "tool_call_id": i, "content": i.upper()} for i in "ab"]
        + [{"role": "user", "content": "and?"}]
    )
    assert [m["role"] for m in told["messages"]] == ["user", "assistant", "user"]
    assert [b["type"] for b in told["messages"][2]["content"]] == ["tool_result", "tool_result", "text"]


def test_ids_anthropic_would_not_take_are_changed_the_same_everywhere():
    call = CALL | {"id": "functions.f:0"}
    told = for_anthropic(
        [*HI, {"role": "assistant", "tool_calls": [call]}, RESULT | {"tool_call_id": call["id"]}]
    )
    assert (
        told["messages"][1]["content"][0]["id"]
        == told["messages"][2]["content"][0]["tool_use_id"]
        != call["id"]
    )


def test_a_schema_gets_the_type_it_means():
    def schema(parameters):
        tool = {"type": "function", "function": {"name": "f"} | parameters}
        return for_anthropic(tools=[tool])["tools"][0]["input_schema"]

    empty = {"type": "object", "properties": {}}
    assert schema({}) == schema({"parameters": None}) == schema({"parameters": {}}) == empty
    assert schema({"parameters": {"properties": {"a": {}}}}) == {"type": "object", "properties": {"a": {}}}


def test_numbers_of_arguments_and_schemas_are_not_rounded():
    text = '{"n": 12345678901234567890123, "x": 1.00}'
    call = CALL | {"function": {"name": "f", "arguments": text}}
    body = json.dumps({"model": "m", "messages": [*HI, {"role": "assistant", "tool_calls": [call]}, RESULT]})
    there = to_messages(body.encode(), 9)[0]
    assert text.encode() in there
    assert json.loads(to_chat(there))["messages"][1]["tool_calls"][0]["function"]["arguments"] == text


def test_caching_is_asked_for_where_the_caller_marked_it():
    part = {"type": "text", "text": "x"}
    marks = [
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"prompt_cache_breakpoint": {"mode": "explicit"}},
        {},
    ]
    told = for_anthropic([{"role": "user", "content": [part | mark for mark in marks]}])
    caching = [block.get("cache_control") for block in told["messages"][0]["content"]]
    assert caching == [{"type": "ephemeral", "ttl": "1h"}, {"type": "ephemeral"}, None]


def test_instructions_in_mid_conversation_keep_their_place():
    said = [*HI, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "go on"}]
    late = [*said, {"role": "developer", "content": "be brief"}, {"role": "assistant", "content": "."}, *HI]
    assert [m["role"] for m in for_anthropic(late)["messages"]] == [
        "user",
        "assistant",
        "user",
        "system",
        "assistant",
        "user",
    ]
    assert "system" not in for_anthropic(late)


def test_reasoning_can_be_turned_off_and_down():
    assert for_anthropic(reasoning_effort="none")["thinking"] == {"type": "disabled"}
    assert for_anthropic(reasoning_effort="max")["output_config"] == {"effort": "max"}
    assert for_anthropic(thinking={"type": "adaptive"})["thinking"] == {"type": "adaptive"}
    assert for_openai(thinking={"type": "disabled"})["reasoning_effort"] == "none"
    assert for_openai(output_config={"effort": "low"})["reasoning_effort"] == "low"


def test_pictures_in_a_tools_result_come_in_the_users_message_behind_it():
    results = [
        {
            "type": "tool_result",
            "tool_use_id": "c1",
            "is_error": False,
            "content": [{"type": "text", "text": "seen"}, PNG],
        },
        {"type": "tool_result", "tool_use_id": "c2", "content": [PNG]},
        {"type": "tool_result", "tool_use_id": "c3"},
    ]
    uses = [USED | {"id": f"c{i}"} for i in (1, 2, 3)]
    told = for_openai([*HI, {"role": "assistant", "content": uses}, {"role": "user", "content": results}])
    assert [(m["role"], m["content"]) for m in told["messages"][2:5]] == [
        ("tool", "seen"),
        ("tool", ""),
        ("tool", ""),
    ]
    assert [part["type"] for part in told["messages"][5]["content"]] == ["image_url", "image_url"]


def test_earlier_thinking_reaches_engines_by_both_names():
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "ho"},
    ]
    said = for_openai([*HI, {"role": "assistant", "content": blocks}, *HI])["messages"][1]
    assert said == {"role": "assistant", "content": "ho", "reasoning_content": "hm", "reasoning": "hm"}


def test_a_turn_that_says_nothing_is_still_a_turn():
    told = for_openai([*HI, {"role": "assistant", "content": []}, {"role": "user", "content": []}])
    assert [(m["role"], m["content"]) for m in told["messages"][1:]] == [("assistant", ""), ("user", [])]


def test_an_earlier_refusal_is_text():
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": "never"}
    blocks = for_anthropic([*HI, said, *HI])["messages"][1]["content"]
    assert [block["text"] for block in blocks] == ["no", "never"]


# -- answers -----------------------------------------------------------------------------------------------------


def answer(finish="stop", usage=None, **message):
    message = {"role": "assistant", "content": "ho", **message}
    return {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    }


def told_by_anthropic(**more):
    return json.loads(message(json.dumps(answer(**more)).encode()))


def test_a_call_ends_an_answer_whatever_the_engine_calls_it():
    assert told_by_anthropic(tool_calls=[CALL])["stop_reason"] == "tool_use"
    assert told_by_anthropic()["stop_reason"] == "end_turn"
    assert told_by_anthropic(finish=None)["stop_reason"] == "end_turn"
    assert told_by_anthropic(finish="length", tool_calls=[CALL])["stop_reason"] == "max_tokens"


def test_refusals_are_told_with_their_words():
    told = told_by_anthropic(content=None, refusal="I will not")
    assert (told["stop_reason"], told["stop_details"]["explanation"], told["content"]) == (
        "refusal",
        "I will not",
        [],
    )
    assert told_by_anthropic(finish="content_filter")["stop_reason"] == "refusal"


def test_usage_that_was_not_told_is_none_and_what_cannot_be_is_not_believed():
    assert told_by_anthropic()["usage"] == {
        "input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    lie = {"prompt_tokens": 5, "completion_tokens": 2**40, "prompt_tokens_details": {"cached_tokens": 9}}
    assert told_by_anthropic(usage=lie)["usage"]["input_tokens"] == 0
    assert told_by_anthropic(usage=lie)["usage"]["output_tokens"] == 0


def test_calls_without_ids_get_their_own():
    calls = [{"type": "function", "function": {"name": "f", "arguments": ""}}] * 2
    ids = [block["id"] for block in told_by_anthropic(content=None, tool_calls=calls)["content"]]
    assert len(set(ids)) == 2
    assert all(block["input"] == {} for block in told_by_anthropic(content=None, tool_calls=calls)["content"])


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("engine_untranslatable", answer(finish="abort")),
        (
            "engine_untranslatable",
            answer(tool_calls=[CALL | {"function": {"name": "f", "arguments": "{'a'"}}]),
        ),
        ("engine_garbage", {"id": "c", "model": "m", "choices": []}),
        ("engine_garbage", answer(content=[{"type": "text"}])),
        ("engine_garbage", [1]),
    ],
)
def test_an_answer_anthropics_clients_cannot_be_told_is_an_error(code, body):
    with pytest.raises(AnswerError) as told:
        message(json.dumps(body).encode())
    assert told.value.code == code


def a_message(*content, **more):
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {
        "id": "m",
        "type": "message",
        "model": "c",
        "content": content,
        "stop_reason": "end_turn",
        "usage": usage,
        **more,
    }


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (
            "engine_untranslatable",
            a_message({"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}}),
        ),
        ("engine_garbage", a_message({"type": "tool_use", "id": 7})),
        ("engine_garbage", a_message(usage={"input_tokens": "many"})),
        ("engine_garbage", {"type": "error"}),
    ],
)
def test_an_answer_openais_clients_cannot_be_told_is_an_error(code, body):
    with pytest.raises(AnswerError) as told:
        completion(json.dumps(body).encode(), 7)
    assert told.value.code == code


def test_reasons_of_which_openai_has_none_are_told_beside():
    def choice(reason):
        return json.loads(completion(json.dumps(a_message(stop_reason=reason)).encode(), 7))["choices"][0]

    assert choice("pause_turn")["native_finish_reason"] == "pause_turn"
    assert choice("model_context_window_exceeded")["finish_reason"] == "length"
    assert "native_finish_reason" not in choice("end_turn")


def lines(*told, end=b"data: [DONE]\n\n"):
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in told) + end


def piece(finish=None, usage=None, **delta):
    return {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        "usage": usage,
    }


def call(index=None, ident=None, name=None, arguments=None):
    told = {"index": index, "id": ident, "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [{k: v for k, v in told.items() if v is not None}]}


def test_usage_may_come_with_the_finish_reason_and_more_choices_are_not_ours():
    other = {"id": "c", "model": "m", "choices": [{"index": 1, "delta": {"content": "x"}}]}
    counts = {"prompt_tokens": 3, "completion_tokens": 2}
    told = MessageStream().take(
        lines(piece(content="a"), other, piece(content="b", finish="stop", usage=counts), piece())
    )
    folded = fold_events(told)
    assert folded["content"] == [{"type": "text", "text": "ab"}]
    assert (folded["usage"]["input_tokens"], folded["usage"]["output_tokens"]) == (3, 2)


def test_calls_without_an_index_follow_each_other():
    told = MessageStream().take(
        lines(
            piece(**call(ident="a", name="f", arguments="")),
            piece(**call(arguments='{"x":')),
            piece(**call(arguments="1}")),
            piece(**call(ident="b", name="g", arguments="{}")),
            piece(finish="tool_calls"),
        )
    )
    blocks = [(b["id"], b["name"], b["input"]) for b in fold_events(told)["content"]]
    assert blocks == [("a", "f", {"x": 1}), ("b", "g", {})]


@pytest.mark.parametrize(
    "told",
    [
        [piece(**call(0, "a", "f")), piece(**call(1, "b", "g")), piece(**call(0, arguments="{}"))],
        [piece(**call(0, "a", "f")), piece(content="x"), piece(**call(0, arguments="{}"))],
        [piece(content="x"), piece(finish="abort")],
        [piece(**call(i, str(i), "f")) for i in range(CALLS_MAX + 1)],
        [{"choices": "none"}],
        [],
    ],
)
def test_a_stream_anthropics_clients_cannot_be_told_is_an_error(told):
    with pytest.raises(AnswerError):
        MessageStream().take(lines(*told))


def events(*told):
    return b"".join(
        b"event: " + t["type"].encode() + b"\ndata: " + json.dumps(t).encode() + b"\n\n" for t in told
    )


START = {"type": "message_start", "message": a_message(stop_reason=None)}
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}
STOP = {"type": "message_stop"}


def test_usage_is_told_to_who_asked_only_and_then_in_every_chunk():
    silent = CompletionStream(7, usage=False).take(events(START, END, STOP))
    assert b"usage" not in silent
    told = CompletionStream(7, usage=True).take(events(START, END, STOP))
    assert told.count(b'"usage":null') == 2
    assert fold_chunks(told)["usage"]["completion_tokens"] == 3


def test_a_ping_keeps_the_other_sides_connection_alive():
    assert CompletionStream(7, usage=False).take(events({"type": "ping"})) == b": ping\n\n"
    stream = MessageStream()
    assert stream.take(b": keep\n\n") == b""  # nothing may come before message_start
    stream.take(lines(piece(content="a"), end=b""))
    assert stream.take(b": keep\n\n") == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_events_of_next_year_are_skipped_and_blocks_are_not():
    stream = CompletionStream(7, usage=False)
    stream.take(events(START))
    assert stream.take(events({"type": "of_next_year", "index": "x"})) == b""
    with pytest.raises(AnswerError):
        stream.take(
            events({"type": "content_block_start", "index": 0, "content_block": {"type": "of_next_year"}})
        )


@pytest.mark.parametrize(
    ("code", "stream"),
    [
        (
            "engine_error_event",
            events({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        ),
        ("engine_garbage", b"data: nonsense\n\n"),
        ("engine_garbage", b"data: [DONE]\n\n"),
    ],
)
def test_the_reader_stops_where_the_engine_fails(code, stream):
    reader = MessagesReader(200, b"text/event-stream")
    chunk = reader.take(events(START) + stream + events(END))
    assert chunk.data == events(START)
    assert reader.problem[0] == code
    reader.end(cut=True)
    assert reader.problem[0] == code
