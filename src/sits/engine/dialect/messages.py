"""Anthropic's Messages, as far as Chat Completions has the same meaning.  What is not here is refused by its name.

Read by `ask_openai`, written by `ask_anthropic`.

Lossy but harmless, and so accepted and left behind: `cache_control` everywhere (engines of the other dialect cache by
themselves), `citations` of earlier text, `signature` of thinking and all of `redacted_thinking` (only their maker can
read them), `is_error` (the result's text tells it), `eager_input_streaming`, `thinking` but for `disabled` (a model
thinks as its engine lets it; `effort` is passed on), `context_management` (the context is not trimmed), a `user_id`
longer than OpenAI takes, where in a turn text and tool calls stood to each other.  An image or a document in a tool's
result becomes part of the user's message behind it, because OpenAI's tool messages hold text only.

Deliberately absent: tools the provider runs itself (`web_search_...`), files and containers it keeps, and what is only
checked by the engine.
"""

from typing import Literal

import msgspec

from sits.engine.dialect.chat import NOTHING, Raw, Shape


class Text(Shape, tag_field="type", tag="text"):
    """A piece of text."""

    text: str
    cache_control: Raw = NOTHING
    citations: Raw = NOTHING


class Base64(Shape, tag_field="type", tag="base64"):
    """A file inside the request."""

    media_type: str
    data: str


class Url(Shape, tag_field="type", tag="url"):
    """A file elsewhere."""

    url: str


class PlainText(Shape, tag_field="type", tag="text"):
    """A text file inside the request."""

    media_type: Literal["text/plain"]
    data: str


class Image(Shape, tag_field="type", tag="image"):
    """An image."""

    source: Base64 | Url
    cache_control: Raw = NOTHING
    transformations: None = None


class Off(Shape):
    """Citations that are not wanted."""

    enabled: bool | None = None


class Document(Shape, tag_field="type", tag="document"):
    """A PDF or a text."""

    source: Base64 | PlainText
    title: str | None = None
    context: None = None
    citations: Off | None = None
    cache_control: Raw = NOTHING


class Caller(Shape, tag_field="type", tag="direct"):
    """Who calls a tool: the model itself."""


class ToolUse(Shape, tag_field="type", tag="tool_use"):
    """A tool call of an earlier answer."""

    id: str
    name: str
    input: Raw
    cache_control: Raw = NOTHING
    caller: Caller | None = None
    toolset_name: None = None


class ToolResult(Shape, tag_field="type", tag="tool_result"):
    """What a tool gave."""

    tool_use_id: str
    content: str | list[Text | Image | Document] | None = None
    is_error: bool | None = None
    cache_control: Raw = NOTHING
    toolset_name: None = None


class Thinking(Shape, tag_field="type", tag="thinking"):
    """Earlier reasoning."""

    thinking: str
    signature: str = ""


class Redacted(Shape, tag_field="type", tag="redacted_thinking"):
    """Earlier reasoning, encrypted."""

    data: str


class User(Shape, tag_field="role", tag="user"):
    """The user's turn, and the results of tools."""

    content: str | list[Text | Image | Document | ToolResult]


class Assistant(Shape, tag_field="role", tag="assistant"):
    """The model's turn."""

    content: str | list[Text | Thinking | Redacted | ToolUse]


class System(Shape, tag_field="role", tag="system"):
    """Instructions in mid-conversation."""

    content: str | list[Text]


class Tool(Shape):
    """A tool of the caller's own."""

    name: str
    input_schema: Raw
    description: str | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None
    cache_control: Raw = NOTHING
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    input_examples: None = None


class Auto(Shape, tag_field="type", tag="auto"):
    """The model decides."""

    disable_parallel_tool_use: bool | None = None


class AnyTool(Shape, tag_field="type", tag="any"):
    """Some tool."""

    disable_parallel_tool_use: bool | None = None


class OneTool(Shape, tag_field="type", tag="tool"):
    """The tool of this name."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoTool(Shape, tag_field="type", tag="none"):
    """No tool."""


class JsonFormat(Shape, tag_field="type", tag="json_schema"):
    """Answers are JSON."""

    schema: Raw


class OutputConfig(Shape):
    """How an answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class Metadata(Shape):
    """For whom."""

    user_id: str | None = None


class ThinkingKind(msgspec.Struct):
    """Whether the model may think; how much is the engine's business."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class Messages(Shape):
    """A request.  Fields of type None may be null and nothing else."""

    model: str
    max_tokens: int
    messages: list[User | Assistant | System]
    system: str | list[Text] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Auto | AnyTool | OneTool | NoTool | None = None
    thinking: Raw = NOTHING
    output_config: OutputConfig | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard"] | None = None
    cache_control: Raw = NOTHING
    context_management: Raw = NOTHING
    mcp_servers: list[None] | None = None
    container: None = None
    diagnostics: None = None
    inference_geo: None = None
    user_profile_id: None = None
    workspace_id: None = None


DECODER = msgspec.json.Decoder(Messages)
THINKING = msgspec.json.Decoder(ThinkingKind)
