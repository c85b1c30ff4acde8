"""Laws of release assignment."""

import math
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.errors import ConfigError
from sits.core.fleet import Arm, Release
from sits.policy.release import Assigner, assign, generation_of
from sits.policy.rendezvous import Owners, score

NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True)
UNITS = st.text(max_size=20)
WEIGHTS = st.floats(0.01, 100)


def arms_of(names, weights):
    return [Arm(name=name, weight=weight) for name, weight in zip(names, weights, strict=False)]


@given(UNITS, st.text(max_size=8), NAMES, st.lists(WEIGHTS, min_size=5, max_size=5), st.randoms())
def test_no_flip_for_the_same_inputs_in_any_order(unit, salt, names, weights, shuffle):
    arms = arms_of(names, weights)
    choice = assign(unit, salt, arms).choice
    shuffled = arms[:]
    shuffle.shuffle(shuffled)
    assert assign(unit, salt, shuffled).choice == choice
    assert choice in names


@given(UNITS, NAMES, st.lists(WEIGHTS, min_size=5, max_size=5), st.integers(0, 4), st.floats(1, 10))
def test_raising_a_weight_moves_units_only_to_that_arm(unit, names, weights, index, factor):
    arms = arms_of(names, weights)
    index %= len(arms)
    before = assign(unit, "r1", arms).choice
    raised = [Arm(name=a.name, weight=a.weight * (factor if i == index else 1)) for i, a in enumerate(arms)]
    after = assign(unit, "r1", raised).choice
    assert after in (before, arms[index].name)


@given(UNITS, NAMES, st.lists(WEIGHTS, min_size=5, max_size=5), st.floats(0.1, 10))
def test_only_the_ratio_of_weights_counts(unit, names, weights, factor):
    arms = arms_of(names, weights)
    scaled = [Arm(name=a.name, weight=a.weight * 2.0 ** round(factor)) for a in arms]
    assert assign(unit, "s", arms).choice == assign(unit, "s", scaled).choice


@given(UNITS, NAMES)
def test_a_weight_of_zero_gets_nobody(unit, names):
    arms = [Arm(name="open", weight=1.0), *(Arm(name=f"shut{n}", weight=0.0) for n in names)]
    assert assign(unit, "r1", arms).choice == "open"


@settings(max_examples=8)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=4), st.text(max_size=6))
def test_weights_are_respected_within_five_sigma(weights, salt):
    arms = [Arm(name=f"a{i}", weight=float(w)) for i, w in enumerate(weights)]
    units = 2000
    counts = dict.fromkeys((a.name for a in arms), 0)
    for i in range(units):
        counts[assign(f"user-{i}", salt, arms).choice] += 1
    for arm in arms:
        share = arm.weight / sum(weights)
        assert abs(counts[arm.name] - units * share) <= 5 * math.sqrt(units * share * (1 - share)) + 1


def test_fifteen_to_twenty_five_percent_moves_a_tenth_and_only_forward():
    def dealt(share):
        arms = [Arm(name="stable", weight=1 - share), Arm(name="canary", weight=share)]
        return [assign(f"u{i}", "r1", arms).choice for i in range(20_000)]

    before, after = dealt(0.15), dealt(0.25)
    moved = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert set(moved) == {("stable", "canary")}
    assert 0.09 < len(moved) / 20_000 < 0.11


@given(UNITS, NAMES, st.lists(WEIGHTS, min_size=5, max_size=5), st.lists(WEIGHTS, min_size=5, max_size=5))
def test_a_unit_only_moves_to_an_arm_whose_weight_rose_by_more(unit, names, before, after):
    one, other = (assign(unit, "r1", arms_of(names, weights)).choice for weights in (before, after))
    if one != other:
        rose = {name: new / old for name, old, new in zip(names, before, after, strict=False)}
        assert rose[other] > rose[one]


@given(
    UNITS, st.text(max_size=5), NAMES, st.lists(st.just(0.0) | st.floats(1e-6, 100), min_size=5, max_size=5)
)
def test_owners_are_whom_the_scores_name(unit, salt, names, weights):
    key, head = unit.encode(), salt.encode()
    scores = {name: score(head + key, name, weight) for name, weight in zip(names, weights, strict=False)}
    best = max(scores, key=lambda name: (scores[name], name))
    assert Owners(zip(names, weights, strict=False), head).of(key) == (best if scores[best] > 0 else "")


RAMP = (0.0, 0.01, 0.05, 0.25, 1.0)


def deal(share, units, salt="r1"):
    arms = (Arm(name="stable", weight=1 - share), Arm(name="canary", weight=share, model="next"))
    assigner = Assigner(Release(salt=salt, arms=arms))
    return [assigner.assign("llama", "t", unit).target.arm == "canary" for unit in units]


def test_a_ramp_moves_the_delta_forward_and_a_rollback_brings_back_exactly_who_was_there():
    units = [f"user-{i}" for i in range(20_000)]
    steps = {share: deal(share, units) for share in RAMP}
    for low, high in pairwise(RAMP):
        moved = sum(new != old for old, new in zip(steps[low], steps[high], strict=True))
        assert all(new or not old for old, new in zip(steps[low], steps[high], strict=True))
        sigma = math.sqrt(20_000 * (high - low) * (1 - high + low))
        assert abs(moved - 20_000 * (high - low)) <= 5 * sigma
    for share in reversed(RAMP):
        assert deal(share, units) == steps[share]
    assert deal(0.25, units, "r2") != steps[0.25]
    assert (any(steps[0.0]), all(steps[1.0])) == (False, True)


@given(st.sampled_from(("salt", "unit", "model", "weight", "artefact", "fallback")))
def test_a_generation_is_of_everything_an_assignment_depends_on(what):
    arm = {"name": "a", "weight": 1.0}
    base = generation_of(Release(arms=(Arm(**arm),)))
    changed = (
        Release(arms=(Arm(**{**arm, what: 0.5 if what == "weight" else "x"}),))
        if what in ("weight", "artefact", "fallback")
        else Release(**{what: "session" if what == "unit" else "x"}, arms=(Arm(**arm),))
    )
    assert generation_of(changed) != base == generation_of(Release(arms=(Arm(**arm),)))


def test_replicas_in_other_processes_agree():
    code = (
        "from sits.policy.release import assign; from sits.core.fleet import Arm;"
        "arms=[Arm(name=n, weight=w) for n, w in (('a',1.),('b',2.),('c',3.))];"
        "print(''.join(assign(f'u{i}', 'r1', arms).choice for i in range(200)))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1
    assert len(seen.pop().strip()) == 200


def test_no_weight_at_all_is_an_error_that_names_the_field():
    with pytest.raises(ConfigError, match=r"policy\.release\.arms"):
        assign("u", "r1", [Arm(name="a", weight=0.0)])


@given(UNITS, UNITS, WEIGHTS)
def test_concatenation_cannot_forge_another_key(left, right, weight):
    if right:
        assert score((left + right).encode(), "", weight) != score(right.encode(), left, weight) or not left
