"""A request in OpenAI's dialect as one in Anthropic's.

Rules:
- Instructions at the beginning become `system`; later ones keep their place, as Anthropic allows since 2026.
- Results of tools, and the user's words behind them, become one turn: Anthropic wants all results of one answer's calls
  in the turn that follows it.
- Anthropic requires a limit: without one the engine's configured `max_tokens` holds.
- `parallel_tool_calls: false` becomes `disable_parallel_tool_use` of the choice of tools.
- Ids of calls that Anthropic does not take (other engines use dots and colons) get one that it does, the same everywhere.
- A schema of arguments without `type` gets `object`, which it means and Anthropic insists on.

Deliberately absent: limits of sizes and counts, which are the engine's to tell.
"""

import re
from hashlib import blake2b

import msgspec

from sits.core.errors import CallerError
from sits.engine.dialect import chat, messages
from sits.engine.dialect.chat import NOTHING, Raw, given
from sits.engine.dialect.reading import check_neutral, read, refuse

OTHER = "Anthropic's Messages API"
TEMPERATURE_MAX = 1.0
EMPTY_SCHEMA = Raw(b'{"type":"object","properties":{}}')
EPHEMERAL = Raw(b'{"type":"ephemeral"}')

_ID = re.compile(r"[A-Za-z0-9_-]+")
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[^;,]+)*;base64,", re.ASCII)
_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.encode


def to_messages(body: bytes, output_tokens_max: int) -> tuple[bytes, bool]:
    """The body as Anthropic's, and whether a stream is to tell its usage.

    >>> body = b'{"model":"m","messages":[{"role":"system","content":"short"},{"role":"user","content":"hi"}],"stop":"."}'
    >>> to_messages(body, 256)[0].decode()
    '{"model":"m","max_tokens":256,"messages":[{"role":"user","content":"hi"}],"system":"short","stop_sequences":["."]}'

    Raises:
        CallerError: a field is wrong, or cannot be said there; names it.

    """
    asked: chat.Chat = read(chat.DECODER, body, OTHER)
    check_neutral(asked, chat.NEUTRAL, OTHER)
    if (asked.temperature or 0) > TEMPERATURE_MAX:
        refuse("temperature", OTHER, f"{asked.temperature:g} is over {TEMPERATURE_MAX:g}")
    system, turns = _turns(asked.messages)
    told = messages.Messages(
        model=asked.model,
        max_tokens=asked.max_completion_tokens or asked.max_tokens or output_tokens_max,
        messages=turns,
        system=system or None,
        stream=asked.stream or None,
        stop_sequences=[asked.stop] if isinstance(asked.stop, str) else asked.stop or None,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        tools=[_tool(tool) for tool in asked.tools] if asked.tools else None,
        tool_choice=_choice(asked) if asked.tools else None,
        thinking=_thinking(asked),
        output_config=_output_config(asked),
        metadata=_metadata(asked),
        service_tier={None: None, "auto": "auto", "default": "standard_only"}[asked.service_tier],
    )
    usage = bool(asked.stream_options and asked.stream_options.include_usage)
    return _encode(told), usage


def _turns(
    said: list[chat.Message],
) -> tuple[str | list[messages.Text], list[messages.User | messages.Assistant | messages.System]]:
    first = next(
        (i for i, m in enumerate(said) if not isinstance(m, chat.System | chat.Developer)), len(said)
    )
    turns: list[messages.User | messages.Assistant | messages.System] = []
    results: list[messages.ToolResult] = []
    for i, message in enumerate(said[first:], first):
        if isinstance(message, chat.ToolResult):
            results.append(_result(message))
            continue
        if results and isinstance(message, chat.User):
            turns.append(messages.User(content=[*results, *_blocks(message.content, i)]))
            results = []
            continue
        if results:
            turns.append(messages.User(content=list(results)))
            results = []
        turns.append(_turn(message, i))
    if results:
        turns.append(messages.User(content=list(results)))
    return _system([m.content for m in said[:first]]), turns  # type: ignore[misc]


def _system(contents: list[str | list[chat.Text]]) -> str | list[messages.Text]:
    if len(contents) == 1 and isinstance(contents[0], str):
        return contents[0]
    return [block for content in contents for block in _texts(content)]


def _turn(message: chat.Message, at: int) -> messages.User | messages.Assistant | messages.System:
    if isinstance(message, chat.Assistant):
        return messages.Assistant(content=_answered(message, at))
    if isinstance(message, chat.User):
        content = message.content
        return messages.User(content=content if isinstance(content, str) else _blocks(content, at))
    assert isinstance(message, chat.System | chat.Developer)
    told = message.content
    return messages.System(content=told if isinstance(told, str) else _texts(told))


def _result(message: chat.ToolResult) -> messages.ToolResult:
    content = message.content
    return messages.ToolResult(
        tool_use_id=_id(message.tool_call_id),
        content=content if isinstance(content, str) else list(_texts(content)),
    )


def _texts(content: str | list[chat.Text]) -> list[messages.Text]:
    if isinstance(content, str):
        return [messages.Text(text=content)] if content else []
    return [messages.Text(text=part.text, cache_control=_cache(part)) for part in content if part.text]


def _blocks(
    content: str | list[chat.Text | chat.Image | chat.File], at: int
) -> list[messages.Text | messages.Image | messages.Document | messages.ToolResult]:
    if isinstance(content, str):
        return list(_texts(content))
    blocks: list[messages.Text | messages.Image | messages.Document | messages.ToolResult] = []
    for j, part in enumerate(content):
        where = f"messages[{at}].content[{j}]"
        if isinstance(part, chat.Text):
            blocks += _texts([part])
        elif isinstance(part, chat.Image):
            source = _source(part.image_url.url, f"{where}.image_url.url")
            blocks.append(messages.Image(source=source, cache_control=_cache(part)))
        else:
            blocks.append(_document(part, where))
    return blocks


def _source(url: str, where: str) -> messages.Base64 | messages.Url:
    found = _DATA_URL.match(url)
    if found:
        return messages.Base64(media_type=found.group(1), data=url[found.end() :])
    if not url.startswith(("https://", "http://")):
        refuse(where, OTHER, f"{url[:30]!r} is neither a link nor base64 data")
    return messages.Url(url=url)


def _document(part: chat.File, where: str) -> messages.Document:
    source = _source(part.file.file_data, f"{where}.file.file_data")
    if not isinstance(source, messages.Base64) or source.media_type != "application/pdf":
        refuse(f"{where}.file.file_data", OTHER, "it is not a PDF as data:application/pdf;base64")
    return messages.Document(source=source, title=part.file.filename, cache_control=_cache(part))


def _cache(part: chat.Text | chat.Image | chat.File) -> Raw:
    if given(part.cache_control):
        return part.cache_control
    return EPHEMERAL if given(part.prompt_cache_breakpoint) else NOTHING


def _answered(
    message: chat.Assistant, at: int
) -> str | list[messages.Text | messages.Thinking | messages.Redacted | messages.ToolUse]:
    content = message.content
    if isinstance(content, str) and not message.tool_calls and not message.refusal:
        return content
    blocks: list[messages.Text | messages.Thinking | messages.Redacted | messages.ToolUse] = []
    for part in [content] if isinstance(content, str) else content or ():
        if isinstance(part, chat.Text):
            blocks += _texts([part])
        else:
            blocks += _texts(part if isinstance(part, str) else part.refusal)
    blocks += _texts(message.refusal or "")
    for j, call in enumerate(message.tool_calls or []):
        where = f"messages[{at}].tool_calls[{j}].function.arguments"
        given_input = _input(call.function.arguments, where)
        blocks.append(messages.ToolUse(id=_id(call.id), name=call.function.name, input=given_input))
    return blocks


def _input(arguments: str, where: str) -> Raw:
    """The text of the arguments, once it is known to be an object."""
    text = arguments.strip().encode() or b"{}"
    try:
        _fields(text)
    except msgspec.DecodeError as error:
        raise CallerError(
            f"{where}: not a JSON object in a string: {error}", field=where, code="invalid_field"
        ) from error
    return Raw(text)


def _id(name: str) -> str:
    """The id of a call, in letters Anthropic takes.

    >>> _id("call_1"), _id("functions.weather:0")
    ('call_1', 'call_d40ccaa062984f887b79c5d4')
    """
    return name if _ID.fullmatch(name) else "call_" + blake2b(name.encode(), digest_size=12).hexdigest()


def _tool(tool: chat.Tool) -> messages.Tool:
    function = tool.function
    return messages.Tool(
        name=function.name,
        description=function.description,
        input_schema=_schema(function.parameters),
        strict=function.strict,
        cache_control=tool.cache_control if given(tool.cache_control) else NOTHING,
    )


def _schema(parameters: Raw) -> Raw:
    if not given(parameters):
        return EMPTY_SCHEMA
    try:
        fields = _fields(parameters)
    except msgspec.DecodeError:
        return parameters  # the engine says what is wrong with it
    if not fields:
        return EMPTY_SCHEMA
    if "type" in fields:
        return parameters
    return Raw(_encode({"type": "object", **fields}))


def _choice(asked: chat.Chat) -> messages.Auto | messages.AnyTool | messages.OneTool | messages.NoTool | None:
    alone = True if asked.parallel_tool_calls is False else None
    choice = asked.tool_choice
    if choice == "none":
        return messages.NoTool()
    if choice == "required":
        return messages.AnyTool(disable_parallel_tool_use=alone)
    if isinstance(choice, chat.Choice):
        return messages.OneTool(name=choice.function.name, disable_parallel_tool_use=alone)
    return messages.Auto(disable_parallel_tool_use=alone) if choice or alone else None


def _thinking(asked: chat.Chat) -> Raw:
    if given(asked.thinking):
        return asked.thinking
    return Raw(b'{"type":"disabled"}') if asked.reasoning_effort == "none" else NOTHING


def _output_config(asked: chat.Chat) -> messages.OutputConfig | None:
    effort = asked.reasoning_effort if asked.reasoning_effort != "none" else None
    form = None
    if isinstance(asked.response_format, chat.JsonFormat):
        schema = asked.response_format.json_schema.schema
        if not given(schema):
            refuse("response_format.json_schema.schema", OTHER, "JSON without a schema")
        form = messages.JsonFormat(schema=schema)
    return messages.OutputConfig(effort=effort, format=form) if effort or form else None


def _metadata(asked: chat.Chat) -> messages.Metadata | None:
    user = asked.safety_identifier or asked.user
    return messages.Metadata(user_id=user) if user else None
