"""Derive a `StepTime` of a dense transformer from the kernel figures of a GPU.

A rank of `tp` runs, for each layer and T scheduled tokens: two norms with residual adds, the qkv, output,
gate-up and down products (columns or rows divided by tp), rotary embedding, activation, attention over its
share of the heads, and two all-reduces of T*hidden 16-bit values; the embedding adds one all-reduce a step.
KV heads are never split below one a rank, so with tp > kv_heads they are replicated.  The head is one product
of E rows with vocab/tp columns, a gather of the logits (half an all-reduce of the same bytes: a ring moves
(n-1)/n instead of 2(n-1)/n) and the sampler.

Figures that no kernel profile gives, each with its ground:
- `SKEW` 0.055 and `OVERHEAD_US` 300: replays of real vLLM 0.19 runs (Llama-3.1-8B on RTX PRO 6000) came
  within -4 % of the TTFT P50 and +0.4 % of the mean end-to-end time with both.
- `KERNELS` 9 a layer besides the all-reduces and `LAUNCH_US` 5 for each when no graph fits: an assumption.
  What an all-reduce costs more outside a graph is measured.

Deliberately absent: mixture of experts, pipeline parallelism, quantised weights (figures are 16-bit; `source`
says so when the declared weights are much smaller than the shape), speculative decoding.
"""

from functools import lru_cache

from sits.core.errors import ConfigError
from sits.core.fleet import Model
from sits.predict.gpu import (
    PROFILED_HEAD_DIM,
    GpuFigures,
    all_reduce_us,
    decode_coefficients,
    find_gpu,
    gemm_us,
)
from sits.predict.steptime import StepTime

SKEW = 0.055
OVERHEAD_US = 300.0
KERNELS = 9
LAUNCH_US = 5.0


@lru_cache(maxsize=256)
def derive_steptime(model: Model, gpu: str, tp: int) -> StepTime:
    """The step-time figures of `model` on `tp` GPUs of type `gpu` in one node.

    >>> from sits.core.fleet import Model
    >>> llama = Model(name="llama-3-70b", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128,
    ...     intermediate=28672, vocab=128256, weights=141_100_000_000)
    >>> from sits.predict.steptime import step_time_us
    >>> st = derive_steptime(llama, "A100-SXM4-80GB", 4)
    >>> round(step_time_us(st, tokens=16, seqs_emitting=16, decode_kv=[1300] * 16) / 1000)      # ms
    31
    >>> round(step_time_us(st, tokens=2048, seqs_emitting=1, prefill_chunks=[(2048, 0)], eager=True) / 1000)
    363

    Raises:
        ConfigError: unknown GPU, a `tp` without figures, or a shape that `tp` does not divide.

    """
    return derive_from(find_gpu(gpu), model, tp)


def derive_from(gpu: GpuFigures, model: Model, tp: int) -> StepTime:
    """`derive_steptime` for given kernel figures.

    Raises:
        ConfigError: as `derive_steptime`.

    """
    _check(model, tp)
    h, g = model.heads // tp, max(1, model.kv_heads // tp)
    wide = model.head_dim / PROFILED_HEAD_DIM
    p, d = gpu.prefill, decode_coefficients(gpu, h, g, fp8=model.kv_dtype == "fp8")
    rows = [float(m) for m in gpu.gemm_rows]
    seqs = [m for m in rows if m <= 1024]
    gap = 2 * gpu.all_reduce_eager_us if tp > 1 else 0.0
    n = model.layers
    return StepTime(
        source=_source(gpu, model, tp),
        dense_tokens=tuple(rows),
        dense_us=tuple(_dense_us(gpu, model, tp, m) for m in rows),
        head_seqs=tuple(seqs),
        head_us=tuple(_head_us(gpu, model, tp, m) for m in seqs),
        prefill_us=n * (p[0] + p[1] * h),
        prefill_us_per_token=n * wide * (p[2] * h + p[3] * g),
        prefill_us_per_token_kv=n * wide * p[4] * h,
        decode_us=n * d[0],
        decode_us_per_seq=n * d[1],
        decode_us_per_kv_token=n * wide * d[2],
        skew=SKEW,
        overhead_us=OVERHEAD_US,
        eager_us=n * (KERNELS * LAUNCH_US + gap),
        noise_cv=gpu.noise_cv,
    )


def dense_parameters(model: Model) -> int:
    """Parameters the shape implies: attention, gated MLP, embedding and head; norms left out.

    >>> from sits.core.fleet import Model
    >>> dense_parameters(Model(name="llama-3-70b", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128,
    ...     intermediate=28672, vocab=128256, weights=0))
    70552387584
    """
    attention = model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    return model.layers * (attention + 3 * model.hidden * model.intermediate) + 2 * model.vocab * model.hidden


def _check(model: Model, tp: int) -> None:
    for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
        value = getattr(model, field)
        if value < 1:
            raise ConfigError(
                f"{value} is no size of a transformer",
                field=f"models.{model.name}.{field}",
                value=value,
                hint="take it from the model's config.json",
            )
    if tp < 1 or model.heads % tp or model.intermediate % tp:
        raise ConfigError(
            f"{tp} ranks do not divide {model.heads} heads and {model.intermediate} intermediate columns",
            field="tp",
            value=tp,
            hint="use 1, 2, 4 or 8 GPUs",
        )


def _layer_us(gpu: GpuFigures, model: Model, tp: int, tokens: float) -> float:
    h, g = model.heads // tp, max(1, model.kv_heads // tp)
    products = (
        ((h + 2 * g) * model.head_dim, model.hidden),
        (model.hidden, h * model.head_dim),
        (2 * model.intermediate / tp, model.hidden),
        (model.hidden, model.intermediate / tp),
    )
    t = sum(gemm_us(gpu, tokens, n, k) for n, k in products)
    around = 2 * (gpu.norm[0] + gpu.add[0]) + gpu.rope[0] + gpu.activation[0]
    around += tokens * model.hidden * 2 * (gpu.norm[1] + gpu.add[1])
    around += tokens * (h + g) * model.head_dim * gpu.rope[1]
    around += tokens * model.intermediate / tp * gpu.activation[1]
    return t + around


def _dense_us(gpu: GpuFigures, model: Model, tp: int, tokens: float) -> float:
    reduce = all_reduce_us(gpu, tp, tokens * model.hidden * 2)
    return model.layers * _layer_us(gpu, model, tp, tokens) + (2 * model.layers + 1) * reduce


def _head_us(gpu: GpuFigures, model: Model, tp: int, seqs: float) -> float:
    gather = all_reduce_us(gpu, tp, seqs * model.vocab * 2) / 2
    sampler = gpu.sampler[0] + gpu.sampler[1] * seqs * model.vocab
    return gemm_us(gpu, seqs, model.vocab / tp, model.hidden) + gather + sampler


def _source(gpu: GpuFigures, model: Model, tp: int) -> str:
    e = gpu.mape
    text = (
        f"derived: {model.name} x{tp} on {gpu.name} from kernel profiles of vLLM 0.14, 16-bit (MAPE GEMM {e['gemm']:.1%}, "
        f"prefill attention {e['prefill']:.1%}, decode attention {e['decode']:.1%}, all-reduce {e['all_reduce']:.1%})"
    )
    if gpu.whole_model_bias:
        against = ", ".join(f"{what} {bias:+.0%}" for what, bias in gpu.whole_model_bias.items())
        text += f"; against whole models on engines of 2023-24, not fitted: {against}"
    declared, implied = model.weights, 2 * dense_parameters(model)
    if declared and not 0.8 < declared / implied < 1.25:
        text += f"; declared weights {declared / 1e9:.1f} GB but a dense 16-bit model of this shape has {implied / 1e9:.1f} GB"
    if model.kv_dtype == "fp8" and not gpu.decode_fp8:
        text += "; FP8 cache not profiled on this GPU: counted as slow as 16-bit"
    if model.head_dim != PROFILED_HEAD_DIM:
        text += f"; attention scaled from head size {PROFILED_HEAD_DIM} to {model.head_dim}"
    return text
