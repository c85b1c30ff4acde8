"""A Caller: who sent a request, as far as that was proven.

A `key` is one of the configured API keys, a `user` is the subject of a verified token, and `anonymous` is everybody
where nothing identifies callers.  `key_id` names the key, or the user as `issuer/subject`: subjects are unique only
within their issuer.  A Caller is a value: two equal ones may do the same, so decisions are remembered by it and its hash
is computed once.

Deliberately absent: the secret, the token, and how long they hold (gateway.access), and rights (policy.access).
"""

from typing import Any, Literal, NoReturn

import msgspec


class Claims(dict[str, str | tuple[str, ...]]):
    """What a verified token says beyond tenant, team and roles, by the names of the configuration; never changes."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # a dict that cannot change may have one
        return hash(frozenset(self.items()))

    def _never(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("claims do not change")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _never


NO_CLAIMS = Claims()


class Caller(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """Who is calling.

    Attributes:
        tenant, team: who pays, and which part of it; the team may be empty.
        key_id: the key's id, or `issuer/subject`; empty for anonymous.
        kind: how it was proven.
        roles: in the order of their names.
        claims: text, or a tuple of texts.

    """

    tenant: str = "default"
    team: str = ""
    key_id: str = ""
    kind: Literal["key", "user", "anonymous"] = "anonymous"
    roles: tuple[str, ...] = ()
    claims: Claims = NO_CLAIMS


ANONYMOUS = Caller()
"""Somebody of the tenant `default`, of whom nothing was proven."""
