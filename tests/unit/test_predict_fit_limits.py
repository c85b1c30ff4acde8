"""Limits of an engine: proven where its figures prove them, said to be assumed where not, refused where neither."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_recordings import RECORDINGS
from sits.bench.calibrating import seen_of
from sits.bench.recording import read_recording
from sits.core.errors import ConfigError
from sits.predict.fit_limits import (
    Limit,
    Seen,
    block_size_by_books,
    block_size_by_hits,
    limits,
    usable_blocks,
)


def seen(**changes):
    known = {
        "batch": np.array([1.0, 4, 8]),
        "tokens": np.array([1.0, 40, 300]),
        "running": np.array([1.0, 4]),
        "waiting": np.array([0.0, 0]),
        "usage": np.array([0.0, 2, 5, 7]) / 499,
        "hits": (),
        "held": 0.0,
        "lengths": np.zeros((0, 2), np.int64),
    }
    return Seen(**(known | changes))


@pytest.mark.parametrize(
    ("folder", "blocks"), [("small-closed", 1023), ("small-poisson", 1023), ("tiny-closed", 4095)]
)
def test_limits_of_a_real_engine_are_found_from_its_figures_alone(folder, blocks):
    """1 GiB of 128-token blocks, one of them vLLM's null block; --max-num-seqs 16."""
    found = limits(seen_of(read_recording(RECORDINGS / folder)), {})
    assert (found.blocks.value, found.blocks.sure) == (blocks, True)
    assert (found.block_size.value, found.block_size.sure) == (128, True)
    assert (found.max_num_seqs.value, found.max_num_seqs.sure) == (16, True)
    assert (found.max_num_batched_tokens.value, found.max_num_batched_tokens.sure) == (2048, False)
    assert found.assumed()[0].startswith("max_num_batched_tokens = 2048")


@given(st.integers(20, 20_000), st.lists(st.integers(1, 20_000), min_size=3, max_size=30, unique=True))
def test_usable_blocks_fit_every_value_and_divide_the_truth(blocks, used):
    used = [n % blocks + 1 for n in used]
    values = np.array(used) / blocks
    found = usable_blocks(values)
    if found is not None:
        assert np.abs(values * found - np.round(values * found)).max() < 1e-2
        assert found <= blocks


def test_block_size_from_hits_needs_enough_of_them():
    assert block_size_by_hits([128, 256]) is None
    assert block_size_by_hits([96, 192, 288, 384]) is None
    assert block_size_by_hits([16, 48, 80, 112]) == 16


@pytest.mark.parametrize("size", [16, 128])
def test_block_size_from_the_books(size):
    dice = np.random.Generator(np.random.PCG64(1))
    lengths = np.c_[dice.integers(30, 1000, 200), dice.integers(5, 120, 200)]
    held = sum(-(-(start + k) // size) for start, steps in lengths.tolist() for k in range(steps)) / 499
    assert block_size_by_books(seen(held=held, lengths=lengths), 499) == size


def test_what_is_given_goes_first():
    by_hand = Limit(value=77, source="given by hand", sure=True)
    found = limits(seen(), {"max_num_seqs": by_hand, "blocks": by_hand})
    assert found.max_num_seqs == found.blocks == by_hand


def test_a_batch_that_held_nobody_back_is_no_limit():
    found = limits(seen(), {})
    assert not found.max_num_seqs.sure
    assert "nobody was seen waiting" in found.max_num_seqs.source
    held = limits(seen(running=np.array([8.0]), waiting=np.array([3.0])), {})
    assert (held.max_num_seqs.value, held.max_num_seqs.sure) == (8, True)


def test_steps_of_the_same_largest_size_are_a_limit():
    found = limits(seen(tokens=np.array([8.0] * 50 + [2048.0] * 3)), {})
    assert (found.max_num_batched_tokens.value, found.max_num_batched_tokens.sure) == (2048, True)


def test_an_unknown_pool_is_refused_with_the_way_out():
    with pytest.raises(ConfigError) as error:
        limits(seen(usage=np.array([])), {})
    assert error.value.field == "blocks"
    assert "--set blocks=N" in error.value.hint


def test_an_unknown_block_size_is_refused_only_where_it_matters():
    assert limits(seen(), {}).block_size == Limit(
        value=16, sure=False, source=limits(seen(), {}).block_size.source
    )
    with pytest.raises(ConfigError, match="tokens a KV block holds"):
        limits(seen(usage=np.array([2, 5, 7, 499]) / 499), {})
