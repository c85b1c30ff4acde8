"""Rows that come before the books are open wait in their order, and not without bound."""

import msgspec

from sits.app.up import early
from sits.telemetry.packing import Packed


def packed(rows):
    """A message of so many requests, as it is on the wire."""
    return ("requests", "run", msgspec.to_builtins(Packed([("",)], [0] * rows, [], [], b"", b"")))


def test_rows_wait_in_their_order_and_what_finds_no_room_is_counted(monkeypatch):
    monkeypatch.setattr(early, "ROWS_MAX", 10)
    waiting, got = early.Early(), []
    first, second = packed(6), ("logs", "run", [(1,), (2,), (3,)])
    for body in (first, packed(5), second, ("logs", "run", [(4,), (5,)]), ("signals", "run", [(6,)])):
        waiting.add(body)
    assert waiting.dropped == 5 + 2
    waiting.hand_over(lambda *body: got.append(body))
    assert got == [first, second, ("signals", "run", [(6,)])]
    waiting.hand_over(lambda *body: got.append(body))
    assert len(got) == 3
    waiting.add(packed(10))
    assert waiting.dropped == 7
