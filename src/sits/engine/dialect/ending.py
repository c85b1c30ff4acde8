"""Why an answer ended, in both dialects' words.

| Anthropic `stop_reason` | OpenAI `finish_reason` | back |
|---|---|---|
| end_turn | stop | end_turn |
| stop_sequence | stop, and the sequence in `stop_reason` as vLLM does | stop_sequence, when `stop_reason` is text |
| max_tokens | length | max_tokens |
| tool_use | tool_calls | tool_use |
| refusal | content_filter | refusal |
| anything else | length for a full context, else stop, and the word itself in `native_finish_reason` | the word, when it is one of Anthropic's |

OpenAI says `stop` after a forced tool call, Anthropic always `tool_use`: an answer with tool calls has ended for them.
Sources: the types of the official SDKs, openai 3.57 and anthropic 2.14; vLLM's and OpenRouter's fields of a choice.

Deliberately absent: when a stream ends (the readers know).
"""

import msgspec

from sits.engine.dialect.reading import AnswerError

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
        AnswerError: a reason Anthropic has no word for, like vLLM's `abort`: half an answer is not passed off as a whole one.

    """
    if native in _TOLD_BY_NATIVE:  # others use this field too, for words of their own
        return native, None
    word = _STOP.get(finish_reason or "stop")
    if word is None:
        what = f"ended its answer with {finish_reason!r}, which the Messages API has no word for"
        raise AnswerError("engine_untranslatable", what)
    if word == "end_turn" and tools:
        return "tool_use", None
    if word == "end_turn" and isinstance(met, str) and met:
        return "stop_sequence", met
    return word, None
