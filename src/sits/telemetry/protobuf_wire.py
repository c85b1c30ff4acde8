"""Protocol Buffers as bytes: for the few messages that are not worth a library, or must be looked at before one makes objects of them.

```
message = field*      field = (number << 3 | kind) value      kind 0: varint   1: 8 bytes   2: length, that many bytes   5: 4 bytes
```
Rules: integers are of 64 bits, negative ones as their two's complement; a field that is 0 is not written, as in proto3.  What is read is
bounded by what is there: a number ends within ten bytes, a length is never negative, and a field never goes beyond the end of its message.

Source: Protocol Buffers, "Encoding".

Deliberately absent: groups, zigzag numbers, and what a field means.
"""

from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of a field."""

SIZES = {FIXED64: 8, FIXED32: 4}
_VARINT_BYTES = 10
_ALL = 2**64 - 1


def varint(value: int) -> bytes:
    r"""An integer of 64 bits, signed or not.

    >>> varint(300), varint(-1)
    (b'\xac\x02', b'\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01')
    """
    value &= _ALL
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer_field(field: int, value: int) -> bytes:
    """A field that is an integer."""
    return varint(field << 3 | VARINT) + varint(value) if value else b""


def bytes_field(field: int, body: bytes) -> bytes:
    """A field that is a message, a text or bytes."""
    return varint(field << 3 | BYTES) + varint(len(body)) + body


def take(data: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, unsigned, and where it ends.

    Raises:
        ValueError: it has no end.

    """
    try:
        byte = data[at]
        if byte < 128:
            return byte, at + 1
        value, shift = byte & 127, 7
        for end in range(at + 1, at + _VARINT_BYTES):
            byte = data[end]
            value |= (byte & 127) << shift
            if byte < 128:
                return value & _ALL, end + 1
            shift += 7
    except IndexError:
        raise ValueError(f"a number at byte {at} is cut off") from None
    raise ValueError(f"a number at byte {at} has no end")


def signed(value: int) -> int:
    """What was taken, as the signed integer it may be."""
    return value - 2**64 if value >> 63 else value


def fields_of(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message's fields: signed integers, everything else as its bytes.

    Raises:
        ValueError: it is no message.

    """
    at = 0
    while at < len(data):
        tag, at = take(data, at)
        kind = tag & 7
        value, end = take(data, at) if kind in (VARINT, BYTES) else (SIZES.get(kind, 0), at)
        if kind == VARINT:
            yield tag >> 3, signed(value)
            at = end
            continue
        if kind not in (BYTES, *SIZES):
            raise ValueError(f"byte {at} begins a field of unknown kind {kind}")
        at = end + value
        if at > len(data):
            raise ValueError(f"a field of {value} bytes at byte {end} goes beyond the end")
        yield tag >> 3, data[end:at]
