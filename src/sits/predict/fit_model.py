"""A calibrated model of one engine as a file: what was fitted, on what, where it holds, and what was assumed.

`model.json` is versioned JSON, written by `sitsctl calibrate` and read by `sitsctl predict`.  It holds the step-time law with its
residuals, the front end's law, the engine's limits with their sources, the ranges of what was seen, and the share of prompt tokens
that the prefix cache gave.  A reader of an unknown version refuses instead of guessing.

Deliberately absent: opening files; and anything of the machine it was made on but its figures.
"""

from collections.abc import Iterator

import msgspec

from sits.core.errors import ConfigError
from sits.predict.fit_limits import LIMITS, Limits
from sits.predict.fit_steps import StepLaw
from sits.predict.frontend import FrontLaw
from sits.predict.steptime import StepTime

KIND, VERSION = "sits-engine-model", 1
COEFFICIENTS = ("base_ms", "mixed_ms", "prompt_token_ms", "chunk_ms", "decode_ms", "kv_token_ms", "pause_ms", "pause_decode_ms", "pause_mixed_ms", "prompt_kv_ms")  # fmt: skip
MOST = 1e9
BEYOND_MOST = 20.0
"""Log ratio of a range that says nothing."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Smallest and largest value seen."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether `value` was within what was seen."""
        return self.low <= value <= self.high


class FittedOn(msgspec.Struct, frozen=True, kw_only=True):
    """What a model was fitted on: source, runs, and counts; `span_s` from the first run's start to the last one's."""

    source: str
    runs: tuple[str, ...]
    requests: int
    steps: int
    failed: int
    span_s: float
    foreign_cores: float | None = None


class PrefixHits(msgspec.Struct, frozen=True, kw_only=True):
    """What the prefix cache gave in the recording: share of prompt tokens, and share of requests (of over a block) that hit.

    That is a property of what was asked, so shares of requests are kept by kind of load; None: no run of that kind.
    """

    tokens: float = 0.0
    closed: float | None = None
    open: float | None = None


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """|error| of runs left out while fitting: median and 90th percentile over `runs` runs, by metric and figure (`ttft_ms`, `p99`).

    `covered` is the share of measured figures within the range that passes of the simulation give (90 % is meant); `beyond`, by metric, is how far
    outside of it nine in ten of them lay at most, as a log ratio (0: they lay inside).  Predictions widen their ranges by that.
    """

    runs: int
    median: dict[str, dict[str, float]]
    p90: dict[str, dict[str, float]]
    covered: float
    beyond: dict[str, float] = {}


class FittedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """A calibrated model; see the module."""

    kind: str = KIND
    version: int = VERSION
    fitted_on: FittedOn
    limits: Limits
    steps: StepLaw
    front: FrontLaw
    prefix: PrefixHits
    prompt_tokens: Range
    output_tokens: Range
    batch: Range
    in_flight: Range
    rate_per_s: Range
    assumed: tuple[str, ...] = ()
    held_out: HeldOut | None = None

    def step_time(self) -> StepTime:
        """The step-time law in the words of `predict.steptime`: decodes, chunks and a fixed part for steps that prefill."""
        law = self.steps
        return StepTime(
            source=f"fitted to {law.steps} steps of {self.fitted_on.source}; median error of a step {law.median_error:.0%}",
            dense_tokens=(1.0,),
            dense_us=(law.base_ms * 1e3,),
            head_seqs=(1.0,),
            head_us=(0.0,),
            prefill_us=law.chunk_ms * 1e3,
            prefill_us_per_token=law.prompt_token_ms * 1e3,
            prefill_us_per_token_kv=law.prompt_kv_ms * 1e3,
            decode_us=0.0,
            decode_us_per_seq=law.decode_ms * 1e3,
            decode_us_per_kv_token=law.kv_token_ms * 1e3,
            skew=0.0,
            overhead_us=0.0,
            eager_us=law.mixed_ms * 1e3,
            noise_cv=0.0,
        )

    def encode(self) -> bytes:
        """The file's bytes."""
        return msgspec.json.format(msgspec.json.encode(self), indent=0) + b"\n"


class _Head(msgspec.Struct):
    kind: str
    version: int


def decode_model(data: bytes, where: str) -> FittedEngine:
    """Read a model's bytes; `where` names them in errors.

    Raises:
        ConfigError: not a model, one of another version, or a damaged one.

    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(
            f"{where} is not an engine model: {error}",
            value=where,
            hint="make one with `sitsctl calibrate DIR -o model.json`",
        ) from error
    if head.kind != KIND or head.version != VERSION:
        raise ConfigError(
            f"{where} is a {head.kind!r} of version {head.version}; this program reads {KIND!r} of version {VERSION}",
            field="version",
            value=head.version,
            hint="calibrate again with this version",
        )
    try:
        model = msgspec.json.decode(data, type=FittedEngine)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(
            f"{where} is a damaged engine model: {error}", value=where, hint="calibrate again"
        ) from error
    for field, value, good, wanted in _rules(model):
        if not good:
            raise ConfigError(
                f"{where}: {field} is {value!r}", field=field, value=value, hint=f"{wanted}; calibrate again"
            )
    return model


def _rules(model: FittedEngine) -> Iterator[tuple[str, object, bool, str]]:
    """`(field, value, whether it can be, what would be right)`: what a fit never writes, and a hand may."""
    for name in LIMITS:
        value = getattr(model.limits, name).value
        yield f"limits.{name}.value", value, 1 <= value <= MOST, "1 or more"
    for name in COEFFICIENTS:
        time = getattr(model.steps, name)
        yield f"steps.{name}", time, 0.0 <= time <= MOST, "a time in ms, zero or more"
    front = model.front
    yield "front.serial_ms", front.serial_ms, 0.0 <= front.serial_ms <= MOST, "a time in ms, zero or more"
    yield "front.level_spread", front.level_spread, 0.0 <= front.level_spread <= 10.0, "0 to 10"
    levels = model.steps.levels
    yield "steps.levels", levels, bool(levels) and all(1e-6 < v < 1e6 for v in levels.values()), "above zero"
    for name, row in (("slow", model.steps.slow), ("decode.factor", model.steps.decode.factor), ("mixed.factor", model.steps.mixed.factor)):  # fmt: skip
        yield (
            f"steps.{name}",
            _few(row),
            bool(row) and all(0.0 < v <= MOST for v in row),
            "factors above zero",
        )
    for name, kind in (("decode", model.steps.decode), ("mixed", model.steps.mixed)):
        pair = len(kind.factor) == len(kind.beyond_ms) and all(0.0 <= v <= MOST for v in kind.beyond_ms)
        yield f"steps.{name}.beyond_ms", _few(kind.beyond_ms), pair, "a time in ms for each factor"
    starts = [one.in_flight_min for one in front.bins]
    ordered = bool(starts) and starts[0] == 0 and starts == sorted(set(starts))
    yield "front.bins", starts, ordered, "in_flight_min ascending from 0"
    for place, one in enumerate(front.bins):
        rows = (one.enter_ms, one.first_ms, one.last_ms, one.end_ms)
        even = all(len(row) == len(one.weight) and all(abs(v) <= MOST for v in row) for row in rows)
        yield f"front.bins[{place}]", len(one.weight), even and len(one.weight) > 0, "columns of equal length"
        heavy = all(0.0 <= v <= MOST for v in one.weight) and sum(one.weight) > 0.0
        yield f"front.bins[{place}].weight", _few(one.weight), heavy, "weights, zero or more, not all zero"
    for name, ratio in (model.held_out.beyond if model.held_out else {}).items():
        yield f"held_out.beyond.{name}", ratio, 0.0 <= ratio <= BEYOND_MOST, "a log ratio, zero or more"
    for name in ("tokens", "closed", "open"):
        share = getattr(model.prefix, name)
        yield f"prefix.{name}", share, share is None or 0.0 <= share <= 1.0, "a share, 0 to 1"


def _few(row: tuple[float, ...]) -> list[float]:
    """The least values of a long row, for an error.

    >>> _few((3.0, -1.0, 2.0, 5.0))
    [-1.0, 2.0, 3.0]
    """
    return sorted(row)[:3]
