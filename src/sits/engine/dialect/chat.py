"""OpenAI's Chat Completions, as far as Messages has the same meaning.  What is not here is refused by its name.

Read by `ask_anthropic`, written by `ask_openai`.  Beyond OpenAI's own fields it knows four that engines and other
gateways added and Anthropic has: `top_k`, `thinking`, `cache_control` of a part or tool, `reasoning_content` of a message.

Lossy but harmless, and so accepted and left behind: `metadata` (tags of stored completions, which are refused),
`prompt_cache_key`, `prompt_cache_retention` and `prompt_cache_options` (Anthropic caches where `cache_control` says),
`include_obfuscation` (padding), `detail` of an image, `name` and `description` of a response format, its `strict`
(Anthropic's schemas always hold), the text of earlier reasoning (its signature, which Anthropic needs, is not told in
this dialect), `parallel_tool_calls` without tools.

Deliberately absent: what is only checked by the engine (ranges, roles' order, schemas).
"""

from typing import Literal

import msgspec

Raw = msgspec.Raw
NOTHING = Raw()
"""A field of JSON that is not there."""


class Shape(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all shapes: what is unset is not written, what is unknown is refused."""


def given(raw: Raw) -> bool:
    """Whether a field of JSON is there and not null."""
    return bytes(raw) not in (b"", b"null")


class Text(Shape, tag_field="type", tag="text"):
    """A piece of text."""

    text: str
    cache_control: Raw = NOTHING
    prompt_cache_breakpoint: Raw = NOTHING


class ImageUrl(Shape):
    """Where an image is: https or `data:`."""

    url: str
    detail: str | None = None


class Image(Shape, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ImageUrl
    cache_control: Raw = NOTHING
    prompt_cache_breakpoint: Raw = NOTHING


class FileData(Shape):
    """A file inside the request; uploaded ones (`file_id`) are known to OpenAI alone."""

    file_data: str
    filename: str | None = None
    file_id: None = None


class File(Shape, tag_field="type", tag="file"):
    """A document."""

    file: FileData
    cache_control: Raw = NOTHING
    prompt_cache_breakpoint: Raw = NOTHING


class Refusal(Shape, tag_field="type", tag="refusal"):
    """The words of an earlier refusal."""

    refusal: str


class Arguments(Shape):
    """What a tool is called with: `arguments` is JSON in a string."""

    name: str
    arguments: str


class Call(Shape, tag_field="type", tag="function"):
    """A tool call of an earlier answer."""

    id: str
    function: Arguments


class System(Shape, tag_field="role", tag="system"):
    """Instructions."""

    content: str | list[Text]
    name: None = None


class Developer(Shape, tag_field="role", tag="developer"):
    """Instructions, by their newer name."""

    content: str | list[Text]
    name: None = None


class User(Shape, tag_field="role", tag="user"):
    """The user's turn."""

    content: str | list[Text | Image | File]
    name: None = None


class Assistant(Shape, tag_field="role", tag="assistant"):
    """The model's turn.  `reasoning` is vLLM's name of `reasoning_content`; a null `content` is written, for templates ask for it."""

    content: str | list[Text | Refusal] | msgspec.UnsetType | None = msgspec.UNSET
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    name: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Raw] | None = None


class ToolResult(Shape, tag_field="role", tag="tool"):
    """What a tool gave."""

    tool_call_id: str
    content: str | list[Text]
    name: str | None = None


Message = System | Developer | User | Assistant | ToolResult


class Function(Shape):
    """A tool's name and the schema of its arguments."""

    name: str
    description: str | None = None
    parameters: Raw = NOTHING
    strict: bool | None = None


class Tool(Shape, tag_field="type", tag="function"):
    """A tool."""

    function: Function
    cache_control: Raw = NOTHING


class Named(Shape):
    """A function by its name."""

    name: str


class Choice(Shape, tag_field="type", tag="function"):
    """The one tool to be called."""

    function: Named


class JsonSchema(Shape):
    """The schema an answer has to satisfy."""

    name: str = ""
    schema: Raw = NOTHING
    description: str | None = None
    strict: bool | None = None


class TextFormat(Shape, tag_field="type", tag="text"):
    """Answers are text, as they are anyhow."""


class JsonFormat(Shape, tag_field="type", tag="json_schema"):
    """Answers are JSON."""

    json_schema: JsonSchema


class StreamOptions(Shape):
    """What a stream tells beside the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


Effort = Literal["none", "low", "medium", "high", "xhigh", "max"]


class Chat(Shape):
    """A request.  Fields of type None may be null and nothing else; the `NEUTRAL` ones have one value that changes nothing."""

    model: str
    messages: list[Message]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | JsonFormat | None = None
    reasoning_effort: Effort | None = None
    thinking: Raw = NOTHING
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    verbosity: str | None = None
    store: bool | None = None
    metadata: Raw = NOTHING
    prompt_cache_key: Raw = NOTHING
    prompt_cache_retention: Raw = NOTHING
    prompt_cache_options: Raw = NOTHING
    audio: None = None
    function_call: None = None
    functions: None = None
    moderation: None = None
    prediction: None = None
    seed: None = None
    web_search_options: None = None


NEUTRAL = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "store": (False,),
}
"""Fields Anthropic has nothing for, and their values that change nothing."""

DECODER = msgspec.json.Decoder(Chat)
