"""The engine model: `EngineModel` step by step, `simulate` for a whole trace; both run `kernel.step`.

The model knows requests by the caller's names for them (anything hashable) and speaks in `StepResult`s; the compiled kernel knows rows of a
matrix.  A row is reused when its request is gone, so memory follows the number of unfinished requests.

`coast` runs a stretch of uneventful steps in one call, and `rewind` takes the end of the stretch back when
something does happen: most steps of a busy engine are such, and this makes them cost a tenth.

Numba is imported when the first model is made, not when this module is; compiled code is kept on disk beside
the package (or in the user's cache when that is read-only) and survives the process.

Deliberately absent: clocks.  The caller says when a step starts.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.errors import CapacityError, ConfigError
from sits.predict.prepare import Rank
from sits.predict.steptime import SCALARS, StepTime
from sits.sim.spec import EngineSpec, refusal

Id = TypeVar("Id", bound=Hashable)
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

COAST_MAX = 256
"""Uneventful steps run in one call at most."""

NOISE_DRAWS = 8192
"""Noise multipliers drawn at a time; a run uses them in a ring."""


class StepResult(msgspec.Struct, Generic[Id]):
    """What one step did.  Times ns, KV in blocks; `stages_ns` are the preparation stages `kv_allocate` .. `launch`.

    `running` and `waiting` are counts after admission, `kv_used` includes the step's own blocks.  `started`,
    `first` and `finished` are the requests scheduled for the first time, with their first token, and with their
    last (with `preemptions`, how often each was preempted); `emitted` those that got one of the `tokens`
    generated, empty when not asked for.  Tokens exist at the end of the step.
    """

    t_ns: int
    duration_ns: int
    running: int
    waiting: int
    prefill_tokens: int
    decode_tokens: int
    kv_used: int
    preempted: int
    denied: int
    recomputed_tokens: int
    copy_bytes: int
    copy_ns: int
    adapter_loads: int
    eager: int
    prepare_ns: int
    tokens: int
    stages_ns: tuple[int, ...]
    started: list[Id]
    first: list[Id]
    finished: list[Id]
    preemptions: list[int]
    emitted: list[Id]


def noise_draws(spec: EngineSpec, rng: np.random.Generator | None, count: int = NOISE_DRAWS) -> Floats:
    """Log-normal multipliers of device time with mean 1 and the step's `noise_cv`; `[1.0]` without `rng`."""
    if rng is None or spec.step.noise_cv == 0.0:
        return np.ones(1)
    variance = np.log1p(spec.step.noise_cv**2)
    return rng.lognormal(-variance / 2, np.sqrt(variance), count)


class EngineModel(Generic[Id]):
    """One engine: `add` requests, `step` while there is work, `cancel` what nobody waits for.

    Pass `rng` for log-normal noise on device time.
    """

    def __init__(self, spec: EngineSpec, rng: np.random.Generator | None = None, capacity: int = 256) -> None:
        from sits.sim import arrays, kernel  # noqa: PLC0415  (numba loads with the first model)

        for field in ("prefix_caching", "async_scheduling"):
            if getattr(spec, field):
                raise ConfigError(
                    "an engine that is asked step by step cannot do that",
                    field=field,
                    value=True,
                    hint="run a whole trace (`simulate`), or set it to False",
                )
        self.spec = spec
        self._kernel = kernel
        self._settings = arrays.settings(spec)
        self._state = arrays.empty(spec, capacity)
        self._noise_ring = noise_draws(spec, rng)
        self._noise = self._noise_ring.tolist()
        self._steps = 0
        self._coasted = 0
        self._stretch = np.zeros((COAST_MAX, kernel.STARTED_COUNT), np.int64)
        self._names: list[Id | None] = [None] * capacity
        self._rows: dict[Id, int] = {}
        self._vacant = list(range(capacity - 1, -1, -1))
        self._adapters: dict[str, int] = {}
        self._result = np.zeros(kernel.RESULT_COUNT, np.int64)
        self._lists = np.zeros((kernel.ID_LISTS, spec.max_num_seqs), np.int64)
        self._arguments = self._pack()

    def check(self, name: object, prompt_tokens: int, output_tokens: int, adapter: str = "") -> None:
        """Raise CapacityError when such a request could never be served here; `name` is for its text."""
        why = refusal(self.spec, prompt_tokens, output_tokens, bool(adapter))
        if why:
            raise CapacityError(
                f"request {name}: {why}", field="prompt_tokens", value=prompt_tokens, code="never_fits"
            )

    def add(
        self, name: Id, prompt_tokens: int, output_tokens: int, adapter: str = "", priority: int = 0
    ) -> None:
        """Put a request into the waiting queue; `output_tokens` is the true length of its answer.

        `priority`, lower first, counts only where the spec orders by it.

        Raises:
            CapacityError: it could never be served here.
            ValueError: the name is already here.

        """
        self.check(name, prompt_tokens, output_tokens, adapter)
        if name in self._rows:
            raise ValueError(f"request {name!r} is already in this engine")
        if not self._vacant:
            self._grow()
        row = self._vacant.pop()
        number = self._adapters.setdefault(adapter, len(self._adapters)) if adapter else -1
        self._rows[name] = row
        self._names[row] = name
        self._kernel.add(
            self._state.rows,
            self._state.tally,
            row,
            prompt_tokens,
            output_tokens,
            number,
            priority,
            int(self.spec.order == "priority"),
        )

    def cancel(self, name: Id) -> bool:
        """Forget a request and free its blocks at once; False when it is not (or no longer) here."""
        row = self._rows.pop(name, None)
        if row is None:
            return False
        self._kernel.cancel(self._state.rows, self._state.running, self._state.tally, row)
        self._names[row] = None
        self._vacant.append(row)
        return True

    def step(self, now_ns: int, emitted: bool = True) -> StepResult[Id] | None:
        """Run one step that starts at `now_ns`; None when there is nothing to do.

        `emitted` False leaves the list of that name empty, which is cheaper.
        """
        if not self._rows:
            return None
        noise = self._noise[self._steps % len(self._noise)]
        self._steps += 1
        self._coasted = 0
        kernel = self._kernel
        kernel.step(now_ns, noise, *self._arguments)
        cells = self._result.tolist()
        got_token = self._named(kernel.EMITTED, cells[kernel.EMITTED_COUNT]) if emitted else []
        started = self._named(kernel.STARTED, cells[kernel.STARTED_COUNT])
        first = self._named(kernel.FIRST, cells[kernel.FIRST_COUNT])
        finished, preemptions = self._leave(cells[kernel.FINISHED_COUNT])
        figures = cells[: kernel.STARTED_COUNT]
        stages = tuple(cells[kernel.STAGE_0 :])
        tokens = cells[kernel.EMITTED_COUNT]
        return StepResult(*figures, tokens, stages, started, first, finished, preemptions, got_token)  # type: ignore[arg-type,call-arg]

    def coast(self, now_ns: int) -> list[int]:
        """Run the uneventful steps from `now_ns` on, `COAST_MAX` at most, and return their ends in ns.

        Uneventful: nobody waits, everybody decodes, blocks last, nobody finishes; so each step gives every
        running request one token and changes nothing else.  The same steps one by one give the same state.
        """
        kernel = self._kernel
        done = kernel.coast(now_ns, self._steps, self._noise_ring, self._stretch, *self._arguments)
        self._steps += done
        self._coasted = done
        stretch = self._stretch[:done]
        ends_ns: list[int] = (stretch[:, kernel.T_NS] + stretch[:, kernel.DURATION_NS]).tolist()
        return ends_ns

    def coasted(self, steps: int) -> list[list[int]]:
        """The first `steps` reports of the last `coast`: the fields of `StepResult` up to `prepare_ns`."""
        reports: list[list[int]] = self._stretch[:steps].tolist()
        return reports

    def rewind(self, steps: int) -> None:
        """Take back the last `steps` steps of the `coast` that was the last to run; its first step stays.

        Raises:
            ValueError: so many steps did not coast.

        """
        if not 0 <= steps < max(1, self._coasted):
            raise ValueError(f"{steps} steps back, of a stretch of {self._coasted} whose first stays")
        state = self._state
        self._kernel.rewind(steps, state.rows, state.running, state.tally, state.slots, self._settings.whole)
        self._steps -= steps
        self._coasted -= steps

    def blocks_taken(self, steps: int) -> int:
        """Blocks the last `steps` steps of a `coast` took; what a `rewind` of them would give back."""
        kernel, state = self._kernel, self._state
        rows = state.rows[state.running[: self.running]]
        before = -(-(rows[:, kernel.COMPUTED] - steps) // self.spec.block_size)
        return int((rows[:, kernel.BLOCKS] - before).sum())

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return int(self._state.tally[self._kernel.RUNNING_COUNT])

    @property
    def waiting(self) -> int:
        """Requests in the waiting queue, preempted ones included."""
        return int(self._state.tally[self._kernel.WAITING_COUNT])

    @property
    def blocks_free(self) -> int:
        """KV blocks nobody holds."""
        return int(self._state.tally[self._kernel.FREE])

    @property
    def blocks_held(self) -> int:
        """KV blocks held by requests, counted from the requests."""
        return int(self._state.rows[:, self._kernel.BLOCKS].sum())

    def __len__(self) -> int:
        """Unfinished requests."""
        return len(self._rows)

    def __contains__(self, name: Id) -> bool:
        return name in self._rows

    def _named(self, which: int, count: int) -> list[Any]:
        if not count:
            return []
        names = self._names
        return [names[row] for row in self._lists[which, :count].tolist()]

    def _leave(self, count: int) -> tuple[list[Any], list[int]]:
        if not count:
            return [], []
        left = []
        rows = self._lists[self._kernel.FINISHED, :count].tolist()
        for row in rows:
            name: Any = self._names[row]
            left.append(name)
            self._names[row] = None
            del self._rows[name]
            self._vacant.append(row)
        return left, self._state.rows[rows, self._kernel.PREEMPTIONS].tolist()

    def _grow(self) -> None:
        old = self._state.rows
        size = len(old)
        self._state = self._state._replace(rows=np.concatenate([old, np.zeros_like(old)]))
        self._names.extend([None] * size)
        self._vacant.extend(range(2 * size - 1, size - 1, -1))
        self._arguments = self._pack()

    def _pack(self) -> tuple[NDArray[Any], ...]:
        return (*self._state, *self._settings, self._result, self._lists)


class Simulated(NamedTuple):
    """What became of a trace, in the order of its requests (ns; -1 = refused as never fitting).

    `queued_ns` is when a request joined the waiting queue, after the front end; `end_ns` the end of the last step.
    """

    queued_ns: Ints
    scheduled_ns: Ints
    first_token_ns: Ints
    last_token_ns: Ints
    preemptions: Ints
    steps: int
    end_ns: int


def front_end_ns(spec: EngineSpec, arrivals_ns: Ints, prompt_tokens: Ints) -> Ints:
    """When each request joins the waiting queue: one front-end process serves them in order of arrival.

    With work w the process is done with request i at d_i = max(a_i, d_{i-1}) + w_i, which unrolls to
    cumsum(w)_i + max over j <= i of (a_j - cumsum(w)_{j-1}).
    """
    front = spec.front
    work = np.floor((front.api_us + front.tokenize_us_per_token * prompt_tokens) * 1000.0 + 0.5).astype(
        np.int64
    )
    done = np.cumsum(work)
    return done + np.maximum.accumulate(arrivals_ns - (done - work)) + int(front.enqueue_us * 1000.0 + 0.5)


def simulate(
    arrivals_ns: Ints,
    prompt_tokens: Ints,
    output_tokens: Ints,
    adapters: Ints | None,
    spec: EngineSpec,
    rng: np.random.Generator | None = None,
    priorities: Ints | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> Simulated:
    """Run a whole trace through one engine in compiled code.

    Arrays of one row a request: arrivals ascending, adapters as numbers from 0 with -1 for the base model
    (None = all base), priorities (None = all 0).  `prefixes[i]` names the first blocks of request i's prompt: requests whose names
    begin alike share those blocks when the spec caches prefixes.  Requests that could never fit get -1 in every
    time and take part in nothing.

    Where nothing is shared, a cache can only give back to a preempted request what was its own; so the trace is run
    without one, and again with it only if somebody was preempted.

    Raises:
        ValueError: arrays of unequal length, or arrivals that go back in time.

    """
    from sits.sim import arrays, kernel  # noqa: PLC0415  (numba loads with the first model)

    count = len(arrivals_ns)
    wanted = np.full(count, -1, np.int64) if adapters is None else np.asarray(adapters, np.int64)
    ranks = np.zeros(count, np.int64) if priorities is None else np.asarray(priorities, np.int64)
    columns = [np.asarray(c, np.int64) for c in (arrivals_ns, prompt_tokens, output_tokens)]
    lengths = [len(c) for c in (*columns, wanted, ranks, prefixes if prefixes is not None else ranks)]
    if any(length != count for length in lengths):
        raise ValueError(f"columns of {lengths} rows do not make one trace")
    if (np.diff(columns[0]) < 0).any():
        raise ValueError("arrivals go back in time: sort the trace by arrival")
    arrivals, prompts, outputs = columns
    fits = (prompts >= 1) & (outputs >= 1) & (-(-(prompts + outputs - 1) // spec.block_size) <= spec.blocks)
    fits &= (wanted < 0) | (spec.lora_slots > 0)
    queued = np.full(count, -1, np.int64)
    queued[fits] = front_end_ns(spec, arrivals[fits], prompts[fits])
    settings, noise = arrays.settings(spec), noise_draws(spec, rng)

    columns = [column[fits] for column in (prompts, outputs, wanted, ranks)]
    shared = spec.prefix_caching and prefixes is not None
    preempted = shared
    if not shared:
        state = arrays.whole_trace(spec, *columns)
        steps, end_ns, preempted = kernel.simulate(queued[fits], *state, *settings, noise)
    if spec.prefix_caching and preempted:
        state = arrays.whole_trace(spec, *columns)
        names = [prefixes[i] for i in np.flatnonzero(fits).tolist()] if prefixes is not None else None
        steps, end_ns, _ = kernel.simulate_cached(
            queued[fits], *state, *settings, noise, *arrays.cache(spec, state.rows, names)
        )
    out = np.full((4, count), -1, np.int64)
    fields = (kernel.SCHEDULED_NS, kernel.FIRST_NS, kernel.LAST_NS, kernel.PREEMPTIONS)
    for i, field in enumerate(fields):
        out[i, fits] = state.rows[:, field]
    return Simulated(queued, out[0], out[1], out[2], out[3], steps, end_ns)


def compile_kernel(caches: bool = False) -> int:
    """Make every compiled function ready: loaded from disk, or compiled and kept there; how many had to be compiled.

    The first use of the kernel costs about a second when it is on disk and ten and more when it is not; a
    process that answers others, or starts some, takes that time before.  `caches`: traces with a block cache, too, which
    are otherwise made ready when the first one is run.
    """
    from sits.sim import kernel  # noqa: PLC0415  (numba loads with the first model)

    before = _compiled(kernel.ENTRIES)
    table = dict.fromkeys(("dense_tokens", "dense_us", "head_seqs", "head_us"), (1.0,))
    step = StepTime(source="to compile", **table, **dict.fromkeys(SCALARS, 0.0))  # type: ignore[arg-type]
    spec = EngineSpec(step=step, ranks=(Rank(bandwidth=1e9),), blocks=8)
    model: EngineModel[int] = EngineModel(spec, capacity=1)
    model.add(0, 1, 8)
    model.step(0)
    model.coast(0)
    model.rewind(1)
    model.cancel(0)
    one = np.ones(1, np.int64)
    simulate(one, one, one, None, spec)
    if caches:
        simulate(one, one, one, None, msgspec.structs.replace(spec, prefix_caching=True), prefixes=[()])
    return _compiled(kernel.ENTRIES) - before


def _compiled(entries: tuple[Any, ...]) -> int:
    return sum(sum(entry.stats.cache_misses.values()) for entry in entries)
