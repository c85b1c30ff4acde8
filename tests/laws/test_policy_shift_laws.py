"""Laws of a shift: sound arms are left alone however often one looks, bad ones are halted, and shares only move units forward."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.fleet import Arm, Fleet, OpenAIEngine, Policies, Release
from sits.core.fleet_routes import Halt, RouteArm, RouteRule, Shift, Target
from sits.core.units import SECOND
from sits.policy.release import assign
from sits.policy.sequential import TILTS
from sits.policy.shift import (
    State,
    advanced,
    decide,
    evidence,
    observe,
    plan_of,
    share_of,
    with_share,
)
from sits.policy.tally import Counts, added, p99, share, tally
from sits.world import stream_generator

ENGINE = OpenAIEngine(name="e", url="http://h", models=("m",))


def fleet_of(now=0.0, **more):
    release = Release(arms=(Arm(name="stable", weight=1.0 - now), Arm(name="canary", weight=now)))
    shift = Shift(arm="canary", **{"hold": 60 * SECOND, "min_requests": 100, **more})
    return Fleet(name="f", engines=(ENGINE,), policy=Policies(release=release), shift=shift)


def dice_of(seed):
    return stream_generator(seed, "shift")


def drawn(dice, n, errors=0.0, slow=0.0, loads=0.0):
    bad = int(dice.binomial(n, errors))
    return Counts(
        requests=n,
        errors=bad,
        timed=n - bad,
        slow=int(dice.binomial(n - bad, slow)),
        loads=n // 10,
        loads_failed=int(dice.binomial(n // 10, loads)),
        buckets={},
    )


def carried_out(dice, plan, ours, theirs, per_look=200, looks=600):
    """The decision a shift ends with, looked at after each batch."""
    state = State()
    for _ in range(looks):
        canary = int(dice.binomial(per_look, plan.steps[state.step]))
        batch = {"canary": drawn(dice, canary, **ours), "stable": drawn(dice, per_look - canary, **theirs)}
        state = observe(plan, state, batch, 2 * SECOND)
        decision = decide(plan, state)
        if decision.outcome == "advance":
            state = advanced(state)
        elif decision.outcome != "hold":
            return decision
    return decision


def at_most(runs, alpha, doubt=1e-6):
    """So many false alarms of `runs` still fit a chance of `alpha` each."""
    chance, k = 1.0, -1
    while chance > doubt:
        k += 1
        chance -= math.comb(runs, k) * alpha**k * (1 - alpha) ** (runs - k)
    return k


def test_sound_arms_are_halted_no_more_often_than_alpha():
    """Both arms exactly at the objective's limit, and failing alike: the hardest sound arm."""
    plan = plan_of(
        fleet_of(steps=(0.05, 0.25, 1.0), halt=Halt(alpha=0.2, error_rate=0.02, adapter_load_success=0.999))
    )
    dice = dice_of(5)
    alike = {"errors": 0.02, "slow": 0.01, "loads": 0.001}
    done = [carried_out(dice, plan, alike, alike) for _ in range(150)]
    halted = [one for one in done if one.outcome == "halt"]
    assert len(halted) <= at_most(150, 0.2)
    assert sum(one.outcome == "complete" for one in done) > 100


@pytest.mark.parametrize(
    ("test", "ours"),
    [
        ("worse_errors", {"errors": 0.02}),
        ("p99", {"slow": 0.04}),
        ("adapter_loads", {"loads": 0.05}),
    ],
)
def test_bad_arms_are_halted_by_the_test_that_is_for_it(test, ours):
    plan = plan_of(fleet_of(steps=(0.05, 0.25, 1.0), hold=600 * SECOND))
    dice = dice_of(7)
    sound = {"errors": 0.005, "slow": 0.004}
    done = [carried_out(dice, plan, {**sound, **ours}, sound) for _ in range(12)]
    assert [(one.outcome, one.choice) for one in done] == [("halt", test)] * 12


def test_a_ceiling_halts_what_fails_as_often_as_the_others():
    plan = plan_of(fleet_of(steps=(0.25, 1.0), halt=Halt(error_rate=0.01, worse_errors=False)))
    decision = carried_out(dice_of(1), plan, {"errors": 0.05}, {"errors": 0.05})
    assert (decision.outcome, decision.choice) == ("halt", "error_rate")


def test_an_incident_that_hits_both_arms_alike_halts_nothing_and_advances_nothing():
    plan = plan_of(fleet_of(steps=(0.05, 1.0)))
    dice = dice_of(3)
    hit = {"errors": 0.1, "slow": 0.2}
    done = [carried_out(dice, plan, hit, hit, looks=150) for _ in range(8)]
    assert {(one.outcome, one.choice) for one in done} == {("hold", "others_slow")}
    worse = carried_out(dice, plan, {**hit, "slow": 0.6}, hit, looks=150)
    assert (worse.outcome, worse.choice) == ("halt", "p99")


def test_an_arm_that_only_breaks_under_load_is_halted_in_the_step_that_loads_it():
    """Evidence begins anew with each step, so what was good for long does not shield what is bad now."""
    plan = plan_of(fleet_of(steps=(0.05, 0.5), hold=600 * SECOND))
    dice, state = dice_of(2), State()
    while state.step == 0:
        state = observe(plan, state, {"canary": drawn(dice, 20), "stable": drawn(dice, 180)}, 2 * SECOND)
        if decide(plan, state).outcome == "advance":
            state = advanced(state)
    needed = 0
    while decide(plan, state).outcome == "hold":
        needed += 1
        state = observe(
            plan, state, {"canary": drawn(dice, 100, slow=0.05), "stable": drawn(dice, 100)}, 2 * SECOND
        )
    assert decide(plan, state).choice == "p99"
    assert needed < 20


def test_steps_wait_for_time_for_requests_and_for_suspicion_to_pass():
    plan = plan_of(fleet_of(steps=(0.1, 1.0)))
    few = observe(plan, State(), {"canary": Counts(requests=99, timed=99)}, 100 * SECOND)
    assert decide(plan, few).choice == "requests"
    early = observe(plan, State(), {"canary": Counts(requests=100, timed=100)}, 59 * SECOND)
    assert decide(plan, early).choice == "time"
    due = observe(plan, early, {}, 1 * SECOND)
    assert (decide(plan, due).outcome, decide(plan, due).choice) == ("advance", "sound")
    doubtful = observe(plan, due, {"canary": Counts(requests=100, timed=100, slow=8)}, 0)
    assert plan.bar / 2 <= evidence(plan, doubtful)["p99"] < plan.bar
    assert (decide(plan, doubtful).outcome, decide(plan, doubtful).choice) == ("hold", "suspicious")
    hit = observe(plan, due, {"canary": Counts(requests=9, errors=1), "stable": Counts(requests=9)}, 0)
    assert any(hit.errors)
    last = advanced(hit)
    assert last == State(step=1)
    done = observe(plan, last, {"canary": Counts(requests=100, timed=100)}, 60 * SECOND)
    assert decide(plan, done).outcome == "complete"


WEIGHTS = st.floats(0.01, 100)


@settings(max_examples=60)
@given(
    st.lists(WEIGHTS, min_size=1, max_size=3),
    st.lists(st.floats(0.001, 1.0), min_size=2, max_size=6, unique=True),
    st.lists(st.text(max_size=6), min_size=1, max_size=30, unique=True),
)
def test_a_larger_share_moves_units_to_the_arm_and_nobody_else_and_back_again(weights, shares, units):
    arms = [Arm(name=f"o{i}", weight=w) for i, w in enumerate(weights)] + [Arm(name="canary", weight=0.0)]

    def dealt(part):
        return [assign(unit, "s", with_share(arms, "canary", part)).choice for unit in units]

    before = dealt(0.0)
    for part in sorted(shares):
        after = dealt(part)
        assert all(new in (old, "canary") for old, new in zip(before, after, strict=True))
        assert share_of(with_share(arms, "canary", part), "canary") == pytest.approx(part)
        before = after
    assert dealt(0.0) == [assign(unit, "s", arms).choice for unit in units]


def test_fifteen_to_twenty_five_percent_moves_only_the_tenth_that_must_move():
    arms = [Arm(name="stable", weight=1.0), Arm(name="canary", weight=0.0)]
    units = 20_000

    def dealt(part):
        return [assign(f"u{i}", "r1", with_share(arms, "canary", part)).choice for i in range(units)]

    low, high = dealt(0.15), dealt(0.25)
    moved = [(a, b) for a, b in zip(low, high, strict=True) if a != b]
    assert set(moved) == {("stable", "canary")}
    assert abs(len(moved) / units - 0.10) < 5 * math.sqrt(0.1 * 0.9 / units)


def test_a_plan_begins_where_the_arm_already_is_and_ends_when_it_is_there():
    assert plan_of(Fleet(name="f", engines=(ENGINE,))) is None
    assert plan_of(fleet_of(0.0)).steps == (0.01, 0.05, 0.25, 1.0)
    assert plan_of(fleet_of(0.1)).steps == (0.25, 1.0)
    assert plan_of(fleet_of(1.0)) is None
    plan = plan_of(fleet_of(halt=Halt(alpha=0.01, error_rate=0.02)))
    assert plan.tests == ("p99", "worse_errors", "error_rate", "adapter_loads")
    assert plan.bar == pytest.approx(math.log(4 * 4 / 0.01))
    assert plan.objective_ns == 1_200_000_000


def test_arms_of_a_route_are_told_apart_by_it():
    arms = (RouteArm(name="stable", weight=9), RouteArm(name="canary", weight=1, to=Target(model="m")))
    rule = RouteRule(name="chat", arms=arms)
    plan = plan_of(
        Fleet(name="f", engines=(ENGINE,), routes=(rule,), shift=Shift(route="chat", arm="canary"))
    )
    assert (plan.arm, plan.others) == ("chat/canary", ("chat/stable",))


ROWS = st.lists(
    st.tuples(
        st.sampled_from(("", "a", "b")),
        st.sampled_from(("completed", "failed", "refused", "cancelled")),
        st.one_of(st.sampled_from((0, 10**9 - 10**7, 10**9, 10**9 + 1)), st.integers(1, 10**10)),
    ),
    max_size=40,
)


@given(ROWS, st.integers(0, 40))
def test_a_tally_is_the_sum_of_the_tallies_of_its_parts(rows, cut):
    whole = tally(rows, 10**9)
    parts = [tally(rows[:cut], 10**9), tally(rows[cut:], 10**9)]
    for arm in {arm for part in parts for arm in part} | whole.keys():
        assert added([part[arm] for part in parts if arm in part]) == whole[arm]
    counted = [row for row in rows if row[0] and row[1] != "cancelled"]
    assert sum(counts.requests for counts in whole.values()) == len(counted)
    assert sum(counts.errors for counts in whole.values()) == sum(row[1] != "completed" for row in counted)
    timed = [row[2] for row in counted if row[1] == "completed" and row[2]]
    assert sum(counts.slow for counts in whole.values()) == sum(ns > 10**9 for ns in timed)
    assert sum(sum(counts.buckets.values()) for counts in whole.values()) == len(timed)


@given(st.lists(st.integers(10**6, 10**10), min_size=1, max_size=400))
def test_p99_is_read_within_two_percent_and_lies_within_its_bounds(latencies):
    counts = tally([("a", "completed", ns) for ns in latencies], 10**9)["a"]
    true = sorted(latencies, reverse=True)[math.floor(len(latencies) * 0.01)]
    found = p99(counts, 0.05)
    assert true * 0.999 <= found.value <= true * 1.021
    assert found.low is None or found.low <= found.value
    assert found.high is None or found.high >= found.value


def test_bounds_of_p99_come_with_enough_requests():
    one = tally([("a", "completed", 10**9)] * 50, 10**9)["a"]
    assert p99(one, 0.05).high is None
    many = tally([("a", "completed", (i % 1000 + 1) * 10**6) for i in range(20_000)], 10**9)["a"]
    found = p99(many, 0.05)
    assert 0.97e9 < found.low <= found.value <= found.high < 1.03e9
    assert share(0, 0, 0.05).value is None
    assert share(5, 1000, 0.05).value == 0.005


def test_evidence_of_two_batches_is_that_of_both():
    plan = plan_of(fleet_of())
    one = {
        "canary": Counts(requests=10, errors=3, timed=7),
        "stable": Counts(requests=90, errors=2, timed=88),
    }
    state = observe(plan, observe(plan, State(), one, 5), one, 7)
    assert state.held_ns == 12
    assert state.counts["canary"] == Counts(requests=20, errors=6, timed=14)
    once = observe(plan, State(), one, 5)
    assert state.errors == pytest.approx([2 * nats for nats in once.errors])
    assert State().errors == (0.0,) * len(TILTS)
