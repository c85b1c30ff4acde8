"""The HTTP reader, without sockets: what it takes and what it refuses."""

import pytest

from sits.core.errors import CapacityError
from sits.gateway.http import HEADERS_MAX, Continue, HttpReader, Incoming, Refusal, error_answer, head

POST = b"POST /x?q HTTP/1.1\r\nHost: h\r\n"


def read(*pieces, header_limit=1000, body_limit=1000):
    reader = HttpReader(header_limit, body_limit)
    return [event for i, piece in enumerate(pieces) for event in reader.feed(piece, i + 1)]


def test_a_request_with_its_parts():
    (got,) = read(POST + b"X-A: 1\r\nX-a: 2\r\nContent-Length: 3\r\n\r\nabc")
    assert (got.method, got.target, got.path, got.version, got.body) == (
        b"POST",
        b"/x?q",
        b"/x",
        "1.1",
        b"abc",
    )
    assert got.headers[b"x-a"] == b"1, 2"
    assert got.keep_alive


def test_the_time_is_that_of_the_first_byte():
    first, second = read(
        b"PO", POST[2:] + b"Content-Length: 3\r\n\r\nab", b"cPOST", POST[4:] + b"Content-Length: 0\r\n\r\n"
    )
    assert (first.recv_ns, second.recv_ns) == (1, 3)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"),
        (400, POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
        (400, POST + b"Content-Length: 3, 3\r\n\r\nabc"),
        (400, POST + b"Content-Length: +3\r\n\r\nabc"),
        (400, POST + b"Content-Length: 0x3\r\n\r\nabc"),
        (400, POST + b"Content-Length: 99999999999999999999999\r\n\r\n"),
        (501, POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n"),
        (400, POST + b"Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n"),
        (400, b"POST / HTTP/1.1\nHost: h\nContent-Length: 3\n\nabc"),
        (400, POST + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n"),
        (400, POST + b"X: a\0b\r\nContent-Length: 0\r\n\r\n"),
        (400, POST + b"X: a\rY: b\r\nContent-Length: 0\r\n\r\n"),
        (400, POST + b"Host: other\r\nContent-Length: 0\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (400, b"\x16\x03\x01\x02\x00\x01\x00"),
        (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (505, b"GET /\r\n\r\n"),
        (411, POST + b"\r\n"),
        (413, POST + b"Content-Length: 1001\r\n\r\n"),
        (413, POST + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + b"a" * 1000 + b"\r\n1\r\na\r\n0\r\n\r\n"),
        (417, POST + b"Content-Length: 3\r\nExpect: 200-ok\r\n\r\n"),
        (431, POST + b"X: " + b"a" * 2000),
        (431, POST + b"X: y\r\n" * 300),
        (431, b"\r\n" * 3000),
        (431, POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: " + b"a" * 3000),
        (431, POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 3000),
        (501, POST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\nabc"),
        (
            501,
            b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
        ),
        (501, b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\nabc"),
        (431, POST + b"".join(b"a%d:\r\n" % i for i in range(HEADERS_MAX)) + b"\r\n"),
        (431, POST + b"".join(b"a%d:\r\n" % i for i in range(HEADERS_MAX + 1))),
        (431, POST + b"a:\r\n" * (HEADERS_MAX + 3) + b"\r\n"),
        (431, POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a:\r\n" * (HEADERS_MAX + 3) + b"\r\n"),
    ],
)
def test_refused_whole_and_byte_by_byte(status, text):
    for pieces in ([text], [bytes([b]) for b in text]):
        events = read(*pieces)
        assert isinstance(events[-1], Refusal), events
        assert events[-1].error.status == status, events[-1].error
        assert not any(isinstance(event, Incoming) for event in events)
        assert events[-1].error.body()["error"]["type"] == "invalid_request_error"


def test_space_around_a_value_is_not_part_of_it():
    (got,) = read(POST + b"X: \t a b \t\r\nX:c \r\nExpect: 100-continue \r\nContent-Length: 0 \r\n\r\n")[-1:]
    assert (got.headers[b"x"], got.headers[b"content-length"]) == (b"a b, c", b"0")


def test_as_many_headers_as_are_allowed():
    text = POST + b"".join(b"a%d:\r\n" % i for i in range(HEADERS_MAX - 2)) + b"Content-Length: 0\r\n\r\n"
    (got,) = read(text, header_limit=10_000)
    assert len(got.headers) == HEADERS_MAX


def test_what_is_arriving_is_seen_counted_and_can_be_refused():
    reader = HttpReader(1000, 1000)
    assert reader.idle
    reader.feed(POST)
    assert (reader.idle, reader.held, reader.arriving) == (False, len(POST), None)
    reader.feed(b"Content-Length: 300\r\n\r\n" + b"a" * 200)
    assert reader.arriving.headers[b"content-length"] == b"300"
    assert reader.held == 200
    events = []
    reader.refuse(CapacityError("full", code="x"), events)
    assert [(event.error.code, event.request.method) for event in events] == [("x", b"POST")]
    assert (reader.held, reader.feed(b"a" * 100)) == (0, [])
    reader.refuse(CapacityError("full", code="x"), events)
    assert len(events) == 1


def test_a_next_request_behind_a_whole_one_is_not_idle():
    reader = HttpReader(1000, 1000)
    reader.feed(POST + b"Content-Length: 0\r\n\r\nPOST /")
    assert not reader.idle
    reader = HttpReader(1000, 1000)
    reader.feed(POST + b"Content-Length: 0\r\n\r\n\r\n")
    assert reader.idle


def test_nothing_comes_out_after_a_refusal():
    good = POST + b"Content-Length: 0\r\n\r\n"
    reader = HttpReader(1000, 1000)
    events = reader.feed(good + POST + b"Content-Length: x\r\n\r\n" + good)
    assert [type(e) for e in events] == [Incoming, Refusal]
    assert reader.feed(good) == []


def test_a_body_as_long_as_the_limit_is_taken_even_when_longer_than_a_head_may_be():
    body = b"a" * 5000
    pipelined = (POST + b"Content-Length: 5000\r\n\r\n" + body) * 3
    assert [e.body for e in read(pipelined, body_limit=5000)] == [body] * 3


def test_trailers_never_become_headers():
    (got,) = read(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
    assert b"authorization" not in got.headers
    assert got.body == b"a"


def test_the_wish_to_continue_comes_before_the_body_and_not_with_a_refusal():
    assert isinstance(read(POST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")[0], Continue)
    (refusal,) = read(POST + b"Content-Length: 3000\r\nExpect: 100-continue\r\n\r\n")
    assert isinstance(refusal, Refusal)


def test_a_get_that_offers_an_upgrade_is_answered_and_closed():
    (got,) = read(b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI")
    assert not got.keep_alive


def test_absolute_targets_lose_their_authority():
    (got,) = read(b"GET http://h/v1/x?y=1 HTTP/1.1\r\nHost: h\r\n\r\n")
    assert got.path == b"/v1/x"


def test_heads_and_chunks():
    assert head(200, b"a/b", length=3, headers=[(b"x", b"y")]) == (
        b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\nx: y\r\ncontent-length: 3\r\n\r\n"
    )
    assert head(200, b"a/b", length=0, close=True).endswith(b"\r\nconnection: close\r\n\r\n")
    assert head(299, b"a/b", length=0).startswith(b"HTTP/1.1 299 ")
    answer = error_answer(CapacityError("full", code="x"), close=True)
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert answer.endswith(b'{"error":{"message":"full","type":"overloaded_error","param":null,"code":"x"}}')
