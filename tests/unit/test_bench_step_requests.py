"""Steps and the requests they prefilled: cut prompts, requests that changed places, and logs that are of something else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_recordings import RECORDINGS
from sits.bench.recording import read_recording
from sits.bench.step_requests import prompt_kv


def told(steps, prompts, cached=None):
    chunks, tokens = (np.array(column, float) for column in zip(*steps, strict=True))
    return prompt_kv(chunks, tokens, np.array(prompts), np.array(cached or [0] * len(prompts))).tolist()


def test_a_prompt_looks_at_itself_and_at_what_is_cached():
    assert told([(1, 10), (0, 0), (1, 6)], [10, 16], [0, 10]) == [50, 0, 6 * 13]


def test_a_prompt_that_was_cut_looks_at_its_first_part():
    assert told([(2, 12), (1, 8)], [8, 12]) == [32 + 4 * 2, 8 * (4 + 4)]


def test_requests_that_changed_places_are_shared_out_and_the_rest_is_exact():
    whole = 10 * 5 + 20 * 10
    assert told([(1, 20), (1, 10), (1, 4)], [10, 20, 4]) == [whole * 2 / 3, whole / 3, 8]


def test_steps_of_other_requests_see_what_the_run_sees_on_average():
    assert told([(1, 11), (1, 9)], [10, 20]) == pytest.approx([11 * 250 / 30, 9 * 250 / 30])


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 200)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(16, 400),
)
def test_whatever_the_cuts_no_work_is_lost(requests, seats, budget):
    """First come first served with a budget of tokens a step, as the engine does it."""
    new, cached = zip(*requests, strict=True)
    steps, at, computed = [], 0, 0
    while at < len(new):
        chunks = used = 0
        while at < len(new) and used < budget and chunks < seats:
            taken = min(budget - used, new[at] - computed)
            used, chunks, computed = used + taken, chunks + 1, computed + taken
            if computed == new[at]:
                at, computed = at + 1, 0
        steps += [(chunks, used), (0, 0)]
    found = told(steps, [a + b for a, b in requests], list(cached))
    assert sum(found) == pytest.approx(sum(q * (c + q / 2) for q, c in requests))


def test_every_step_of_the_recordings_is_told_apart():
    for run in read_recording(RECORDINGS / "small-poisson").runs:
        new = run.prompt_tokens - run.cached_tokens
        found = prompt_kv(run.steps.chunks, run.steps.prompt_tokens, run.prompt_tokens, run.cached_tokens)
        assert found.sum() == pytest.approx((new * (run.cached_tokens + new / 2)).sum())
        assert np.all((found > 0) == (run.steps.chunks > 0))
