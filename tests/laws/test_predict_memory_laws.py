"""Laws of KV memory, adapters, copies, preparation and the batching window."""

import math

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sits.core.fleet import Memory, Model
from sits.predict.kv import KvShape, capacity_blocks, kv_bytes, lora_bytes
from sits.predict.prepare import Rank, StepWork, prepare_ns
from sits.predict.transfer import Dips, copied_bytes, copy_ns
from sits.predict.window import predict_window

law = settings(deadline=None, max_examples=60)  # never a matter of wall time

heads = st.sampled_from([1, 2, 4, 8, 16, 32])
tps = st.sampled_from([1, 2, 4, 8, 16])
lengths = st.lists(st.integers(0, 100_000), max_size=8)
shapes = st.builds(
    KvShape,
    layers=st.integers(8, 80),
    kv_heads=heads,
    head_dim=st.sampled_from([64, 128]),
    element_bytes=st.sampled_from([1, 2]),
    latent_dim=st.sampled_from([0, 0, 576]),
    window=st.sampled_from([512, 4096]),
    window_layers=st.integers(0, 8),
)


@law
@given(shapes, lengths, st.sampled_from([1, 16, 32]), tps)
def test_more_ranks_never_need_more_kv_each_and_together_hold_all_of_it(shape, tokens, block, tp):
    one, more = kv_bytes(shape, tokens, block_size=block), kv_bytes(shape, tokens, block_size=block, tp=tp)
    assert more <= one <= more * tp
    assert kv_bytes(shape, tokens, block_size=block, tp=2 * tp) <= more


@law
@given(shapes, lengths, st.integers(0, 100_000), st.sampled_from([1, 16, 32]))
def test_kv_is_additive_over_sequences_and_never_falls_with_length(shape, tokens, extra, block):
    whole = kv_bytes(shape, [*tokens, extra], block_size=block)
    assert whole == kv_bytes(shape, tokens, block_size=block) + kv_bytes(shape, [extra], block_size=block)
    assert kv_bytes(shape, [extra], block_size=block) <= kv_bytes(shape, [extra + 1], block_size=block)


@law
@given(shapes, lengths, st.sampled_from([16, 32, 128]))
def test_block_rounding_wastes_less_than_one_block_a_sequence(shape, tokens, block):
    exact = kv_bytes(shape, tokens, block_size=1)
    rounded = kv_bytes(shape, tokens, block_size=block)
    slack = kv_bytes(shape, [block] * len(tokens), block_size=block)
    assert exact - kv_bytes(shape, [1] * len(tokens), block_size=1) <= rounded <= exact + slack


def model(layers, kv_heads, weights):
    return Model(
        name="m", layers=layers, hidden=4096, heads=32, kv_heads=kv_heads, head_dim=128, intermediate=14336,
        vocab=128256, weights=weights,
    )  # fmt: skip


@law
@given(st.integers(1, 80), heads, st.integers(1, 256), tps)
def test_an_adapter_is_never_larger_on_more_ranks_or_when_fully_sharded(layers, kv_heads, rank, tp):
    m = model(layers, kv_heads, 0)
    whole, part = lora_bytes(m, rank), lora_bytes(m, rank, tp)
    assert lora_bytes(m, rank, tp, fully_sharded=True) <= part <= whole <= part * tp


@law
@given(st.integers(1, 80), heads, st.integers(0, 40 * 10**9), tps, st.integers(0, 16))
def test_the_pool_fits_into_the_memory_it_was_computed_from(layers, kv_heads, weights, tp, slots):
    m = model(layers, kv_heads, weights)
    capacity = capacity_blocks(m, gpu_memory=80 * 2**30, memory=Memory(), tp=tp, max_loras=slots)
    pool = kv_bytes(KvShape(layers=layers, kv_heads=kv_heads), [16 * capacity.blocks], tp=tp)
    used = pool + weights / tp + 4 * 2**30 + (slots * lora_bytes(m, 16, tp) if slots else 0)
    assert (
        used <= 80 * 2**30 * 0.9 < used + kv_bytes(KvShape(layers=layers, kv_heads=kv_heads), [16], tp=tp) + 1
    )


@st.composite
def dips(draw):
    period = draw(st.floats(1e4, 1e9))
    width = period * draw(st.floats(0.0, 0.95))
    return Dips(
        depth=draw(st.floats(0.0, 1.0)), width_ns=width, period_ns=period, phase_ns=draw(st.floats(0.0, 1e9))
    )


size = st.floats(0.0, 2e9)
bandwidth = st.floats(1e9, 60e9)
start = st.floats(0.0, 1e12)


@law
@given(size, size, bandwidth, start, dips())
def test_copies_add_up(a, b, speed, at, dip):
    first = copy_ns(a, speed, at, dip)
    both = first + copy_ns(b, speed, at + first, dip)
    # When a copy ends exactly as a full stall begins, rounding may put the next one before or after the stall.
    assume(dip.depth < 0.99)
    assert math.isclose(both, copy_ns(a + b, speed, at, dip), rel_tol=1e-9, abs_tol=1e-2 / (1.0 - dip.depth))


@law
@given(size, bandwidth, start, dips())
def test_dips_never_make_a_copy_faster_nor_slower_than_the_dip_itself(a, speed, at, dip):
    clear, dipped = copy_ns(a, speed), copy_ns(a, speed, at, dip)
    assert dipped >= clear * (1 - 1e-12)
    if dip.depth < 1.0:
        assert dipped <= clear / (1.0 - dip.depth) * (1 + 1e-9) + 1e-3


@law
@given(size, bandwidth, start, dips())
def test_bytes_moved_in_the_time_of_a_copy_are_the_copy(a, speed, at, dip):
    assert math.isclose(
        copied_bytes(copy_ns(a, speed, at, dip), speed, at, dip), a, rel_tol=1e-9, abs_tol=1.0
    )


@law
@given(size, bandwidth, start, st.floats(0.0, 1e9), dips())
def test_a_copy_that_starts_later_never_ends_earlier(a, speed, at, later, dip):
    assert at + later + copy_ns(a, speed, at + later, dip) >= at + copy_ns(a, speed, at, dip) - 1e-2


works = st.builds(
    StepWork,
    seqs=st.integers(1, 256),
    new_tokens=st.integers(1, 8192),
    kv_blocks=st.integers(0, 4096),
    input_bytes=st.integers(0, 1 << 22),
    restore_bytes=st.integers(0, 1 << 30),
    restore_copies=st.integers(1, 100),
    eager=st.booleans(),
)
ranks = st.lists(st.builds(Rank, bandwidth=bandwidth, dips=st.none() | dips()), min_size=1, max_size=8)


@law
@given(works, ranks, start)
def test_no_stage_is_negative_and_another_rank_never_makes_a_step_earlier(work, links, at):
    prep = prepare_ns(work, tuple(links), at)
    assert min(prep.durations()) >= 0
    more = prepare_ns(work, (*links, Rank(bandwidth=1e9)), at)
    assert more.total_ns() >= prep.total_ns()
    assert more.kv_restore == prep.kv_restore


@law
@given(works, ranks, start, st.randoms(use_true_random=False))
def test_which_rank_is_observed_moves_time_between_stages_but_not_the_launch(work, links, at, shuffle):
    other = list(links)
    shuffle.shuffle(other)
    a, b = prepare_ns(work, tuple(links), at), prepare_ns(work, tuple(other), at)
    assert abs(a.total_ns() - b.total_ns()) <= 3  # whole nanoseconds a stage


rates = st.floats(0.1, 1e5)
windows = st.floats(0.0, 1e9)
batches = st.integers(1, 128)


@law
@given(rates, windows, batches)
def test_nobody_waits_longer_than_the_window_and_batches_respect_the_cap(rate, window, batch):
    p = predict_window(rate, window, batch)
    assert 0.0 <= p.wait_ns_mean <= window
    assert 0.0 <= p.wait_ns_p99 <= window
    assert 1.0 <= p.batch_mean <= batch + 1e-9
    assert p.batch_mean <= 1.0 + rate / 1e9 * window + 1e-6
    assert math.isclose(p.batches_per_s * p.batch_mean, rate, rel_tol=1e-9)


@law
@given(rates, windows, windows, batches, batches)
def test_a_longer_window_or_a_larger_cap_never_waits_less(rate, w1, w2, b1, b2):
    (w1, w2), (b1, b2) = sorted((w1, w2)), sorted((b1, b2))
    small, large = predict_window(rate, w1, b1), predict_window(rate, w2, b2)
    assert large.batch_mean >= small.batch_mean - 1e-6
    assert large.wait_ns_mean >= small.wait_ns_mean * (1 - 1e-6) - 1.0
