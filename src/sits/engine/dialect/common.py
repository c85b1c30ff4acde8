"""What both dialects say about an answer: why it ended, what it took, what went wrong; and how refusals are told.

OpenAI counts cached prompt tokens inside `prompt_tokens`; Anthropic counts them beside `input_tokens`, read and written
apart.  So `prompt_tokens = input_tokens + cache_read_input_tokens + cache_creation_input_tokens`.

| Anthropic `stop_reason` | OpenAI `finish_reason` | back |
|---|---|---|
| end_turn | stop | end_turn |
| stop_sequence | stop, and the sequence in `stop_reason` as vLLM does | stop_sequence, when `stop_reason` is text |
| max_tokens | length | max_tokens |
| tool_use | tool_calls | tool_use |
| refusal | content_filter | refusal |
| anything else | length for a full context, else stop, and the word itself in `native_finish_reason` | the word, when it is one of Anthropic's |

OpenAI says `stop` after a forced tool call, Anthropic always `tool_use`: an answer with tool calls has ended for them.
Sources: the types of the official SDKs, openai 3.57 and anthropic 2.14.

Deliberately absent: bytes and streams.
"""

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from sits.core.errors import CallerError, EngineError
from sits.core.request import Usage

COUNT_END = 2**31
"""Counts from here on are not believed; what no engine can have counted is not added to the books."""

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_TOLD_BY_NATIVE = ("model_context_window_exceeded", "pause_turn")
_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an answer ended, in OpenAI's words, as fields of a choice.

    `stop_reason`: the stop sequence that was met; `native_finish_reason`: the engine's own word where OpenAI has none.
    """

    finish_reason: str
    stop_reason: str | None = None
    native_finish_reason: str | None = None


def ending_of(stop_reason: str | None, stop_sequence: str | None) -> Ending:
    """Anthropic's reason in OpenAI's words.

    >>> ending_of("stop_sequence", "###")
    Ending(finish_reason='stop', stop_reason='###', native_finish_reason=None)
    """
    word = stop_reason or "end_turn"
    native = word if word not in _FINISH or word in _TOLD_BY_NATIVE else None
    return Ending(_FINISH.get(word, "stop"), stop_sequence or None, native)


def stop_of(
    finish_reason: str | None, met: object, native: object = None, *, tools: bool
) -> tuple[str, str | None]:
    """OpenAI's reason in Anthropic's words: `stop_reason` and `stop_sequence`.  `met` is vLLM's `stop_reason`.

    An engine that gives none is taken to have come to its end.

    >>> stop_of("stop", "###", tools=False), stop_of("stop", None, tools=True)
    (('stop_sequence', '###'), ('tool_use', None))

    Raises:
        EngineError: a reason Anthropic has no word for, like vLLM's `abort`: half an answer is not passed off as a whole one.

    """
    if native in _TOLD_BY_NATIVE:  # others use this field too, for words of their own
        return native, None
    word = _STOP.get(finish_reason or "stop")
    if word is None:
        raise EngineError(
            f"the answer ended with {finish_reason!r}, which the Messages API has no word for",
            code="engine_untranslatable",
        )
    if word == "end_turn" and tools:
        return "tool_use", None
    if word == "end_turn" and isinstance(met, str) and met:
        return "stop_sequence", met
    return word, None


class PromptDetails(msgspec.Struct, omit_defaults=True):
    """OpenAI's `prompt_tokens_details`."""

    cached_tokens: int | None = 0
    cache_write_tokens: int | None = 0


class CompletionDetails(msgspec.Struct, omit_defaults=True):
    """OpenAI's `completion_tokens_details`."""

    reasoning_tokens: int | None = 0


class ChatUsage(msgspec.Struct):
    """OpenAI's `usage`; `null` counts as 0."""

    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    total_tokens: int | None = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class ThinkingDetails(msgspec.Struct):
    """Anthropic's `output_tokens_details`."""

    thinking_tokens: int | None = 0


class MessagesUsage(msgspec.Struct, omit_defaults=True):
    """Anthropic's `usage`; in a stream it comes in parts, of which the later ones count."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: ThinkingDetails | None = None

    def update(self, later: "MessagesUsage") -> None:
        """Take over what `later` tells."""
        for name in self.__struct_fields__:
            value = getattr(later, name)
            if value is not None:
                setattr(self, name, value)

    @property
    def counts(self) -> Usage:
        """In our own words."""
        read = _count(self.cache_read_input_tokens)
        prompt = _count(self.input_tokens) + read + _count(self.cache_creation_input_tokens)
        return Usage(prompt, _count(self.output_tokens), read)


def chat_usage(told: MessagesUsage) -> ChatUsage:
    """Anthropic's usage as OpenAI's.

    >>> told = chat_usage(MessagesUsage(input_tokens=5, cache_read_input_tokens=100, output_tokens=7))
    >>> told.prompt_tokens, told.prompt_tokens_details.cached_tokens, told.total_tokens
    (105, 100, 112)
    """
    counts = told.counts
    thought = told.output_tokens_details
    return ChatUsage(
        prompt_tokens=counts.input,
        completion_tokens=counts.output,
        total_tokens=counts.input + counts.output,
        prompt_tokens_details=PromptDetails(counts.cached, _count(told.cache_creation_input_tokens)),
        completion_tokens_details=CompletionDetails(thought.thinking_tokens) if thought else None,
    )


def messages_usage(told: ChatUsage | None) -> MessagesUsage:
    """OpenAI's usage as Anthropic's; zeros when the engine told nothing.

    >>> told = ChatUsage(prompt_tokens=105, completion_tokens=7, prompt_tokens_details=PromptDetails(100, 2))
    >>> usage = messages_usage(told)
    >>> usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    (3, 100, 2)
    """
    told = told or ChatUsage()
    details = told.prompt_tokens_details or PromptDetails()
    read, written = _count(details.cached_tokens), _count(details.cache_write_tokens)
    thought = told.completion_tokens_details
    return MessagesUsage(
        input_tokens=max(0, _count(told.prompt_tokens) - read - written),
        cache_creation_input_tokens=written,
        cache_read_input_tokens=read,
        output_tokens=_count(told.completion_tokens),
        output_tokens_details=ThinkingDetails(thought.reasoning_tokens)
        if thought and thought.reasoning_tokens
        else None,
    )


def counts_of(found: object) -> Usage | None:
    """Token counts of a usage object of any provider; None when it is none, or tells nothing that can be a count.

    Names: OpenAI's `prompt_tokens` and `completion_tokens`, Anthropic's and the Responses API's `input_tokens` and
    `output_tokens`, `generated_tokens`; cached prompt tokens inside the details (then part of the prompt's count) or in
    Anthropic's cache fields (then beside it).

    >>> counts_of({"input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 7})
    Usage(input=105, output=7, cached=100)
    >>> counts_of({"input_tokens": 5, "generated_tokens": 7})
    Usage(input=5, output=7, cached=0)
    """
    if not isinstance(found, dict):
        return None
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details")
    cached = _count(details.get("cached_tokens") if isinstance(details, dict) else 0)
    read = _count(found.get("cache_read_input_tokens"))
    beside = read + _count(found.get("cache_creation_input_tokens"))
    output = found.get("completion_tokens", found.get("output_tokens", found.get("generated_tokens")))
    counts = Usage(
        input=_count(found.get("prompt_tokens", found.get("input_tokens"))) + beside,
        output=_count(output),
        cached=cached or read,
    )
    return counts if counts.input or counts.output else None


def _count(value: object) -> int:
    return value if type(value) is int and 0 < value < COUNT_END else 0


def read(decoder: msgspec.json.Decoder[Any], body: bytes, other: str, inside: str = "") -> Any:
    """A request body, or its field `inside`, as `decoder`'s type; `other` names the dialect it is to be said in.

    Raises:
        CallerError: names the field, and says whether it is wrong or only has no meaning in `other`.

    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _refuse_invalid(str(error), other, inside)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CallerError(f"the body is not JSON: {error}", code="invalid_json") from error


def _refuse_invalid(text: str, other: str, inside: str) -> NoReturn:
    unknown = _UNKNOWN.fullmatch(text)
    if unknown:
        refuse(_path(inside, unknown.group(2), unknown.group(1)), other)
    at = _AT.fullmatch(text)
    what, field = (at.group(1), _path(inside, at.group(2))) if at else (text, inside)
    if what.startswith(("Invalid value", "Invalid enum value", "Expected `null`")):
        refuse(field, other, what)
    missing = _MISSING.fullmatch(what)
    if missing:
        field = _path(field, missing.group(1))
    raise CallerError(f"{field or 'body'}: {what}", field=field or None, code="invalid_field")


def _path(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)


def refuse(field: str, other: str, why: str = "", hint: str = "") -> NoReturn:
    """Say that `field` has no meaning in `other`."""
    raise CallerError(
        f"{field}: {why or 'not known there'}; the engine of this model speaks {other}, and this cannot be said in it",
        field=field,
        code="untranslatable_field",
        hint=hint or "leave it out, or ask for a model whose engine speaks the dialect of this endpoint",
    )


def check_neutral(told: Any, neutral: Mapping[str, tuple[Any, ...]], other: str) -> None:
    """Refuse fields of `told` that have another value than unset or one of those that change nothing."""
    for field, values in neutral.items():
        value = getattr(told, field)
        if value is not None and value not in values:
            refuse(field, other)
