"""Every field of a decision record comes from its own place: values are handed over by position, so each is another one here."""

from types import SimpleNamespace

import pytest

from sits.core.caller import Caller, Claims
from sits.core.recorded import FIELDS, Routed, recorded
from sits.gateway.decisions import Decisions

pytestmark = pytest.mark.patches  # what is recorded is a stand-in

CALLER = Caller(
    tenant="tenant",
    team="team",
    key_id="key",
    kind="user",
    roles=("role",),
    claims=Claims({"plan": "gold"}),
)
HELD = ((5, (("quota", 6, 7),)),)
ROUTED = Routed(1, 2, "m", "", ("e0",), (3, 4), 5, "e1")


def exchange():
    standing = SimpleNamespace(
        caller=CALLER,
        access=SimpleNamespace(outcome="access"),
        asked="asked",
        match=SimpleNamespace(route="route"),
        recorded=None,
    )
    request = SimpleNamespace(
        id="1" * 32,
        unit="unit",
        endpoint="/v1/embeddings",
        prompt_tokens=11,
        output_tokens_max=12,
        prefix="prefix",
        deadline_ns=13,
    )
    return SimpleNamespace(
        standing=standing,
        request=request,
        headers={b"x-tier": b"header", b"x-other": b"never"},
        lookup=SimpleNamespace(header=b"cache"),
        admitted_on=(14, 15, 16),
        session="session",
        hint="hint",
        need_tokens=17,
        arm="arm",
        fallen=18,
        routed_on=(ROUTED,),
        outcome="completed",
        status=19,
        detail="detail",
    )


def test_every_field_comes_from_its_own_place():
    rows = []
    decisions = Decisions(lambda table, row: rows.append((table, row)), 0, ["x-tier"], "generation")
    one = exchange()
    decisions.record(one, 99, HELD)
    decisions.record(one, 100, HELD)  # the second begins as the first did
    assert [(table, row[:2]) for table, row in rows] == [
        ("decisions", ("1" * 32, 99)),
        ("decisions", ("1" * 32, 100)),
    ]
    first, second = (recorded(row[2]) for _, row in rows)
    assert first == second
    told = {name: getattr(first, name) for name in FIELDS}
    assert told == {
        "generation": "generation",
        "tenant": "tenant",
        "team": "team",
        "key_id": "key",
        "kind": "user",
        "roles": ("role",),
        "claims": {"plan": "gold"},
        "headers": {"x-tier": "header"},
        "endpoint": "/v1/embeddings",
        "asked": "asked",
        "access": "access",
        "route": "route",
        "id": "1" * 32,
        "user": "unit",
        "session": "session",
        "hint": "hint",
        "prompt_tokens": 11,
        "output_tokens_max": 12,
        "need_tokens": 17,
        "prefix": "prefix",
        "arm": "arm",
        "fallen": 18,
        "cache": "cache",
        "quota": "reserved",
        "reserved": HELD,
        "routed": (ROUTED,),
        "inflight_requests": 14,
        "inflight_tokens": 15,
        "admitted_ns": 16,
        "deadline_ns": 13,
        "outcome": "completed",
        "status": 19,
        "detail": "detail",
    }
    assert len({str(value) for value in told.values()}) == len(told)  # so no two can be swapped unseen
