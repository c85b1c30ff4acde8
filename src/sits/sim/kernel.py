"""One step of a continuous-batching engine, compiled: the scheduler of vLLM V1 over packed arrays.

What a step does, in this order:
1. Running requests, oldest admitted first, take tokens from the budget (`max_num_batched_tokens`).  One that
   gets no blocks preempts the youngest running request: its blocks are freed, its KV is forgotten, and it
   goes to the head of the waiting queue; it may have to preempt itself.
2. If nothing was preempted, waiting requests are admitted first come first served while tokens, seats
   (`max_num_seqs`) and blocks last: blocks for the whole prompt with `RESERVE_FULL` (vLLM's default since
   `scheduler_reserve_full_isl` exists), for its first chunk without.  A request whose adapter finds no slot is passed over, not waited for.
   An adapter that is not in a slot evicts the least recently used one that no running request needs.
3. The step takes its preparation chain, its copies and its device time; the whole batch waits for them.
4. Every request with KV for all its tokens emits one token; a finished one frees its blocks.

Without chunked prefill a prompt is taken whole or not at all; one larger than the whole budget gets a step
alone, in which the running requests stand still.

Sources: vLLM V1 `Scheduler.schedule` (0.10 to 0.19) for 1, 2 and 4; `predict.steptime.step_time_us`,
`predict.prepare` and `predict.transfer` for 3, re-implemented over arrays operation by operation, so that
rounding is the same.  `sim.oracle` is the independent twin of this file; tests hold both to the same nanosecond.

Everything compiled is in this one file, names of array cells included, because numba's cache on disk notices
a change only in the file of the function it compiled.

State is packed into few matrices, because every array handed to a compiled function costs a
tenth of a microsecond a call: `rows[row, FIELD]` holds one request a column, `tally` the scalars of the state,
`slots` the adapter slots, `result` what a step reports.  Integers are int64.

Helpers are inlined by force and take arrays one by one: handed over in named tuples, the same code was 45 %
slower, because taking an array out of a tuple counts a reference.

Deliberately absent: prefix caching, priorities, speculative tokens.  Importing this imports numba.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# rows[row, field], one request a row
(
    PROMPT,
    OUTPUT,
    ADAPTER,
    TOTAL,
    COMPUTED,
    PEAK,
    BLOCKS,
    GENERATED,
    PREEMPTIONS,
    PLACE,
    NEXT,
    PREVIOUS,
    TAKE,
    SCHEDULED_NS,
    FIRST_NS,
    LAST_NS,
) = range(16)
"""Fields of a request: tokens asked and to generate, adapter (-1 = none), tokens known (prompt + generated),
tokens with KV, the most that ever had KV, blocks held, tokens generated, times preempted, where it is, its
neighbours in the waiting queue, tokens taken into the current step, and its three times."""

FIELD_COUNT = 16

GONE, WAITING, RUNNING = range(3)
"""Values of `PLACE`."""

# cells of `tally`
FREE, HEAD, TAIL, RUNNING_COUNT, WAITING_COUNT, STEP_COUNT, TOUCH_COUNT = range(7)
TALLY_COUNT = 7

# slots[cell, slot]: the adapter in it (-1 = none), the last step that used it, and when it was last touched.
HELD, USED_STEP, TOUCHED = range(3)
SLOT_CELLS = 3

# whole[cell]: integer settings
(
    BLOCK_SIZE,
    BLOCK_COUNT,
    SEQS_MAX,
    TOKENS_MAX,
    LONG_PREFILL,
    CHUNKED,
    GRAPH_SEQS_MAX,
    SLOT_COUNT,
    ADAPTER_BYTES,
    ADAPTER_COPIES,
    DIPS_BUSY_MIN,
    RESERVE_FULL,
) = range(12)
WHOLE_COUNT = 12

# links[rank, cell]: bandwidth in bytes/s, and its dips (period 0 = none)
BANDWIDTH, DEPTH, WIDTH_NS, PERIOD_NS, PHASE_NS = range(5)

# result[cell]: what one step reports, in the order of `model.StepResult`.
(
    T_NS,
    DURATION_NS,
    STEP_RUNNING,
    STEP_WAITING,
    PREFILL_TOKENS,
    DECODE_TOKENS,
    KV_USED,
    PREEMPTED,
    DENIED,
    RECOMPUTED_TOKENS,
    COPY_BYTES,
    COPY_NS,
    ADAPTER_LOADS,
    EAGER,
    PREPARE_NS,
    STARTED_COUNT,
    FIRST_COUNT,
    FINISHED_COUNT,
    EMITTED_COUNT,
    STAGE_0,
) = range(20)
STAGE_COUNT = 8
"""The device-preparation stages of `predict.prepare`; their durations follow each other from `STAGE_0`."""

RESULT_COUNT = STAGE_0 + STAGE_COUNT

# ids[list, i]: rows scheduled for the first time, with a first token, finished, and with any token in a step.
STARTED, FIRST, FINISHED, EMITTED = range(4)
ID_LISTS = 4

# figures[cell]: the scalars of `predict.steptime.StepTime`, in the order of its `SCALARS`
(
    PREFILL_US,
    PREFILL_US_PER_TOKEN,
    PREFILL_US_PER_TOKEN_KV,
    DECODE_US,
    DECODE_US_PER_SEQ,
    DECODE_US_PER_KV_TOKEN,
    SKEW,
) = range(7)
EAGER_US = 8

(
    ALLOCATE_NS,
    ALLOCATE_NS_PER_BLOCK,
    BUILD_NS,
    BUILD_NS_PER_SEQ,
    BUILD_NS_PER_TOKEN,
    INPUT_COPIES,
    COPY_LATENCY_NS,
    CHOOSE_NS,
    ATTENTION_NS,
    ATTENTION_NS_PER_SEQ,
    ATTENTION_NS_PER_BLOCK,
    BARRIER_NS,
    GRAPH_LAUNCH_NS,
    EAGER_LAUNCH_NS,
) = range(14)
"""`predict.prepare.HostCosts` in the order of its fields."""

_njit: Any = njit

_part = _njit(error_model="numpy", forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""A function called only by compiled ones: no wrapper for Python, and no copy of its own on disk."""

_entry = _njit(error_model="numpy", cache=True)
"""A function Python calls."""


@_part
def _enqueue(rows: Ints, tally: Ints, r: int) -> None:
    """Put row `r` at the tail of the waiting queue."""
    tail = tally[TAIL]
    rows[r, PLACE] = WAITING
    rows[r, NEXT] = -1
    rows[r, PREVIOUS] = tail
    if tail >= 0:
        rows[tail, NEXT] = r
    else:
        tally[HEAD] = r
    tally[TAIL] = r
    tally[WAITING_COUNT] += 1


@_entry
def add(rows: Ints, tally: Ints, r: int, prompt: int, output: int, adapter: int) -> None:
    """Make row `r` a new request at the tail of the waiting queue; `adapter` -1 = base model."""
    rows[r, :] = 0
    rows[r, PROMPT] = prompt
    rows[r, TOTAL] = prompt
    rows[r, OUTPUT] = output
    rows[r, ADAPTER] = adapter
    rows[r, SCHEDULED_NS] = -1
    _enqueue(rows, tally, r)


@_part
def _enqueue_first(rows: Ints, tally: Ints, r: int) -> None:
    head = tally[HEAD]
    rows[r, PLACE] = WAITING
    rows[r, PREVIOUS] = -1
    rows[r, NEXT] = head
    if head >= 0:
        rows[head, PREVIOUS] = r
    else:
        tally[TAIL] = r
    tally[HEAD] = r
    tally[WAITING_COUNT] += 1


@_part
def _unlink(rows: Ints, tally: Ints, r: int) -> None:
    before, after = rows[r, PREVIOUS], rows[r, NEXT]
    if before >= 0:
        rows[before, NEXT] = after
    else:
        tally[HEAD] = after
    if after >= 0:
        rows[after, PREVIOUS] = before
    else:
        tally[TAIL] = before
    tally[WAITING_COUNT] -= 1


@_part
def _free(rows: Ints, tally: Ints, r: int) -> None:
    tally[FREE] += rows[r, BLOCKS]
    rows[r, BLOCKS] = 0


@_entry
def cancel(rows: Ints, running: Ints, tally: Ints, r: int) -> None:
    """Take row `r` out of wherever it is and free its blocks at once."""
    if rows[r, PLACE] == WAITING:
        _unlink(rows, tally, r)
    elif rows[r, PLACE] == RUNNING:
        n = tally[RUNNING_COUNT]
        kept = 0
        for i in range(n):
            if running[i] != r:
                running[kept] = running[i]
                kept += 1
        tally[RUNNING_COUNT] = kept
    _free(rows, tally, r)
    rows[r, PLACE] = GONE


@_part
def _missing_blocks(rows: Ints, whole: Ints, r: int, take: int) -> int:
    size = whole[BLOCK_SIZE]
    return int((rows[r, COMPUTED] + take + size - 1) // size - rows[r, BLOCKS])


@_part
def _preempt_youngest(rows: Ints, running: Ints, tally: Ints) -> int:
    tally[RUNNING_COUNT] -= 1
    r = running[tally[RUNNING_COUNT]]
    _free(rows, tally, r)
    rows[r, PEAK] = max(rows[r, PEAK], rows[r, COMPUTED])
    rows[r, COMPUTED] = 0
    rows[r, TAKE] = 0
    rows[r, PREEMPTIONS] += 1
    _enqueue_first(rows, tally, r)
    return int(r)


@_part
def _find_slot(slots: Ints, count: int, adapter: int, now_step: int) -> int:
    """The slot that holds `adapter`, else the least recently used one that this step does not use, else -1."""
    best = -1
    for s in range(count):
        if slots[HELD, s] == adapter:
            return s
        if slots[USED_STEP, s] != now_step and (best < 0 or slots[TOUCHED, s] < slots[TOUCHED, best]):
            best = s
    return best


@_part
def _touch(slots: Ints, tally: Ints, slot: int) -> None:
    tally[TOUCH_COUNT] += 1
    slots[USED_STEP, slot] = tally[STEP_COUNT]
    slots[TOUCHED, slot] = tally[TOUCH_COUNT]


@_part
def _touch_running(rows: Ints, running: Ints, tally: Ints, slots: Ints, whole: Ints) -> None:
    """Adapters that running requests hold are used in this step."""
    for i in range(tally[RUNNING_COUNT]):
        adapter = rows[running[i], ADAPTER]
        if adapter >= 0:
            _touch(slots, tally, _find_slot(slots, whole[SLOT_COUNT], adapter, tally[STEP_COUNT]))


@_part
def _admit(
    now_ns: int,
    rows: Ints,
    running: Ints,
    tally: Ints,
    slots: Ints,
    whole: Ints,
    result: Ints,
    ids: Ints,
    r: int,
    take: int,
    missing: int,
    slot: int,
) -> None:
    _unlink(rows, tally, r)
    rows[r, PLACE] = RUNNING
    rows[r, TAKE] = take
    rows[r, BLOCKS] += missing
    tally[FREE] -= missing
    running[tally[RUNNING_COUNT]] = r
    tally[RUNNING_COUNT] += 1
    if slot >= 0:
        if slots[HELD, slot] != rows[r, ADAPTER]:
            slots[HELD, slot] = rows[r, ADAPTER]
            result[ADAPTER_LOADS] += 1
        _touch(slots, tally, slot)
    if rows[r, SCHEDULED_NS] < 0:
        rows[r, SCHEDULED_NS] = now_ns
        ids[STARTED, result[STARTED_COUNT]] = r
        result[STARTED_COUNT] += 1


@_part
def _continue_running(rows: Ints, running: Ints, tally: Ints, whole: Ints, result: Ints) -> tuple[int, int]:
    """Give tokens and blocks to running requests; returns the budget left and the blocks taken."""
    budget = whole[TOKENS_MAX]
    taken = 0
    i = 0
    while i < tally[RUNNING_COUNT] and budget > 0:
        r = running[i]
        take = rows[r, TOTAL] - rows[r, COMPUTED]
        if 0 < whole[LONG_PREFILL] < take:
            take = whole[LONG_PREFILL]
        take = min(take, budget)
        missing = _missing_blocks(rows, whole, r, take)
        while missing > tally[FREE]:
            result[DENIED] = 1
            result[PREEMPTED] += 1
            if _preempt_youngest(rows, running, tally) == r:
                return budget, taken
        tally[FREE] -= missing
        taken += missing
        rows[r, BLOCKS] += missing
        rows[r, TAKE] = take
        budget -= take
        i += 1
    return budget, taken


@_part
def _admit_waiting(
    now_ns: int,
    rows: Ints,
    running: Ints,
    tally: Ints,
    slots: Ints,
    whole: Ints,
    result: Ints,
    ids: Ints,
    budget: int,
) -> int:
    """Admit waiting requests first come first served; returns the blocks taken."""
    taken = 0
    r = tally[HEAD]
    while r >= 0 and budget > 0 and tally[RUNNING_COUNT] < whole[SEQS_MAX]:
        after = rows[r, NEXT]
        slot = -1
        if rows[r, ADAPTER] >= 0:
            slot = _find_slot(slots, whole[SLOT_COUNT], rows[r, ADAPTER], tally[STEP_COUNT])
            if slot < 0:
                r = after
                continue
        take = rows[r, TOTAL] - rows[r, COMPUTED]
        if 0 < whole[LONG_PREFILL] < take:
            take = whole[LONG_PREFILL]
        if take > budget:
            if whole[CHUNKED] == 0:
                break
            take = budget
        missing = _missing_blocks(rows, whole, r, take)
        needed = missing
        if whole[RESERVE_FULL]:
            needed = _missing_blocks(rows, whole, r, rows[r, TOTAL] - rows[r, COMPUTED])
        if needed > tally[FREE]:
            result[DENIED] = 1
            break
        _admit(now_ns, rows, running, tally, slots, whole, result, ids, r, take, missing, slot)
        taken += missing
        budget -= take
        r = after
    return taken


@_part
def _admit_alone(
    now_ns: int, rows: Ints, running: Ints, tally: Ints, slots: Ints, whole: Ints, result: Ints, ids: Ints
) -> int:
    """Without chunked prefill: a head of the queue larger than the whole budget, alone; -1 if there is none."""
    r = tally[HEAD]
    if r < 0 or whole[CHUNKED] or tally[RUNNING_COUNT] >= whole[SEQS_MAX]:
        return -1
    take = rows[r, TOTAL] - rows[r, COMPUTED]
    if take <= whole[TOKENS_MAX]:
        return -1
    slot = -1
    if rows[r, ADAPTER] >= 0:
        slot = _find_slot(slots, whole[SLOT_COUNT], rows[r, ADAPTER], tally[STEP_COUNT])
        if slot < 0:
            return -1
    missing = _missing_blocks(rows, whole, r, take)
    if missing > tally[FREE]:
        result[DENIED] = 1
        return -1
    _admit(now_ns, rows, running, tally, slots, whole, result, ids, r, take, missing, slot)
    return int(missing)


@_part
def _line(table: Floats, at: float) -> float:
    """`predict.steptime.interpolate` over `table[0]` (x) and `table[1]` (y)."""
    n = table.shape[1]
    if at <= table[0, 0] or n == 1:
        return float(table[1, 0])
    low, high = 0, n - 1
    while high - low > 1:
        middle = (low + high) // 2
        if at > table[0, middle]:
            low = middle
        else:
            high = middle
    slope_top = table[1, high] - table[1, low]
    return float(table[1, low] + slope_top * (at - table[0, low]) / (table[0, high] - table[0, low]))


@_part
def _step_us(
    rows: Ints,
    running: Ints,
    tally: Ints,
    figures: Floats,
    dense: Floats,
    head: Floats,
    result: Ints,
    graph_seqs_max: int,
) -> float:
    """`predict.steptime.step_time_us` of the batch in `rows[TAKE]`, less `overhead_us`; counts tokens.

    The preparation chain is what `overhead_us` sums up, and it is accounted for stage by stage.
    """
    tokens = emitting = n = total = longest = 0
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        take = rows[r, TAKE]
        tokens += take
        emitting += take > 0 and rows[r, COMPUTED] + take == rows[r, TOTAL]
    t = _line(dense, tokens)
    if emitting > 0:
        t += _line(head, emitting)
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        take = rows[r, TAKE]
        if take == 0:
            continue
        computed = rows[r, COMPUTED]
        if rows[r, GENERATED] > 0 and computed + 1 == rows[r, TOTAL]:
            kv = computed + 1
            n += 1
            total += kv
            longest = max(longest, kv)
        else:
            t += figures[PREFILL_US] + take * (
                figures[PREFILL_US_PER_TOKEN] + (computed + take / 2) * figures[PREFILL_US_PER_TOKEN_KV]
            )
    if n:
        read = total + figures[SKEW] * (n * longest - total)
        t += figures[DECODE_US] + n * figures[DECODE_US_PER_SEQ] + read * figures[DECODE_US_PER_KV_TOKEN]
    result[DECODE_TOKENS] = n
    result[PREFILL_TOKENS] = tokens - n
    if n < tokens or n > graph_seqs_max:
        result[EAGER] = 1
        t += figures[EAGER_US]
    return float(t)


@_part
def _copy_ns(size: float, links: Floats, rank: int, start_ns: float, dipping: bool) -> float:
    """`predict.transfer.copy_ns`."""
    work = size / links[rank, BANDWIDTH] * 1e9
    if not dipping or links[rank, PERIOD_NS] == 0.0 or work == 0.0:
        return float(work)
    depth, width, period = links[rank, DEPTH], links[rank, WIDTH_NS], links[rank, PERIOD_NS]
    slow = 1.0 - depth
    at = (start_ns - links[rank, PHASE_NS]) % period
    periods = np.floor(work / (period - depth * width))
    work = max(0.0, work - periods * (period - depth * width))
    done = periods * period
    for part in range(3):
        if part == 0:
            length, speed = max(0.0, width - at), slow
        elif part == 1:
            length, speed = period - max(at, width), 1.0
        else:
            length, speed = width, slow
        if work <= length * speed:
            return float(done + (work / speed if speed > 0.0 else 0.0))
        work -= length * speed
        done += length
    return float(done + work)


@_part
def _copies_ns(
    size: float, copies: float, links: Floats, rank: int, start_ns: float, dipping: bool, latency_ns: float
) -> float:
    """`predict.transfer.copies_ns`."""
    wait = copies * latency_ns
    return float(wait + _copy_ns(size, links, rank, start_ns + wait, dipping))


@_part
def _prepare(
    now_ns: int,
    seqs: int,
    new_blocks: int,
    table_blocks: int,
    whole: Ints,
    links: Floats,
    costs: Floats,
    result: Ints,
) -> None:
    """`predict.prepare.prepare_ns`: the eight stages and the copies in them; `table_blocks` are a sequence's."""
    tokens = result[PREFILL_TOKENS] + result[DECODE_TOKENS]
    dipping = result[STEP_RUNNING] >= whole[DIPS_BUSY_MIN]
    input_bytes = 24 * tokens + seqs * (4 * table_blocks + 16)
    restore_bytes = result[ADAPTER_LOADS] * whole[ADAPTER_BYTES]
    restore_copies = result[ADAPTER_LOADS] * whole[ADAPTER_COPIES]
    latency = costs[COPY_LATENCY_NS]
    allocate = costs[ALLOCATE_NS] + costs[ALLOCATE_NS_PER_BLOCK] * new_blocks
    build = costs[BUILD_NS] + costs[BUILD_NS_PER_SEQ] * seqs + costs[BUILD_NS_PER_TOKEN] * tokens
    restore_0 = inputs_0 = slowest = 0.0
    for rank in range(links.shape[0]):
        at = now_ns + allocate
        restore = _copies_ns(restore_bytes, restore_copies, links, rank, at, dipping, latency)
        inputs = _copies_ns(
            input_bytes, costs[INPUT_COPIES], links, rank, at + restore + build, dipping, latency
        )
        if rank == 0:
            restore_0, inputs_0 = restore, inputs
        slowest = max(slowest, restore + inputs)
    result[STAGE_0] = np.ceil(allocate)
    result[STAGE_0 + 1] = np.ceil(restore_0)
    result[STAGE_0 + 2] = np.ceil(build)
    result[STAGE_0 + 3] = np.ceil(inputs_0)
    result[STAGE_0 + 4] = np.ceil(costs[CHOOSE_NS])
    result[STAGE_0 + 5] = np.ceil(
        costs[ATTENTION_NS] + costs[ATTENTION_NS_PER_SEQ] * seqs + costs[ATTENTION_NS_PER_BLOCK] * new_blocks
    )
    if links.shape[0] > 1:
        result[STAGE_0 + 6] = np.ceil(slowest - (restore_0 + inputs_0) + costs[BARRIER_NS])
    result[STAGE_0 + 7] = np.ceil(costs[EAGER_LAUNCH_NS] if result[EAGER] else costs[GRAPH_LAUNCH_NS])
    for stage in range(STAGE_COUNT):
        result[PREPARE_NS] += result[STAGE_0 + stage]
    result[COPY_BYTES] = restore_bytes + input_bytes
    result[COPY_NS] = result[STAGE_0 + 1] + result[STAGE_0 + 3]
    if links.shape[0] > 1:
        result[COPY_NS] += result[STAGE_0 + 6] - np.ceil(costs[BARRIER_NS])


@_part
def _batch(rows: Ints, running: Ints, tally: Ints, result: Ints) -> tuple[int, int]:
    """Sequences in the batch, and blocks a sequence of it holds on average (rounded up); counts recomputation."""
    seqs = held = 0
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        take = rows[r, TAKE]
        if take == 0:
            continue
        seqs += 1
        held += rows[r, BLOCKS]
        computed = rows[r, COMPUTED]
        if computed < rows[r, PEAK]:
            result[RECOMPUTED_TOKENS] += min(computed + take, rows[r, PEAK]) - computed
    return seqs, (held + seqs - 1) // seqs


@_part
def _emit(rows: Ints, running: Ints, tally: Ints, result: Ints, ids: Ints, end_ns: int) -> None:
    """Book the step's tokens; requests whose tokens all have KV emit one, finished ones leave."""
    kept = 0
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        take = rows[r, TAKE]
        rows[r, TAKE] = 0
        rows[r, COMPUTED] += take
        if take > 0 and rows[r, COMPUTED] == rows[r, TOTAL]:
            rows[r, GENERATED] += 1
            rows[r, TOTAL] += 1
            ids[EMITTED, result[EMITTED_COUNT]] = r
            result[EMITTED_COUNT] += 1
            if rows[r, GENERATED] == 1:
                rows[r, FIRST_NS] = end_ns
                ids[FIRST, result[FIRST_COUNT]] = r
                result[FIRST_COUNT] += 1
            if rows[r, GENERATED] == rows[r, OUTPUT]:
                rows[r, LAST_NS] = end_ns
                _free(rows, tally, r)
                rows[r, PLACE] = GONE
                ids[FINISHED, result[FINISHED_COUNT]] = r
                result[FINISHED_COUNT] += 1
                continue
        running[kept] = r
        kept += 1
    tally[RUNNING_COUNT] = kept


@_entry
def step(
    now_ns: int,
    noise: float,
    rows: Ints,
    running: Ints,
    tally: Ints,
    slots: Ints,
    whole: Ints,
    figures: Floats,
    dense: Floats,
    head: Floats,
    links: Floats,
    costs: Floats,
    result: Ints,
    ids: Ints,
) -> None:
    """Run one step that starts at `now_ns`; there must be work.  Fills `result` and `ids`.

    `noise` multiplies the device time.  Times of the requests concerned are written to `rows`.
    """
    result[:] = 0
    tally[STEP_COUNT] += 1
    if whole[SLOT_COUNT]:
        _touch_running(rows, running, tally, slots, whole)
    blocks = _admit_alone(now_ns, rows, running, tally, slots, whole, result, ids)
    if blocks < 0:
        budget, blocks = _continue_running(rows, running, tally, whole, result)
        if result[PREEMPTED] == 0:
            blocks += _admit_waiting(now_ns, rows, running, tally, slots, whole, result, ids, budget)
    result[T_NS] = now_ns
    result[STEP_RUNNING] = tally[RUNNING_COUNT]
    result[STEP_WAITING] = tally[WAITING_COUNT]
    result[KV_USED] = whole[BLOCK_COUNT] - tally[FREE]
    seqs, table_blocks = _batch(rows, running, tally, result)
    device_us = _step_us(rows, running, tally, figures, dense, head, result, whole[GRAPH_SEQS_MAX])
    _prepare(now_ns, seqs, blocks, table_blocks, whole, links, costs, result)
    result[DURATION_NS] = result[PREPARE_NS] + int(device_us * noise * 1000.0 + 0.5)
    _emit(rows, running, tally, result, ids, now_ns + result[DURATION_NS])


@_entry
def simulate(
    queued_ns: Ints,
    rows: Ints,
    running: Ints,
    tally: Ints,
    slots: Ints,
    whole: Ints,
    figures: Floats,
    dense: Floats,
    head: Floats,
    links: Floats,
    costs: Floats,
    noise_ring: Floats,
) -> tuple[int, int]:
    """Run a whole trace: row `r` joins the waiting queue at `queued_ns[r]` (ascending); returns steps and end.

    The answer lies in `rows`: scheduled, first and last token times, preemptions.
    """
    count = rows.shape[0]
    result = np.zeros(RESULT_COUNT, np.int64)
    ids = np.empty((ID_LISTS, running.shape[0]), np.int64)
    now_ns = 0
    arrived = finished = steps = 0
    while finished < count:
        if tally[RUNNING_COUNT] == 0 and tally[HEAD] < 0:
            now_ns = max(now_ns, int(queued_ns[arrived]))
        while arrived < count and queued_ns[arrived] <= now_ns:
            _enqueue(rows, tally, arrived)
            arrived += 1
        factor = noise_ring[steps % noise_ring.shape[0]]
        step(
            now_ns,
            factor,
            rows,
            running,
            tally,
            slots,
            whole,
            figures,
            dense,
            head,
            links,
            costs,
            result,
            ids,
        )
        now_ns += int(result[DURATION_NS])
        finished += int(result[FINISHED_COUNT])
        steps += 1
    return steps, now_ns


@_entry
def coast(
    now_ns: int,
    first_step: int,
    noise_ring: Floats,
    stretch: Ints,
    rows: Ints,
    running: Ints,
    tally: Ints,
    slots: Ints,
    whole: Ints,
    figures: Floats,
    dense: Floats,
    head: Floats,
    links: Floats,
    costs: Floats,
    result: Ints,
    ids: Ints,
) -> int:
    """Run steps in which nothing happens but one token for everybody; returns how many.

    Such a step has an empty waiting queue, only decodes, blocks for all of them, and finishes nobody.  At most
    `len(stretch)` are run; row i of `stretch` is the report of step i, cells `T_NS` to `PREPARE_NS`.  `rewind` takes the last of them back.
    """
    count = tally[RUNNING_COUNT]
    left = stretch.shape[0]
    if tally[HEAD] >= 0 or count == 0 or count > whole[TOKENS_MAX]:
        return 0
    for i in range(count):
        r = running[i]
        if rows[r, GENERATED] == 0 or rows[r, TOTAL] - rows[r, COMPUTED] != 1:
            return 0
        left = min(left, rows[r, OUTPUT] - rows[r, GENERATED] - 1)
    done = 0
    while done < left:
        missing = 0
        for i in range(count):
            missing += _missing_blocks(rows, whole, running[i], 1)
        if missing > tally[FREE]:
            break
        factor = noise_ring[(first_step + done) % noise_ring.shape[0]]
        step(
            now_ns,
            factor,
            rows,
            running,
            tally,
            slots,
            whole,
            figures,
            dense,
            head,
            links,
            costs,
            result,
            ids,
        )
        now_ns += int(result[DURATION_NS])
        stretch[done, :] = result[:STARTED_COUNT]
        done += 1
    return done


@_entry
def rewind(steps: int, rows: Ints, running: Ints, tally: Ints, slots: Ints, whole: Ints) -> None:
    """Take back the last `steps` steps of a `coast`, not all of it: every running request gives back a token a step.

    Slots were touched in the same order in every step, so `TOUCHED` needs no mending, and the last step that
    used one is the last step that is left.
    """
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        rows[r, COMPUTED] -= steps
        rows[r, TOTAL] -= steps
        rows[r, GENERATED] -= steps
        kept = -(-rows[r, COMPUTED] // whole[BLOCK_SIZE])
        tally[FREE] += rows[r, BLOCKS] - kept
        rows[r, BLOCKS] = kept
    tally[STEP_COUNT] -= steps
    for s in range(whole[SLOT_COUNT]):
        slots[USED_STEP, s] = min(slots[USED_STEP, s], tally[STEP_COUNT])


ENTRIES = (add, cancel, step, simulate, coast, rewind)
"""Everything Python calls here, to be compiled or loaded ahead of use."""
