"""What went wrong: the bound covers, and only what is here or at an engine counts against the objective."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose_tables import dice
from sits.diagnose.outcomes import RARE, availability, lower_bound


@given(st.integers(0, 3000), st.integers(1, 3000))
def test_the_bound_is_below_the_share_and_grows_with_what_went_wrong(k, n):
    k = min(k, n)
    low = lower_bound(k, n)
    assert 0.0 <= low <= k / n
    assert low <= lower_bound(min(k + 1, n), n)
    if k:  # the same share of more requests is surer
        assert low <= lower_bound(10 * k, 10 * n) <= k / n


@given(st.integers(1, 400), st.integers(1, 400))
def test_at_the_bound_as_many_are_as_rare_as_was_said_or_rarer(k, n):
    k = min(k, n)
    low = lower_bound(k, n)
    chance = sum(math.comb(n, i) * low**i * (1 - low) ** (n - i) for i in range(k, n + 1))
    assert chance <= RARE + 1e-9


@pytest.mark.parametrize("share", [0.001, 0.01, 0.2])
def test_what_keeps_the_promise_is_seldom_said_to_break_it(share):
    found = dice(7).binomial(2000, share, 5000)
    assert np.mean([lower_bound(int(k), 2000) > share for k in found]) <= RARE


def test_who_left_and_who_was_refused_by_his_own_mistake_is_in_neither():
    outcomes = ["completed"] * 6 + ["failed", "refused", "refused", "refused", "cancelled"]
    table = {
        "outcome": np.array(outcomes, dtype=object),
        "status": np.array([200] * 6 + [502, 503, 429, 400, 499]),
        "detail": np.array([""] * 8 + ["quota_exceeded", "bad_request", ""], dtype=object),
    }
    found = availability(table, 0.9)
    assert (found.wrong, found.of, found.allowed, found.missed) == (2, 8, 0.1, False)
    assert availability({name: np.repeat(column, 40) for name, column in table.items()}, 0.9).missed
    assert availability({"outcome": np.array([], dtype=object)}, 0.9).missed is False
