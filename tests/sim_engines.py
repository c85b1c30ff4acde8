"""Drawn engines and workloads: small, and odd in every respect, for the laws of the engine model."""

import msgspec
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from sits.predict.prepare import Rank
from sits.predict.profile import Profile
from sits.predict.steptime import StepTime
from sits.predict.transfer import Dips
from sits.sim.spec import EngineSpec, FrontEnd

RUNS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

us = st.floats(0.0, 500.0, allow_nan=False)
small = st.floats(0.0, 2.0, allow_nan=False)


@st.composite
def step_times(draw):
    def table(most):
        n = draw(st.integers(1, 4))
        x = sorted(draw(st.lists(st.integers(0, most), min_size=n, max_size=n, unique=True)))
        y = sorted(draw(st.lists(us, min_size=n, max_size=n)))
        return tuple(map(float, x)), tuple(y)

    dense, head = table(200), table(12)
    figures = {name: draw(us) for name in ("prefill_us", "decode_us", "overhead_us", "eager_us")}
    slopes = (
        "prefill_us_per_token",
        "prefill_us_per_token_kv",
        "decode_us_per_seq",
        "decode_us_per_kv_token",
    )
    figures |= {name: draw(small) for name in slopes}
    return StepTime(
        source="drawn",
        dense_tokens=dense[0],
        dense_us=dense[1],
        head_seqs=head[0],
        head_us=head[1],
        skew=draw(st.sampled_from([0.0, 0.055, 1.0])),
        noise_cv=0.1,
        **figures,
    )


@st.composite
def profiles(draw):
    def axis(first, most):
        points = draw(st.lists(st.integers(first + 1, most), min_size=1, max_size=3, unique=True))
        return tuple(map(float, sorted([first, *points])))

    axes = (axis(0, 90), axis(0, 100), axis(0, 6), axis(0, 150))
    shape = [len(a) for a in axes]
    cells = draw(st.lists(us, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    dense, head = axis(0, 200), axis(0, 12)
    return Profile(
        source="drawn",
        layers=1,
        dense_tokens=dense,
        dense_us=tuple(sorted(draw(st.lists(us, min_size=len(dense), max_size=len(dense))))),
        head_seqs=head,
        head_us=tuple(sorted(draw(st.lists(us, min_size=len(head), max_size=len(head))))),
        axes=axes,
        attention_us=np.abs(np.array(cells).reshape(shape)),
        skew=draw(st.sampled_from([0.0, 0.03, 1.0])),
        overhead_us=draw(us),
        eager_us=draw(us),
    )


dips = st.none() | st.builds(
    Dips,
    depth=st.sampled_from([0.3, 0.8, 1.0]),
    width_ns=st.sampled_from([0.0, 30_000.0, 400_000.0]),
    period_ns=st.sampled_from([500_000.0, 1_234_567.0]),
    phase_ns=st.sampled_from([0.0, 777.0]),
)
ranks = st.lists(
    st.builds(Rank, bandwidth=st.sampled_from([24e9, 11e9, 3.3e9]), dips=dips), min_size=1, max_size=3
).map(tuple)


@st.composite
def specs(draw):
    chunked = draw(st.booleans())
    return EngineSpec(
        step=draw(step_times()),
        ranks=draw(ranks),
        dips_busy_min=draw(st.integers(0, 4)),
        block_size=draw(st.sampled_from([1, 3, 16])),
        blocks=draw(st.integers(1, 60)),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1, 90)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 5, 30])) if chunked else 0,
        chunked_prefill=chunked,
        reserve_full_isl=draw(st.booleans()),
        graph_seqs_max=draw(st.sampled_from([0, 2, 256])),
        lora_slots=draw(st.integers(0, 3)),
        adapter_bytes=draw(st.sampled_from([0, 1_000_000])),
        adapter_copies=draw(st.integers(1, 3)),
        front=FrontEnd(api_us=draw(us), tokenize_us_per_token=draw(small), enqueue_us=draw(us)),
    )


@st.composite
def trace_specs(draw):
    """Engines with all that only whole traces can have."""
    spec = draw(specs())
    return msgspec.structs.replace(
        spec,
        step=draw(step_times() | profiles()),
        order=draw(st.sampled_from(["fcfs", "priority"])),
        prefix_caching=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        host=draw(st.sampled_from([spec.host, None])),
    )


requests = st.tuples(
    st.integers(0, 3_000_000),  # after the one before, ns
    st.integers(0, 130),  # prompt
    st.integers(0, 25),  # output
    st.integers(-1, 4),  # adapter
)
traces = st.lists(requests, min_size=1, max_size=25)


def columns(trace):
    gaps, prompts, outputs, adapters = (np.array(c, np.int64) for c in zip(*trace, strict=True))
    return np.cumsum(gaps), prompts, outputs, adapters


def tight(spec: EngineSpec, trace) -> EngineSpec:
    """The same engine with just enough blocks for the largest request, so that requests fight for them."""
    need = max(-(-(p + o) // spec.block_size) for _, p, o, _ in trace)
    return msgspec.structs.replace(spec, blocks=max(1, need))
