"""The steps of one engine laid out on the time line, so that any window can be asked what happened in it.

A step starts at `t_ns`, copies for `copy_ns`, prepares on the host until `prepare_ns` after its start, then
runs kernels until `duration_ns`.  Copies are part of the preparation chain; where a table counts them beside
it, the longer of the two ends the chain.  A step that would overlap the next one (asynchronous scheduling) is
cut at the next one's start.

A table may hold several runs: the time from the last step of one to the first of the next is nobody's.

`between(a, b, copy=..., ...)` integrates rates over a window: each phase of each step has a rate 0..1, and
the answer is the rate-weighted time in `[a, b]`.  It is a difference of two cumulative sums, so a million
windows cost a million interpolations.

`cost` is the step-time model behind the splits: kernel time = base + prefill_ns * prompt tokens + decode_ns *
decoding requests, fitted by non-negative least squares on relative errors.  Deliberately absent: the
quadratic term of attention (a long prompt's own compute is understated by it), and what a rate means.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from sits.diagnose.columns import Bools, Columns, Floats, Ints, require, rows_of, runs_of

NEEDED = ("engine", "t_ns", "duration_ns", "prefill_tokens", "decode_tokens", "copy_ns", "prepare_ns")
Rate = Floats | Bools | float


class StepCost(NamedTuple):
    """Kernel time of a step: `base_ns + prefill_ns * prompt tokens + decode_ns * decoding requests`."""

    base_ns: float
    prefill_ns: float
    decode_ns: float


class StepTime:
    """All steps of one engine in order; `columns` holds their numbers, `run` (n,) the run each belongs to."""

    def __init__(self, steps: Columns, mine: Ints, run: Ints) -> None:
        order = mine[np.argsort(steps["t_ns"][mine], kind="stable")]
        self.columns = {name: column[order] for name, column in steps.items() if column.dtype != object}
        self.run = run[order]
        self._followed = np.append(self.run[1:] == self.run[:-1], True)
        self.origin_ns = int(self.columns["t_ns"][0])
        start = (self.columns["t_ns"] - self.origin_ns).astype(np.float64)
        end = start + self.columns["duration_ns"]
        end[:-1] = np.minimum(end[:-1], start[1:])
        copied = np.minimum(start + self.columns["copy_ns"], end)
        ready = np.minimum(np.maximum(start + self.columns["prepare_ns"], copied), end)
        self._knots = np.column_stack([start, copied, ready, end])
        self.start, self.end = start, end
        self.copy_ns, self.kernel_ns = copied - start, end - ready
        self.prefill_tokens = self.columns["prefill_tokens"].astype(np.float64)
        self.cost = _fit(
            self.kernel_ns, self.prefill_tokens, self.columns["decode_tokens"].astype(np.float64)
        )

    def column(self, name: str) -> Floats:
        """Column `name` over the steps as floats; zeros when the table lacks it."""
        if name not in self.columns:
            return np.zeros(len(self.start))
        return self.columns[name].astype(np.float64)

    def kernel_share(self, tokens: Floats) -> Floats:
        """Share of each step's kernel time that `tokens` prompt tokens of it account for."""
        return np.clip(self.cost.prefill_ns * tokens / np.maximum(self.kernel_ns, 1.0), 0.0, 1.0)

    def between(
        self,
        a_ns: Ints,
        b_ns: Ints,
        *,
        copy: Rate = 0.0,
        prepare: Rate = 0.0,
        kernel: Rate = 0.0,
        gap: Rate = 0.0,
    ) -> Floats:
        """Rate-weighted ns in `[a_ns, b_ns]` for each window; `gap` is the time from a step's end to its run's next start."""
        n = len(self.start)
        knots = self._knots.ravel()
        rates = np.column_stack(
            [np.broadcast_to(np.asarray(r, dtype=np.float64), n) for r in (copy, prepare, kernel, gap)]
        )
        rates[:, 3] *= self._followed
        spent = np.diff(knots) * rates.ravel()[:-1]
        cumulative = np.concatenate([[0.0], np.cumsum(spent)])
        a, b = a_ns - self.origin_ns, b_ns - self.origin_ns
        return np.maximum(np.interp(b, knots, cumulative) - np.interp(a, knots, cumulative), 0.0)

    def last_end(self, at_ns: Ints) -> Ints:
        """End of the last step that ended at or before each time; the time itself when there is none."""
        index = np.searchsorted(self.end, at_ns - self.origin_ns, side="right") - 1
        ends = self.origin_ns + self.end[np.maximum(index, 0)].astype(np.int64)
        return np.where(index >= 0, np.minimum(ends, at_ns), at_ns)

    def prompt_end(self, scheduled_ns: Ints, first_ns: Ints, tokens: Floats) -> Ints:
        """End of the step that computed the last of each request's `tokens` prompt tokens, at most `first_ns`.

        A request gets what a step computes of prompts, up to the largest chunk that a lone request ever got; of a
        step that is full it may have got little, so that counts nothing.  Where this does not add up before
        `first_ns`, it is the last step with prompt tokens that ended by then; where there is none, the last step.
        """
        load = self.prefill_tokens + self.column("decode_tokens")
        alone = self.prefill_tokens[self.column("running") == 1]
        chunk = float(alone.max(initial=0.0)) or float(self.prefill_tokens.max())
        gained = np.cumsum(np.where(load < load.max(), np.minimum(self.prefill_tokens, chunk), 0.0))
        first = np.searchsorted(self.end, scheduled_ns - self.origin_ns, side="right")
        before = np.where(first > 0, gained[np.minimum(first, len(gained)) - 1], 0.0)
        done = np.searchsorted(gained, before + np.maximum(tokens, 1.0), side="left")
        prompts = np.flatnonzero(self.prefill_tokens > 0)
        last = np.searchsorted(self.end[prompts], first_ns - self.origin_ns, side="right") - 1
        latest = prompts[np.maximum(last, 0)] if len(prompts) else np.zeros(len(last), dtype=np.int64)
        ends = self.origin_ns + self.end[np.minimum(done, latest)].astype(np.int64)
        return np.where((last >= 0) & (ends > scheduled_ns), ends, self.last_end(first_ns))

    def boundary_after(self, at_ns: Ints) -> Ints:
        """End of the step in progress at each time; the time itself when no step is running."""
        index = np.searchsorted(self.start, at_ns - self.origin_ns, side="right") - 1
        ends = self.origin_ns + self.end[np.maximum(index, 0)].astype(np.int64)
        return np.where(index >= 0, np.maximum(ends, at_ns), at_ns)


def by_engine(steps: Columns) -> dict[str, StepTime]:
    """One `StepTime` for each engine of the table, by name; empty when there are no steps.

    Raises:
        CallerError: a needed column is missing.

    """
    if rows_of(steps) == 0:
        return {}
    require(steps, NEEDED, "steps")
    engines = steps["engine"].tolist()
    index = {name: i for i, name in enumerate(sorted(set(engines)))}
    which = np.fromiter(map(index.__getitem__, engines), dtype=np.int64, count=len(engines))
    run = runs_of(steps)
    return {name: StepTime(steps, np.flatnonzero(which == i), run) for name, i in index.items()}


def observed_ns(lines: Iterable[StepTime]) -> float:
    """From the first step of any engine to the end of the last one, within each run, summed over the runs."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for line in lines:
        for run in np.unique(line.run).tolist():
            mine = np.flatnonzero(line.run == run)
            start, end = (line.origin_ns + float(x) for x in (line.start[mine[0]], line.end[mine[-1]]))
            first[run], last[run] = min(first.get(run, start), start), max(last.get(run, end), end)
    return sum(last[run] - first[run] for run in first)


def _fit(kernel: Floats, prefill: Floats, decode: Floats) -> StepCost:
    """Non-negative least squares on relative errors: the best feasible one of the 7 subsets of 3 terms."""
    weight = 1.0 / np.maximum(kernel, 1.0)
    terms = np.column_stack([np.ones(len(kernel)), prefill, decode]) * weight[:, None]
    size = np.maximum(np.sqrt((terms**2).sum(axis=0)), 1e-300)
    terms /= size
    target = kernel * weight
    gram = np.einsum("ij,ik->jk", terms, terms)
    toward, least = np.einsum("ij,i->j", terms, target), float(np.sum(target**2))
    best, most = np.zeros(3), least * 1e-12
    for count in (1, 2, 3):
        for chosen in map(list, combinations(range(3), count)):
            found = np.linalg.lstsq(gram[np.ix_(chosen, chosen)], toward[chosen], rcond=1e-10)[0]
            explained = float(2 * found @ toward[chosen] - found @ gram[np.ix_(chosen, chosen)] @ found)
            if (found >= 0).all() and explained > most + 1e-12 * least:
                best, most = np.zeros(3), explained
                best[chosen] = found
    return StepCost(*(float(x) for x in best / size))
