"""A decision record: what was known of one request when it was decided, and what was decided.

One record a request, msgpack, fields by position.  It holds the *inputs* of the policies, not their reasons: the same
pure code turns them into the same decisions later, with the reasons when somebody asks (`sitsctl explain`), or into the
decisions of another configuration (`sitsctl replay`).

`Facts` are what was known of the replicas; they change once a second and not with each request, so a record names the
facts it was routed by.

Rules: fields are only ever added, at the end, with a default, so old records stay readable; no secret is in it (a key by its
id, a header only if some policy looks at it), and no text of a prompt.

Deliberately absent: times of the request itself (its row of table `requests` has them), and the answer.
"""

from collections.abc import Iterator, Sequence

import msgspec


class Routed(msgspec.Struct, array_like=True, frozen=True):
    """One choice of a replica: a first try, a fallback's, or a retry's.

    `inflight_tokens` are in the order of the facts; `barred` could not be chosen, because they were tried or their breaker was
    open to this request's like; `choice` is empty when there was none.
    """

    now_ns: int
    turn: int
    model: str
    adapter: str
    barred: tuple[str, ...]
    inflight_tokens: tuple[int, ...]
    facts: int
    choice: str


class Seen(msgspec.Struct, array_like=True, frozen=True):
    """What was known of one replica."""

    id: str
    models: tuple[str, ...]
    adapters: tuple[str, ...]
    region: str
    weight: float
    healthy: bool
    running: int
    waiting: int
    kv_usage: float
    observed_ns: int


class Facts(msgspec.Struct, array_like=True, frozen=True):
    """What was known of all replicas, in one state of knowledge."""

    version: int
    replicas: tuple[Seen, ...]


Reserved = Sequence[tuple[int, Sequence[tuple[str, int, int]]]]
"""Costs, and the balances each is charged to: name, window, and what is left there."""


class Recorded(msgspec.Struct, array_like=True, kw_only=True):
    """One decision record.

    Attributes:
        generation: the configuration that decided.
        tenant, team, key_id, kind, roles, claims: the caller.
        headers: those that policies look at, by lower-case name.
        endpoint, asked: what was asked for, by the caller's own name for it.
        access: outcome of the access policy, empty when none decides.
        route: name of the route that matched.
        id: the request.
        user, session, hint: what a unit, and a wish for a version, may come from.
        prompt_tokens, output_tokens_max, need_tokens: known, allowed, and counted with.
        prefix: identity of the prompt's shared beginning.
        arm, fallen: the arm that answered, and how many fallbacks it took.
        cache: hit, miss, bypass or empty.
        quota: outcome of the reservation, empty when no quota counts it; reserved: a cost, and the balances it was charged to,
            as (name, window, left at the end); again and again.
        routed: every choice of a replica.
        inflight_requests, inflight_tokens, admitted_ns: what admission saw; -1: it was not asked.
        deadline_ns: the caller's.
        outcome, status, detail: how it ended.

    """

    generation: str
    tenant: str = ""
    team: str = ""
    key_id: str = ""
    kind: str = ""
    roles: tuple[str, ...] = ()
    claims: dict[str, str | tuple[str, ...]] = {}
    headers: dict[str, str] = {}
    endpoint: str = ""
    asked: str = ""
    access: str = ""
    route: str = ""
    id: str
    user: str = ""
    session: str = ""
    hint: str = ""
    prompt_tokens: int = 0
    output_tokens_max: int = 0
    need_tokens: int = 0
    prefix: str = ""
    arm: str = ""
    fallen: int = 0
    cache: str = ""
    quota: str = ""
    reserved: tuple[tuple[int, tuple[tuple[str, int, int], ...]], ...] = ()
    routed: tuple[Routed, ...] = ()
    inflight_requests: int = -1
    inflight_tokens: int = -1
    admitted_ns: int = 0
    deadline_ns: int = 0
    outcome: str = ""
    status: int = 0
    detail: str = ""


FIELDS = Recorded.__struct_fields__
OPENING = FIELDS.index("id")
"""The fields before are alike in all records of one caller who asks for one thing (`gateway.standing`), so their bytes are made once:
an array of msgpack is its length and then its members, one after the other."""

encode = msgspec.msgpack.Encoder().encode
"""A record or facts as bytes."""


def opening(*fields: object) -> bytes:
    """How records begin whose first `OPENING` fields are these."""
    return b"\xdc%b%b" % (len(FIELDS).to_bytes(2, "big"), encode(fields)[1:])


def completed(opening: bytes, rest: tuple[object, ...]) -> bytes:
    """The record of that beginning and the rest of its fields, which are so many that their array begins with three bytes."""
    return opening + encode(rest)[3:]


_RECORD = msgspec.msgpack.Decoder(Recorded)
_FACTS = msgspec.msgpack.Decoder(Facts)


def each_reserved(reserved: Reserved) -> Iterator[tuple[str, int, int, int]]:
    """Of each balance: name, window, cost, and what is left."""
    for cost, balances in reserved:
        for name, window, left in balances:
            yield name, window, cost, left


def recorded(data: bytes) -> Recorded:
    """The record of `data`.

    >>> recorded(encode(Recorded(generation="g1", tenant="acme", id="r1"))).tenant
    'acme'

    Raises:
        msgspec.DecodeError: it is none.

    """
    return _RECORD.decode(data)


def facts(data: bytes) -> Facts:
    """The facts of `data`.  Raises msgspec.DecodeError."""
    return _FACTS.decode(data)
