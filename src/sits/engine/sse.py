"""Server-sent events without I/O: bytes in any split in, whole events out, byte for byte.

An event ends at an empty line (more empty lines are events without data).  Lines end in LF or CRLF; a lone CR, which the standard also allows and no engine
sends, is not taken for a line end.  `feed` returns all whole events it has as *one* block, because a gateway passes
blocks on and need not cut them; `events` cuts a block for those who look inside.

Rule: the concatenation of all blocks and `rest` is the concatenation of all input; an event longer than `limit`
bytes is an error, so a stream without an empty line cannot fill the memory.

Deliberately absent: `id:`, `retry:` and named events; OpenAI-compatible engines send data only.
Source: WHATWG HTML, "Server-sent events", 9.2.6.
"""

import re
from typing import Final

EVENT_LIMIT: Final = 16 * 2**20
_EMPTY_LINE: Final = re.compile(rb"(?:\A|(?<=\n))\r?\n")


class EventTooLongError(ValueError):
    """An event is over the limit."""


class SseSplitter:
    """`holds` what is not yet a whole event."""

    __slots__ = ("holds", "limit")

    def __init__(self, limit: int = EVENT_LIMIT) -> None:
        self.limit = limit
        self.holds = bytearray()

    @property
    def rest(self) -> bytes:
        """What is not yet a whole event."""
        return bytes(self.holds)

    def feed(self, data: bytes) -> bytes:
        r"""The block of whole events that `data` completes; empty when it completes none.

        >>> splitter = SseSplitter()
        >>> splitter.feed(b"data: a\n\ndata: b\n"), splitter.feed(b"\ndata")
        (b'data: a\n\n', b'data: b\n\n')

        Raises:
            EventTooLongError: an event is over the limit.

        """
        held = self.holds
        if not held:
            if data.endswith(b"\n\n"):
                return data
            cut = _last_end(data, 0)
            held += data[cut:]
            block = data[:cut]
        else:
            seam = max(0, len(held) - 2)  # an empty line may have begun in what is held, and no earlier
            held += data
            cut = _last_end(held, seam)
            block = bytes(held[:cut])
            del held[:cut]
        if len(held) > self.limit:
            raise EventTooLongError(f"a server-sent event of over {self.limit} bytes")
        return block


def _last_end(data: bytes | bytearray, start: int) -> int:
    """Where the last whole event of `data` ends, which begins a line; its end is not before `start`.  0: there is none."""
    cut = max(data.rfind(b"\n\n", start) + 2, data.rfind(b"\n\r\n", start) + 3)
    if cut > 2:
        return cut
    return 2 if data.startswith((b"\r\n", b"\n\n")) else 1 if data.startswith(b"\n") else 0


def event_end(block: bytes, start: int) -> int:
    """Where the event that begins at `start` ends, its empty line included."""
    line = block.find(b"\n", start)
    if line > start and block[line + 1 : line + 2] == b"\n" and block[line - 1 : line] != b"\r":
        return line + 2  # one line and the empty one, as nearly all have
    found = _EMPTY_LINE.search(block, start)
    return found.end() if found else len(block)


def events(block: bytes) -> list[bytes]:
    r"""The events of a block as they are, each with the empty line that ends it.

    >>> events(b"data: a\n\ndata: b\r\n\r\n")
    [b'data: a\n\n', b'data: b\r\n\r\n']
    """
    found, start = [], 0
    while start < len(block):
        end = event_end(block, start)
        found.append(block[start:end])
        start = end
    return found


def contents(block: bytes) -> list[bytes | None]:
    r"""What the events of a block say: their data, None for a comment; events without either are left out.

    >>> contents(b"event: x\ndata: a\n\n: ping\n\ndata: b\ndata: c\n\n\n\n")
    [b'a', None, b'b\nc']
    """
    if b"\r" in block:
        found = [(event, data_of(event)) for event in events(block)]
        return [data for event, data in found if data is not None or event.startswith(b":")]
    told: list[bytes | None] = []
    for event in block.split(b"\n\n"):
        end = event.find(b"\n")
        if end < 0 and event[:6] == b"data: ":
            told.append(event[6:])
        elif (
            event[end : end + 7] == b"\ndata: " and event[:6] == b"event:" and event.find(b"\n", end + 7) < 0
        ):
            told.append(event[end + 7 :])
        else:
            data = data_of(event)
            if data is not None or event.startswith(b":"):
                told.append(data)
    return told


def data_of(event: bytes) -> bytes | None:
    r"""The data of one event: its data lines joined by LF; None when it has none (a comment).

    >>> data_of(b"data: a\r\ndata:b\r\n\r\n"), data_of(b": ping\n\n")
    (b'a\nb', None)
    """
    if only_data(event) and event[5:6] == b" ":
        return event[6:-2]
    lines = [_value(line) for line in event.split(b"\n") if line.startswith(b"data")]
    data = [line for line in lines if line is not None]
    return b"\n".join(data) if data else None


def only_data(event: bytes) -> bool:
    r"""Whether the event is one line of data and nothing else, as nearly all are.

    >>> only_data(b"data: a\n\n"), only_data(b"event: x\ndata: a\n\n"), only_data(b"data: a\r\n\r\n")
    (True, False, False)
    """
    return event[:5] == b"data:" and event.partition(b"\n")[2] == b"\n" and event[-3:-2] != b"\r"


def _value(line: bytes) -> bytes | None:
    name, colon, value = line.removesuffix(b"\r").partition(b":")
    if name != b"data":
        return None
    return value.removeprefix(b" ") if colon else b""
