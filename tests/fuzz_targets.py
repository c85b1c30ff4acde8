"""What a fuzzer throws bytes at: every reader of bytes that come from outside, with what must hold whatever they are.

A target takes bytes and raises AssertionError, or anything at all, when something is wrong.  The first bytes say where the
rest is cut into pieces, so that a fuzzer finds cuts as it finds bytes.  `SEEDS` are where it starts.
"""

import contextlib

import msgspec
import orjson

import http_answers
from http_streams import disagreement
from sits.core.errors import CallerError
from sits.core.request import Chunk, Request
from sits.engine.answer import StreamReader, error_text, usage_of
from sits.engine.dialect.messages_reader import MessagesReader
from sits.engine.dialect.reading import AnswerError
from sits.engine.sse import data_of, events
from sits.engine.translated import for_anthropic_client, for_openai_client
from sits.gateway.endpoints import PARSERS
from sits.gateway.http import HttpReader, Incoming, Refusal
from sits.gateway.openai_api import with_model
from sits.gateway.trace import continued

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":9,"stream":true,"user":"u","top_p":0.50}'
MESSAGES = b'{"model":"m","max_tokens":9,"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"stream":true}'
SSE = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n: x\r\n\r\nevent: error\ndata: {"error":{"message":"e"}}\n\ndata: [DONE]\n\n'
EVENTS = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"i","model":"m","usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer k\r\n"


def cut(data):
    """The pieces of what is behind the first two bytes, which say where it is cut."""
    if len(data) < 2:
        return [data]
    text = data[2:]
    first, second = sorted(place % (len(text) + 1) for place in data[:2])
    return [text[:first], text[first:second], text[second:]]


def requests(data):
    """Bytes of a client: what is taken h11 takes; limits hold; nothing comes out after a refusal."""
    pieces = cut(data)
    text = b"".join(pieces)
    assert disagreement(text, pieces) == ""
    reader, ended = HttpReader(256, 512), False
    for piece in pieces:
        for event in reader.feed(piece):
            assert not ended
            ended = isinstance(event, Refusal)
            if isinstance(event, Incoming):
                assert len(event.body) <= 512
                assert isinstance(event.path, bytes)
                continued(event.headers.get(b"traceparent", b""), "c" * 32)
        assert reader.held <= 256 + 512 + len(piece)
        assert reader.ended or not ended
    reader.close()


def replies(data):
    """Bytes of an engine: what is a whole answer is one to h11."""
    pieces = cut(data)
    assert http_answers.disagreement(b"".join(pieces), pieces) == ""


def bodies(data):
    """A body is refused as the caller's fault, or read; then it can be given another model and says the same else."""
    for path, parse in PARSERS.items():
        try:
            parsed = parse(data)
        except CallerError:
            continue
        assert 0 <= parsed.output_tokens_max < 2**31
        assert 0 <= parsed.prompt_tokens <= len(data)
        if path.startswith(b"/v1/messages"):
            continue
        with contextlib.suppress(CallerError):  # a field that is not read may be wrong
            other = with_model(data, 'z"\n')
            assert parse(other).model == 'z"\n'
            with contextlib.suppress(orjson.JSONDecodeError):
                was, now = orjson.loads(data), orjson.loads(other)
                assert {**was, "model": 'z"\n'} == now


def streams(data):
    """Events of an engine: no byte comes out that did not come in, in order; and of OpenAI's, the same in pieces or at once.

    (The same only if all data is JSON, and not of Anthropic's: events that look like tokens pass unread where all around them do.)
    """
    pieces = cut(data)
    text = b"".join(pieces)
    for kind in (StreamReader, MessagesReader):
        got, once = [], []
        for feed, into in ((pieces, got), ([text], once)):
            reader = kind(200, b"text/event-stream")
            for piece in feed:
                if piece and reader.problem is None:
                    chunk = reader.take(piece)
                    into.append(chunk.data if chunk is not None else b"")
            if reader.problem is None:
                reader.end(cut=False)
            into.append(reader.problem and reader.problem[0])
        assert text.startswith(b"".join(got[:-1]))
        assert text.startswith(b"".join(once[:-1]))
        if kind is StreamReader and all(map(_is_json, events(text))):
            assert (b"".join(got[:-1]), got[-1]) == (b"".join(once[:-1]), once[-1])
    usage_of(text)
    assert len(error_text(text)) <= 10_000


def _is_json(event):
    data = data_of(event)
    if data is None or data == b"[DONE]":
        return True
    try:
        orjson.loads(data)
    except ValueError:
        return False
    return True


def translations(data):
    """A request in the other dialect is refused as the caller's fault or said; its answer is refused as the engine's or told."""
    for make, endpoint in (
        (for_anthropic_client, "/v1/messages"),
        (lambda request: for_openai_client(request, 9, 1), "/v1/chat/completions"),
    ):
        request = Request(id="r", model="m", endpoint=endpoint, body=data)
        with contextlib.suppress(CallerError):
            msgspec.json.decode(make(request).request.body)
        example = MESSAGES if endpoint == "/v1/messages" else CHAT
        translation = make(msgspec.structs.replace(request, body=example))
        for status in (200, 400):
            with contextlib.suppress(AnswerError):
                whole = translation.whole(Chunk(data=data, status=status, last=True))
                msgspec.json.decode(whole.data)
        reader = translation.reader(200, b"text/event-stream")
        for piece in cut(data):
            if piece and reader.problem is None:
                reader.take(piece)
        if reader.problem is None:
            reader.end(cut=False)


TARGETS = {
    "requests": requests,
    "replies": replies,
    "bodies": bodies,
    "streams": streams,
    "translations": translations,
}
SEEDS = {
    "requests": [
        b"\x05\x40" + REQUEST + b"Content-Length: 3\r\n\r\nabcGET /healthz HTTP/1.1\r\nHost: h\r\n\r\n",
        b"\x05\x60" + REQUEST + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n3;x\r\nabc\r\n0\r\nX: y\r\n\r\n",
    ],
    "replies": [
        b"\x05\x40HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"\x05\x30HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 X\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}",
    ],
    "bodies": [CHAT, MESSAGES, b'{"model":"m","prompt":["a"],"max_tokens":null}', b'{"model":"m","input":"\\ud83d\\ude00"}'],
    "streams": [
        b"\x10\x50" + SSE,
        b"\x20\x99" + EVENTS,
        # an error that is only a name, in one block with tokens: it was passed over
        b"\x10\x50" + SSE.partition(b"\n\n")[0] + b"\n\n: x\r\n\r\nevent: error\ndat\n\nx\n\n",
    ],
    "translations": [CHAT, MESSAGES, b"\x10\x50" + SSE, b"\x20\x99" + EVENTS,
                     b'{"id":"c","model":"m","choices":[{"message":{"content":"a","tool_calls":[{"id":"t","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}'],
}  # fmt: skip
WORDS = (b"\r\n", b"\n\n", b"data: ", b"event: ", b"chunked", b"Content-Length", b"Transfer-Encoding", b'"', b"{", b"}", b"[", b"]", b"\\u", b"\\", b"null", b"1e999", b"-1", b":", b",", b"\x00", b"\xff", b"0\r\n\r\n", b"error", b"usage", b"[DONE]", b"type", b"tool_use")  # fmt: skip
"""What a mutation may put in."""


def mutated(dice, text):
    """`text` with a few bytes, words and parts changed."""
    text = bytearray(text)
    for _ in range(dice.number(1, 6)):
        at, how = dice.number(0, len(text)), dice.number(0, 5)
        if how == 0 and at < len(text):
            text[at] = dice.number(0, 255)
        elif how == 1:
            del text[at : at + dice.choice([1, 1, 2, 8, 40])]
        elif how == 2:
            text[at:at] = dice.choice(WORDS)
        elif how == 3:
            text[at : at + 1] = dice.choice(WORDS)
        elif how == 4:
            text[at:at] = text[dice.number(0, len(text)) :][: dice.number(1, 60)]
        else:
            text[at:at] = bytes([dice.number(0, 255)])
    return bytes(text)
