"""Step time: how long one iteration of a continuous-batching engine takes on the device.

A step is dense work (GEMMs, norms and all-reduces of all layers: a function of scheduled tokens only), the
head (a function of sequences that emit a token), attention of prefill chunks and attention of decodes (both
functions of the KV they read), host work the device waits for, and a launch penalty when no captured graph
fits.  `StepTime` holds the figures of one model on one GPU type at one tensor-parallel degree; `step_time_us`
is the formula, written out in its docstring and nowhere else.

Sources: the additive form and the skew term are those of layer profiles of vLLM V1 (LLMServingSim 2, MIT),
where a skew share of 0.055 took the TTFT P50 error on a real recording from -18 % to -7 %.

Deliberately absent: where the figures come from (`gpu_figures` and `dense`), noise draws (the caller holds
the dice; `noise_cv` only states how much), waiting, and everything a scheduler decides.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError

SCALARS = (
    "prefill_us",
    "prefill_us_per_token",
    "prefill_us_per_token_kv",
    "decode_us",
    "decode_us_per_seq",
    "decode_us_per_kv_token",
    "skew",
    "overhead_us",
    "eager_us",
    "noise_cv",
)
"""Scalar figures, in the order of `PackedStepTime.scalars`."""


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of `step_time_us` for one model, GPU type and tensor-parallel degree.

    All times are microseconds of one step.  The two tables are piecewise linear, constant below their first
    knot and continued with the slope of their last segment above the last one.

    Attributes:
        source: where the figures come from, with their error.
        dense_tokens, dense_us: GEMMs, norms and all-reduces of all layers against scheduled tokens.
        head_seqs, head_us: lm_head and sampler against sequences that emit a token.
        prefill_us: attention of prefill, fixed per chunk.
        prefill_us_per_token: attention of prefill, per query token.
        prefill_us_per_token_kv: attention of prefill, per (query token x mean KV it sees).
        decode_us: attention of decodes, fixed when there is any.
        decode_us_per_seq: attention of decodes, per sequence.
        decode_us_per_kv_token: attention of decodes, per KV token read.
        skew: share of n*(max_kv - mean_kv) additionally read by an unequal batch, 0..1.
        overhead_us: host work per step that the device waits for.
        eager_us: extra per step when no captured graph fits.
        noise_cv: residual coefficient of variation of a step (multiplicative, log-normal).

    Raises:
        ConfigError: tables that are empty, of unequal length or not increasing, or a negative figure.

    """

    source: str
    dense_tokens: tuple[float, ...]
    dense_us: tuple[float, ...]
    head_seqs: tuple[float, ...]
    head_us: tuple[float, ...]
    prefill_us: float
    prefill_us_per_token: float
    prefill_us_per_token_kv: float
    decode_us: float
    decode_us_per_seq: float
    decode_us_per_kv_token: float
    skew: float
    overhead_us: float
    eager_us: float
    noise_cv: float

    def __post_init__(self) -> None:
        _check_table("dense_tokens", self.dense_tokens, "dense_us", self.dense_us)
        _check_table("head_seqs", self.head_seqs, "head_us", self.head_us)
        for field in SCALARS:
            value = getattr(self, field)
            if not value >= 0.0:
                raise ConfigError(
                    f"{value!r} is not a time or a share",
                    field=field,
                    value=value,
                    hint="a figure of a step is zero or more; refit with non-negative least squares",
                )


def _check_table(x_name: str, x: tuple[float, ...], y_name: str, y: tuple[float, ...]) -> None:
    if not x or len(x) != len(y):
        raise ConfigError(
            f"{len(x)} knots but {len(y)} values",
            field=x_name,
            value=x,
            hint=f"{x_name} and {y_name} are one table: equally long, at least one row",
        )
    for name, row, strict in ((x_name, x, True), (y_name, y, False)):
        for a, b in pairwise(row):
            if not (b > a if strict else b >= a):
                raise ConfigError(
                    f"{b!r} follows {a!r}",
                    field=name,
                    value=row,
                    hint="more work never takes less time: sort",
                )
        if not row[0] >= 0.0:
            raise ConfigError(f"{row[0]!r} is negative", field=name, value=row, hint="start at zero or above")


def interpolate(x: tuple[float, ...], y: tuple[float, ...], at: float) -> float:
    """Piecewise linear: constant below the first knot, the last slope above the last one.

    >>> interpolate((1.0, 3.0), (10.0, 20.0), 2.0), interpolate((1.0, 3.0), (10.0, 20.0), 5.0)
    (15.0, 30.0)
    >>> interpolate((1.0, 3.0), (10.0, 20.0), 0.0), interpolate((4.0,), (7.0,), 100.0)
    (10.0, 7.0)
    """
    if at <= x[0] or len(x) == 1:
        return y[0]
    i = 1
    while i < len(x) - 1 and at > x[i]:
        i += 1
    return y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1])


def step_time_us(
    st: StepTime,
    *,
    tokens: int,
    seqs_emitting: int,
    prefill_chunks: Iterable[tuple[int, int]] = (),
    decode_kv: Iterable[int] = (),
    eager: bool = False,
) -> float:
    """Microseconds of one step; the mean, without noise.

    With T scheduled tokens, E emitting sequences, prefill chunks (q, kv_before) and decodes of KV length k_i
    (n of them; mean and maximum over the step's decodes):

        t =   dense(T)                                                    0 when T = 0
            + head(E)                                                     0 when E = 0
            + sum over chunks [ prefill_us + q * prefill_us_per_token
                                + q * (kv_before + q/2) * prefill_us_per_token_kv ]
            + [ decode_us + n * decode_us_per_seq
                + decode_us_per_kv_token * ( sum(k) + skew * n * (max(k) - mean(k)) ) ]      0 when n = 0
            + overhead_us                                                 0 when T = 0
            + eager_us                                                    when eager and T > 0

    `dense` and `head` are the tables of `st`, read by `interpolate`.  A step with nothing scheduled takes no
    time.  `tokens` counts prefill and decode tokens together; with graphs it may be the padded size.

    >>> st = StepTime(source="example", dense_tokens=(0.0, 100.0), dense_us=(10.0, 110.0), head_seqs=(1.0,),
    ...     head_us=(5.0,), prefill_us=1.0, prefill_us_per_token=0.1, prefill_us_per_token_kv=0.01,
    ...     decode_us=2.0, decode_us_per_seq=0.5, decode_us_per_kv_token=0.001, skew=0.05,
    ...     overhead_us=20.0, eager_us=40.0, noise_cv=0.0)
    >>> step_time_us(st, tokens=50, seqs_emitting=1, prefill_chunks=[(50, 100)])
    153.5
    >>> step_time_us(st, tokens=2, seqs_emitting=2, decode_kv=[1000, 3000])
    44.1
    >>> step_time_us(st, tokens=0, seqs_emitting=0)
    0.0
    """
    if tokens <= 0:
        return 0.0
    t = interpolate(st.dense_tokens, st.dense_us, tokens) + st.overhead_us
    if seqs_emitting > 0:
        t += interpolate(st.head_seqs, st.head_us, seqs_emitting)
    for q, kv_before in prefill_chunks:
        t += st.prefill_us + q * (st.prefill_us_per_token + (kv_before + q / 2) * st.prefill_us_per_token_kv)
    n = total = longest = 0
    for kv in decode_kv:
        n += 1
        total += kv
        longest = max(longest, kv)
    if n:
        read = total + st.skew * (n * longest - total)
        t += st.decode_us + n * st.decode_us_per_seq + read * st.decode_us_per_kv_token
    return t + st.eager_us if eager else t


class PackedStepTime(NamedTuple):
    """`StepTime` as arrays for a compiled kernel: the tables, and `scalars` in the order of `SCALARS`."""

    dense_tokens: NDArray[np.float64]
    dense_us: NDArray[np.float64]
    head_seqs: NDArray[np.float64]
    head_us: NDArray[np.float64]
    scalars: NDArray[np.float64]


def pack(st: StepTime) -> PackedStepTime:
    """The figures as float64 arrays; a compiled kernel re-implements `step_time_us` over them.

    >>> from sits.predict.steptime import SCALARS
    >>> SCALARS[:3], SCALARS.index("eager_us")
    (('prefill_us', 'prefill_us_per_token', 'prefill_us_per_token_kv'), 8)
    """
    return PackedStepTime(
        np.array(st.dense_tokens, dtype=np.float64),
        np.array(st.dense_us, dtype=np.float64),
        np.array(st.head_seqs, dtype=np.float64),
        np.array(st.head_us, dtype=np.float64),
        np.array([getattr(st, name) for name in SCALARS], dtype=np.float64),
    )
