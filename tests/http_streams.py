"""Byte streams that are nearly HTTP/1.1, and how two readers understand them: ours, and h11 as the judge.

`stream(dice)` makes a conversation of one to three requests out of parts that are right, odd or wrong, then breaks a few of its
bytes.  `dice` has `choice(sequence)` and `number(low, high)`, so the same grammar serves hypothesis and plain random numbers.

h11 is asked request by request, each on a connection of its own, so that three things it does otherwise on purpose do not hide
the rest: it takes no empty line before a request, only single spaces in the request line, and ends every HTTP/1.0 connection.
"""

import re

import h11

from sits.gateway.http import HttpReader, Incoming, Refusal

METHODS = b"GET POST PUT HEAD DELETE OPTIONS CONNECT PATCH TRACE BREW get PRI SOURCE M-SEARCH".split(b" ")
TARGETS = [b"/", b"/v1/x?y=%20", b"*", b"http://h/a", b"h:80", b"/\xc3\xa9", b"/a#b", b"/a b", b"", b"//x", b"/\x7f", b"/\x01", b'/"<>']  # fmt: skip
VERSIONS = [
    *[b"HTTP/1.1"] * 6,
    b"HTTP/1.0",
    b"HTTP/1.2",
    b"HTTP/2.0",
    b"http/1.1",
    b"HTTP/1.10",
    b"HTTP/0.9",
    b"",
]
LENGTHS = [b"Content-Length:" + value for value in (b" 3", b" 0", b"3 ", b" 3\t", b" +3", b" 03", b" 3,3", b" 3, 3", b" ", b" 5", b" 0x3", b" 3;a")]  # fmt: skip
CODINGS = [b"Transfer-Encoding:" + value for value in (b" chunked", b" Chunked", b" chunked ", b"\tchunked", b" identity", b" gzip, chunked", b" chunked, chunked", b" chunked,", b' "chunked"', b"")]  # fmt: skip
ODD = [b"X: 1", b"x:2", b"X:", b"X: ", b"X:  a  b \t", b"X\t: 1", b"X : 1", b" X: 1", b"X", b": v", b"X: a\x01b", b"X: \xff\xfe", b"X: a\x00b", b"X: a\rb", b"X: \x7f", b"X: \x0b", b"X: a\x0c", b"X: a\r\n b", b"X:\r\n b", b"\xc3: 1", b"(x): 1", b"X-\x7f: 1", b"Content_Length: 3", b"Content-Length\x00: 3", b"Content-Length : 3"]  # fmt: skip
OTHER = [b"Connection: close", b"Connection: keep-alive", b"Connection: Close, x", b"Connection: upgrade\r\nUpgrade: h2c", b"Upgrade: x", b"Host: h2", b"Host:", b"Host: a b", b"Host: a,b", b"Host: a/b@c", b"Expect: 100-continue", b"Expect: 100-Continue ", b"Expect: x", b"Trailer: X", b"TE: trailers", b"Cookie: a=b", b"Proxy-Connection: close", b"Keep-Alive: 3"]  # fmt: skip
CHUNKS = [*[b"3\r\nabc\r\n"] * 12, b"3;x=y\r\nabc\r\n", b"3 \r\nabc\r\n", b"3 ;x\r\nabc\r\n", b"03\r\nabc\r\n", b"A\r\n0123456789\r\n", b"a\r\n0123456789\r\n", b"3\nabc\r\n", b"3\r\nabc\n", b"3\r\nabcd\r\n", b"0x3\r\nabc\r\n", b"-3\r\nabc\r\n", b'3;"\r\n"\r\nabc\r\n', b"3;\n\r\nabc\r\n", b"3;a\x00\r\nabc\r\n", b"3\r\r\nabc\r\n", b"ffffffffffffffff\r\nabc\r\n", b"10000000000000003\r\nabc\r\n", b"3;;;\r\nabc\r\n", b'3;a="x\\"y"\r\nabc\r\n', b"3;=\r\nabc\r\n"]  # fmt: skip
ENDS = [*[b"0\r\n\r\n"] * 9, b"0\r\nX: 1\r\n\r\n", b"0\r\nX : 1\r\n\r\n", b"0\r\nContent-Length: 3\r\n\r\n", b"0\r\nTransfer-Encoding: chunked\r\n\r\n", b"00\r\n\r\n", b"0;x\r\n\r\n", b"0\r\n\n", b"0\n\r\n", b"0\r\nHost: x\r\n\r\n", b"0\r\nx\r\n\r\n", b"0 \r\n\r\n", b"0\r\n X: y\r\n\r\n"]  # fmt: skip
BREAKS = b"\r\n\t \x00\x0b:;,0a\x7f\xff/H"

TRAILER = "a trailer"
"""How a stream ends that h11 refuses for what a trailer says of lengths or codings; we drop trailers unread, so it has no say."""

_REQUEST_LINE = re.compile(rb"\A([^ \r\n]+) +([^ \r\n]+) +(HTTP/)")


class Rolls:
    """Dice of a random stream; numbers are drawn many at once, as one by one each would cost a microsecond or five."""

    def __init__(self, rng):
        self._rng, self._left = rng, []

    def number(self, low, high):
        if not self._left:
            self._left = self._rng.random(4096).tolist()
        return low + int(self._left.pop() * (high + 1 - low))

    def choice(self, options):
        return options[self.number(0, len(options) - 1)]


def good_request(dice, body):
    """A request every server takes: the parts, and its bytes."""
    method = dice.choice([b"POST", b"PUT", b"PATCH"]) if body or dice.number(0, 1) else b"GET"
    target = dice.choice([b"/", b"/v1/chat/completions", b"/x?y=%20&z", b"http://h/a"])
    headers = {b"Host": dice.choice([b"h", b"h:80"])}
    for name in (b"X-A", b"accept", b"AUTHORIZATION", b"x-empty"):
        if dice.number(0, 2) == 0:
            headers[name] = dice.choice([b"", b"a", b"a  b,c", b"Bearer k", b"\xe2\x82\xac"])
    framed = body
    if body and dice.number(0, 1):
        headers[dice.choice([b"Transfer-Encoding", b"transfer-encoding"])] = dice.choice(
            [b"chunked", b"Chunked"]
        )
        framed, rest = b"", body
        while rest:
            size = dice.number(1, len(rest))
            extension = dice.choice([b"", b"", b";x", b";x=y"])
            framed += b"%x%b\r\n%b\r\n" % (size, extension, rest[:size])
            rest = rest[size:]
        framed += b"0\r\n" + dice.choice([b"", b"X-Sum: 1\r\n"]) + b"\r\n"
    elif body or method != b"GET":
        headers[b"Content-Length"] = b"%d" % len(body)
    # no tab after a framing header's value, which llhttp does not take
    pad = dice.choice([b" ", b"", b"\t", b"  "]), dice.choice([b"", b"", b" ", b"  "])
    lines = [name + b":" + pad[0] + value + pad[1] for name, value in headers.items()]
    parts = (method, target, {name.lower(): value for name, value in headers.items()}, body)
    return parts, b"\r\n".join([method + b" " + target + b" HTTP/1.1", *lines, b"", b""]) + framed


def odd_request(dice):
    """A request of parts that need not be right or fit together."""
    headers = [b"Host: h"] if dice.number(0, 19) else []
    headers += [
        dice.choice(dice.choice([ODD, OTHER, OTHER, LENGTHS, CODINGS]))
        for _ in range(dice.choice([0, 0, 0, 1, 1, 2, 3]))
    ]
    kind, body = dice.number(0, 9), b""
    if kind < 3:
        headers.append(b"Content-Length: 3")
        body = b"abc"
    elif kind < 7:
        headers.append(b"Transfer-Encoding: chunked")
        chunks = [dice.choice(CHUNKS) for _ in range(dice.choice([0, 1, 1, 2]))]
        body = b"".join(chunks) + dice.choice(ENDS)
    elif kind < 8:
        body = b"abc"
    ends = dice.choice([b"\r\n"] * 9 + [b"\n"])
    odd_end = dice.choice([ends] * 9 + [b"\r", b"\r\r\n", b"\n"])
    space = dice.choice([b" "] * 12 + [b"  ", b"\t", b""])
    before = dice.choice([b""] * 12 + [b"\r\n", b"\n", b"\r\n\r\n", b" "])
    method = dice.choice(METHODS) if not dice.number(0, 4) else dice.choice([b"POST", b"GET"])
    target = dice.choice(TARGETS) if not dice.number(0, 4) else b"/x"
    version = dice.choice(VERSIONS) if not dice.number(0, 4) else b"HTTP/1.1"
    lines = [method + space + target + space + version, *headers]
    return before + ends.join(lines) + odd_end + ends + body


def broken(dice, text):
    """`text` with a few bytes changed, lost, added or said twice."""
    text = bytearray(text)
    for _ in range(dice.choice([0, 0, 0, 1, 1, 2])):
        at, how = dice.number(0, len(text) - 1), dice.number(0, 3)
        if how == 0:
            text[at] = dice.choice(BREAKS)
        elif how == 1:
            del text[at]
        elif how == 2:
            text.insert(at, dice.choice(BREAKS))
        else:
            text[at:at] = text[at : at + dice.number(1, 12)]
        if not text:
            break
    return bytes(text)


def stream(dice):
    """A conversation, and where it is cut into pieces."""
    text = broken(dice, b"".join(odd_request(dice) for _ in range(dice.choice([1, 1, 2, 3]))))
    cuts = sorted(dice.number(0, len(text)) for _ in range(dice.choice([0, 0, 1, 3])))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def ours(pieces, header_limit=65_536, body_limit=10**7):
    """What our reader takes out of the pieces, and how it ends: `more`, `closed`, or the refusal's status."""
    reader, taken = HttpReader(header_limit, body_limit), []
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, Refusal):
                return taken, event.error.status
            if isinstance(event, Incoming):
                coding = event.headers.get(b"transfer-encoding")
                if coding is not None:  # h11 writes it small
                    event.headers[b"transfer-encoding"] = coding.lower()
                taken.append((event.method, event.target, event.headers, event.body))
                if not event.keep_alive:
                    return taken, "closed"
    return taken, "more"


def theirs(text):
    """The same of h11."""
    taken = []
    while True:
        text = _REQUEST_LINE.sub(rb"\1 \2 \3", text.lstrip(b"\r\n"), count=1)
        if not text:
            return taken, "more"
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
        connection.receive_data(text)
        head, body = None, b""
        try:
            while type(event := connection.next_event()) is not h11.EndOfMessage:
                if event is h11.NEED_DATA:
                    return taken, "more"
                if type(event) is h11.Request:
                    head = event
                else:
                    body += event.data
        except h11.RemoteProtocolError as error:
            return taken, TRAILER if head is not None and in_trailer(error) else f"refused: {error}"
        taken.append((bytes(head.method), bytes(head.target), joined(head.headers), body))
        if not keeps(head):
            return taken, "closed"
        text = connection.trailing_data[0]


def in_trailer(error):
    """Whether h11, which has seen the head already, does not like what a trailer says of framing."""
    return "Content-Length" in str(error) or "Transfer-Encoding" in str(error)


def joined(headers):
    """Headers as a dict, those that come again after a comma."""
    found = {}
    for name, value in headers:
        found[bytes(name)] = found[bytes(name)] + b", " + bytes(value) if name in found else bytes(value)
    return found


def keeps(head):
    """Whether the connection goes on after this request (RFC 9112, 9.3); llhttp listens to `Proxy-Connection` too."""
    names = (b"connection", b"proxy-connection")
    said = {
        part.strip().lower() for name, value in head.headers if name in names for part in value.split(b",")
    }
    return b"close" not in said and (head.http_version != b"1.0" or b"keep-alive" in said)


def offers(request):
    """Whether it offers another protocol: we answer in this one, and end the connection."""
    return b"upgrade" in request[2] or request[0] == b"CONNECT"


def disagreement(text, pieces):
    """What our reader does that it must not, by h11's judgement; empty when all is well."""
    (mine, end), (judged, judged_end) = ours(pieces), theirs(text)
    for one, other in zip(mine, judged, strict=False):
        if one != other:
            return f"read differently: {one} and {other}"
    if judged_end == TRAILER:
        return ""
    if len(mine) > len(judged):
        return f"taken, and by h11 {judged_end}: {mine[len(judged)]}"
    if isinstance(end, int) or (mine and end == "closed" and offers(mine[-1])):
        return ""
    if len(mine) < len(judged):
        return f"{end}, where h11 reads {judged[len(mine)]}"
    if (end == "closed") != (judged_end == "closed") and not judged_end.startswith("refused"):
        return f"{end}, and by h11 {judged_end}"
    return ""
