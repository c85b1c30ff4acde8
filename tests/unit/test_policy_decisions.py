"""Decisions explain themselves: outcomes are stable words, reasons hold the numbers."""

import pytest

from sits.core.fleet import Admit, Arm, Route
from sits.core.fleet_window import Window
from sits.core.replica import Replica
from sits.core.request import Request
from sits.policy.admit import admit
from sits.policy.release import assign
from sits.policy.route import ENGINE_WEIGHT, route
from sits.policy.window import decide

NOW = 5_000_000_000


def ask(request, *fleet, **config):
    return route(request, fleet, Route(**config), need_tokens=100, now_ns=NOW)


M = Request(id="r", model="m", adapter="a", prefix="p")


@pytest.mark.parametrize(
    ("replica", "outcome", "why"),
    [
        (Replica(id="x", models=("n",)), "refused_model", "model"),
        (Replica(id="x", models=("m",)), "refused_adapter", "adapter"),
        (Replica(id="x", models=("m",), adapters=("a",), healthy=False), "refused_unhealthy", "unhealthy"),
        (Replica(id="x", models=("m",), adapters=("a",), weight=0.0), "refused_unhealthy", "drained"),
    ],
)
def test_a_refused_route_says_why_for_each_replica(replica, outcome, why):
    decision = ask(M, replica)
    assert (decision.policy, decision.outcome, decision.choice) == ("route", outcome, "")
    assert decision.reasons["filtered"] == {"x": why}


def test_no_replicas_at_all():
    assert ask(M).outcome == "refused_model"


def test_a_route_shows_the_parts_of_each_score_and_their_freshness():
    common = {"models": ("m",), "adapters": ("a",)}
    one = Replica(id="one", inflight_tokens=300, kv_usage=0.5, waiting=1, observed_ns=NOW - 7, **common)
    two = Replica(id="two", inflight_tokens=100, **common)
    decision = ask(M, one, two, adapter_affinity=0.25, prefix_affinity=0.125, load_bound=10.0)
    rows = {row["id"]: row for row in decision.reasons["candidates"]}
    assert (rows["one"]["load_tokens"], rows["two"]["load_tokens"]) == (400, 200)
    assert (rows["one"]["load"], rows["two"]["load"]) == (0.0, 0.5)
    assert (rows["one"]["age_ns"], rows["one"]["fresh"], rows["one"]["engine"]) == (7, True, 0.25)
    assert (rows["two"]["age_ns"], rows["two"]["fresh"], rows["two"]["engine"]) == (None, False, 0.25)
    assert sorted(row["adapter"] for row in rows.values()) == [0.0, 1.0]
    assert sorted(row["prefix"] for row in rows.values()) == [0.0, 1.0]
    for row in rows.values():
        parts = row["load"] + ENGINE_WEIGHT * row["engine"] + 0.25 * row["adapter"] + 0.125 * row["prefix"]
        assert row["total"] == parts
    assert rows[decision.choice]["total"] == max(row["total"] for row in rows.values())


def test_affinity_leads_until_the_home_is_over_its_bound():
    fleet = [Replica(id=name, models=("m",)) for name in "abc"]
    request = Request(id="r", model="m", prefix="p")
    config = Route(prefix_affinity=10.0, load_bound=1.25)
    home = route(request, fleet, config, need_tokens=100, now_ns=NOW).choice
    busy = [Replica(id=r.id, models=("m",), inflight_tokens=1000 * (r.id == home)) for r in fleet]
    second = route(request, busy, config, need_tokens=100, now_ns=NOW).choice
    assert second != home
    others = [r for r in fleet if r.id != home]
    assert second == route(request, others, config, need_tokens=100, now_ns=NOW).choice


def test_admission_shows_its_numbers():
    limits = Admit(max_inflight=3, max_inflight_tokens=1000, retry_after=9)
    state = {"need_tokens": 50, "deadline_ns": 0, "now_ns": NOW}
    full = admit(limits, inflight_requests=3, inflight_tokens=0, **state)
    assert (full.outcome, dict(full.reasons)) == (
        "refused_inflight",
        {"used": 3, "need": 1, "limit": 3, "retry_after_ns": 9},
    )
    heavy = admit(limits, inflight_requests=1, inflight_tokens=951, **state)
    assert (heavy.outcome, heavy.reasons["need"], heavy.reasons["limit"]) == ("refused_tokens", 50, 1000)
    fits = admit(limits, inflight_requests=2, inflight_tokens=950, **state)
    assert (fits.outcome, dict(fits.reasons)) == (
        "admitted",
        {"inflight_requests": 2, "inflight_tokens": 950},
    )


@pytest.mark.parametrize(
    ("config", "rate", "length"),
    [
        (Window(kind="none"), 100.0, 0),
        (Window(kind="fixed", base=20), 100.0, 20),
        (Window(kind="adaptive", reaction="fill", base=20_000_000), 0.0, 20_000_000),
        (Window(kind="adaptive", reaction="fill", max_batch=16), 800.0, 20_000_000),
        (Window(kind="adaptive", reaction="fill", max_batch=16), 1e6, 5_000_000),
        (Window(kind="adaptive", reaction="fill", max_batch=16), 160.0, 100_000_000),
        (Window(kind="adaptive", reaction="fill", max_batch=16), 159.0, 5_000_000),
        (Window(kind="adaptive", reaction="fill", max_batch=16), 1.0, 5_000_000),
    ],
)
def test_windows_and_the_time_they_hold_to(config, rate, length):
    decision = decide(config, pending=1, oldest_ns=NOW, rate_per_s=rate, now_ns=NOW)
    assert decision.reasons["window_ns"] == length
    assert decision.reasons["hold_until_ns"] == NOW + length
    assert decision.outcome == ("hold" if length else "flush")


def test_a_release_shows_the_claims_of_its_arms():
    arms = (Arm(name="stable", weight=0.9), Arm(name="canary", weight=0.1))
    decision = assign("ann", "r1", arms)
    assert decision.outcome == "assigned"
    assert decision.choice == max(decision.reasons["scores"], key=decision.reasons["scores"].get)
    assert (decision.reasons["unit"], decision.reasons["salt"]) == ("ann", "r1")
