"""However the bytes are cut, the same requests come out."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sits.gateway.http import HttpReader, Incoming, Refusal

BODY = st.binary(max_size=60)
BROKEN = st.sampled_from(
    [
        b"GARBAGE\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ]
)


@st.composite
def request_bytes(draw):
    body = draw(BODY)
    head = b"POST /v1/x HTTP/1.1\r\nHost: h\r\n"
    if draw(st.booleans()):
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    pieces, rest = [], body
    while rest:
        size = draw(st.integers(1, len(rest)))
        pieces.append(b"%x\r\n%b\r\n" % (size, rest[:size]))
        rest = rest[size:]
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(pieces) + b"0\r\n\r\n"


@st.composite
def conversations(draw):
    text = b"".join(draw(st.lists(request_bytes(), max_size=4))) + (
        draw(BROKEN) if draw(st.booleans()) else b""
    )
    return text, sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))


def seen(pieces):
    reader = HttpReader(400, 1000)
    out = []
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, Incoming):
                out.append((event.method, event.path, event.body, event.keep_alive))
            elif isinstance(event, Refusal):
                out.append(event.error.status)
    return out


@given(conversations())
def test_any_split_gives_the_same_requests(conversation):
    text, cuts = conversation
    bounds = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    assert seen(pieces) == seen([text]) == seen([bytes([b]) for b in text])


@given(st.binary(max_size=300))
def test_no_bytes_at_all_make_it_raise(text):
    for event in HttpReader(100, 100).feed(text):
        assert isinstance(event, Incoming | Refusal)


@given(conversations(), st.data())
def test_one_wrong_byte_never_makes_it_raise_or_invents_more_requests(conversation, data):
    text, _ = conversation
    if text:
        at = data.draw(st.integers(0, len(text) - 1))
        broken = text[:at] + bytes([data.draw(st.integers(0, 255))]) + text[at + 1 :]
        assert len(seen([broken])) <= len(seen([text])) + 1
