"""Our reader beside h11, a reader of HTTP/1.1 made by others with another method, on streams that are right, odd and wrong.

The law: what we take, h11 takes, with the same method, target, headers and body, however the bytes were cut into pieces; and what
h11 takes, we take or refuse, but never wait for.  So nobody in front of us who reads as h11 does can be made to see other requests than we.

Where we differ on purpose, each with a case below:
- empty lines before a request are skipped, at most `header_limit` bytes of them (RFC 9112, 2.2: SHOULD; clients of old send one after a body);
- several spaces between the parts of a request line count as one (RFC 9112, 3: MAY; llhttp does not tell).  They cannot smuggle: the
  target is one of our own table or it is 404, and what goes to an engine is written anew;
- a chunk size may have any number of leading zeros (RFC 9112, 7.1: 1*HEXDIG), bounded by `header_limit`; h11 stops at 20 digits;
- HTTP/1.0 with `Connection: keep-alive` is kept open (RFC 9112, 9.3); h11 closes after every HTTP/1.0 request;
- `Proxy-Connection: close` closes, as with every llhttp; h11 does not know it.  Closing is always allowed;
- a trailer that tells of lengths or codings is dropped unread like any other; h11 refuses those that a head could not have;
- an offer of another protocol is declined by answering and closing, and refused when it has a body, of which llhttp would not tell the end.

What only we refuse, and h11 takes: unknown methods, a bare line feed as line end, folded headers, control characters in a value, a
`Content-Length` said twice even if the same, with spaces or longer than any, a tab after it, both framings at once, codings before HTTP/1.1, a
body whose length is not told where the method is nothing without, expectations but one, HTTP/1.2 and later, too many headers.

With SITS_SOAK=1 the random walk has 10^6 streams.
"""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_streams import Rolls, disagreement, good_request, ours, stream, theirs
from sits.world import RealWorld

SOAK = os.environ.get("SITS_SOAK") == "1"
STREAMS = 1_000_000 if SOAK else 4_000
POST = b"POST /x HTTP/1.1\r\nHost: h\r\n"
TE = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Drawn:
    """Dice of hypothesis, which makes what it finds small."""

    def __init__(self, data):
        self.choice = lambda options: data.draw(st.sampled_from(options))
        self.number = lambda low, high: data.draw(st.integers(low, high))


@given(st.data())
def test_what_we_take_h11_takes(data):
    text, pieces = stream(Drawn(data))
    assert disagreement(text, pieces) == ""


def test_what_we_take_h11_takes_on_a_long_walk():
    seed = RealWorld().nonce() if SOAK else 20
    dice, taken, refused = Rolls(RealWorld(seed).rng("streams")), 0, 0
    for i in range(STREAMS):
        text, pieces = stream(dice)
        wrong = disagreement(text, pieces)
        assert wrong == "", f"seed {seed}, stream {i}: {text}: {wrong}"
        if i < 1000:
            got = ours(pieces)
            taken += len(got[0])
            refused += isinstance(got[1], int)
    assert taken > 50 < refused  # the streams are neither all right nor all wrong, whatever the seed


@given(st.data())
def test_what_is_right_both_take(data):
    dice = Drawn(data)
    sent = [good_request(dice, data.draw(st.binary(max_size=40))) for _ in range(dice.number(1, 3))]
    text = b"".join(framed for _, framed in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    mine, end = ours(pieces)
    assert end == "more"
    assert mine == theirs(text)[0]
    for got, (parts, _) in zip(mine, sent, strict=True):
        framing = {name for name in got[2] if name in (b"content-length", b"transfer-encoding")}
        assert (*got[:2], {k: v for k, v in got[2].items() if k not in framing}, got[3]) == (
            *parts[:2],
            {k: v for k, v in parts[2].items() if k not in framing},
            parts[3],
        )


@pytest.mark.parametrize(
    ("text", "taken", "judged"),
    [
        (b"\r\n\r\n" + POST + b"Content-Length: 0\r\n\r\n", 1, 1),
        (b"GET  /x   HTTP/1.1\r\nHost: h\r\n\r\n", 1, 1),
        (TE + b"0" * 30 + b"3\r\nabc\r\n0\r\n\r\n", 1, 0),
        (b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2, 2, 2),
        (b"GET /x HTTP/1.1\r\nHost: h\r\nProxy-Connection: close\r\n\r\n" * 2, 1, 1),
        (b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n" * 2, 1, 2),
        (b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc", 0, 1),
        (b"BREW /x HTTP/1.1\r\nHost: h\r\n\r\n", 0, 1),
        (b"GET /x HTTP/1.1\nHost: h\n\n", 0, 1),
        (b"GET /x HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 0, 1),
        (b"GET /x HTTP/1.1\r\nHost: h\r\nX: a\x01\r\n\r\n", 0, 1),
        (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 0, 1),
        (POST + b"Content-Length: 3, 3\r\n\r\nabc", 0, 1),
        (POST + b"Content-Length: 0000000000000000003\r\n\r\nabc", 0, 1),
        (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 1),
        (b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 1),
        (POST + b"\r\n", 0, 1),
        (POST + b"Expect: x\r\nContent-Length: 0\r\n\r\n", 0, 1),
        (b"GET /x HTTP/1.2\r\nHost: h\r\n\r\n", 0, 1),
        (b"GET /x HTTP/1.1\r\nHost: h\r\n" + b"".join(b"x%d: 1\r\n" % i for i in range(200)) + b"\r\n", 0, 1),
    ],
)  # fmt: skip
def test_differences_on_purpose(text, taken, judged):
    assert len(ours([text])[0]) == taken
    assert len(theirs(text)[0]) == judged


def test_the_judge_judges():
    """A reader that takes what it should not, or waits for ever, is found out."""
    both = POST + b"Content-Length: 3\r\n\r\nabc"
    assert disagreement(both, [both[:-1] + b"d"])
    assert disagreement(POST, [both])
    assert disagreement(both, [POST])
