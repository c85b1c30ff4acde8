"""A calibrated engine in virtual time: times that can be added up by hand, loops that wait, noise that repeats with its seed."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_recordings import LAW, RECORDINGS, engine
from sits.bench.asked import Asked, read_asked
from sits.bench.foretell import Loop, foretell
from sits.bench.loop_guess import guess_loop, rank_correlation
from sits.core.errors import ConfigError


def asked(arrivals, prompts, outputs, cached=None):
    count = len(arrivals)
    return Asked(
        run="", ids=tuple(map(str, range(count))), places=np.arange(count), arrival_ms=np.asarray(arrivals, float),
        prompt_tokens=np.asarray(prompts), output_tokens=np.asarray(outputs), cached_tokens=None if cached is None else np.asarray(cached),
    )  # fmt: skip


def prefill(tokens):
    return LAW["base_ms"] + LAW["mixed_ms"] + LAW["chunk_ms"] + LAW["prompt_token_ms"] * tokens


def decode(kv):
    return LAW["base_ms"] + LAW["decode_ms"] + LAW["kv_token_ms"] * kv


def test_one_request_alone_takes_the_sum_of_its_parts():
    """3 ms in, one prefill, four decodes, 2 ms pause each, 1 ms out, 0.5 ms until the end."""
    one = foretell(engine(), asked([0.0], [100], [5]))
    first = 3 + prefill(100) + 2 + 1
    rest = sum(decode(100 + k) + 2 for k in range(1, 5))
    assert one.ttft_ms[0] == pytest.approx(first, abs=1e-3)
    assert one.e2e_ms[0] == pytest.approx(first + rest + 0.5, abs=1e-3)
    assert one.tpot_ms[0] == pytest.approx(rest / 4, abs=1e-3)


def test_one_token_has_no_time_per_token():
    one = foretell(engine(), asked([0.0], [100], [1]))
    assert np.isnan(one.tpot_ms[0])
    assert one.e2e_ms[0] == pytest.approx(one.ttft_ms[0] + 0.5)


def test_cached_tokens_are_not_prefilled_but_read():
    plain = foretell(engine(), asked([0.0], [100], [5]))
    cached = foretell(engine(), asked([0.0], [100], [5], [60]))
    assert plain.ttft_ms[0] - cached.ttft_ms[0] == pytest.approx(0.1 * 60 - 0.001 * 60, abs=1e-3)
    assert cached.tpot_ms[0] == pytest.approx(plain.tpot_ms[0], abs=1e-3)


def test_prompts_pay_for_what_they_see():
    """40 tokens after 60 cached ones look at 60 more each than 40 tokens alone, and at half of themselves."""
    law = engine(law=LAW | {"prompt_kv_ms": 0.01})
    alone, after = (
        foretell(law, asked([0.0], [size], [1], [cached])) for size, cached in ((40, 0), (100, 60))
    )
    free = foretell(engine(), asked([0.0], [40], [1]))
    assert alone.ttft_ms[0] - free.ttft_ms[0] == pytest.approx(0.01 * 40 * 20, abs=1e-3)
    assert after.ttft_ms[0] - alone.ttft_ms[0] == pytest.approx(0.01 * 40 * 60, abs=0.1)


def test_a_request_waits_for_the_step_that_runs():
    """The second comes while the first is prefilled: it is seen when that step ends."""
    both = foretell(engine(enter_ms=0.0), asked([0.0, 1.0], [100, 100], [2, 2]))
    step = prefill(100) + 2
    second = (
        LAW["base_ms"] + LAW["mixed_ms"] + LAW["chunk_ms"] + 0.1 * 100 + LAW["decode_ms"] + 0.001 * 101 + 2
    )
    assert both.ttft_ms[1] == pytest.approx(step - 1.0 + second + 1, abs=1e-3)
    assert both.outside_ms[1] == pytest.approx(step - 1.0 + 1, abs=1e-3)


def test_a_burst_queues_at_the_front_end():
    """Each is handed over 40 ms after the one before, longer than a step takes, so none waits for a step."""
    burst = foretell(engine(serial_ms=40.0, enter_ms=0.0), asked([0.0] * 4, [10] * 4, [1] * 4))
    alone = prefill(10) + 2 + 1
    assert burst.ttft_ms == pytest.approx([40.0 * (i + 1) + alone for i in range(4)], abs=1e-3)


def test_a_closed_loop_waits_for_its_answers():
    loop = foretell(engine(), asked([0.0] * 6, [50] * 6, [4] * 6), loop=Loop(users=1, think_ms=7.0))
    ends = loop.arrival_ms + loop.e2e_ms
    assert loop.arrival_ms[1:] == pytest.approx(ends[:-1] + 7.0)
    assert (loop.in_flight == 0).all()


@settings(max_examples=25)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**32))
def test_never_more_in_flight_than_users_and_everyone_is_served(users, count, seed):
    dice = np.random.Generator(np.random.PCG64(seed))
    made = asked(np.zeros(count), dice.integers(1, 300, count), dice.integers(1, 20, count))
    one = foretell(engine(), made, loop=Loop(users=users), rng=dice)
    assert np.isfinite(one.e2e_ms).all()
    assert one.in_flight.max() < users
    assert (one.ttft_ms <= one.e2e_ms).all()
    assert one.largest_batch <= min(users, 8)


@settings(max_examples=25)
@given(st.lists(st.floats(0, 5000), min_size=2, max_size=30), st.integers(0, 2**32))
def test_a_slower_machine_is_never_quicker(arrivals, seed):
    dice = np.random.Generator(np.random.PCG64(seed))
    made = asked(sorted(arrivals), dice.integers(1, 300, len(arrivals)), dice.integers(1, 20, len(arrivals)))
    quick, slow = (foretell(engine(), made, level=level) for level in (1.0, 1.3))
    assert np.mean(slow.e2e_ms) >= np.mean(quick.e2e_ms)


def test_the_same_seed_gives_the_same_times_and_another_gives_others():
    model = engine(slow=(0.9, 1.1, 1.0), factor=(0.8, 1.0, 1.2))
    made = asked(np.arange(20) * 30.0, [100] * 20, [10] * 20)
    first, again, other = (
        foretell(model, made, rng=np.random.Generator(np.random.PCG64(seed))) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.e2e_ms, again.e2e_ms)
    assert not np.array_equal(first.e2e_ms, other.e2e_ms)


def test_what_can_never_fit_is_refused_and_the_others_are_served():
    one = foretell(engine(blocks=20), asked([0.0, 1.0], [1000, 10], [5, 5]))
    assert np.isnan(one.e2e_ms[0])
    assert np.isfinite(one.e2e_ms[1])


def test_a_full_pool_preempts():
    one = foretell(engine(blocks=20), asked([0.0] * 4, [60] * 4, [100] * 4))
    assert one.preemptions > 0
    assert np.isfinite(one.e2e_ms).all()


def test_a_loop_without_users_is_refused():
    with pytest.raises(ConfigError, match="0 users"):
        foretell(engine(), asked([0.0], [1], [1]), loop=Loop(users=0))


@pytest.mark.parametrize("name", ["closed-c1-cal", "closed-c2-cal", "closed-c8-cal", "closed-c32-cal"])
def test_closed_loops_are_recognised_by_a_model_of_another_speed(name):
    (run,) = [one for one in read_asked(RECORDINGS / "small-closed" / "requests.jsonl.gz") if one.run == name]
    guess = guess_loop(engine(max_num_seqs=16, blocks=1023, block_size=128, max_num_batched_tokens=2048), run)
    assert guess is not None
    assert guess.users == int(name.split("-")[1][1:])


def test_open_arrivals_are_not_taken_for_a_loop():
    model = engine(max_num_seqs=16, blocks=1023, block_size=128, max_num_batched_tokens=2048)
    for run in read_asked(RECORDINGS / "small-poisson" / "requests.jsonl.gz"):
        assert guess_loop(model, run) is None
        short = msgspec.structs.replace(
            run,
            **{
                n: getattr(run, n)[:100]
                for n in ("ids", "places", "arrival_ms", "prompt_tokens", "output_tokens")
            },
            cached_tokens=None,
        )
        assert guess_loop(model, short) is None


def test_rank_correlation_of_what_does_not_vary_is_none():
    assert rank_correlation(np.ones(5), np.arange(5.0)) == 0.0
    assert rank_correlation(np.arange(9.0), -np.arange(9.0)) == -1.0


@settings(max_examples=40)
@given(st.integers(1, 10), st.integers(2, 30), st.integers(0, 2**32))
def test_a_closed_loop_is_an_open_one_with_the_arrivals_it_made(users, count, seed):
    dice = np.random.Generator(np.random.PCG64(seed))
    made = asked(np.zeros(count), dice.integers(1, 300, count), dice.integers(1, 20, count))
    loop = foretell(engine(serial_ms=1.5), made, loop=Loop(users=users))
    order = np.argsort(loop.arrival_ms, kind="stable")
    same = asked(loop.arrival_ms[order], made.prompt_tokens[order], made.output_tokens[order])
    opened = foretell(engine(serial_ms=1.5), same)
    assert opened.e2e_ms == pytest.approx(loop.e2e_ms[order], abs=1e-6)
    assert opened.ttft_ms == pytest.approx(loop.ttft_ms[order], abs=1e-6)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30), st.integers(0, 2**32))
def test_when_arrivals_are_all_later_everything_is_just_later(arrivals, seed):
    dice = np.random.Generator(np.random.PCG64(seed))
    tokens = dice.integers(1, 300, len(arrivals)), dice.integers(1, 20, len(arrivals))
    here = foretell(engine(), asked(sorted(arrivals), *tokens))
    there = foretell(engine(), asked([at + 4096.0 for at in sorted(arrivals)], *tokens))
    assert there.e2e_ms == pytest.approx(here.e2e_ms, abs=1e-3)
