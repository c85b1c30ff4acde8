"""How many groups and spans a serialized `ExportTraceServiceRequest` has, counted without making any.

An empty message is two bytes of a body and more than a hundred in memory, so a body of 16 MiB can become gigabytes: it is counted first, which
takes about half a microsecond a span.  Bytes that are no protobuf end the count; the parser says what is wrong with them.

Source: Protocol Buffers, "Encoding".

Deliberately absent: values, and what is inside a span (at most 128 attributes of it are kept; eight million empty ones were measured at half a gigabyte while they are parsed).
"""

from sits.telemetry.protobuf_wire import BYTES, SIZES, VARINT, take

_INSIDE = (0x0A, 0x12, 0x12)
"""Tags of `resource_spans`, and in it `scope_spans`, and in it `spans`."""


def more_than(body: bytes, limit: int) -> bool:
    """Whether there are more than `limit` groups and spans together.

    >>> one = bytes((0x0A, 4, 0x12, 2, 0x12, 0))
    >>> more_than(one, 3), more_than(one, 2), more_than(one * 5, 14), more_than(b"no protobuf", 0)
    (False, True, True, False)
    """
    found, at, depth = 0, 0, 0
    ends = [len(body)]
    try:
        while True:
            while at >= ends[-1]:
                if len(ends) == 1:
                    return False
                ends.pop()
                depth -= 1
            tag, at = take(body, at)
            kind = tag & 7
            if kind == BYTES:
                size, at = take(body, at)
                if tag == _INSIDE[depth]:
                    found += 1
                    if found > limit:
                        return True
                    if depth < 2:
                        ends.append(at + size)
                        depth += 1
                        continue
                at += size
            elif kind == VARINT:
                _, at = take(body, at)
            else:
                at += SIZES.get(kind, 0)  # a group's begin and end have no more than their tag
    except ValueError:
        return False
