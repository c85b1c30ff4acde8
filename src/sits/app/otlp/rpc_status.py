"""`google.rpc.Status` with a `RetryInfo`: how gRPC says when to come again.  Two messages of three fields, so their package is not needed.

```
Status    1: code (varint)   2: message (text)   3: details (Any, repeated)       Any  1: type_url (text)   2: value (bytes)
RetryInfo 1: retry_delay (Duration)                                               Duration  1: seconds   2: nanos (varints)
```
Source: googleapis `google/rpc/status.proto`, `error_details.proto`; the encoding of protocol buffers.

Deliberately absent: every other detail; what cannot be read is no detail.
"""

from sits.telemetry.protobuf_wire import bytes_field, fields_of, integer_field

KEY = "grpc-status-details-bin"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


def status(code: int, message: str, retry_after_s: float = 0.0) -> bytes:
    """A `Status`; with a `RetryInfo` where somebody may come again."""
    made = integer_field(1, code) + bytes_field(2, message.encode("utf-8", "replace"))
    if retry_after_s > 0:
        seconds, nanos = divmod(round(retry_after_s * 1e9), 10**9)
        info = bytes_field(1, integer_field(1, seconds) + integer_field(2, nanos))
        made += bytes_field(3, bytes_field(1, RETRY_INFO.encode()) + bytes_field(2, info))
    return made


def retry_after_s(told: bytes) -> float:
    """The delay of the `RetryInfo` in a `Status`; 0 without one, and for what is no `Status`.

    >>> retry_after_s(status(8, "full", 2.5)), retry_after_s(status(8, "full")), retry_after_s(b"garbage")
    (2.5, 0.0, 0.0)
    """
    try:
        for field, detail in fields_of(told):
            if field != 3 or not isinstance(detail, bytes):
                continue
            parts = dict(fields_of(detail))
            if parts.get(1) != RETRY_INFO.encode():
                continue
            info = dict(fields_of(_held(parts.get(2))))
            delay = dict(fields_of(_held(info.get(1))))
            seconds, nanos = delay.get(1, 0), delay.get(2, 0)
            if isinstance(seconds, int) and isinstance(nanos, int) and min(seconds, nanos) >= 0:
                return seconds + nanos / 1e9
    except ValueError:
        return 0.0
    return 0.0


def _held(value: int | bytes | None) -> bytes:
    return value if isinstance(value, bytes) else b""
