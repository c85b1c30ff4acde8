"""Step time: the formula, its refusals, and figures derived for real models."""

import msgspec
import numpy as np
import pytest

from sits.core.errors import ConfigError
from sits.core.fleet import Model
from sits.predict.derive import derive_steptime
from sits.predict.gpu import all_reduce_us, decode_coefficients, find_gpu, gemm_us
from sits.predict.steptime import SCALARS, StepTime, pack, step_time_us

LLAMA = Model(
    name="llama-3-70b",
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    head_dim=128,
    intermediate=28672,
    vocab=128256,
    weights=141_100_000_000,
)
FLAT = StepTime(
    source="test",
    dense_tokens=(1.0, 100.0),
    dense_us=(10.0, 109.0),
    head_seqs=(1.0, 11.0),
    head_us=(5.0, 25.0),
    prefill_us=1.0,
    prefill_us_per_token=0.1,
    prefill_us_per_token_kv=0.01,
    decode_us=2.0,
    decode_us_per_seq=0.5,
    decode_us_per_kv_token=0.001,
    skew=0.05,
    overhead_us=20.0,
    eager_us=40.0,
    noise_cv=0.0,
)


def test_each_term_is_paid_once():
    base = step_time_us(FLAT, tokens=1, seqs_emitting=0)
    assert base == 10.0 + 20.0
    assert step_time_us(FLAT, tokens=1, seqs_emitting=6) - base == pytest.approx(15.0)
    assert step_time_us(FLAT, tokens=1, seqs_emitting=0, eager=True) - base == 40.0
    one = step_time_us(FLAT, tokens=1, seqs_emitting=0, prefill_chunks=[(10, 0)]) - base
    assert one == pytest.approx(1 + 10 * 0.1 + 10 * 5 * 0.01)
    two = step_time_us(FLAT, tokens=1, seqs_emitting=0, prefill_chunks=[(10, 0), (10, 0)]) - base
    assert two == pytest.approx(2 * one)


def test_last_slope_extrapolates():
    assert step_time_us(FLAT, tokens=300, seqs_emitting=0) == pytest.approx(309.0 + 20.0)


def test_an_unequal_batch_pays_for_its_longest_sequence():
    even = step_time_us(FLAT, tokens=2, seqs_emitting=2, decode_kv=[2000, 2000])
    skewed = step_time_us(FLAT, tokens=2, seqs_emitting=2, decode_kv=[1000, 3000])
    assert skewed - even == pytest.approx(0.05 * 2 * 1000 * 0.001)


def test_two_chunks_of_one_prompt_read_what_one_chunk_reads():
    """Splitting a prompt changes the fixed cost only: q * (kv_before + q/2) is additive over chunks."""
    whole = step_time_us(FLAT, tokens=1, seqs_emitting=0, prefill_chunks=[(64, 0)])
    split = step_time_us(FLAT, tokens=1, seqs_emitting=0, prefill_chunks=[(48, 0), (16, 48)])
    assert split - whole == pytest.approx(FLAT.prefill_us)


def test_packed_figures_keep_their_names():
    packed = pack(FLAT)
    assert packed.scalars.dtype == np.float64
    assert {n: packed.scalars[i] for i, n in enumerate(SCALARS)} == {n: getattr(FLAT, n) for n in SCALARS}
    assert packed.dense_us.tolist() == list(FLAT.dense_us)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dense_us", (10.0,)),
        ("dense_tokens", (100.0, 1.0)),
        ("dense_tokens", (1.0, 1.0)),
        ("dense_us", (10.0, float("nan"))),
        ("dense_us", (10.0, 9.0)),
        ("head_us", (-5.0, 25.0)),
        ("decode_us", -1.0),
        ("noise_cv", float("nan")),
    ],
)
def test_impossible_figures_are_refused_by_name(field, value):
    with pytest.raises(ConfigError) as refused:
        msgspec.convert(msgspec.to_builtins(FLAT) | {field: value}, StepTime)
    assert refused.value.field.split("_")[0] == field.split("_")[0]
    assert refused.value.hint


@pytest.mark.parametrize(
    ("gpu", "tp", "low", "high"), [("A100-SXM4-80GB", 4, 25, 45), ("a100", 8, 14, 30), ("h100", 4, 13, 30)]
)
def test_decode_step_of_llama_70b_is_plausible(gpu, tp, low, high):
    """16 sequences at 1300 tokens: never below what reading the weights takes at the data sheet's bandwidth."""
    st = derive_steptime(LLAMA, gpu, tp)
    ms = step_time_us(st, tokens=16, seqs_emitting=16, decode_kv=[1300] * 16) / 1e3
    sheet = {"a": 2.039e12, "h": 3.35e12}[gpu[0].lower()]
    assert ms > LLAMA.weights / tp / sheet * 1e3
    assert low < ms < high


def test_prefill_of_llama_70b_is_above_the_roofline():
    st = derive_steptime(LLAMA, "A100-SXM4-80GB", 4)
    ms = step_time_us(st, tokens=2048, seqs_emitting=1, prefill_chunks=[(2048, 0)], eager=True) / 1e3
    assert ms > 2 * 68.5e9 * 2048 / 4 / 312e12 * 1e3
    assert 330 < ms < 450


def test_more_ranks_make_a_large_step_faster_and_collectives_count():
    def ms(tp):
        st = derive_steptime(LLAMA, "a100", tp)
        return step_time_us(st, tokens=2048, seqs_emitting=1, prefill_chunks=[(2048, 0)])

    assert ms(8) < ms(4) < ms(2)
    assert ms(8) > ms(4) / 2


def test_source_says_how_wrong_it_may_be():
    st = derive_steptime(LLAMA, "a100", 4)
    assert "MAPE GEMM" in st.source
    assert "not fitted" in st.source
    quantised = msgspec.structs.replace(LLAMA, weights=40_000_000_000, kv_dtype="fp8")
    odd = derive_steptime(quantised, "a100", 4).source
    assert "declared weights 40.0 GB" in odd
    assert "FP8 cache not profiled" in odd
    assert "FP8" not in derive_steptime(quantised, "h100", 4).source


def test_an_fp8_cache_reads_less_where_it_was_profiled():
    h100 = find_gpu("h100")
    assert decode_coefficients(h100, 16, 2, fp8=True)[2] < decode_coefficients(h100, 16, 2, fp8=False)[2]


def test_head_counts_nobody_profiled_are_scaled():
    a100 = find_gpu("a100")
    fixed, per_seq, per_kv = decode_coefficients(a100, 16, 4, fp8=False)
    assert decode_coefficients(a100, 24, 6, fp8=False) == (fixed, per_seq * 1.5, per_kv * 1.5)


@pytest.mark.parametrize(
    ("gpu", "tp", "field"), [("mi300x", 4, "gpu"), ("a100", 3, "tp"), ("a100", 16, "tp"), ("a100", 0, "tp")]
)
def test_what_nobody_measured_is_refused(gpu, tp, field):
    with pytest.raises(ConfigError) as refused:
        derive_steptime(LLAMA, gpu, tp)
    assert refused.value.field == field
    assert refused.value.hint


def test_a_shapeless_model_is_refused():
    with pytest.raises(ConfigError, match=r"models\.llama-3-70b\.layers"):
        derive_steptime(msgspec.structs.replace(LLAMA, layers=0), "a100", 4)


def test_kernel_figures_stay_below_the_data_sheet():
    for name, bandwidth, flops in (("a100", 2.039e12, 312e12), ("h100", 3.35e12, 989e12)):
        gpu = find_gpu(name)
        for n, k in ((8192, 8192), (14336, 8192), (8192, 7168), (57344, 8192)):
            assert 2 * n * k / gemm_us(gpu, 1, n, k) * 1e6 < bandwidth
            assert 2 * 4096 * n * k / gemm_us(gpu, 4096, n, k) * 1e6 < flops
        for ranks in (2, 4, 8):
            size = 64 * 2**20
            bus = size * 2 * (ranks - 1) / ranks / all_reduce_us(gpu, ranks, size) * 1e6
            assert bus < 480e9
