import numpy as np
import pytest

from diagnose_tables import dice
from sits.core.errors import CallerError
from sits.diagnose.compare import (
    ablation_rows,
    difference,
    draw_paired,
    draw_quantile,
    draw_seeds,
    pooled_quantile,
)


def rng(seed=3):
    return dice(seed)


def runs(scale=100.0, seeds=12, n=800, seed=0):
    draw = dice(seed)
    return [draw.exponential(scale, n) for _ in range(seeds)]


def test_value_is_the_rank_quantile_of_all_seeds_pooled():
    samples = runs()
    pooled = np.sort(np.concatenate(samples))
    found = pooled_quantile(samples, rng())
    assert found.value == pooled[int(np.ceil(0.99 * len(pooled))) - 1]
    assert found.low < found.value < found.high


def test_drawn_quantiles_have_the_spread_of_plain_resampling():
    samples = runs(n=200, seeds=6)
    fast = draw_quantile(samples, draw_seeds(6, rng(), 4000), rng(5)).draws
    plain = rng(11)
    slow = []
    for _ in range(4000):
        pool = np.concatenate([samples[s] for s in plain.integers(0, 6, 6)])
        slow.append(np.sort(plain.choice(pool, len(pool)))[int(np.ceil(0.99 * len(pool))) - 1])
    assert np.mean(fast) == pytest.approx(np.mean(slow), rel=0.01)
    assert np.std(fast) == pytest.approx(np.std(slow), rel=0.08)


def test_a_known_saving_lies_in_the_paired_interval_and_pairing_narrows_it():
    level = rng(2).uniform(500.0, 3000.0, 12)
    a = [v + rng(i).exponential(20.0, 800) for i, v in enumerate(level)]
    b = [x - 150.0 for x in a]
    found = difference(a, b, rng())
    assert found.saved.value == pytest.approx(150.0)
    assert found.saved.low <= 150.0 <= found.saved.high
    assert found.saved.high - found.saved.low < 0.5 * (found.a.high - found.a.low)
    assert found.relative.value == pytest.approx(150.0 / found.a.value)


def test_effect_size_is_the_mean_of_seed_differences_over_their_spread():
    a = [np.array([10.0]), np.array([14.0])]
    b = [np.array([8.0]), np.array([8.0])]
    assert difference(a, b, rng(), q=0.5).effect_size == pytest.approx(4.0 / np.std([2.0, 6.0], ddof=1))
    assert np.isnan(difference(a, a, rng()).effect_size)


def test_ablation_rows_say_what_each_fix_saves_and_what_leaving_it_out_costs():
    bad = runs(400.0)
    fixed = [x / 4 for x in bad]
    rows = ablation_rows(
        bad,
        {"window": [x - 50.0 for x in bad], "budget": [x / 2 for x in bad]},
        fixed,
        {"budget": [x * 2 for x in fixed]},
        rng(),
        titles={"window": "no window"},
    )
    assert [row.id for row in rows] == ["none", "window", "budget", "all"]
    none, window, budget, everything = rows
    assert none.saved is None
    assert window.title == "no window"
    assert (window.saved.low, window.saved.high) == pytest.approx((50.0, 50.0))  # every request gained it
    assert window.without is None
    assert budget.needed.value == pytest.approx(everything.p99.value)
    assert everything.saved.value == pytest.approx(0.75 * none.p99.value)


def test_pairing_by_request_is_tighter_than_by_seed_and_covers_the_same_gain():
    bad = runs(400.0, n=400)
    good = [x * 0.9 for x in bad]
    (_, paired, _) = ablation_rows(bad, {"f": good}, good, {}, rng())
    short = [x[:-1] for x in good]  # one request without an answer: rows no longer match
    (_, loose, _) = ablation_rows(bad, {"f": short}, good, {}, rng(), paired=False)
    assert paired.saved.low > 0.0
    assert loose.saved.high - loose.saved.low > 2 * (paired.saved.high - paired.saved.low)
    assert loose.saved.low < paired.saved.value < loose.saved.high


def test_paired_draws_have_the_spread_of_plain_resampling():
    samples = runs(n=200, seeds=6)
    counts = draw_seeds(6, rng(), 3000)
    assert draw_paired({"a": samples}, counts, rng(5))["a"].draws.std() == pytest.approx(
        draw_quantile(samples, counts, rng(6)).draws.std(), rel=0.1
    )
    with pytest.raises(CallerError, match="'b' has"):
        draw_paired({"a": samples, "b": [x[1:] for x in samples]}, counts, rng())


def test_same_generator_same_rows():
    bad, good = runs(), runs(50.0)
    once = ablation_rows(bad, {"f": good}, good, {"f": bad}, rng())
    assert once == ablation_rows(bad, {"f": good}, good, {"f": bad}, rng())


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ([], [], "no seeds"),
        ([np.array([1.0])], [np.array([1.0])] * 2, "2 seeds here, 1 in the other"),
        ([np.array([1.0]), np.array([])], [np.array([1.0])] * 2, "seed number 1 has shape"),
        ([np.array([1.0, np.nan])], [np.array([1.0])], "not finite"),
    ],
)
def test_bad_samples_are_named(a, b, says):
    with pytest.raises(CallerError, match=says):
        difference(a, b, rng())


def test_a_fix_left_out_must_have_been_tried_alone():
    with pytest.raises(CallerError, match="'b' is left out but never tried alone"):
        ablation_rows(runs(seeds=2), {}, runs(seeds=2), {"b": runs(seeds=2)}, rng())
