"""Bytes that are nearly an engine's answer, and how two readers understand them: our client's, and h11 as the judge.

As in `http_streams`; what differs on purpose is told where the law is, with the tests.
"""

import re
import socket

import h11

from http_streams import CHUNKS, ENDS, TRAILER, in_trailer
from sits.engine.client import Connection

HEADERS = [b"Content-Length: 3", b"Content-Length: 0", b"Content-Length: 3, 3", b"Content-Length: 03", b"Content-Length: -3", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked ", b"Transfer-Encoding: x", b"Connection: close", b"Connection: keep-alive", b"Connection: upgrade\r\nUpgrade: h2c", b"Content-Type: a", b"X:", b"X : y", b" X: y", b"X: \x01", b"X: a\r\n b", b"Content-Length : 3", b"Content-Encoding: gzip"]  # fmt: skip
STATUSES = [*[b"200 OK"] * 8, b"200", b"200 ", b"204 No", b"304 X", b"100 Continue", b"101 Switch", b"103 Hints", b"500 E", b"20 X", b"2000 X", b"600 X", b"429 T"]  # fmt: skip
VERSIONS = [*[b"HTTP/1.1"] * 10, b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"ICY"]
_ODD_REASON = re.compile(rb"HTTP/1\.1 +\d\d\d [^\r\n]*[\x00\x0b\x0c]")
"""A reason h11 does not like, and we do not read; the first line's is taken away before, others' are behind announcements."""

_AFTER_ANNOUNCEMENT = re.compile(rb"\A((?:HTTP/1\.1 +1\d\d [^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n)+)[\r\n]+")
"""Empty lines behind announcements."""

_OTHER_VERSION = re.compile(rb"HTTP/(?!1\.1)")
_REASON = re.compile(rb"\A(HTTP/\d\.\d) +(\d{3}) [^\r\n]*")


class Watch:
    """The clock of silences, stopped."""

    def __init__(self):
        self.now_ns, self.watched, self.timer = 0, set(), True


class Wire:
    """A transport that keeps nothing."""

    link = socket.socketpair()[0]

    def __init__(self):
        self.cut = False

    def get_extra_info(self, _):
        return self.link

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        pass

    pause_reading = resume_reading = lambda self: None

    def abort(self):
        self.cut = True


def one(dice):
    """An answer."""
    headers = [dice.choice(HEADERS) for _ in range(dice.choice([0, 1, 1, 2, 3]))]
    kind, body = dice.number(0, 3), dice.choice([b"", b"abc", b"abcd", b"abcde"])
    if kind == 0:
        chunks = [dice.choice(CHUNKS) for _ in range(dice.choice([0, 1, 1, 2]))]
        body = b"".join(chunks) + dice.choice(ENDS)
        headers.append(b"Transfer-Encoding: chunked")
    elif kind < 3:
        headers.append(b"Content-Length: 3")
        body = b"abc"
    end = dice.choice([*[b"\r\n"] * 12, b"\n"])
    space = dice.choice([*[b" "] * 12, b"  ", b"\t"])
    line = dice.choice(VERSIONS) + space + dice.choice(STATUSES)
    return dice.choice([*[b""] * 12, b"\r\n"]) + end.join([line, *headers, b"", b""]) + body


def ours(pieces):
    """Status, body, whether it ended by itself, whether by the connection's end, and the connection."""
    connection, wire = Connection(Watch()), Wire()
    connection.connection_made(wire)
    connection.send(b"POST / HTTP/1.1\r\n\r\n", b"")
    body = b""
    for piece in pieces:
        if piece and not wire.cut:
            connection.data_received(piece)
            body += connection.taken()
    ended, free = connection._ended, connection.free
    if not wire.cut:
        connection.connection_lost(None)
    return (
        (connection.status if connection.headed else 0, body),
        ended,
        connection._ended,
        free,
        connection.coding,
    )


def theirs(text):
    """The same of h11: status and body, how it ended (None: not at all), what is left, and whether it would go on."""
    connection, head, body, cut = (
        h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20),
        None,
        b"",
        False,
    )
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "h"), ("Content-Length", "0")]))
    connection.send(h11.EndOfMessage())
    text, more = text.lstrip(b"\r\n"), 1
    while more:
        text, more = _AFTER_ANNOUNCEMENT.subn(rb"\1", text)
    connection.receive_data(_REASON.sub(rb"\1 \2 X", text, count=1))
    try:
        while type(event := connection.next_event()) is not h11.EndOfMessage:
            if event is h11.NEED_DATA and not cut:
                cut = True
                connection.receive_data(b"")
            elif event in (h11.NEED_DATA, h11.PAUSED) or type(event) is h11.ConnectionClosed:
                return (0, b""), None, b"", False
            elif type(event) is h11.Response:
                head = event
            elif type(event) is h11.Data:
                body += bytes(event.data)
    except h11.RemoteProtocolError as error:
        spared = in_trailer(error) if head is not None else _ODD_REASON.search(text)
        return (0, b""), TRAILER if spared else None, b"", False
    kept = {v.strip().lower() for n, value in head.headers if n == b"connection" for v in value.split(b",")}
    goes_on = connection.their_state is h11.DONE or (head.http_version == b"1.0" and b"keep-alive" in kept)
    return (head.status_code, body), "cut" if cut else "whole", connection.trailing_data[0], goes_on


def disagreement(text, pieces):
    """What we make of an answer that h11 does not; empty when all is well."""
    mine, ended, ended_at_last, free, coding = ours(pieces)
    old = _OTHER_VERSION.search(text) is not None
    if (
        not ended_at_last
        or old
        or mine[0] in (0, 101, 204, 304)
        or coding.strip().lower() not in (b"", b"identity")
    ):
        return ""
    judged, how, rest, goes_on = theirs(text)
    if how == TRAILER:
        return ""
    if how is None or judged != mine:
        return f"we take {mine}, h11 {judged} {how}"
    if ended != (how == "whole"):
        return f"ended by itself: {ended}, by h11 {how}"
    if free and (rest.strip(b"\r\n") or not goes_on):
        return f"we would use it again, and there is {rest} left" if goes_on else "we would use it again"
    return ""
