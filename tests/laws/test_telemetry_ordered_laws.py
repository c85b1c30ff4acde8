"""Laws of ordered arrays: they come back as they were, and what is selected is what sorting everything gives."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.telemetry.ordered import BLOCK, InMemory, Ordered, encoded, interpolated, selected, stepped
from sits.world import RealWorld

law = settings(deadline=None, max_examples=60)
arrays = st.lists(
    st.tuples(
        st.integers(0, 3 * BLOCK + 2),
        st.sampled_from([2, 300, 10**6, 2**40, 2**62]),
        st.integers(0, 2**62),
        st.integers(0, 99),
    ),
    min_size=1,
    max_size=5,
)


def made(n, spread, start, seed):
    dice = RealWorld(seed).rng("values")
    return np.sort(dice.integers(0, spread, n)) + start


def on_disk(values, weight=1):
    data = np.frombuffer(b"12345678" + encoded(values), dtype=np.uint8)
    return Ordered(data, 8, len(values), int(values.sum()), weight)


@law
@given(arrays)
def test_every_block_comes_back(told):
    for one in told:
        values = made(*one)
        for array in (on_disk(values), InMemory(values)):
            back = np.full((len(array.firsts), BLOCK), -1)
            for i, row in enumerate(back):
                array.steps(i, row)
                assert (row[0], row.min()) == (0, 0)
            back = np.cumsum(back, axis=1) + array.firsts[:, None]
            assert np.array_equal(back.ravel()[: len(values)], values)
            assert (back.ravel()[len(values) :] == values[-1:]).all()
            assert array.sizes().sum() == len(values)
            assert [block[0] for block in back] == array.firsts.tolist()
            assert [block[-1] for block in back] == array.lasts.tolist()


@law
@given(arrays, st.data())
def test_what_is_selected_is_what_sorting_gives(told, data):
    parts = [made(n + 1, spread, start % spread, seed) for n, spread, start, seed in told]
    everything = np.sort(np.concatenate(parts))
    ranks = data.draw(st.lists(st.integers(0, len(everything) - 1), min_size=1, max_size=5))
    pairs = [(rank, min(rank + more, len(everything) - 1)) for rank in ranks for more in (0, 1, 700)]
    wanted = [(int(everything[first]), int(everything[second])) for first, second in pairs]
    some = [(on_disk, InMemory)[i % 2](part) for i, part in enumerate(parts)]
    assert selected(some, pairs) == wanted


@law
@given(
    arrays,
    st.lists(st.integers(1, 5), min_size=5, max_size=5),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
def test_a_weight_is_as_so_many_equal_values(told, weights, levels):
    parts = [made(n + 1, spread, start % spread, seed) for n, spread, start, seed in told]
    everything = np.sort(
        np.concatenate([np.repeat(part, w) for part, w in zip(parts, weights, strict=False)])
    )
    some = [
        (on_disk, InMemory)[i % 2](part, w) for i, (part, w) in enumerate(zip(parts, weights, strict=False))
    ]
    wanted = [float(everything[max(int(np.ceil(len(everything) * level)), 1) - 1]) for level in levels]
    assert stepped(some, levels) == wanted


@law
@given(st.lists(st.lists(st.integers(0, 10**9), max_size=50), min_size=1, max_size=4), st.floats(0, 1))
def test_quantiles_lie_between_neighbours_as_usual(parts, level):
    everything = sorted(value for part in parts for value in part)
    if everything:
        ours = interpolated([InMemory(np.sort(np.array(part, dtype=np.int64))) for part in parts], [level])[0]
        assert np.isclose(ours, np.quantile(np.array(everything, dtype=np.float64), level), rtol=1e-9)
