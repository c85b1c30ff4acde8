"""One step of a continuous-batching engine, compiled: the scheduler of vLLM V1 over packed arrays.

What a step does, in this order:
1. Running requests, oldest admitted first, take tokens from the budget (`max_num_batched_tokens`).  One that
   gets no blocks preempts the youngest running request: its blocks are freed, its KV is forgotten, and it
   goes to the head of the waiting queue; it may have to preempt itself.
2. If nothing was preempted, waiting requests are admitted first come first served while tokens, seats
   (`max_num_seqs`) and blocks last.  A request whose adapter finds no slot is passed over, not waited for.
   An adapter that is not in a slot evicts the least recently used one that no running request needs.
3. The step takes its preparation chain, its copies and its device time; the whole batch waits for them.
4. Every request with KV for all its tokens emits one token; a finished one frees its blocks.

Without chunked prefill a prompt is taken whole or not at all; one larger than the whole budget gets a step
alone, in which the running requests stand still.

Sources: vLLM V1 `Scheduler.schedule` (0.10 to 0.19) for 1, 2 and 4; `predict.steptime.step_time_us`,
`predict.prepare` and `predict.transfer` for 3, re-implemented over arrays operation by operation, so that
rounding is the same.  `sim.oracle` is the independent twin of this file; tests hold both to the same nanosecond.

Deliberately absent: prefix caching, priorities, speculative tokens.  Importing this imports numba.
"""

import numpy as np
from numba import njit

from sits.predict.steptime import SCALARS
from sits.sim.layout import (
    ADAPTER,
    ADAPTER_BYTES,
    ADAPTER_LOADS,
    BLOCK_COUNT,
    BLOCK_SIZE,
    BLOCKS,
    CHUNKED,
    COMPUTED,
    COPY_BYTES,
    COPY_NS,
    DECODE_TOKENS,
    DENIED,
    DURATION_NS,
    EAGER,
    EMITTED,
    EMITTED_COUNT,
    FINISHED,
    FINISHED_COUNT,
    FIRST,
    FIRST_COUNT,
    FIRST_NS,
    FREE,
    GENERATED,
    GONE,
    GRAPH_SEQS_MAX,
    HEAD,
    ID_LISTS,
    KV_USED,
    LAST_NS,
    LONG_PREFILL,
    NEXT,
    OUTPUT,
    PEAK,
    PLACE,
    PREEMPTED,
    PREEMPTION_COUNT,
    PREEMPTIONS,
    PREFILL_TOKENS,
    PREPARE_NS,
    PREVIOUS,
    PROMPT,
    RECOMPUTED_TOKENS,
    RESULT_COUNT,
    RUNNING,
    RUNNING_COUNT,
    SCHEDULED_NS,
    SEQS_MAX,
    SLOT_COUNT,
    STAGE_0,
    STAGE_COUNT,
    STARTED,
    STARTED_COUNT,
    STEP_COUNT,
    STEP_RUNNING,
    STEP_WAITING,
    T_NS,
    TAIL,
    TAKE,
    TOKENS_MAX,
    TOTAL,
    WAITING,
    WAITING_COUNT,
)

(
    PREFILL_US,
    PREFILL_US_PER_TOKEN,
    PREFILL_US_PER_TOKEN_KV,
    DECODE_US,
    DECODE_US_PER_SEQ,
    DECODE_US_PER_KV_TOKEN,
    SKEW,
    OVERHEAD_US,
    EAGER_US,
) = (SCALARS.index(name) for name in SCALARS if name != "noise_cv")

_compiled = njit(cache=True)


@_compiled
def enqueue(rows, tally, r):
    """Put row `r` at the tail of the waiting queue."""
    tail = tally[TAIL]
    rows[PLACE, r] = WAITING
    rows[NEXT, r] = -1
    rows[PREVIOUS, r] = tail
    if tail >= 0:
        rows[NEXT, tail] = r
    else:
        tally[HEAD] = r
    tally[TAIL] = r
    tally[WAITING_COUNT] += 1


@_compiled
def add(rows, tally, r, prompt, output, adapter):
    """Make row `r` a new request at the tail of the waiting queue; `adapter` -1 = base model."""
    rows[:, r] = 0
    rows[PROMPT, r] = prompt
    rows[TOTAL, r] = prompt
    rows[OUTPUT, r] = output
    rows[ADAPTER, r] = adapter
    rows[SCHEDULED_NS, r] = -1
    enqueue(rows, tally, r)


@_compiled
def _enqueue_first(rows, tally, r):
    head = tally[HEAD]
    rows[PLACE, r] = WAITING
    rows[PREVIOUS, r] = -1
    rows[NEXT, r] = head
    if head >= 0:
        rows[PREVIOUS, head] = r
    else:
        tally[TAIL] = r
    tally[HEAD] = r
    tally[WAITING_COUNT] += 1


@_compiled
def _unlink(rows, tally, r):
    before, after = rows[PREVIOUS, r], rows[NEXT, r]
    if before >= 0:
        rows[NEXT, before] = after
    else:
        tally[HEAD] = after
    if after >= 0:
        rows[PREVIOUS, after] = before
    else:
        tally[TAIL] = before
    tally[WAITING_COUNT] -= 1


@_compiled
def _free(rows, tally, r):
    tally[FREE] += rows[BLOCKS, r]
    rows[BLOCKS, r] = 0


@_compiled
def cancel(rows, running, tally, r):
    """Take row `r` out of wherever it is and free its blocks at once."""
    if rows[PLACE, r] == WAITING:
        _unlink(rows, tally, r)
    elif rows[PLACE, r] == RUNNING:
        n = tally[RUNNING_COUNT]
        kept = 0
        for i in range(n):
            if running[i] != r:
                running[kept] = running[i]
                kept += 1
        tally[RUNNING_COUNT] = kept
    _free(rows, tally, r)
    rows[PLACE, r] = GONE


@_compiled
def _missing_blocks(rows, whole, r, take):
    size = whole[BLOCK_SIZE]
    return (rows[COMPUTED, r] + take + size - 1) // size - rows[BLOCKS, r]


@_compiled
def _preempt_youngest(rows, running, tally):
    tally[RUNNING_COUNT] -= 1
    r = running[tally[RUNNING_COUNT]]
    _free(rows, tally, r)
    rows[PEAK, r] = max(rows[PEAK, r], rows[COMPUTED, r])
    rows[COMPUTED, r] = 0
    rows[TAKE, r] = 0
    rows[PREEMPTIONS, r] += 1
    tally[PREEMPTION_COUNT] += 1
    _enqueue_first(rows, tally, r)
    return r


@_compiled
def _find_slot(slots, count, adapter, stamp):
    """The slot that holds `adapter`, else the least recently used one free for this step, else -1."""
    best = -1
    for s in range(count):
        if slots[0, s] == adapter:
            return s
        if slots[1, s] != stamp and (best < 0 or slots[1, s] < slots[1, best]):
            best = s
    return best


@_compiled
def _stamp_running(rows, running, tally, slots, whole):
    """Mark the adapters that running requests hold as used in this step."""
    stamp = tally[STEP_COUNT]
    for i in range(tally[RUNNING_COUNT]):
        adapter = rows[ADAPTER, running[i]]
        if adapter >= 0:
            slots[1, _find_slot(slots, whole[SLOT_COUNT], adapter, stamp)] = stamp


@_compiled
def _admit(now_ns, rows, running, tally, slots, whole, result, ids, r, take, missing, slot):
    _unlink(rows, tally, r)
    rows[PLACE, r] = RUNNING
    rows[TAKE, r] = take
    rows[BLOCKS, r] += missing
    tally[FREE] -= missing
    running[tally[RUNNING_COUNT]] = r
    tally[RUNNING_COUNT] += 1
    if slot >= 0:
        if slots[0, slot] != rows[ADAPTER, r]:
            slots[0, slot] = rows[ADAPTER, r]
            result[ADAPTER_LOADS] += 1
        slots[1, slot] = tally[STEP_COUNT]
    if rows[SCHEDULED_NS, r] < 0:
        rows[SCHEDULED_NS, r] = now_ns
        ids[STARTED, result[STARTED_COUNT]] = r
        result[STARTED_COUNT] += 1


@_compiled
def _continue_running(rows, running, tally, whole, result):
    """Give tokens and blocks to running requests; returns the budget left and the blocks taken."""
    budget = whole[TOKENS_MAX]
    taken = 0
    i = 0
    while i < tally[RUNNING_COUNT] and budget > 0:
        r = running[i]
        take = rows[TOTAL, r] - rows[COMPUTED, r]
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
        rows[BLOCKS, r] += missing
        rows[TAKE, r] = take
        budget -= take
        i += 1
    return budget, taken


@_compiled
def _admit_waiting(now_ns, rows, running, tally, slots, whole, result, ids, budget):
    """Admit waiting requests first come first served; returns the blocks taken."""
    taken = 0
    r = tally[HEAD]
    while r >= 0 and budget > 0 and tally[RUNNING_COUNT] < whole[SEQS_MAX]:
        after = rows[NEXT, r]
        slot = -1
        if rows[ADAPTER, r] >= 0:
            slot = _find_slot(slots, whole[SLOT_COUNT], rows[ADAPTER, r], tally[STEP_COUNT])
            if slot < 0:
                r = after
                continue
        take = rows[TOTAL, r] - rows[COMPUTED, r]
        if 0 < whole[LONG_PREFILL] < take:
            take = whole[LONG_PREFILL]
        if take > budget:
            if whole[CHUNKED] == 0:
                break
            take = budget
        missing = _missing_blocks(rows, whole, r, take)
        if missing > tally[FREE]:
            result[DENIED] = 1
            break
        _admit(now_ns, rows, running, tally, slots, whole, result, ids, r, take, missing, slot)
        taken += missing
        budget -= take
        r = after
    return taken


@_compiled
def _admit_alone(now_ns, rows, running, tally, slots, whole, result, ids):
    """Without chunked prefill: a head of the queue larger than the whole budget, alone; -1 if there is none."""
    r = tally[HEAD]
    if r < 0 or whole[CHUNKED] or tally[RUNNING_COUNT] >= whole[SEQS_MAX]:
        return -1
    take = rows[TOTAL, r] - rows[COMPUTED, r]
    if take <= whole[TOKENS_MAX]:
        return -1
    slot = -1
    if rows[ADAPTER, r] >= 0:
        slot = _find_slot(slots, whole[SLOT_COUNT], rows[ADAPTER, r], tally[STEP_COUNT])
        if slot < 0:
            return -1
    missing = _missing_blocks(rows, whole, r, take)
    if missing > tally[FREE]:
        result[DENIED] = 1
        return -1
    _admit(now_ns, rows, running, tally, slots, whole, result, ids, r, take, missing, slot)
    return missing


@_compiled
def _line(table, at):
    """`predict.steptime.interpolate` over `table[0]` (x) and `table[1]` (y)."""
    n = table.shape[1]
    if at <= table[0, 0] or n == 1:
        return table[1, 0]
    low, high = 0, n - 1
    while high - low > 1:
        middle = (low + high) // 2
        if at > table[0, middle]:
            low = middle
        else:
            high = middle
    slope_top = table[1, high] - table[1, low]
    return table[1, low] + slope_top * (at - table[0, low]) / (table[0, high] - table[0, low])


@_compiled
def _step_us(rows, running, tally, figures, dense, head, result, graph_seqs_max):
    """`predict.steptime.step_time_us` of the batch in `rows[TAKE]`; also counts tokens into `result`."""
    tokens = emitting = n = total = longest = 0
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        take = rows[TAKE, r]
        if take == 0:
            continue
        tokens += take
        computed = rows[COMPUTED, r]
        emitting += computed + take == rows[TOTAL, r]
    t = _line(dense, tokens) + figures[OVERHEAD_US]
    if emitting > 0:
        t += _line(head, emitting)
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        take = rows[TAKE, r]
        if take == 0:
            continue
        computed = rows[COMPUTED, r]
        if rows[GENERATED, r] > 0 and computed + 1 == rows[TOTAL, r]:
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
    return t


@_compiled
def _copy_ns(size, now_ns, link):
    """Nanoseconds to copy `size` bytes from `now_ns` on: `link` is bandwidth in bytes/ns, dips as in `Dips`."""
    return int(size / link[0] + 0.5)


@_compiled
def _prepare(now_ns, blocks, whole, link, prepare, result):
    """Durations of the eight preparation stages, and the copies in them."""
    tokens = result[PREFILL_TOKENS] + result[DECODE_TOKENS]
    seqs = result[STEP_RUNNING]
    for stage in range(STAGE_COUNT):
        us = (
            prepare[stage, 0]
            + tokens * prepare[stage, 1]
            + seqs * prepare[stage, 2]
            + blocks * prepare[stage, 3]
        )
        result[STAGE_0 + stage] = int(us * 1000.0 + 0.5)
    size = result[ADAPTER_LOADS] * whole[ADAPTER_BYTES]
    if size > 0:
        result[COPY_BYTES] = size
        result[COPY_NS] = _copy_ns(size, now_ns, link)
        result[STAGE_0 + 1] += result[COPY_NS]
    for stage in range(STAGE_COUNT):
        result[PREPARE_NS] += result[STAGE_0 + stage]


@_compiled
def _count_recomputed(rows, running, tally):
    again = 0
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        computed = rows[COMPUTED, r]
        again += max(0, min(computed + rows[TAKE, r], rows[PEAK, r]) - computed)
    return again


@_compiled
def _emit(rows, running, tally, result, ids, end_ns):
    """Book the step's tokens; requests whose tokens all have KV emit one, finished ones leave."""
    kept = 0
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        take = rows[TAKE, r]
        rows[TAKE, r] = 0
        rows[COMPUTED, r] += take
        if take > 0 and rows[COMPUTED, r] == rows[TOTAL, r]:
            rows[GENERATED, r] += 1
            rows[TOTAL, r] += 1
            ids[EMITTED, result[EMITTED_COUNT]] = r
            result[EMITTED_COUNT] += 1
            if rows[GENERATED, r] == 1:
                rows[FIRST_NS, r] = end_ns
                ids[FIRST, result[FIRST_COUNT]] = r
                result[FIRST_COUNT] += 1
            if rows[GENERATED, r] == rows[OUTPUT, r]:
                rows[LAST_NS, r] = end_ns
                _free(rows, tally, r)
                rows[PLACE, r] = GONE
                ids[FINISHED, result[FINISHED_COUNT]] = r
                result[FINISHED_COUNT] += 1
                continue
        running[kept] = r
        kept += 1
    tally[RUNNING_COUNT] = kept


@_compiled
def step(now_ns, noise, rows, running, tally, slots, whole, figures, dense, head, link, prepare, result, ids):
    """Run one step that starts at `now_ns`; there must be work.  Fills `result` and `ids`.

    `noise` multiplies the device time.  Times of the requests concerned are written to `rows`.
    """
    result[:] = 0
    tally[STEP_COUNT] += 1
    if whole[SLOT_COUNT]:
        _stamp_running(rows, running, tally, slots, whole)
    blocks = _admit_alone(now_ns, rows, running, tally, slots, whole, result, ids)
    if blocks < 0:
        budget, blocks = _continue_running(rows, running, tally, whole, result)
        if result[PREEMPTED] == 0:
            blocks += _admit_waiting(now_ns, rows, running, tally, slots, whole, result, ids, budget)
    result[T_NS] = now_ns
    result[STEP_RUNNING] = tally[RUNNING_COUNT]
    result[STEP_WAITING] = tally[WAITING_COUNT]
    result[KV_USED] = whole[BLOCK_COUNT] - tally[FREE]
    result[RECOMPUTED_TOKENS] = _count_recomputed(rows, running, tally)
    device_us = _step_us(rows, running, tally, figures, dense, head, result, whole[GRAPH_SEQS_MAX])
    _prepare(now_ns, blocks, whole, link, prepare, result)
    result[DURATION_NS] = result[PREPARE_NS] + int(device_us * noise * 1000.0 + 0.5)
    _emit(rows, running, tally, result, ids, now_ns + result[DURATION_NS])


@_compiled
def simulate(queued_ns, rows, running, tally, slots, whole, figures, dense, head, link, prepare, noise):
    """Run a whole trace: row `r` joins the waiting queue at `queued_ns[r]` (ascending); returns steps and end.

    The answer lies in `rows`: scheduled, first and last token times, preemptions.
    """
    count = rows.shape[1]
    result = np.zeros(RESULT_COUNT, np.int64)
    ids = np.empty((ID_LISTS, running.shape[0]), np.int64)
    now_ns = np.int64(0)
    arrived = finished = steps = 0
    while finished < count:
        if tally[RUNNING_COUNT] == 0 and tally[HEAD] < 0:
            now_ns = max(now_ns, queued_ns[arrived])
        while arrived < count and queued_ns[arrived] <= now_ns:
            enqueue(rows, tally, arrived)
            arrived += 1
        factor = noise[steps % noise.shape[0]]
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
            link,
            prepare,
            result,
            ids,
        )
        now_ns += result[DURATION_NS]
        finished += result[FINISHED_COUNT]
        steps += 1
    return steps, now_ns
