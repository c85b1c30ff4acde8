"""A record that is put together from bytes made before is the record."""

from sits.core.recorded import (
    FIELDS,
    OPENING,
    Recorded,
    Routed,
    completed,
    each_reserved,
    encode,
    opening,
    recorded,
)

VALUES = {
    "generation": "g1",
    "tenant": "acme",
    "roles": ("a", "b"),
    "claims": {"plan": ("x", "y")},
    "headers": {"x-tier": "gold"},
    "route": "r",
    "id": "1" * 32,
    "hint": "next",
    "need_tokens": 2**40,
    "reserved": ((5, (("q|tokens|1m", 7, -3),)), (1, (("q|requests|1m", 7, 0),))),
    "routed": (Routed(1, 2, "m", "", ("e0",), (3, 4), 5, "e1"),),
    "detail": "d",
}


def test_a_record_in_two_parts_is_the_record_in_one():
    for given in (VALUES, {"generation": "", "id": ""}):
        whole = Recorded(**given)
        fields = [getattr(whole, name) for name in FIELDS]
        made = completed(opening(*fields[:OPENING]), tuple(fields[OPENING:]))
        assert made == encode(whole)
        assert recorded(made) == whole
    told = list(each_reserved(VALUES["reserved"]))
    assert told == [("q|tokens|1m", 7, 5, -3), ("q|requests|1m", 7, 1, 0)]
    assert len(FIELDS) - OPENING >= 16  # a shorter rest would have another kind of head
