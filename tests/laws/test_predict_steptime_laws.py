"""Laws of step times: more work never takes less time, for any figures and for the derived ones."""

import functools

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.fleet import Model
from sits.predict.derive import derive_steptime
from sits.predict.gpu import all_reduce_us, find_gpu, gemm_us
from sits.predict.steptime import StepTime, interpolate, step_time_us

law = settings(deadline=None, max_examples=60)  # never a matter of wall time

figure = st.floats(0.0, 1e4, allow_nan=False)
kv_list = st.lists(st.integers(0, 200_000), max_size=12)
chunks = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 100_000)), max_size=4)


@st.composite
def table(draw):
    x = sorted(
        draw(st.sets(st.floats(0.0, 1e4, allow_nan=False).map(lambda v: round(v, 2)), min_size=1, max_size=6))
    )
    y = sorted(draw(st.lists(figure, min_size=len(x), max_size=len(x))))
    return tuple(x), tuple(y)


@st.composite
def steptimes(draw):
    dense, head = draw(table()), draw(table())
    scalars = {
        f: draw(figure)
        for f in StepTime.__struct_fields__
        if f not in ("source", "dense_tokens", "dense_us", "head_seqs", "head_us", "skew")
    }
    return StepTime(
        source="drawn",
        dense_tokens=dense[0],
        dense_us=dense[1],
        head_seqs=head[0],
        head_us=head[1],
        skew=draw(st.floats(0.0, 1.0)),
        **scalars,
    )


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
TINY = Model(
    name="tiny",
    layers=4,
    hidden=512,
    heads=8,
    kv_heads=8,
    head_dim=64,
    intermediate=1024,
    vocab=1000,
    weights=0,
)


@functools.cache
def derive(gpu, tp, kv_heads, shape):
    return derive_steptime(
        msgspec.structs.replace({"llama": LLAMA, "tiny": TINY}[shape], kv_heads=kv_heads), gpu, tp
    )


derived = st.builds(
    derive,
    st.sampled_from(["a100", "h100"]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 4, 8]),
    st.sampled_from(["llama", "tiny"]),
)


@law
@given(
    steptimes() | derived,
    st.integers(1, 20_000),
    st.integers(0, 512),
    chunks,
    kv_list,
    st.booleans(),
    st.data(),
)
def test_more_work_never_takes_less_time(figures, tokens, emitting, prefill, kv, eager, data):
    def us(**more):
        work = {
            "tokens": tokens,
            "seqs_emitting": emitting,
            "prefill_chunks": prefill,
            "decode_kv": kv,
            "eager": eager,
        }
        return step_time_us(figures, **(work | more))

    base = us()
    floor = base * (1 - 1e-9)
    assert base >= 0.0
    assert us(tokens=tokens + data.draw(st.integers(0, 5000))) >= floor
    assert us(seqs_emitting=emitting + data.draw(st.integers(0, 500))) >= floor
    assert us(prefill_chunks=[*prefill, (data.draw(st.integers(1, 512)), 0)]) >= floor
    assert us(prefill_chunks=[(q, before + 100) for q, before in prefill]) >= floor
    assert us(decode_kv=[*kv, data.draw(st.integers(0, 100_000))]) >= floor
    assert us(decode_kv=[length + 1 for length in kv]) >= floor
    assert us(eager=True) >= floor


@law
@given(steptimes(), st.integers(1, 64), st.integers(0, 100_000))
def test_an_equal_batch_pays_no_skew(figures, n, kv):
    skewless = msgspec.structs.replace(figures, skew=0.0)
    work = {"tokens": n, "seqs_emitting": n, "decode_kv": [kv] * n}
    assert step_time_us(figures, **work) == step_time_us(skewless, **work)


@law
@given(table(), st.floats(0, 2e4), st.floats(0, 2e4))
def test_interpolation_meets_its_knots_and_never_falls(xy, a, b):
    x, y = xy
    for knot, value in zip(x, y, strict=True):
        assert abs(interpolate(x, y, knot) - value) <= 1e-6 * max(1.0, value)
    low, high = sorted((a, b))
    assert interpolate(x, y, low) <= interpolate(x, y, high) * (1 + 1e-9) + 1e-9


@law
@given(derived)
def test_derived_tables_are_increasing(figures):
    assert list(figures.dense_us) == sorted(figures.dense_us)
    assert list(figures.head_us) == sorted(figures.head_us)
    assert 0.0 < figures.noise_cv < 0.2


gpus = st.sampled_from(["a100", "h100"]).map(find_gpu)


@law
@given(gpus, st.integers(1, 20_000), st.integers(1, 20_000), st.integers(16, 60_000), st.integers(16, 60_000))
def test_a_taller_product_never_takes_less_time(gpu, m1, m2, n, k):
    low, high = sorted((m1, m2))
    assert gemm_us(gpu, low, n, k) <= gemm_us(gpu, high, n, k) * (1 + 1e-9)
    assert gemm_us(gpu, low, n, k) <= gemm_us(gpu, low, n + 64, k + 64) * (1 + 1e-9)


@law
@given(gpus, st.sampled_from([2, 4, 8]), st.floats(0, 2e9), st.floats(0, 2e9))
def test_a_larger_all_reduce_never_takes_less_time(gpu, ranks, a, b):
    low, high = sorted((a, b))
    assert 0.0 < all_reduce_us(gpu, ranks, low) <= all_reduce_us(gpu, ranks, high)
    for segment in gpu.all_reduce[ranks][:-1]:
        joint = segment.to_bytes
        assert all_reduce_us(gpu, ranks, joint) <= all_reduce_us(gpu, ranks, joint * (1 + 1e-9))
