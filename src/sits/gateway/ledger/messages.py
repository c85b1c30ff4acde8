"""What a holder and its authority say to each other, as bytes.

One `LeaseAsk` is answered by one `LeaseGrant`, or by `LeaseDown` when the authority cannot do its work; both echo `sent_ns`, the
holder's own clock, so that the holder counts its lease from before the question left.  Lines are state, not commands (see
`policy.lease`): any message may be lost, repeated or overtaken.

>>> decode_answer(encode(LeaseDown(sent_ns=7, why="no Redis"))).why
'no Redis'

Deliberately absent: who carries the bytes.
"""

import msgspec

from sits.policy.lease import AskLine, GrantLine

LINES_MAX = 512
"""Lines of one message; more go in the next one."""


class LeaseAsk(msgspec.Struct, array_like=True, frozen=True, tag="ask"):
    """A holder's report and wishes.  `holder` is unique to one life of one process."""

    holder: str
    sent_ns: int
    lines: tuple[AskLine, ...] = ()


class LeaseGrant(msgspec.Struct, array_like=True, frozen=True, tag="grant"):
    """The authority's answer: its wall clock, how long leases hold from `sent_ns` on, and its lines."""

    sent_ns: int
    wall_ns: int
    ttl_ns: int
    lines: tuple[GrantLine, ...] = ()


class LeaseDown(msgspec.Struct, array_like=True, frozen=True, tag="down"):
    """The authority cannot answer, and why."""

    sent_ns: int
    why: str


Answer = LeaseGrant | LeaseDown
encode = msgspec.msgpack.Encoder().encode
decode_ask = msgspec.msgpack.Decoder(LeaseAsk).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
