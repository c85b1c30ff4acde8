"""Sharding plans and reservation schemes, against plain sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.core.errors import ConfigError
from sits.core.fleet import Memory
from sits.predict.derive import dense_parameters
from sits.predict.kv import capacity_blocks, kv_bytes, shape_of
from sits.predict.paged import check_pair, held_tokens, over_time, pack
from sits.predict.sharding import Sharding, parse_sharding, room_of, stages_of
from sits.predict.sharding_models import MODELS, find_model

SEVEN, SEVENTY = MODELS["llama-2-7b"], MODELS["llama-3-70b"]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_nothing_of_a_model_is_lost_or_there_twice(model, stages, tensor):
    found = stages_of(model, Sharding(tensor=tensor, layers=stages))
    assert sum(stage.layers for stage in found) == model.layers
    assert max(stage.layers for stage in found) - min(stage.layers for stage in found) <= 1
    assert sum(stage.weights for stage in found) * tensor == pytest.approx(
        2 * dense_parameters(model), rel=1e-6
    )
    assert sum(stage.token_bytes for stage in found) * tensor == kv_bytes(shape_of(model), [1], block_size=1)


def test_a_tensor_plan_has_the_room_the_capacity_formula_gives():
    for tp in (2, 4, 8):
        room = room_of(SEVENTY, Sharding(tensor=tp), gpu_memory=80 * 2**30)
        formula = capacity_blocks(SEVENTY, gpu_memory=80 * 2**30, memory=Memory(), tp=tp)
        assert room.tokens == pytest.approx(formula.blocks * 16, rel=1e-3)


def test_whole_parts_stay_whole():
    one = stages_of(SEVEN, Sharding())[0]
    heads = stages_of(SEVEN, Sharding(heads=4))[0]
    vocabulary = stages_of(SEVEN, Sharding(vocabulary=4))[0]
    attention = 32 * 4 * 4096 * 4096 * 2
    table = 2 * 32000 * 4096 * 2
    assert one.weights - heads.weights == pytest.approx(attention * 3 / 4, abs=2)
    assert one.weights - vocabulary.weights == pytest.approx(table * 3 / 4, abs=2)
    assert (heads.token_bytes * 4, vocabulary.token_bytes) == (one.token_bytes, one.token_bytes)


@pytest.mark.parametrize("text", ["tensor", "tensor=0", "tensor=x", "depth=2", "tensor=2,heads=4", ""])
def test_plans_that_are_none_are_told(text):
    with pytest.raises(ConfigError):
        parse_sharding(text)


@pytest.mark.parametrize("plan", [{"tensor": 3}, {"layers": 81}, {"heads": 7}])
def test_plans_that_do_not_divide_are_told(plan):
    with pytest.raises(ConfigError):
        stages_of(SEVENTY, Sharding(**plan))


def test_an_unknown_model_names_the_known_ones():
    with pytest.raises(ConfigError, match="llama-3-70b"):
        find_model("llama-9")


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 60), st.integers(1, 60), st.integers(0, 50), st.integers(1, 50), st.integers(0, 50)
    ),
    min_size=1,
    max_size=8,
)


@given(requests=REQUESTS, block=st.integers(1, 20))
def test_averages_over_time_are_those_of_counting_token_by_token(requests, block):
    limit = 128
    prompt, output, start, before, after = (np.array(column) for column in zip(*requests, strict=True))
    first, last = start + before, start + before + after
    for scheme in ("static", "oracle", "paged"):
        useful = held = 0.0
        for p, o, b, a in zip(prompt.tolist(), output.tolist(), before.tolist(), after.tolist(), strict=True):
            useful += p * b
            held += held_tokens(scheme, p, p + o, limit, block) * b
            for i in range(o):  # each token number is held for an equal part of the time after the first
                useful += (p + i) * a / o
                held += held_tokens(scheme, p + i, p + o, limit, block) * a / o
        seen = over_time(scheme, prompt, output, start, first, last, limit=limit, block_size=block)
        assert seen.waste == pytest.approx(1 - useful / held)
        span = (last.max() - start.min()) or 1
        assert seen.held == pytest.approx(held / span)


def test_requests_that_never_ran_take_no_part():
    ran = [np.array([10]), np.array([5]), np.array([0]), np.array([4]), np.array([9])]
    both = [np.append(column, -1 if i >= 2 else 7) for i, column in enumerate(ran)]
    assert over_time("paged", *both, limit=64) == over_time("paged", *ran, limit=64)
    nobody = over_time("paged", *(np.array([-1]) for _ in range(5)), limit=64)
    assert nobody.held == nobody.waste == 0


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 16), st.integers(300, 3000))
def test_a_packed_pool_holds_what_sums_say(lengths, block, pool):
    packed = pack(lengths, pool_tokens=pool, limit=300, block_size=block)
    left, expected = pool // block, 0
    for tokens in lengths:
        left -= -(-tokens // block)
        if left < 0:
            break
        expected += 1
    assert packed.paged == expected
    assert packed.static == min(len(lengths), pool // 300)
    assert packed.use.tokens == sum(lengths[:expected])


def test_a_shared_prefix_is_held_once():
    packed = pack([100] * 50, pool_tokens=2000, limit=400, shared_prefix=64)
    assert packed.paged == 40  # 4 blocks once, and 3 more for each: (125 - 4) // 3
    assert packed.use.held == 4 + 3 * 40


def test_a_pair_that_can_be_true_is_called_so():
    assert check_pair(40.0, 0.5, 21.0, 1 - 20 / 21, tokens=1000).consistent
    said = check_pair(48.2, 0.37, 30.0, 0.08, tokens=1000)
    assert said.paged_waste is None  # 30.4 useful do not fit into 30.0
    assert check_pair(48.2, 0.37, 40.0, 0.08, tokens=1000).paged_waste == pytest.approx(1 - 30.366 / 40)
    with pytest.raises(ConfigError):
        check_pair(1, 1.0, 1, 0, tokens=1)
