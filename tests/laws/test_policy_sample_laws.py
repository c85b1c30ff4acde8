"""Laws of sampling: what went wrong and what was slow is kept at any share, the rest in its share, and weights add up to what came."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sits.core.errors import ConfigError
from sits.core.units import MS, SECOND
from sits.policy.sample import (
    ERROR,
    INCIDENT,
    PINNED,
    REASONS,
    SHARE,
    SLOW,
    WHOLE,
    Batch,
    Keep,
    Sampler,
    randomness,
    threshold,
)
from sits.policy.slowest import FEW, MANY, Slowest
from sits.world import stream_generator

OBJECTIVE = 1_200 * MS


def batch(n, rng, *, ttft=None, model=None, **more):
    ttft = rng.lognormal(np.log(200 * MS), 0.3, n).astype(np.int64) if ttft is None else ttft
    no = np.zeros(n, dtype=bool)
    parts = {
        "model": np.zeros(n, dtype=np.int64) if model is None else model,
        "error": no,
        "cancelled": no,
        "pinned": no,
        "ttft_ns": ttft,
        "e2e_ns": np.where(ttft < 0, -1, ttft + 500 * MS),
        "random": rng.integers(0, WHOLE, n, dtype=np.uint64),
    }
    return Batch(**(parts | more))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.99])
def test_every_error_and_every_slow_one_is_kept_and_the_rest_in_its_share(share):
    rng = stream_generator(5, "sample")
    sampler, rest, kept_rest, weights, offered = Sampler(Keep(share=share)), 0, 0, 0.0, 0
    for turn in range(40):
        n = 2_000
        ttft = rng.lognormal(np.log(200 * MS), 0.3, n).astype(np.int64)
        ttft[rng.random(n) < 0.01] = 5_000 * MS
        ttft[rng.random(n) < 0.02] = -1
        error = rng.random(n) < 0.01
        cancelled = rng.random(n) < 0.05
        found = sampler.decide(batch(n, rng, ttft=ttft, error=error, cancelled=cancelled), turn * SECOND)
        must = error | (ttft > OBJECTIVE) | (cancelled & (ttft < 0))
        assert found.rows[must].all()
        assert (found.weight[must] == 1.0).all()
        assert sum(found.reasons) == found.rows.sum()
        if turn:  # of the first batch no P99 was known, and all of it is kept
            weights, offered = weights + found.weight[found.rows].sum(), offered + n
            certain = sum(found.reasons[why] for why in (ERROR, SLOW, INCIDENT, PINNED))
            rest, kept_rest = rest + n - certain, kept_rest + found.reasons[SHARE]
    assert abs(kept_rest - rest * share) <= 5 * np.sqrt(rest * share * (1 - share)) + 1e-9
    if share:
        spread = np.sqrt(rest * (1 - share) / share)
        assert abs(weights - offered) <= 5 * spread
        assert kept_rest < rest


@given(st.lists(st.integers(0, 2**128 - 1), min_size=1, max_size=50), st.floats(0, 1), st.floats(0, 1))
def test_a_trace_that_a_small_share_keeps_every_larger_share_keeps(numbers, one, other):
    random = randomness([f"{number:032x}" for number in numbers])
    assert random.tolist() == [number % WHOLE for number in numbers]
    small, large = sorted((one, other))
    assert not ((random >= threshold(small)) & ~(random >= threshold(large))).any()


def test_what_is_no_trace_id_is_kept():
    assert (randomness(["r1", "f" * 32, "Zz" * 16]) == WHOLE - 1).all()


TRACES = st.integers(0, 2**128 - 1).map(lambda number: f"{number:032x}")
HEX = st.text("0123456789abcdef", max_size=64)
ANYTHING = st.one_of(TRACES, TRACES.map(str.upper), HEX, st.text(max_size=40), TRACES.map(" ".join))


@given(st.lists(ANYTHING, max_size=8), TRACES, st.integers(0, 32))
def test_what_an_id_says_does_not_hang_on_its_neighbours(ids, trace, cut):
    ids = [*ids, trace[:cut], trace[cut:], trace]  # two that are none, and together are one
    assert randomness(ids).tolist() == [randomness([one]).tolist()[0] for one in ids]
    assert randomness(ids)[-1] == int(trace, 16) % WHOLE
    assert [one for one in ids if len(one) != 32 and randomness([one])[0] != WHOLE - 1] == []


@pytest.mark.parametrize("share", [float("nan"), -1e-9, 1.0000001, 1.5, float("inf")], ids=str)
def test_a_share_that_is_none_is_refused_by_name(share):
    for made in (lambda: Keep(share=share), lambda: threshold(share)):
        with pytest.raises(ConfigError) as told:
            made()
        assert (told.value.field, repr(share) in told.value.message) == ("share", True)
        assert "0..1" in told.value.hint


@given(st.floats(0, 1, exclude_min=True))
@example(1e-9)
@example(2.0**-57)
@example(5e-324)
@example(1.0)
def test_no_share_is_silently_none_or_another(share):
    kept = WHOLE - threshold(share)
    assert kept >= 1
    assert abs(kept - share * WHOLE) <= max(0.5, 1 - share * WHOLE)


@pytest.mark.parametrize("share", [1e-9, 1e-6, 0.001, 0.1], ids=str)
def test_of_each_kind_what_must_be_is_kept_and_the_rest_weighs_what_it_stands_for(share):
    """Ids are drawn among the last of all, of which a tenth is kept: at a billionth, too, there is something to count."""
    drawn_of = min(1.0, 10 * share)
    rng = stream_generator(11, "sample")
    sampler, estimate, offered, kept, seen = Sampler(Keep(share=share)), 0.0, 0, 0, 0
    sampler.number("m")
    for turn in range(20):
        n = 2_000
        random = (WHOLE - 1 - np.floor(rng.random(n) * drawn_of * WHOLE)).astype(np.uint64)
        error, cancelled = rng.random(n) < 0.01, rng.random(n) < 0.01
        ttft = np.where(rng.random(n) < 0.01, 5_000 * MS, 200 * MS)
        ttft[cancelled] = -1
        parts = {"ttft": ttft, "error": error, "cancelled": cancelled, "random": random}
        found = sampler.decide(batch(n, rng, **parts), turn * SECOND)
        must = error | cancelled | (ttft > OBJECTIVE)
        assert found.rows[must].all()
        assert (found.weight[must] == 1.0).all()
        by_share = found.rows & (found.weight != 1.0)
        assert by_share.sum() == found.reasons[SHARE]
        if turn:
            rest = n - sum(found.reasons[why] for why in (ERROR, SLOW, INCIDENT, PINNED))
            kept, seen = kept + found.reasons[SHARE], seen + rest
            estimate, offered = estimate + found.weight[by_share].sum() * drawn_of, offered + rest
    p = share / drawn_of
    assert kept
    assert abs(kept - seen * p) <= 5 * np.sqrt(seen * p * (1 - p)) + 1e-9
    assert abs(estimate - offered) <= 5 * np.sqrt(seen * (1 - p) / p) + 1e-6 * offered


def test_a_share_of_one_keeps_all_and_each_for_itself():
    found = Sampler(Keep(share=1.0)).decide(batch(5_000, stream_generator(1, "sample")), 0)
    assert found.rows.all()
    assert (found.weight == 1.0).all()


@given(st.lists(TRACES, min_size=1, max_size=40), st.sampled_from([1e-9, 0.01, 0.5, 1.0]), st.integers(0, 40))
def test_processes_that_share_nothing_keep_the_same_traces(traces, share, cut):
    """Of two samplers what came before, and in which batches, differ: of the rest both keep the same."""
    traces = [*traces, "f" * 32, "0" * 32]
    rng = stream_generator(1, "sample")
    one, other = (Sampler(Keep(share=share)) for _ in range(2))
    other.decide(batch(3 * FEW, rng), 0)
    one.decide(batch(2 * FEW, rng), 5 * SECOND)

    def kept(sampler, some):
        fast = np.full(len(some), 1 * MS)
        return sampler.decide(batch(len(some), rng, ttft=fast, random=randomness(some)), SECOND).rows.tolist()

    assert kept(one, traces) == kept(other, traces[:cut]) + kept(other, traces[cut:])
    assert kept(one, traces) == [int(trace[-14:], 16) >= threshold(share) for trace in traces]


@given(st.integers(1, 300), st.integers(0, 3))
def test_a_model_that_is_rarely_asked_keeps_everything(n, seed):
    rng = stream_generator(seed, "sample")
    sampler = Sampler(Keep(share=0.0))
    found = sampler.decide(batch(min(n, FEW - 1), rng), 0)
    assert found.rows.all()
    again = sampler.decide(batch(n, rng, model=np.ones(n, dtype=np.int64)), 0)
    assert again.rows.all(), "another model is another group"


def test_a_fast_model_keeps_its_own_slowest_and_a_steady_one_does_not_keep_all():
    rng = stream_generator(1, "sample")
    sampler = Sampler(Keep(share=0.0))
    for turn in range(10):
        ttft = rng.lognormal(np.log(10 * MS), 0.4, 5_000).astype(np.int64)
        found = sampler.decide(batch(5_000, rng, ttft=ttft), turn * SECOND)
    true = np.quantile(rng.lognormal(np.log(10 * MS), 0.4, 10**6), 0.99)
    assert found.rows[ttft > true * 1.08].all(), "ten thousand times tell a P99 within some per cent"
    assert found.rows.mean() < 0.03
    same = np.full(5_000, 30 * MS)
    for turn in range(10, 20):
        found = sampler.decide(batch(5_000, rng, ttft=same), turn * SECOND)
    assert found.rows.sum() == 0


@given(st.lists(st.integers(0, 3_600 * SECOND), min_size=FEW, max_size=400), st.integers(0, 30))
def test_the_bound_is_the_p99_within_a_bucket(times, group):
    slowest = Slowest(64)
    slowest.add(np.array(times), np.full(len(times), group))
    exact = np.sort(times)[int(np.ceil(0.99 * len(times))) - 1]
    bound = slowest.bounds_ns[group]
    if exact > 1_000:
        assert exact * 0.999_99 - 1 <= bound <= exact * 2 ** (1 / 64) * 1.000_01 + 1


def test_the_bound_follows_what_has_become_slower():
    slowest, one = Slowest(4), np.zeros(MANY, dtype=np.int64)
    slowest.add(np.full(MANY, 10 * MS), one)
    for _ in range(4):
        slowest.add(np.full(MANY, 100 * MS), one)
    assert 99 * MS < slowest.bounds_ns[0] < 103 * MS


def test_everything_of_an_incident_is_kept_until_it_is_over():
    rng = stream_generator(2, "sample")
    sampler = Sampler(Keep(share=0.0))
    sampler.number("m")
    calm = [sampler.decide(batch(500, rng), turn * SECOND) for turn in range(5)][-1]
    assert calm.reasons[INCIDENT] == 0
    bad = np.where(rng.random(2_000) < 0.4, 3_000 * MS, 200 * MS)
    sampler.decide(batch(2_000, rng, ttft=bad), 6 * SECOND)
    assert list(sampler.incidents()) == ["m"]
    during = sampler.decide(batch(500, rng), 7 * SECOND)
    assert during.rows.all()
    assert during.reasons[INCIDENT] > 400
    for turn in range(8, 400):
        after = sampler.decide(batch(100, rng), turn * SECOND)
    assert not sampler.incidents()
    assert after.reasons[INCIDENT] == 0


def test_few_bad_ones_are_no_incident():
    rng = stream_generator(3, "sample")
    sampler = Sampler(Keep(share=0.0))
    sampler.number("m")
    sampler.decide(batch(15, rng, ttft=np.full(15, 9 * SECOND)), 0)
    assert not sampler.incidents()


def test_more_models_than_are_told_apart_are_one():
    sampler = Sampler(Keep())
    numbers = [sampler.number(f"m{i}") for i in range(1_000)]
    assert max(numbers) == 255
    assert len(set(numbers)) == 256
    assert sampler.number("m3") == 3
    assert len(REASONS) == 5
