"""What an answer took, in both dialects' words and in ours.

OpenAI counts cached prompt tokens inside `prompt_tokens`; Anthropic counts them beside `input_tokens`, read and written
apart.  So `prompt_tokens = input_tokens + cache_read_input_tokens + cache_creation_input_tokens`.
Sources: the types of the official SDKs, openai 3.57 and anthropic 2.14.

Deliberately absent: money.
"""

from typing import Any

import msgspec

from sits.core.request import Usage

COUNT_END = 2**31
"""Counts from here on are not believed; what no engine can have counted is not added to the books."""


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
    Anthropic's cache fields (beside `input_tokens`; part of `prompt_tokens`, where a gateway tells both).

    >>> counts_of({"input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 7})
    Usage(input=105, output=7, cached=100)
    >>> counts_of({"input_tokens": 5, "generated_tokens": 7})
    Usage(input=5, output=7, cached=0)
    >>> counts_of({"prompt_tokens": 105, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 100}})
    Usage(input=105, output=7, cached=100)
    """
    if not isinstance(found, dict):
        return None
    prompt = found.get("prompt_tokens")
    if prompt is None:
        return _counts_beside(found)
    details = found.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    output = found.get("completion_tokens", found.get("generated_tokens"))
    return _counts(_count(prompt), output, cached or found.get("cache_read_input_tokens"))


def _counts_beside(found: dict[str, Any]) -> Usage | None:
    details = found.get("input_tokens_details")
    read = found.get("cache_read_input_tokens")
    cached = details.get("cached_tokens") if isinstance(details, dict) else read
    prompt = (
        _count(found.get("input_tokens")) + _count(read) + _count(found.get("cache_creation_input_tokens"))
    )
    output = found.get("output_tokens", found.get("completion_tokens", found.get("generated_tokens")))
    return _counts(prompt, output, cached)


def _counts(prompt: int, output: object, cached: object) -> Usage | None:
    counts = Usage(prompt, _count(output), _count(cached))
    return counts if counts.input or counts.output else None


def _count(value: object) -> int:
    return value if type(value) is int and 0 < value < COUNT_END else 0
