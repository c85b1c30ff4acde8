"""Fingerprints: what is written is read back, distances are distances, and neither noise nor order fools them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.core.errors import CallerError
from sits.core.fingerprint import CANDIDATES, Fingerprint, distance, fingerprint, read_fingerprint
from sits.policy.adapters import judge

token = st.text(max_size=4)
nats = st.floats(-80, 0)
top = st.dictionaries(token, nats, min_size=1, max_size=CANDIDATES)
tops = st.lists(top, min_size=1, max_size=8)


def made(tops, prompt="p"):
    return fingerprint(prompt, [max(top, key=top.get) for top in tops], tops)


prints = tops.map(made)


@given(prints)
def test_text_reads_back_as_the_same(one):
    assert read_fingerprint(str(one)) == one
    assert distance(one, read_fingerprint(str(one))) == 0.0


@given(prints, prints)
def test_a_distance_is_symmetric_and_nothing_is_far_from_itself(one, other):
    assert distance(one, one) == 0.0
    assert distance(one, other) == distance(other, one) >= 0.0
    assert math.isfinite(distance(one, other))


@given(tops, st.floats(0, 0.5))
def test_noise_moves_a_fingerprint_by_no_more_than_the_noise(tops, noise):
    moved = [{text: value - noise * (i % 2) for i, (text, value) in enumerate(top.items())} for top in tops]
    one = made(tops)
    other = Fingerprint(
        one.probe,
        tuple(
            type(p)(q.chosen, p.candidates) for p, q in zip(made(moved).positions, one.positions, strict=True)
        ),
    )
    assert distance(one, other) <= noise + 0.0011


@given(prints, tops)
def test_prompts_are_not_compared(one, other):
    assert distance(one, made(other, "q")) == math.inf
    assert judge(made(other, "q"), [one], None, 0.1).outcome == "probe_failed"


@given(prints, prints, st.floats(0.001, 2))
def test_a_verdict_follows_from_the_distances(answer, base, tolerance):
    alone = judge(answer, [base], None, tolerance)
    assert (alone.outcome == "proven") == (distance(answer, base) > tolerance)
    # What is registered and what the base says can only take away.
    for expected in (answer, base):
        bound = judge(answer, [base], expected, tolerance)
        assert bound.outcome != "proven" or alone.outcome == "proven"
        if distance(answer, expected) > tolerance:
            assert bound.outcome in ("fingerprint_mismatch", "answers_as_base")
    more = judge(answer, [base, answer], None, tolerance)
    assert more.outcome == "answers_as_base"
    assert judge(answer, [], None, tolerance).outcome == "probe_failed"


@given(st.text(max_size=60) | st.text(max_size=40).map(lambda text: f"fp1:deadbeef:{text}"))
def test_anything_else_is_refused_in_words(text):
    found, told = None, ""
    try:
        found = read_fingerprint(text)
    except CallerError as error:
        told = str(error)
    assert found.positions if found else "sitsctl adapters fingerprint" in told


def test_what_is_cut_short_is_refused():
    text = str(made([{"a": -1.0, "b": -2.0}]))
    for length in range(len(text) - 1):
        with pytest.raises(CallerError):
            read_fingerprint(text[:length])
