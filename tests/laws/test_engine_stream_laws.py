"""Laws of a stream from an engine's bytes to a client's: however the one frames and cuts it, the other gets the same bytes, in frames that are right."""

import itertools
import types

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.core.units import SECOND
from sits.engine.client import Connection, Silence
from sits.engine.openai_answer import OpenAIAnswer
from sits.gateway.sink import HttpSink
from sits.gateway.strand import Strand
from sits.world import RealWorld

pytestmark = pytest.mark.patches  # stands in for a connection and an engine

TOKEN = b'data: {"choices":[{"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
EVENTS = st.one_of(
    st.sampled_from([b"a", b"c4\\r\\n", b"0", b'5\\r\\ndata: {\\"finish_reason\\":null}']).map(
        lambda text: TOKEN % text
    ),
    st.sampled_from(
        [
            b": ping\n\n",
            b'data: {"choices":[{"delta":{"role":"assistant"},"finish_reason":null}]}\n\n',
            (TOKEN % b"a").replace(b"\n", b"\r\n"),
        ]
    ),
)
LAST = [b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', b"data: [DONE]\n\n"]
SIZES = st.sampled_from([b"%x", b"%X", b"0%x", b"%x;a=b"])


@st.composite
def streams(draw):
    """The payloads of an engine's chunks (now one event, now several, now a part of one), and each with its frame."""
    text = b"".join([*draw(st.lists(EVENTS, max_size=8)), *LAST])
    ends = [at + 2 for at in range(len(text)) if text[at : at + 2] == b"\n\n"]
    odd = draw(st.lists(st.integers(1, len(text) - 1), max_size=3))
    bounds = sorted(
        {
            0,
            len(text),
            *draw(st.lists(st.sampled_from(ends), max_size=12)),
            *ends[:: draw(st.integers(1, 3))],
            *odd,
        }
    )
    payloads = [text[a:b] for a, b in itertools.pairwise(bounds)]
    return text, [draw(SIZES) % len(part) + b"\r\n" + part + b"\r\n" for part in payloads]


class Client:
    """What the sink writes to; `behind`: the client that reads slowly is never waited for here."""

    def __init__(self):
        self.got = b""
        self.paused = None
        self.server = types.SimpleNamespace(stamp=b"", draining=False)
        self.transport = self

    def write(self, data):
        self.got += data

    def begun(self):
        pass


class Engine:
    def __init__(self, connection):
        self.kept = lambda: connection
        self.check = self.head = lambda _: b""

    def put_back(self, connection):
        pass

    def failed(self, code, what):
        return AssertionError(f"{code}: {what}")

    def broken(self, error, when):
        return error


def relayed(pieces):
    """What a client gets of an engine's answer that comes in `pieces`, and the tokens counted."""
    silence = Silence(SECOND, RealWorld())
    silence.timer = object()  # no clock here
    connection = Connection(silence)
    connection._transport = types.SimpleNamespace(
        write=bytes, is_closing=bool, get_write_buffer_size=int, abort=bool
    )
    client = Client()
    sink = HttpSink(client, "r", close=False, chunked=True)
    tokens = 0

    def give(chunk):
        nonlocal tokens
        if not client.got:
            sink.start(200, b"text/event-stream")
        tokens += chunk.tokens
        return sink.write(chunk.data) if chunk.data else None

    def give_tokens(data, count):
        nonlocal tokens
        tokens += count
        return sink.write(data)

    answer = OpenAIAnswer(
        Engine(connection), types.SimpleNamespace(stream=True, body=b"", endpoint="/v1/chat/completions")
    )
    ended = []
    Strand(answer.push(give, give_tokens), ended.append)
    for piece in pieces:
        connection.data_received(piece)
    assert ended == [None]
    sink.finish()
    return client.got, tokens


def body_of(answer):
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(answer)
    body = b""
    while type(event := reader.next_event()) is not h11.EndOfMessage:
        assert event is not h11.NEED_DATA
        body += bytes(event.data) if type(event) is h11.Data else b""
    assert reader.trailing_data == (b"", False)
    return body


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@given(streams(), st.lists(st.integers(0, 2000), max_size=6))
def test_a_stream_is_the_same_however_it_is_framed_and_cut(stream, cuts):
    text, chunks = stream
    raw = b"".join([HEAD, *chunks, b"0\r\n\r\n"])
    whole, in_one = relayed([raw])
    assert body_of(whole) == text
    bounds = sorted({0, len(raw), *(at % len(raw) for at in cuts)})
    for pieces in (
        [HEAD, *chunks, b"0\r\n\r\n"],
        [raw[a:b] for a, b in itertools.pairwise(bounds)],
        [raw[at : at + 1] for at in range(len(raw))],
    ):
        got, counted = relayed(pieces)
        assert body_of(got) == text
        assert counted == in_one
