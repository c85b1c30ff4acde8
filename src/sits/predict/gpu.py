"""Kernel times of one GPU type: GEMM, elementwise, attention, all-reduce and sampler, as fitted formulas.

Every formula is linear in non-negative coefficients (relative non-negative least squares on published kernel
profiles).  With m rows (tokens), n outputs, k inputs, h query heads and g
KV heads of one rank, d = 128 the head size of the profiles, S bytes:

    gemm(m, n, k)      = c0 + c1*n*k + c2*n + c3*k       c of the profiled m, linear in m between two of them
    elementwise(x)     = c0 + c1*x                       x elements: T*hidden (norm, add), T*heads (rope), ...
    prefill(q, s)      = (c0 + c1*h) + q*(c2*h + c3*g) + q*s*c4*h          s = mean KV a query token sees
    decode(n, kv)      = c0 + n*c1 + kv*c2               kv = KV tokens of all n sequences, c of the profiled g;
                         c0 + n*c1*g + kv*c2*g           when every query head has a KV head of its own
    all_reduce(S)      = a + b*S                         per segment of S (one-shot, two-shot, NCCL)
    sampler(E, vocab)  = c0 + c1*E*vocab

Fits of neighbouring rows or segments may cross by their error; the larger one holds from there on, so that more
work never takes less time.  The GEMM form holds at both ends of the roofline: for small m, c1 is weight bytes over bandwidth; for large m,
operations over throughput; between them it is what was measured at that m, so no smoothing of a `max` is needed.

Deliberately absent: the figures (`gpu_figures`, written by the fit), and how a transformer is made of these
kernels (`derive`).
"""

import msgspec

from sits.core.errors import ConfigError

PROFILED_HEAD_DIM = 128


class Segment(msgspec.Struct, frozen=True):
    """All-reduce of up to `to_bytes` bytes takes `alpha_us + us_per_byte * bytes`."""

    to_bytes: float
    alpha_us: float
    us_per_byte: float


class GpuFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted coefficients of one GPU type; microseconds, in the order of the module's formulas.

    `gemm[i]` belongs to `gemm_rows[i]`; `decode_fp8` is empty where nobody profiled an FP8 cache.
    `whole_model_bias` is the median relative error against whole models nobody fitted (negative: too fast).
    `all_reduce_eager_us` is what one small all-reduce costs more outside a captured graph.
    """

    name: str
    aliases: tuple[str, ...]
    gemm_rows: tuple[int, ...]
    gemm: tuple[tuple[float, float, float, float], ...]
    norm: tuple[float, float]
    add: tuple[float, float]
    rope: tuple[float, float]
    activation: tuple[float, float]
    prefill: tuple[float, float, float, float, float]
    decode: dict[int, tuple[float, float, float]]
    decode_plain: tuple[float, float, float]
    decode_fp8: dict[int, tuple[float, float, float]]
    decode_plain_fp8: tuple[float, ...]
    all_reduce: dict[int, tuple[Segment, ...]]
    all_reduce_eager_us: float
    sampler: tuple[float, float]
    noise_cv: float
    mape: dict[str, float]
    whole_model_bias: dict[str, float]


def gemm_us(gpu: GpuFigures, m: float, n: float, k: float) -> float:
    """Microseconds of an (m x k) times (k x n) product in 16-bit floats.

    >>> from sits.predict.gpu_figures import GPUS
    >>> one, many = (gemm_us(GPUS["A100-SXM4-80GB"], m, 14336, 8192) for m in (1, 4096))
    >>> 1.2e12 < 2 * 14336 * 8192 / one * 1e6 < 2.039e12       # bytes/s, below the data sheet
    True
    >>> 2.0e14 < 2 * 4096 * 14336 * 8192 / many * 1e6 < 3.12e14         # operations/s
    True
    """
    rows = gpu.gemm_rows
    low, high = rows[0], 0.0
    for row, c in zip(rows, gpu.gemm, strict=True):
        before, high = high, max(high, c[0] + c[1] * n * k + c[2] * n + c[3] * k)
        if m <= row and row == rows[0]:
            return high
        if m <= row or row == rows[-1]:
            return before + (high - before) * (m - low) / (row - low)
        low = row
    return high


def all_reduce_us(gpu: GpuFigures, ranks: int, size_bytes: float) -> float:
    """Microseconds of one all-reduce of `size_bytes` over `ranks` GPUs of one node, in a captured graph.

    >>> from sits.predict.gpu_figures import GPUS
    >>> all_reduce_us(GPUS["A100-SXM4-80GB"], 1, 1 << 20)
    0.0
    >>> 10 < all_reduce_us(GPUS["A100-SXM4-80GB"], 4, 1 << 20) < 30
    True

    Raises:
        ConfigError: nobody profiled that many ranks.

    """
    if ranks == 1:
        return 0.0
    if ranks not in gpu.all_reduce:
        known = ", ".join(map(str, (1, *gpu.all_reduce)))
        raise ConfigError(
            f"no all-reduce figures of {gpu.name} for {ranks} ranks",
            field="tp",
            value=ranks,
            hint=f"known: {known}; one node only",
        )
    segments = gpu.all_reduce[ranks]
    floor = 0.0
    for s in segments:
        if size_bytes <= s.to_bytes or s is segments[-1]:
            return max(floor, s.alpha_us + s.us_per_byte * size_bytes)
        floor = max(floor, s.alpha_us + s.us_per_byte * s.to_bytes)
    return floor


def decode_coefficients(
    gpu: GpuFigures, heads: int, kv_heads: int, *, fp8: bool
) -> tuple[float, float, float]:
    """Decode attention of one layer and rank: (fixed, per sequence, per KV token) in microseconds.

    Between profiled KV head counts the next smaller one is scaled.  Without FP8 figures the 16-bit ones hold.

    >>> from sits.predict.gpu_figures import GPUS
    >>> fixed, per_seq, per_kv = decode_coefficients(GPUS["A100-SXM4-80GB"], 32, 8, fp8=False)
    >>> 1.2e12 < 2 * 8 * 128 * 2 / per_kv * 1e6 < 2.039e12              # bytes/s of KV read
    True
    """
    use_fp8 = fp8 and bool(gpu.decode_fp8)
    if heads == kv_heads:
        fixed, per_seq, per_kv = gpu.decode_plain_fp8 if use_fp8 else gpu.decode_plain
        return fixed, per_seq * kv_heads, per_kv * kv_heads
    grouped = gpu.decode_fp8 if use_fp8 else gpu.decode
    base = max(g for g in grouped if g <= kv_heads)
    fixed, per_seq, per_kv = grouped[base]
    return fixed, per_seq * kv_heads / base, per_kv * kv_heads / base


def find_gpu(name: str) -> GpuFigures:
    """The figures of a GPU under any of its names, case and "NVIDIA" left aside.

    >>> find_gpu("NVIDIA A100-SXM4-80GB").name, find_gpu("a100-80gb").name
    ('A100-SXM4-80GB', 'A100-SXM4-80GB')

    Raises:
        ConfigError: no figures for that GPU.

    """
    from sits.predict.gpu_figures import GPUS  # noqa: PLC0415  (the figures import this module's structs)

    wanted = name.lower().removeprefix("nvidia").strip(" -")
    for figures in GPUS.values():
        if wanted == figures.name.lower() or wanted in figures.aliases:
            return figures
    known = ", ".join(GPUS)
    raise ConfigError(
        f"no kernel figures for GPU {name!r}",
        field="gpu",
        value=name,
        hint=f"known: {known}; or give a StepTime with figures of your own engine",
    )
