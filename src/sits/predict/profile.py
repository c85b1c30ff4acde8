"""A profile of an engine on one GPU: measured times of its layers, composed into the time of a step.

A layer profiler (LLMServingSim's for vLLM V1) leaves tables: GEMMs, norms and the like by scheduled tokens, the
head by sequences, and the attention kernel by what a batch holds.  With T scheduled tokens, E sequences that emit,
prefill chunks of C tokens in all that have W tokens before them (mean, weighted by chunk), and n decodes with KV
of mean m and maximum M:

    t = layers * per_layer(T) + once(T) + head(E) + a + skew * (a(M) - a),    a = layers * attention(C, W, n, m)

Tables are read by straight lines between their points and continued by their last slope.  Two things decide how
far such a table can be trusted, and both are done when it is loaded:

- The grid is sparse: in the published tables a fifth to a half of the mixed cells was measured.  A mixed batch takes
  0.5 to 5 times the sum of its parts (median 1.2 to 1.4), so an empty cell is *not* that sum: the ratio to it is
  interpolated from measured neighbours (log axes; along decode KV, then prefill KV, then chunk).
- The grid holds batches of equal KV lengths.  `skew` is the share of the way from "all have the mean" to "all have
  the maximum" that unequal batches cost: the least-squares slope over the profiler's own unequal batches of decodes.  Those with
  prefill are left out: half their sequences being four times as long as the others, they say two to three times as much,
  and real batches, which have all lengths, do not bear it out.

Host time is in no such table.  `overhead_us` is the host's time for a step, and `eager_us` what a step that runs eager costs it more (one
that holds prefill: no captured graph fits); both are zero unless you give them.  With asynchronous scheduling they
delay a step only as far as they outlast the one before.

>>> profile = Profile(source="example", layers=1, dense_tokens=(0.0, 100.0), dense_us=(10.0, 110.0),
...     head_seqs=(1.0, 9.0), head_us=(5.0, 5.0), axes=((0.0, 100.0), (0.0, 9.0), (0.0, 10.0), (0.0, 1000.0)),
...     attention_us=np.arange(16.0).reshape(2, 2, 2, 2), skew=0.5)
>>> profile.step_us(0, 10, 500), profile.step_us(0, 10, 500, context_max=1000), profile.step_us(50, 10, 500)
(27.5, 27.75, 85.5)

Sources: LLMServingSim 2 (MIT), `profiler/perf`, for the tables and the skew term.

Deliberately absent: mixtures of experts (their time depends on which experts a batch hits) and tensor parallelism
(the tables hold one rank's kernels and no collective): both are refused, not guessed.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError
from sits.predict.steptime import interpolate

Floats = NDArray[np.float64]
Axis = tuple[float, ...]

HOST_PREFILL_US = 25_000.0
"""Host time of a step that holds prefill, where nothing better is known: one recorded host of vLLM 0.19 with an 8B model, fitted on its first
requests (`docs/accuracy-gpu.md`).  Only for asynchronous scheduling, where it passes behind the step before."""

TWICE_A_LAYER = frozenset({"layernorm"})
ONCE_A_MODEL = frozenset({"embedding", "final_layernorm"})
AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of one model on one GPU, from layer tables; all times are microseconds of a whole step.

    Attributes:
        source: where the tables come from, and how much of the attention grid was measured.
        layers: transformer layers the per-layer tables were multiplied by.
        dense_tokens, dense_us: GEMMs, norms and the like against scheduled tokens.
        head_seqs, head_us: lm_head and sampler against sequences that emit a token.
        axes: chunk tokens, KV before the chunk, decodes, KV of a decode; the corners of `attention_us`.
        attention_us: attention of all layers, complete; cell [0, :, 0, :] is 0.
        skew: see the module.
        overhead_us, eager_us: host time of any step, and of a step with prefill on top.
        noise_cv: coefficient of variation of a step's device time (log-normal).

    """

    source: str
    layers: int
    dense_tokens: Axis
    dense_us: Axis
    head_seqs: Axis
    head_us: Axis
    axes: tuple[Axis, Axis, Axis, Axis]
    attention_us: Floats
    skew: float = 0.0
    overhead_us: float = 0.0
    eager_us: float = 0.0
    noise_cv: float = 0.0

    def step_us(
        self,
        prefill_tokens: float,
        decode_requests: int,
        context: float,
        *,
        context_max: float | None = None,
        prefill_context: float = 0.0,
        emitting: int | None = None,
    ) -> float:
        """Device time of a step: its prefill tokens, and decodes that have `context` tokens of KV on average.

        `context_max` is the longest (as long as the mean when not given), `prefill_context` what the chunks have
        before them, `emitting` how many sequences emit: all decodes, and one for the prefill, when not given.
        """
        tokens = prefill_tokens + decode_requests
        if tokens <= 0:
            return 0.0
        heads = decode_requests + (prefill_tokens > 0) if emitting is None else emitting
        t = interpolate(self.dense_tokens, self.dense_us, tokens)
        if heads > 0:
            t += interpolate(self.head_seqs, self.head_us, heads)
        longest = context if context_max is None else context_max
        return t + _attention(self, prefill_tokens, prefill_context, decode_requests, context, longest)


def profile_time_us(
    profile: Profile,
    *,
    tokens: int,
    seqs_emitting: int,
    prefill_chunks: Iterable[tuple[int, int]] = (),
    decode_kv: Iterable[int] = (),
) -> float:
    """Device time of a step given request by request, as `predict.steptime.step_time_us` takes it; no host time."""
    if tokens <= 0:
        return 0.0
    t = interpolate(profile.dense_tokens, profile.dense_us, tokens)
    if seqs_emitting > 0:
        t += interpolate(profile.head_seqs, profile.head_us, seqs_emitting)
    chunk = before = n = total = longest = 0
    for q, kv_before in prefill_chunks:
        chunk += q
        before += q * kv_before
    for kv in decode_kv:
        n += 1
        total += kv
        longest = max(longest, kv)
    return t + _attention(
        profile, chunk, before / chunk if chunk else 0.0, n, total / n if n else 0.0, longest
    )


def _attention(
    profile: Profile, chunk: float, before: float, decodes: float, mean: float, longest: float
) -> float:
    a = attention_us(profile, chunk, before, decodes, mean)
    if decodes > 1 and profile.skew > 0.0:
        a += profile.skew * (attention_us(profile, chunk, before, decodes, longest) - a)
    return a


def attention_us(profile: Profile, chunk: float, before: float, decodes: float, kv: float) -> float:
    """Attention of a batch whose decodes all have `kv` tokens: straight lines along each axis, KV of decodes last.

    A batch has prefill or it has none: a chunk smaller than the smallest measured one costs as much as that.
    """
    axes, table = profile.axes, profile.attention_us
    if 0 < chunk < axes[0][1]:
        chunk = axes[0][1]
    i, along_i = locate(axes[0], chunk)
    j, along_j = locate(axes[1], before)
    k, along_k = locate(axes[2], decodes)
    m, along_m = locate(axes[3], kv)
    low, high = (
        _line(
            _line(
                _line(table[i, j, k, at], table[i, j, k + 1, at], along_k),
                _line(table[i, j + 1, k, at], table[i, j + 1, k + 1, at], along_k),
                along_j,
            ),
            _line(
                _line(table[i + 1, j, k, at], table[i + 1, j, k + 1, at], along_k),
                _line(table[i + 1, j + 1, k, at], table[i + 1, j + 1, k + 1, at], along_k),
                along_j,
            ),
            along_i,
        )
        for at in (m, m + 1)
    )
    return float(_line(low, high, along_m))


def locate(axis: Sequence[float], at: float) -> tuple[int, float]:
    """The segment of `axis` that holds `at`, and how far along it: past 1 above the last point, 0 below the first.

    >>> locate((0.0, 16.0, 32.0), 24.0), locate((0.0, 16.0, 32.0), 48.0), locate((0.0, 16.0), -5.0)
    ((1, 0.5), (1, 2.0), (0, 0.0))
    """
    if at <= axis[0]:
        return 0, 0.0
    low = min(bisect_right(axis, at) - 1, len(axis) - 2)
    return low, (at - axis[low]) / (axis[low + 1] - axis[low])


def _line(a: float, b: float, along: float) -> float:
    return a + (b - a) * along


def load_profile(
    path: str | Path, layers: int, *, overhead_us: float = 0.0, eager_us: float = 0.0
) -> Profile:
    """Read the tables `PATH__dense`, `__per_sequence`, `__attention` and, if there, `__skew` (.parquet or .csv).

    `path` is what their names have in common, or a folder that holds `dense.csv` and its sisters.  `layers` is
    the model's `num_hidden_layers`; no table says it.

    Raises:
        ConfigError: a table is missing or not what it should be, or the profile is of a kind that is refused.

    """
    base = str(path)
    if layers < 1:
        raise _error("layers", layers, f"{layers} layers are no model", "num_hidden_layers of config.json")
    for suffix, why in (("moe", "a mixture of experts: its time depends on the experts a batch hits"),):
        if _file(base, suffix) is not None:
            raise _error(
                "profile", base, f"profile of {why}", "profile a dense model, or calibrate from logs"
            )
    if "__tp" in base and not base.endswith("__tp1"):
        raise _error(
            "profile",
            base,
            "profile of one rank of several, without its collectives",
            "use a tp1 profile, or calibrate from logs",
        )
    dense_tokens, dense_us = _dense(_table(base, "dense"), layers)
    head_seqs, head_us = _head(_table(base, "per_sequence"))
    axes, grid, measured = _grid(_table(base, "attention"))
    skew = _skew(_table(base, "skew")) if _file(base, "skew") is not None else 0.0
    return Profile(
        source=f"{Path(base).name}, {layers} layers, {measured:.0%} of the attention grid measured",
        layers=layers,
        dense_tokens=dense_tokens,
        dense_us=dense_us,
        head_seqs=head_seqs,
        head_us=head_us,
        axes=axes,
        attention_us=grid * layers,
        skew=skew,
        overhead_us=overhead_us,
        eager_us=eager_us,
    )


def _error(field: str, value: object, what: str, hint: str) -> ConfigError:
    return ConfigError(what, field=field, value=value, hint=hint)


def _file(base: str, name: str) -> Path | None:
    for stem in (f"{base}__{name}", f"{base}/{name}"):
        for ending in (".parquet", ".csv"):
            if (found := Path(stem + ending)).is_file():
                return found
    return None


def _table(base: str, name: str) -> dict[str, NDArray[Any]]:
    """The columns of one table."""
    import duckdb  # noqa: PLC0415  (only who loads a profile pays for it)

    file = _file(base, name)
    if file is None:
        raise _error(
            "profile",
            base,
            f"no table {name!r}: neither {base}__{name}.parquet nor .csv nor {base}/{name}.csv",
            "give what the names of the tables have in common, without `__dense.parquet`",
        )
    with duckdb.connect() as db:
        read = db.read_parquet if file.suffix == ".parquet" else db.read_csv
        return dict(read(str(file)).fetchnumpy())


def _columns(table: dict[str, NDArray[Any]], name: str, wanted: tuple[str, ...]) -> list[NDArray[Any]]:
    missing = [column for column in wanted if column not in table]
    if missing:
        raise _error(
            "profile", name, f"table {name!r} lacks {missing}", f"it should have {', '.join(wanted)}"
        )
    return [np.asarray(table[column]) for column in wanted]


def _dense(table: dict[str, NDArray[Any]], layers: int) -> tuple[Axis, Axis]:
    names, tokens, time_us = _columns(table, "dense", ("layer", "tokens", "time_us"))
    axis = np.unique(tokens)
    total = np.zeros(len(axis))
    for name in np.unique(names.astype(str)):
        mine = names == name
        times = 1 if name in ONCE_A_MODEL else layers * (2 if name in TWICE_A_LAYER else 1)
        order = np.argsort(tokens[mine])
        total += times * np.interp(axis, tokens[mine][order], time_us[mine][order])
    return tuple(axis.tolist()), tuple(total.tolist())


def _head(table: dict[str, NDArray[Any]]) -> tuple[Axis, Axis]:
    sequences, time_us = _columns(table, "per_sequence", ("sequences", "time_us"))
    axis = np.unique(sequences)
    return tuple(axis.tolist()), tuple(time_us[sequences == n].sum().item() for n in axis)


def _grid(table: dict[str, NDArray[Any]]) -> tuple[tuple[Axis, Axis, Axis, Axis], Floats, float]:
    """The attention of one layer as a complete grid; what its mixed cells were measured in, 0..1."""
    *corners, time_us = _columns(table, "attention", (*AXES, "time_us"))
    axes = [np.unique(np.append(corner, 0)).astype(float) for corner in corners]
    grid = np.full([len(axis) for axis in axes], np.nan)
    grid[tuple(np.searchsorted(axis, corner) for axis, corner in zip(axes, corners, strict=True))] = time_us
    prefill, decode = grid[:, :, 0, 0].copy(), grid[0, 0].copy()
    prefill[0], decode[0] = 0.0, 0.0
    _fill(prefill, axes[1])
    _fill(decode, axes[3])
    parts = prefill[:, :, None, None] + decode
    mixed = grid[1:, :, 1:, 1:] / parts[1:, :, 1:, 1:]
    measured = float(np.isfinite(mixed).mean())
    for axis, dimension in ((axes[3][1:], 3), (axes[1], 1), (axes[0][1:], 0)):
        _fill(np.moveaxis(mixed, dimension, -1), np.log2(np.maximum(axis, 1.0)))
    mixed[np.isnan(mixed)] = 1.0
    full = parts
    full[1:, :, 1:, 1:] *= mixed
    full[1:, :, 1:, 0] = full[1:, :, 1:, 1]
    w, x, y, z = (tuple(axis.tolist()) for axis in axes)
    return (w, x, y, z), full, measured


def _fill(rows: Floats, axis: Floats) -> None:
    """Fill the gaps of each row (last axis) by straight lines, and its ends with the nearest value, in place."""
    for index in np.ndindex(rows.shape[:-1]):
        row = rows[index]
        known = np.isfinite(row)
        if known.any() and not known.all():
            row[~known] = np.interp(axis[~known], axis[known], row[known])


def _skew(table: dict[str, NDArray[Any]]) -> float:
    """Extra time of unequal batches as a share of what equal batches of the longest would cost more: least squares."""
    regime, mean, longest, real = _columns(table, "skew", ("regime", "t_mean_us", "t_max_us", "t_skew_us"))
    pure = regime == "pure"
    span, extra = longest[pure] - mean[pure], real[pure] - mean[pure]
    squares = float((span**2).sum())
    return max(0.0, float((span * extra).sum()) / squares) if squares > 0 else 0.0
