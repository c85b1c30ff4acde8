"""Which rows of single requests are kept, once it is known how the requests went; and what a kept row stands for.

```
error, slow, incident, pinned  ->  kept, weight 1          the rest  ->  kept when R >= T, weight 1/p
R = last 56 bits of the trace id      T = 2^56 - round(share 2^56)      p = (2^56 - T) / 2^56
```
Source: W3C Trace Context, level 2 (the last 7 bytes of a trace id are random), and OpenTelemetry's consistent probability sampling: every
sampler that follows the rule keeps the traces of every other one with a smaller share.  A trace that is kept here is kept by the services
around us that keep as much, and the other way round.

**Error**: as `policy.outcome` says; and `cancelled` ones that had no first token, for that is how slowness looks to somebody who does not wait.

**Slow**: over the objective; or, in time to first token or end to end, among the slowest hundredth of its model (`policy.slowest`), so that
a model that is always fast keeps its own slow ones, and one that is rarely asked keeps everything.

**Incident**: while of a model's requests of the last minute or so a tenth or more were bad (errors, or over the objective; `LEAST` of them at
least), all are kept, the good ones too, for they are what the bad ones are compared with.  It ends when fewer than one in fifty is bad.

**Pinned**: tenants, models, engines and traces the configuration names.

Estimates stay unbiased: given all that came before, each row was kept with the known probability 1/weight (Horvitz and Thompson).  A share of
0 keeps none of the rest, and then nothing stands for it; any other keeps one trace in 2^56 at least, for a row that is never kept cannot be
weighed either.

Deliberately absent: the sampled flag of the caller (most SDKs set it on everything, and whose disk it is decides what is on it), and `ot=rv` of
its `tracestate`: a row has its trace's id and no more, and who joins spans to rows later (`telemetry.thinned_traces`) must come to the same answer.
"""

import re
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sits.core.errors import ConfigError
from sits.core.units import SECOND
from sits.policy.slowest import Bools, Longs, Slowest

BITS: Final = 56
WHOLE: Final = 1 << BITS
DIGITS: Final = BITS // 4
"""Hex digits of a trace id that are random, its last."""

GROUPS: Final = 256
"""Models that are told apart; the others are one."""

HALF_LIFE_NS: Final = 30 * SECOND
OPENS, CLOSES, LEAST = 0.1, 0.02, 20.0

_TRACE: Final = re.compile("[0-9a-f]{32}")
REASONS: Final = ("error", "slow", "incident", "pinned", "share")
ERROR, SLOW, INCIDENT, PINNED, SHARE = range(5)


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be kept: the share of the rest (0..1), the objective (`metric` is `ttft` or `e2e`), what is pinned.

    Raises:
        ConfigError: the share is no number of 0..1.

    """

    share: float = 1.0
    metric: str = "ttft"
    objective_ns: int = 1_200_000_000
    tenants: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    engines: frozenset[str] = frozenset()
    traces: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        threshold(self.share)

    def pins(self, tenant: str, model: str, engine: str) -> bool:
        """Whether all of these is kept."""
        return tenant in self.tenants or model in self.models or engine in self.engines


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Finished requests, one a place in each array.

    Attributes:
        model: the number of the model (`Sampler.number`).
        error, cancelled, pinned: as `policy.outcome.is_error` and `Keep.pins` say.
        ttft_ns, e2e_ns: ns since the first byte; -1 = there is none.
        random: last 56 bits of the trace id.

    """

    model: Longs
    error: Bools
    cancelled: Bools
    pinned: Bools
    ttft_ns: Longs
    e2e_ns: Longs
    random: npt.NDArray[np.uint64]


class Kept(msgspec.Struct, frozen=True):
    """What became of a batch: which rows are kept, what each stands for, and how many for which of `REASONS`."""

    rows: Bools
    weight: npt.NDArray[np.float64]
    reasons: tuple[int, ...]


def threshold(share: float) -> int:
    """Traces whose last 56 bits are this or more are kept.

    >>> threshold(1.0), threshold(0.5) == 2**55, threshold(1e-300) == 2**56 - 1, threshold(0.0) == 2**56
    (0, True, True, True)

    Raises:
        ConfigError: the share is no number of 0..1.

    """
    if not 0.0 <= share <= 1.0:
        raise ConfigError(
            f"{share!r} is no share", field="share", value=share, hint="a number of 0..1, 1 keeps everything"
        )
    return WHOLE - max(round(share * WHOLE), 1) if share else WHOLE


def randomness(trace_ids: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Last 56 bits of trace ids of 32 hex digits, lower case; all ones for what is none, so that any share above 0 keeps it.

    >>> randomness(["4bf92f3577b34da6a3ce929d0e0e4736"]).tolist() == [0xCE929D0E0E4736]
    True
    """
    joined = "".join(trace_ids)
    try:
        digits = bytes.fromhex(joined)
    except ValueError:
        digits = b""
    if digits.hex() != joined or set(map(len, trace_ids)) - {32}:  # one of them is no trace id
        return np.array(
            [int(one[-DIGITS:], 16) if _TRACE.fullmatch(one) else WHOLE - 1 for one in trace_ids],
            dtype=np.uint64,
        )
    halves = np.frombuffer(digits, dtype=">u8").reshape(len(trace_ids), 2)
    return halves[:, 1].astype(np.uint64) & np.uint64(WHOLE - 1)


class Sampler:
    """Decides batch by batch; remembers the slowest of each model, and whether it has an incident."""

    def __init__(self, keep: Keep) -> None:
        self.keep = keep
        self._numbers: dict[str, int] = {}
        self._ttft, self._e2e = Slowest(GROUPS), Slowest(GROUPS)
        self._all, self._bad = np.zeros(GROUPS), np.zeros(GROUPS)
        self._open = np.zeros(GROUPS, dtype=np.bool_)
        self._seen_ns = 0

    def number(self, model: str) -> int:
        """The number of a model; the last one is that of all there is no room for."""
        numbers = self._numbers
        if len(numbers) < GROUPS - 1:
            return numbers.setdefault(model, len(numbers))
        return numbers.get(model, GROUPS - 1)

    def incidents(self) -> Collection[str]:
        """Models of which everything is kept at present."""
        return [model for model, number in self._numbers.items() if self._open[number]]

    def decide(self, batch: Batch, now_ns: int) -> Kept:
        """What of a batch is kept; what it says of models counts from the next batch on."""
        keep, model = self.keep, batch.model
        error = batch.error | (batch.cancelled & (batch.ttft_ns < 0))
        judged = batch.ttft_ns if keep.metric == "ttft" else batch.e2e_ns
        over = judged > keep.objective_ns
        slow = over | self._ttft.over(batch.ttft_ns, model) | self._e2e.over(batch.e2e_ns, model)
        start = threshold(keep.share)
        chosen = batch.random >= np.uint64(start) if start < WHOLE else np.zeros(len(model), dtype=np.bool_)
        why = np.full(len(model), len(REASONS))
        for reason, holds in (
            (SHARE, chosen),
            (PINNED, batch.pinned),
            (INCIDENT, self._open[model]),
            (SLOW, slow),
            (ERROR, error),
        ):
            why[holds] = reason
        self._learn(batch, error | over, now_ns)
        weight = np.where(why == SHARE, WHOLE / (WHOLE - start) if start < WHOLE else 0.0, 1.0)
        counts = np.bincount(why, minlength=len(REASONS))[: len(REASONS)]
        return Kept(why < len(REASONS), weight, tuple(counts.tolist()))

    def _learn(self, batch: Batch, bad: Bools, now_ns: int) -> None:
        self._ttft.add(batch.ttft_ns, batch.model)
        self._e2e.add(batch.e2e_ns, batch.model)
        left = 0.5 ** (max(0, now_ns - self._seen_ns) / HALF_LIFE_NS)
        self._seen_ns = now_ns
        self._all = self._all * left + np.bincount(batch.model, minlength=GROUPS)
        self._bad = self._bad * left + np.bincount(batch.model[bad], minlength=GROUPS)
        share = self._bad / np.maximum(self._all, 1e-9)
        self._open = ((share >= OPENS) & (self._bad >= LEAST)) | (self._open & (share >= CLOSES))
