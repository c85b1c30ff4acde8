"""A request in Anthropic's dialect as one in OpenAI's.

Rules:
- `system` becomes the first message; several blocks stay several parts, so the engine's template joins them.
- Results of tools become messages of their own, before the user's other words; their images and documents go to these.
- The limit is sent as `max_completion_tokens`: OpenAI's newer models refuse `max_tokens`, engines take both.
- A stream is asked to tell its usage, which Anthropic's always does.
- Thinking of earlier turns goes along as `reasoning_content` and `reasoning`, one of which each engine that reasons
  reads; OpenAI's own models never gave any.
- A conversation that ends with the assistant is to be continued inside that text; OpenAI's dialect cannot ask for it.

Deliberately absent: limits of sizes and counts, which are the engine's to tell.
"""

from typing import Literal

import msgspec

from sits.engine.dialect import chat, messages
from sits.engine.dialect.chat import given
from sits.engine.dialect.reading import read, refuse

OTHER = "OpenAI's Chat Completions"
USER_CHARACTERS = 64
"""The longest `user` OpenAI takes."""

_encode = msgspec.json.encode


def to_chat(body: bytes) -> bytes:
    """The body as OpenAI's.

    >>> body = b'{"model":"m","max_tokens":9,"system":"short","messages":[{"role":"user","content":"hi"}]}'
    >>> to_chat(body).decode()
    '{"model":"m","messages":[{"role":"system","content":"short"},{"role":"user","content":"hi"}],"max_completion_tokens":9}'

    Raises:
        CallerError: a field is wrong, or cannot be said there; names it.

    """
    asked: messages.Messages = read(messages.DECODER, body, OTHER)
    if asked.max_tokens < 1:
        refuse("max_tokens", OTHER, "an answer of no tokens, only to fill a cache")
    said: list[chat.Message] = []
    if asked.system:
        said.append(chat.System(content=_texts(asked.system)))
    for i, message in enumerate(asked.messages):
        said += _said(message, i)
    if asked.messages and isinstance(asked.messages[-1], messages.Assistant):
        at = f"messages[{len(asked.messages) - 1}].role"
        refuse(at, OTHER, "an answer that is begun and to be continued", "end with the user's turn")
    config = asked.output_config or messages.OutputConfig()
    told = chat.Chat(
        model=asked.model,
        messages=said,
        stream=asked.stream or None,
        stream_options=chat.StreamOptions(include_usage=True) if asked.stream else None,
        max_completion_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        stop=asked.stop_sequences or None,
        tools=[_tool(tool, j) for j, tool in enumerate(asked.tools)] if asked.tools else None,
        tool_choice=_choice(asked.tool_choice) if asked.tools else None,
        parallel_tool_calls=False
        if asked.tools and getattr(asked.tool_choice, "disable_parallel_tool_use", None)
        else None,
        response_format=chat.JsonFormat(
            json_schema=chat.JsonSchema(name="answer", schema=config.format.schema, strict=True)
        )
        if config.format
        else None,
        reasoning_effort=_effort(asked, config),
        user=_user(asked),
        service_tier="default" if asked.service_tier == "standard_only" else None,
    )
    return _encode(told)


def _texts(content: str | list[messages.Text]) -> str | list[chat.Text]:
    if isinstance(content, str):
        return content
    if len(content) == 1:
        return content[0].text
    return [chat.Text(text=block.text) for block in content]


def _said(message: messages.User | messages.Assistant | messages.System, at: int) -> list[chat.Message]:
    if isinstance(message, messages.System):
        return [chat.System(content=_texts(message.content))]
    if isinstance(message.content, str):
        kind = chat.User if isinstance(message, messages.User) else chat.Assistant
        return [kind(content=message.content)]
    if isinstance(message, messages.Assistant):
        return [_answered(message.content)]
    said: list[chat.Message] = []
    parts: list[chat.Text | chat.Image | chat.File] = []
    for j, block in enumerate(message.content):
        where = f"messages[{at}].content[{j}]"
        if isinstance(block, messages.ToolResult):
            said.append(_result(block, where, parts))
        else:
            parts.append(_part(block, where))
    if len(parts) == 1 and isinstance(parts[0], chat.Text):
        said.append(chat.User(content=parts[0].text))
    elif parts or not said:
        said.append(chat.User(content=parts))
    return said


def _result(
    block: messages.ToolResult, where: str, parts: list[chat.Text | chat.Image | chat.File]
) -> chat.ToolResult:
    """The result's message; what is not text in it is added to `parts`."""
    content = block.content or ""
    if not isinstance(content, str):
        texts = [inner for inner in content if isinstance(inner, messages.Text)]
        parts += [
            _part(inner, f"{where}.content[{k}]")
            for k, inner in enumerate(content)
            if not isinstance(inner, messages.Text)
        ]
        return chat.ToolResult(tool_call_id=block.tool_use_id, content=_texts(texts) if texts else "")
    return chat.ToolResult(tool_call_id=block.tool_use_id, content=content)


def _part(
    block: messages.Text | messages.Image | messages.Document, where: str
) -> chat.Text | chat.Image | chat.File:
    if isinstance(block, messages.Text):
        return chat.Text(text=block.text)
    if isinstance(block, messages.Document):
        source = block.source
        if block.citations is not None and block.citations.enabled:
            refuse(f"{where}.citations", OTHER)
        if isinstance(source, messages.PlainText):
            if block.title:
                refuse(f"{where}.title", OTHER, "a text document's title", "write it into the text")
            return chat.Text(text=source.data)
        file = chat.FileData(file_data=_data_url(source), filename=block.title or "document.pdf")
        return chat.File(file=file)
    image = block.source
    url = image.url if isinstance(image, messages.Url) else _data_url(image)
    return chat.Image(image_url=chat.ImageUrl(url=url))


def _data_url(source: messages.Base64) -> str:
    return f"data:{source.media_type};base64,{source.data}"


def _answered(
    blocks: list[messages.Text | messages.Thinking | messages.Redacted | messages.ToolUse],
) -> chat.Assistant:
    texts = [block for block in blocks if isinstance(block, messages.Text)]
    thought = "".join(block.thinking for block in blocks if isinstance(block, messages.Thinking)) or None
    calls = [
        chat.Call(
            id=block.id, function=chat.Arguments(name=block.name, arguments=bytes(block.input).decode())
        )
        for block in blocks
        if isinstance(block, messages.ToolUse)
    ]
    return chat.Assistant(
        content=_texts(texts) if texts else None if calls else "",  # type: ignore[arg-type]
        reasoning_content=thought,
        reasoning=thought,
        tool_calls=calls or None,
    )


def _tool(tool: messages.Tool, at: int) -> chat.Tool:
    if tool.defer_loading:
        refuse(f"tools[{at}].defer_loading", OTHER)
    return chat.Tool(
        function=chat.Function(
            name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
        )
    )


def _choice(
    choice: messages.Auto | messages.AnyTool | messages.OneTool | messages.NoTool | None,
) -> Literal["auto", "required", "none"] | chat.Choice | None:
    if isinstance(choice, messages.OneTool):
        return chat.Choice(function=chat.Named(name=choice.name))
    if isinstance(choice, messages.AnyTool):
        return "required"
    if isinstance(choice, messages.NoTool):
        return "none"
    return "auto" if choice else None


def _effort(asked: messages.Messages, config: messages.OutputConfig) -> chat.Effort | None:
    if (
        given(asked.thinking)
        and read(messages.THINKING, bytes(asked.thinking), OTHER, "thinking").type == "disabled"
    ):
        return "none"
    return config.effort


def _user(asked: messages.Messages) -> str | None:
    user = asked.metadata.user_id if asked.metadata else None
    return user if user and len(user) <= USER_CHARACTERS else None
