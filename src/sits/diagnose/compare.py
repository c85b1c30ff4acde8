"""Do two configurations differ in P99?  Quantiles over paired seeds, with a two-stage cluster bootstrap.

A *sample set* is one array of latencies (ms) per seed; sample sets compared with each other list the same
seeds in the same order.  Resampled are (1) the seeds, with replacement, the *same* seeds for every
configuration (that is the pairing), and (2) within each draw as many requests as the drawn seeds hold, with
replacement, out of those seeds' requests pooled, independently for each configuration.  Stage 1 carries the
run-to-run spread, stage 2 the noise of a quantile.  Both together err on the wide side.

Stage 2 needs no resampling: the r-th smallest of N draws from a distribution F is F^-1(U) with U ~ Beta(r, N
+ 1 - r) (order statistics of uniforms), so one beta number and a binary search in the pooled sorted values
stand for N draws, exactly.

*Paired requests.*  When every sample set has the same requests in the same rows (`paired`; the caller knows), stage 2 draws one weight for each request, Poisson with the times its seed was drawn, and uses it in
every configuration (the Poisson bootstrap, Chamandy et al. 2012).  What moves both quantiles then cancels
out of their difference, which is what a paired comparison is for.

A quantile is the `ceil(q N)`-th smallest value.  Differences are `a - b` of the quantiles of the same draw.

Deliberately absent: p-values.  An interval that excludes zero says it with its size.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sits.core.errors import CallerError
from sits.core.finding import Interval
from sits.core.report import Ablation
from sits.diagnose.columns import Floats, Ints
from sits.diagnose.resample import interval, quantile

Samples = Sequence[np.ndarray]
DRAWS = 2000


class Drawn(NamedTuple):
    """A quantile and its resampled versions: `value` over all seeds, `draws` (B,)."""

    value: float
    draws: Floats


class Difference(NamedTuple):
    """How a quantile differs between two sample sets over the same seeds.

    Attributes:
        a, b: the two quantiles (ms).
        saved: `a - b` (ms), positive when `b` is faster.
        relative: `1 - b/a`, the share of `a` that is saved.
        effect_size: mean of the per-seed differences over their standard deviation (Cohen's d for pairs);
            NaN with fewer than two seeds or without any spread.

    """

    a: Interval
    b: Interval
    saved: Interval
    relative: Interval
    effect_size: float


def draw_seeds(seeds: int, rng: np.random.Generator, draws: int = DRAWS) -> Ints:
    """How often each seed is in each draw: (draws, seeds), rows add up to `seeds`.

    Raises:
        CallerError: fewer than one seed.

    """
    if seeds < 1:
        raise CallerError(
            "no seeds to compare over", field="seeds", value=seeds, hint="run at least one seed"
        )
    picked = rng.integers(0, seeds, size=(draws, seeds)) + seeds * np.arange(draws)[:, None]
    return np.bincount(picked.ravel(), minlength=draws * seeds).reshape(draws, seeds)


def draw_quantile(samples: Samples, counts: Ints, rng: np.random.Generator, q: float = 0.99) -> Drawn:
    """The `q` quantile over all seeds pooled, and one for each row of `counts` (see `draw_seeds`).

    Raises:
        CallerError: a seed without values, values that are not finite, or counts for another number of seeds.

    """
    arrays = _checked(samples)
    if counts.shape[1] != len(arrays):
        raise CallerError(
            f"{len(arrays)} seeds here, {counts.shape[1]} in the other configuration",
            field="samples",
            value=len(arrays),
            hint="paired sample sets list the same seeds in the same order",
        )
    values = np.concatenate(arrays)
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    owner = np.repeat(np.arange(len(arrays)), [len(a) for a in arrays])[order]
    below = np.zeros((len(values) + 1, len(arrays)), dtype=np.int64)
    np.cumsum(owner[:, None] == np.arange(len(arrays)), axis=0, out=below[1:])
    total = counts @ below[-1]
    rank = np.maximum(1, np.ceil(q * total - 1e-9))
    target = rng.beta(rank, total + 1 - rank) * total
    return Drawn(quantile(ranked, q), ranked[_first_reaching(below, counts, target)])


def draw_paired(
    sets: Mapping[str, Samples], counts: Ints, rng: np.random.Generator, q: float = 0.99
) -> dict[str, Drawn]:
    """`draw_quantile` of several sample sets whose rows are the same requests, with one set of weights for all.

    Raises:
        CallerError: as `draw_quantile`, or sets that do not have the same number of requests for every seed.

    """
    pooled = {name: np.concatenate(_checked(samples)) for name, samples in sets.items()}
    sizes = {name: [len(array) for array in samples] for name, samples in sets.items()}
    first = next(iter(sizes.values()))
    for name, size in sizes.items():
        if size != first:
            raise CallerError(
                f"{name!r} has {size} requests a seed, the first set {first}",
                field="sets",
                value=name,
                hint="paired requests are the same rows in every configuration",
            )
    owner = np.repeat(np.arange(len(first)), first)
    orders = {name: np.argsort(-values, kind="stable") for name, values in pooled.items()}
    found = {name: np.empty(len(counts)) for name in sets}
    for at in range(0, len(counts), _BLOCK_DRAWS):
        weights = rng.poisson(counts[at : at + _BLOCK_DRAWS, owner]).astype(np.int32)
        total = weights.sum(axis=1)
        above = total - np.maximum(1, np.ceil(q * total - 1e-9)).astype(np.int64)
        for name, order in orders.items():
            found[name][at : at + _BLOCK_DRAWS] = pooled[name][order][_first_past(weights, order, above)]
    return {name: Drawn(quantile(np.sort(pooled[name]), q), drawn) for name, drawn in found.items()}


_BLOCK_DRAWS = 100
"""Draws weighed at a time: bounds the memory to a few tens of megabytes."""


def _first_past(weights: np.ndarray, order: Ints, above: Ints) -> Ints:
    """For each draw the first place, from the largest value down, at which more than `above` weight has come.

    Only the top of the order decides a high quantile, so the top is looked at first and the rest when it was not enough.
    """
    depth = min(len(order), max(64, 4 * int(above.max())))
    while True:
        passed = np.cumsum(weights[:, order[:depth]], axis=1) > above[:, None]
        if depth == len(order) or bool(passed[:, -1].all()):
            return passed.argmax(axis=1)
        depth = min(len(order), 4 * depth)


def _first_reaching(below: Ints, counts: Ints, target: Floats) -> Ints:
    """For each draw the first position whose weighted count reaches `target`, by bisection over all draws."""
    low = np.zeros(len(counts), dtype=np.int64)
    high = np.full(len(counts), len(below) - 1, dtype=np.int64)
    while bool((high - low > 1).any()):
        middle = (low + high) // 2
        reached = np.einsum("bs,bs->b", below[middle], counts) >= target
        high = np.where(reached, middle, high)
        low = np.where(reached, low, middle)
    return high - 1


def _checked(samples: Samples) -> list[Floats]:
    arrays = [np.asarray(a, dtype=np.float64) for a in samples]
    for seed, array in enumerate(arrays):
        if array.ndim != 1 or len(array) == 0 or not bool(np.isfinite(array).all()):
            raise CallerError(
                f"sample of seed number {seed} has shape {array.shape}"
                + ("" if array.size == 0 or np.isfinite(array).all() else " and values that are not finite"),
                field="samples",
                value=seed,
                hint="give one flat, non-empty array of finite latencies per seed",
            )
    return arrays


def pooled_quantile(
    samples: Samples, rng: np.random.Generator, *, q: float = 0.99, draws: int = DRAWS
) -> Interval:
    """The `q` quantile over all seeds pooled, with its two-stage interval."""
    drawn = draw_quantile(samples, draw_seeds(len(samples), rng, draws), rng, q)
    return interval(drawn.value, drawn.draws)


def difference(
    a: Samples, b: Samples, rng: np.random.Generator, *, q: float = 0.99, draws: int = DRAWS
) -> Difference:
    """How the `q` quantile of `b` differs from that of `a`, seeds paired.

    Raises:
        CallerError: as `draw_quantile`.

    """
    counts = draw_seeds(len(a), rng, draws)
    first, second = draw_quantile(a, counts, rng, q), draw_quantile(b, counts, rng, q)
    by_seed = np.array([quantile(np.sort(x), q) - quantile(np.sort(y), q) for x, y in zip(a, b, strict=True)])
    spread = float(by_seed.std(ddof=1)) if len(by_seed) > 1 else 0.0
    return Difference(
        a=interval(first.value, first.draws),
        b=interval(second.value, second.draws),
        saved=_minus(first, second),
        relative=_relative(first, second),
        effect_size=float(by_seed.mean()) / spread if spread > 0 else float("nan"),
    )


def _minus(a: Drawn, b: Drawn) -> Interval:
    return interval(a.value - b.value, a.draws - b.draws)


def _relative(a: Drawn, b: Drawn) -> Interval:
    """`1 - b/a`; where `a` is 0 nothing can be saved and the share is 0."""
    base = np.where(a.draws > 0, a.draws, 1.0)
    drawn = np.where(a.draws > 0, 1.0 - b.draws / base, 0.0)
    return interval(1.0 - b.value / a.value if a.value > 0 else 0.0, drawn)


def ablation_rows(
    bad: Samples,
    alone: Mapping[str, Samples],
    all_samples: Samples,
    without: Mapping[str, Samples],
    rng: np.random.Generator,
    *,
    titles: Mapping[str, str] | None = None,
    paired: bool = True,
    q: float = 0.99,
    draws: int = DRAWS,
) -> tuple[Ablation, ...]:
    """The rows of an ablation: `none` (bad), each fix of `alone` in the order given, `all`.

    `saved` = P99(bad) - P99(this row); `needed` = P99(all but this fix) - P99(all): what leaving it out costs.
    All rows share the drawn seeds, and with `paired` the drawn requests: then row i of a seed must be the same
    request in every set.  `titles` names fixes for readers; a fix without one is shown by its id.

    Raises:
        CallerError: as `draw_quantile`, or `without` names a fix that `alone` does not.

    """
    if unknown := sorted(set(without) - set(alone)):
        raise CallerError(
            f"{unknown[0]!r} is left out but never tried alone",
            field="without",
            value=unknown[0],
            hint=f"the fixes are {', '.join(alone) or 'none'}",
        )
    names = titles or {}
    counts = draw_seeds(len(bad), rng, draws)
    sets = {("none", ""): bad, ("all", ""): all_samples}
    sets |= {("alone", fix): samples for fix, samples in alone.items()}
    sets |= {("without", fix): samples for fix, samples in without.items()}
    drawn_sets = _draw_all(sets, counts, rng, q, paired)
    before, after = drawn_sets["none", ""], drawn_sets["all", ""]
    singles = {fix: drawn_sets["alone", fix] for fix in alone}
    lacking = {fix: drawn_sets["without", fix] for fix in without}
    rows = [Ablation("none", names.get("none", "as it was"), interval(before.value, before.draws))]
    for fix, drawn in singles.items():
        left_out = lacking.get(fix)
        rows.append(
            Ablation(
                id=fix,
                title=names.get(fix, fix),
                p99=interval(drawn.value, drawn.draws),
                saved=_minus(before, drawn),
                without=interval(left_out.value, left_out.draws) if left_out else None,
                needed=_minus(left_out, after) if left_out else None,
            )
        )
    rows.append(
        Ablation(
            "all",
            names.get("all", "all fixes"),
            interval(after.value, after.draws),
            saved=_minus(before, after),
        )
    )
    return tuple(rows)


def _draw_all(
    sets: Mapping[tuple[str, str], Samples], counts: Ints, rng: np.random.Generator, q: float, paired: bool
) -> dict[tuple[str, str], Drawn]:
    """Paired by request, or by seed alone."""
    if not paired:
        return {key: draw_quantile(samples, counts, rng, q) for key, samples in sets.items()}
    named = draw_paired({"/".join(key): samples for key, samples in sets.items()}, counts, rng, q)
    return {key: named["/".join(key)] for key in sets}
