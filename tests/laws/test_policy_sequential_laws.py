"""Laws of sequential tests, computed exactly: wealth is fair under the null, and looking always costs at most alpha."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.policy.sequential import TILTS, mean_of, over, rank_bounds, share_bounds, worse


def binomial(k, n, p):
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


@pytest.mark.parametrize(("n", "share"), [(1, 0.01), (10, 0.01), (40, 0.0005), (60, 0.2), (25, 0.5)])
def test_the_wealth_of_over_is_fair_at_the_bound_and_shrinks_below_it(n, share):
    def expected(p):
        return math.fsum(binomial(k, n, p) * math.exp(over(k, n, share)) for k in range(n + 1))

    assert expected(share) == pytest.approx(1.0, abs=1e-9)
    means = [expected(share * part) for part in (1.0, 0.7, 0.3, 0.0)]
    assert all(less <= more + 1e-12 for more, less in pairwise(means))
    assert expected(min(1.0, share * 1.5)) > 1.0


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 20))
def test_the_wealth_of_worse_is_fair_whoever_is_hit_by_chance(ours, others, bad):
    bad = min(bad, ours + others)
    ways = math.comb(ours + others, bad)
    for i in range(len(TILTS)):
        expected = math.fsum(
            math.comb(ours, k)
            * math.comb(others, bad - k)
            / ways
            * math.exp(worse(ours, k, others, bad - k)[i])
            for k in range(max(0, bad - others), min(bad, ours) + 1)
        )
        assert expected == pytest.approx(1.0, abs=1e-9)


@given(st.integers(1, 20), st.integers(1, 40), st.floats(0.001, 0.9), st.floats(0.0, 1.0))
@settings(max_examples=40)
def test_the_wealth_of_worse_shrinks_when_ours_fail_less(ours, others, share, part):
    """Errors of both arms drawn independently, ours at a smaller share: on average nothing is won."""
    total = [0.0] * len(TILTS)
    for a in range(ours + 1):
        for b in range(others + 1):
            p = binomial(a, ours, share * part) * binomial(b, others, share)
            if p > 1e-14:
                total = [t + p * math.exp(w) for t, w in zip(total, worse(ours, a, others, b), strict=True)]
    assert all(t <= 1.0 + 1e-9 for t in total)


def ever(refutes, share, most):
    """The exact chance that a test refutes a true `share` at one of the first `most` looks, one look an event."""
    alive, lost = {0: 1.0}, 0.0
    for n in range(1, most + 1):
        after = {}
        for bad, p in alive.items():
            after[bad] = after.get(bad, 0.0) + p * (1 - share)
            after[bad + 1] = after.get(bad + 1, 0.0) + p * share
        alive = {}
        for bad, p in after.items():
            if p < 1e-15:
                continue
            if refutes(bad, n):
                lost += p
            else:
                alive[bad] = p
    return lost


@pytest.mark.parametrize(("share", "alpha"), [(0.01, 0.05), (0.1, 0.05), (0.5, 0.2)])
def test_looking_at_every_event_finds_what_is_not_there_with_at_most_alpha(share, alpha):
    bar = math.log(1 / alpha)
    chance = ever(lambda bad, n: over(bad, n, share) >= bar, share, 400)
    assert alpha / 50 < chance <= alpha


@pytest.mark.parametrize(("share", "alpha"), [(0.01, 0.05), (0.3, 0.2)])
def test_the_bounds_of_a_share_hold_at_all_times_together(share, alpha):
    def outside(bad, n):
        low, high = share_bounds(bad, n, alpha)
        return not low <= share <= high

    assert ever(outside, share, 120) <= alpha


def test_a_fixed_test_looked_at_as_often_does_not_hold():
    """The exact one-sided binomial test at 5 %, looked at after each of 400 events: what `over` is there to avoid."""

    def refutes(bad, n):
        return bad > 0 and 1 - math.fsum(binomial(k, n, 0.1) for k in range(bad)) <= 0.05

    assert ever(refutes, 0.1, 150) > 0.15


@given(st.integers(0, 3000), st.floats(0.001, 0.5), st.sampled_from((0.2, 0.05, 0.001)))
def test_ranks_are_what_the_share_does_not_refute(n, share, alpha):
    few, many = rank_bounds(n, share, alpha)
    assert 0 <= few <= many <= n

    def inside(bad):
        low, high = share_bounds(bad, n, alpha)
        return low - 1e-9 <= share <= high + 1e-9

    assert inside(few)
    assert inside(many)
    assert few == 0 or not inside(few - 1)
    assert many == n or not inside(many + 1)


@given(st.integers(0, 200), st.integers(1, 3000), st.sampled_from((0.2, 0.05, 0.001)))
def test_bounds_of_a_share_hold_what_was_seen_and_tighten(bad, n, alpha):
    bad = min(bad, n)
    low, high = share_bounds(bad, n, alpha)
    assert 0.0 <= low <= bad / n <= high <= 1.0
    wider = share_bounds(bad, n, alpha / 10)
    assert wider[0] <= low + 1e-12
    assert wider[1] >= high - 1e-12


@given(st.lists(st.floats(-800, 800), min_size=1, max_size=9))
def test_the_mean_of_wealths_is_between_the_least_and_the_most(logs):
    found = mean_of(logs)
    assert min(logs) - 1e-9 <= found <= max(logs) + 1e-9


def test_nothing_seen_is_no_evidence():
    assert over(0, 0, 0.01) == 0.0
    assert over(5, 10, 0.0) == 0.0
    assert set(worse(0, 0, 10, 5)) == {0.0}
    assert set(worse(10, 5, 0, 0)) == {0.0}
    assert share_bounds(0, 0, 0.05) == (0.0, 1.0)


def test_huge_counts_stay_numbers():
    assert math.isfinite(over(10**7, 10**9, 0.01))
    assert all(map(math.isfinite, worse(10**6, 300, 10**7, 100)))
    low, high = share_bounds(10**6, 10**9, 0.01)
    assert 0.00099 < low < 0.001 < high < 0.00101
