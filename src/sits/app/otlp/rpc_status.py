"""`google.rpc.Status` with a `RetryInfo`: how gRPC says when to come again.  Two messages of three fields, so their package is not needed.

```
Status    1: code (varint)   2: message (text)   3: details (Any, repeated)       Any  1: type_url (text)   2: value (bytes)
RetryInfo 1: retry_delay (Duration)                                               Duration  1: seconds   2: nanos (varints)
```
Source: googleapis `google/rpc/status.proto`, `error_details.proto`; the encoding of protocol buffers.

Deliberately absent: every other detail; what cannot be read is no detail.
"""

from collections.abc import Iterator

KEY = "grpc-status-details-bin"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_MASK = 0x7F


def status(code: int, message: str, retry_after_s: float = 0.0) -> bytes:
    """A `Status`; with a `RetryInfo` where somebody may come again."""
    made = _number(1, code) + _bytes(2, message.encode("utf-8", "replace"))
    if retry_after_s > 0:
        seconds, nanos = divmod(round(retry_after_s * 1e9), 10**9)
        info = _bytes(1, _number(1, seconds) + _number(2, nanos))
        made += _bytes(3, _bytes(1, RETRY_INFO.encode()) + _bytes(2, info))
    return made


def retry_after_s(told: bytes) -> float:
    """The delay of the `RetryInfo` in a `Status`; 0 without one, and for what is no `Status`.

    >>> retry_after_s(status(8, "full", 2.5)), retry_after_s(status(8, "full")), retry_after_s(b"garbage")
    (2.5, 0.0, 0.0)
    """
    try:
        for field, detail in _fields(told):
            if field != 3 or not isinstance(detail, bytes):
                continue
            parts = dict(_fields(detail))
            if parts.get(1) != RETRY_INFO.encode():
                continue
            info = dict(_fields(_held(parts.get(2))))
            delay = dict(_fields(_held(info.get(1))))
            seconds, nanos = delay.get(1, 0), delay.get(2, 0)
            if isinstance(seconds, int) and isinstance(nanos, int) and seconds < 2**62:
                return seconds + nanos / 1e9
    except ValueError:
        return 0.0
    return 0.0


def _held(value: int | bytes | None) -> bytes:
    return value if isinstance(value, bytes) else b""


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > _MASK:
        made.append(value & _MASK | 0x80)
        value >>= 7
    return bytes((*made, value))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _fields(told: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a message whose fields are varints, texts or messages.

    Raises:
        ValueError: it has others, or ends too early.

    """
    at = 0
    while at < len(told):
        tag, at = _read(told, at)
        value, at = _read(told, at)
        if tag & 7 == 0:
            yield tag >> 3, value
        elif tag & 7 == 2 and at + value <= len(told):
            yield tag >> 3, told[at : at + value]
            at += value
        else:
            raise ValueError(f"field {tag >> 3} has another form")


def _read(told: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(told):
            break
        value |= (told[at] & _MASK) << shift
        at += 1
        if told[at - 1] <= _MASK:
            return value, at
    raise ValueError("a number does not end")
