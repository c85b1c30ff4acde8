"""The fuzzer's targets hold on what the suite has time for; `make soak` gives them minutes, guided by coverage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz_targets import SEEDS, TARGETS, mutated
from http_streams import Rolls
from sits.world import RealWorld


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_seeds(name):
    dice = Rolls(RealWorld(7).rng(name))
    for seed in SEEDS[name]:
        TARGETS[name](seed)
    for i in range(600):
        text = mutated(dice, dice.choice(SEEDS[name]))
        try:
            TARGETS[name](text)
        except BaseException as error:
            error.add_note(f"case {i}: {text!r}")
            raise


@pytest.mark.parametrize("name", TARGETS)
@given(text=st.binary(max_size=200))
def test_any_bytes(name, text):
    TARGETS[name](text)
