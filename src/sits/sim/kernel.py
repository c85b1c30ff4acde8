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

With `PRIORITY_FIRST` the waiting queue is ordered by priority (lower first) and then by arrival, and whoever is last in
that order is preempted, even when this step had served it already.

With prefix caching, a full block stays findable by its content when it is freed, until it is taken for something else:
freed blocks are taken least recently freed first, those of one request from its last to its first.  A request that
is admitted starts behind the blocks it finds, but always computes its last token.  Only `simulate` can do that.

With asynchronous scheduling (`simulate` only), a step is scheduled when the one before it starts: on the arrivals
and finishes known at that time, taking the running step's tokens for granted.  Its host time passes meanwhile, and it
starts when both are done.  Who finishes in the running step keeps seat and blocks one step longer.

Most steps of a long answer are alike: the batch stays, everybody gets a token.  `_run_decodes` runs a stretch of
them with a few sums instead of walks over the batch; every number is made by the same operations, so times are
the same to the bit.

Without chunked prefill a prompt is taken whole or not at all; one larger than the whole budget gets a step
alone, in which the running requests stand still.

Sources: vLLM V1 `Scheduler.schedule`, `KVCacheManager`, `BlockPool` and `EngineCore.step_with_batch_queue` (0.10 to
0.19) for all but 3; `predict.steptime.step_time_us`, `predict.profile`, `predict.prepare` and `predict.transfer` for 3, re-implemented over arrays operation by operation, so that
rounding is the same.  `sim.oracle` is the independent twin of this file; tests hold both to the same nanosecond.

Everything compiled is in this one file, names of array cells included, because numba's cache on disk notices
a change only in the file of the function it compiled.

State is packed into few matrices, because every array handed to a compiled function costs a
tenth of a microsecond a call: `rows[row, FIELD]` holds one request a column, `tally` the scalars of the state,
`slots` the adapter slots, `result` what a step reports.  Integers are int64.  Arrays of the block cache are None
where nothing is cached, and what needs them is then compiled away.

Helpers are inlined by force and take arrays one by one: handed over in named tuples, the same code was 45 %
slower, because taking an array out of a tuple counts a reference.

Deliberately absent: speculative tokens; and a second block with the content of a cached one is not findable (vLLM
keeps both, which matters only when the first is evicted before the second).  Importing this imports numba.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NEVER_NS = 2**62

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
    PRIORITY,
    SEQUENCE,
    FRESH,
    START,
) = range(20)
"""Fields of a request: tokens asked and to generate, adapter (-1 = none), tokens known (prompt + generated),
tokens with KV, the most that ever had KV, blocks held, tokens generated, times preempted, where it is, its
neighbours in the waiting queue, tokens taken into the current step, its three times, its priority, its place in
the order of arrival, blocks newly taken in the current step, and where its blocks begin in `table` and `content`."""

FIELD_COUNT = 20

GONE, WAITING, RUNNING, ENDING = range(4)
"""Values of `PLACE`; `ENDING`: its last token is on the way, and nobody has noticed yet."""

# cells of `tally`
FREE, HEAD, TAIL, RUNNING_COUNT, WAITING_COUNT, STEP_COUNT, TOUCH_COUNT, ARRIVED_COUNT, ENDING_COUNT = range(
    9
)
TALLY_COUNT = 9

# pool[cell, block]: the content a block is findable by (-1 = none), who holds it, and its neighbours in the queue of
# free blocks, which begins and ends at the one more block that does not exist.
CONTENT, HOLDERS, AFTER, BEFORE = range(4)
POOL_CELLS = 4

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
    PRIORITY_FIRST,
    ASYNC,
    HOST_CHAIN,
    TABLES,
    CHUNK_POINTS,
) = range(17)
DECODE_KV_POINTS = CHUNK_POINTS + 3
WHOLE_COUNT = DECODE_KV_POINTS + 1
"""`HOST_CHAIN`: host time is `costs`, not `OVERHEAD_US`.  `TABLES`: attention is `grid` over `axes`, not `figures`;
from `CHUNK_POINTS` on, how many points each of the four axes has."""

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
    OVERHEAD_US,
    EAGER_US,
) = range(9)

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

_piece = _njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""The same for large ones with several callers: inlined everywhere, they doubled the time it takes to compile."""

_entry = _njit(error_model="numpy", cache=True)
"""A function Python calls."""


@_part
def _comes_before(rows: Ints, a: int, b: int) -> bool:
    """Whether row `a` is served before row `b` when priorities count."""
    if rows[a, PRIORITY] != rows[b, PRIORITY]:
        return bool(rows[a, PRIORITY] < rows[b, PRIORITY])
    return bool(rows[a, SEQUENCE] < rows[b, SEQUENCE])


@_part
def _link(rows: Ints, tally: Ints, r: int, before: int, after: int) -> None:
    """Put row `r` between two neighbours in the waiting queue; -1 = there is none."""
    rows[r, PLACE] = WAITING
    rows[r, PREVIOUS] = before
    rows[r, NEXT] = after
    if before >= 0:
        rows[before, NEXT] = r
    else:
        tally[HEAD] = r
    if after >= 0:
        rows[after, PREVIOUS] = r
    else:
        tally[TAIL] = r
    tally[WAITING_COUNT] += 1


@_part
def _enqueue(rows: Ints, tally: Ints, r: int, by_priority: int) -> None:
    """Put row `r` at the tail of the waiting queue, or where its priority belongs."""
    before = tally[TAIL]
    if by_priority:
        while before >= 0 and _comes_before(rows, r, before):
            before = rows[before, PREVIOUS]
    _link(rows, tally, r, before, rows[before, NEXT] if before >= 0 else tally[HEAD])


@_entry
def add(
    rows: Ints, tally: Ints, r: int, prompt: int, output: int, adapter: int, priority: int, by_priority: int
) -> None:
    """Make row `r` a new request in the waiting queue; `adapter` -1 = base model."""
    rows[r, :] = 0
    rows[r, PROMPT] = prompt
    rows[r, TOTAL] = prompt
    rows[r, OUTPUT] = output
    rows[r, ADAPTER] = adapter
    rows[r, PRIORITY] = priority
    rows[r, SCHEDULED_NS] = -1
    rows[r, SEQUENCE] = tally[ARRIVED_COUNT]
    tally[ARRIVED_COUNT] += 1
    _enqueue(rows, tally, r, by_priority)


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
def _pool_unlink(pool: Ints, block: int) -> None:
    """Take `block` out of the queue of free blocks."""
    before, after = pool[BEFORE, block], pool[AFTER, block]
    pool[AFTER, before] = after
    pool[BEFORE, after] = before


@_part
def _pool_push(pool: Ints, block: int) -> None:
    """Put `block` at the tail of the queue of free blocks, where it is taken last."""
    end = pool.shape[1] - 1
    last = pool[BEFORE, end]
    pool[AFTER, last] = block
    pool[BEFORE, block] = last
    pool[AFTER, block] = end
    pool[BEFORE, end] = block


@_part
def _take_blocks(rows: Ints, tally: Ints, r: int, count: int, pool: Any, table: Any, holder: Any) -> None:
    """Give row `r` so many free blocks; what a block held is forgotten."""
    tally[FREE] -= count
    if pool is not None:
        for i in range(rows[r, BLOCKS], rows[r, BLOCKS] + count):
            block = pool[AFTER, pool.shape[1] - 1]
            _pool_unlink(pool, block)
            if pool[CONTENT, block] >= 0:
                holder[pool[CONTENT, block]] = -1
                pool[CONTENT, block] = -1
            pool[HOLDERS, block] = 1
            table[rows[r, START] + i] = block
    rows[r, BLOCKS] += count
    rows[r, FRESH] += count


@_part
def _remember(
    rows: Ints,
    whole: Ints,
    r: int,
    computed: int,
    take: int,
    pool: Any,
    table: Any,
    content: Any,
    holder: Any,
) -> None:
    """Make the blocks that `take` tokens more than `computed` fill findable by their content."""
    if pool is not None:
        size = whole[BLOCK_SIZE]
        for i in range(computed // size, (computed + take) // size):
            what = content[rows[r, START] + i]
            if holder[what] < 0:
                block = table[rows[r, START] + i]
                holder[what] = block
                pool[CONTENT, block] = what


@_part
def _find(rows: Ints, whole: Ints, r: int, pool: Any, content: Any, holder: Any) -> tuple[int, int]:
    """Blocks of row `r` found in the cache, from its first on, and how many of them nobody holds."""
    hits = idle = 0
    if pool is not None:
        most = (rows[r, TOTAL] - 1) // whole[BLOCK_SIZE]
        while hits < most:
            block = holder[content[rows[r, START] + hits]]
            if block < 0:
                break
            idle += pool[HOLDERS, block] == 0
            hits += 1
    return hits, idle


@_part
def _attach(
    rows: Ints, tally: Ints, whole: Ints, r: int, hits: int, pool: Any, table: Any, content: Any, holder: Any
) -> None:
    """Let row `r`, which holds no block, share its first `hits` blocks, and start behind them."""
    if pool is not None:
        for i in range(hits):
            block = holder[content[rows[r, START] + i]]
            if pool[HOLDERS, block] == 0:
                _pool_unlink(pool, block)
                tally[FREE] -= 1
            pool[HOLDERS, block] += 1
            table[rows[r, START] + i] = block
        rows[r, BLOCKS] = hits
        rows[r, COMPUTED] = hits * whole[BLOCK_SIZE]


@_part
def _free(rows: Ints, tally: Ints, r: int, pool: Any, table: Any) -> None:
    """Give back all blocks of row `r`, the last one first."""
    if pool is None:
        tally[FREE] += rows[r, BLOCKS]
    else:
        for i in range(rows[r, BLOCKS] - 1, -1, -1):
            block = table[rows[r, START] + i]
            pool[HOLDERS, block] -= 1
            if pool[HOLDERS, block] == 0:
                _pool_push(pool, block)
                tally[FREE] += 1
    rows[r, BLOCKS] = 0


@_part
def _drop(running: Ints, tally: Ints, index: int) -> None:
    """Take a place out of the list of running requests."""
    tally[RUNNING_COUNT] -= 1
    for i in range(index, tally[RUNNING_COUNT]):
        running[i] = running[i + 1]


@_entry
def cancel(rows: Ints, running: Ints, tally: Ints, r: int) -> None:
    """Take row `r` out of wherever it is and free its blocks at once."""
    if rows[r, PLACE] == WAITING:
        _unlink(rows, tally, r)
    elif rows[r, PLACE] == RUNNING:
        for i in range(tally[RUNNING_COUNT]):
            if running[i] == r:
                _drop(running, tally, i)
                break
    _free(rows, tally, r, None, None)
    rows[r, PLACE] = GONE


@_part
def _blocks_of(whole: Ints, tokens: int) -> int:
    return int((tokens + whole[BLOCK_SIZE] - 1) // whole[BLOCK_SIZE])


@_part
def _victim(rows: Ints, running: Ints, tally: Ints, by_priority: int) -> int:
    """Where in `running` the one stands that is preempted next."""
    last = tally[RUNNING_COUNT] - 1
    if by_priority:
        for i in range(tally[RUNNING_COUNT]):
            if _comes_before(rows, running[last], running[i]):
                last = i
    return int(last)


@_part
def _preempt(
    rows: Ints, running: Ints, tally: Ints, index: int, by_priority: int, pool: Any, table: Any
) -> None:
    r = running[index]
    _drop(running, tally, index)
    _free(rows, tally, r, pool, table)
    rows[r, PREEMPTIONS] += 1
    rows[r, TAKE] = 0
    rows[r, FRESH] = 0
    if rows[r, PLACE] == ENDING:
        rows[r, PLACE] = GONE
        tally[ENDING_COUNT] -= 1
        return
    rows[r, PEAK] = max(rows[r, PEAK], rows[r, COMPUTED])
    rows[r, COMPUTED] = 0
    if by_priority:
        _enqueue(rows, tally, r, by_priority)
    else:
        _link(rows, tally, r, -1, tally[HEAD])


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
    hits: int,
    take: int,
    slot: int,
    pool: Any,
    table: Any,
    content: Any,
    holder: Any,
) -> None:
    _unlink(rows, tally, r)
    rows[r, PLACE] = RUNNING
    rows[r, TAKE] = take
    _attach(rows, tally, whole, r, hits, pool, table, content, holder)
    missing = _blocks_of(whole, rows[r, COMPUTED] + take) - rows[r, BLOCKS]
    _take_blocks(rows, tally, r, missing, pool, table, holder)
    _remember(rows, whole, r, rows[r, COMPUTED], take, pool, table, content, holder)
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
def _continue_running(
    rows: Ints,
    running: Ints,
    tally: Ints,
    whole: Ints,
    result: Ints,
    pool: Any,
    table: Any,
    content: Any,
    holder: Any,
) -> int:
    """Give tokens and blocks to running requests; returns the budget left."""
    budget = whole[TOKENS_MAX]
    i = 0
    while i < tally[RUNNING_COUNT] and budget > 0:
        r = running[i]
        if rows[r, PLACE] == ENDING:
            i += 1
            continue
        take = rows[r, TOTAL] - rows[r, COMPUTED]
        if 0 < whole[LONG_PREFILL] < take:
            take = whole[LONG_PREFILL]
        take = min(take, budget)
        missing = _blocks_of(whole, rows[r, COMPUTED] + take) - rows[r, BLOCKS]
        while missing > tally[FREE]:
            result[DENIED] = 1
            result[PREEMPTED] += 1
            last = _victim(rows, running, tally, whole[PRIORITY_FIRST])
            itself = last == i
            if last < i:
                budget += rows[running[last], TAKE]
                i -= 1
            _preempt(rows, running, tally, last, whole[PRIORITY_FIRST], pool, table)
            if itself:
                return int(budget)
        _take_blocks(rows, tally, r, missing, pool, table, holder)
        _remember(rows, whole, r, rows[r, COMPUTED], take, pool, table, content, holder)
        rows[r, TAKE] = take
        budget -= take
        i += 1
    return int(budget)


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
    pool: Any,
    table: Any,
    content: Any,
    holder: Any,
) -> None:
    """Admit waiting requests in order."""
    r = tally[HEAD]
    while r >= 0 and budget > 0 and tally[RUNNING_COUNT] < whole[SEQS_MAX]:
        after = rows[r, NEXT]
        slot = -1
        if rows[r, ADAPTER] >= 0:
            slot = _find_slot(slots, whole[SLOT_COUNT], rows[r, ADAPTER], tally[STEP_COUNT])
            if slot < 0:
                r = after
                continue
        hits, idle = _find(rows, whole, r, pool, content, holder)
        computed = hits * whole[BLOCK_SIZE]
        take = rows[r, TOTAL] - computed
        if 0 < whole[LONG_PREFILL] < take:
            take = whole[LONG_PREFILL]
        if take > budget:
            if whole[CHUNKED] == 0:
                break
            take = budget
        asked = rows[r, TOTAL] if whole[RESERVE_FULL] else computed + take
        if _blocks_of(whole, asked) - hits + idle > tally[FREE]:
            result[DENIED] = 1
            break
        _admit(
            now_ns,
            rows,
            running,
            tally,
            slots,
            whole,
            result,
            ids,
            r,
            hits,
            take,
            slot,
            pool,
            table,
            content,
            holder,
        )
        budget -= take
        r = after


@_part
def _admit_alone(
    now_ns: int,
    rows: Ints,
    running: Ints,
    tally: Ints,
    slots: Ints,
    whole: Ints,
    result: Ints,
    ids: Ints,
    pool: Any,
    table: Any,
    content: Any,
    holder: Any,
) -> bool:
    """Without chunked prefill: a head of the queue larger than the whole budget, alone; whether there was one."""
    r = tally[HEAD]
    if r < 0 or whole[CHUNKED] or tally[RUNNING_COUNT] >= whole[SEQS_MAX]:
        return False
    hits, idle = _find(rows, whole, r, pool, content, holder)
    take = rows[r, TOTAL] - hits * whole[BLOCK_SIZE]
    if take <= whole[TOKENS_MAX]:
        return False
    slot = -1
    if rows[r, ADAPTER] >= 0:
        slot = _find_slot(slots, whole[SLOT_COUNT], rows[r, ADAPTER], tally[STEP_COUNT])
        if slot < 0:
            return False
    if _blocks_of(whole, rows[r, TOTAL]) - hits + idle > tally[FREE]:
        result[DENIED] = 1
        return False
    _admit(
        now_ns,
        rows,
        running,
        tally,
        slots,
        whole,
        result,
        ids,
        r,
        hits,
        take,
        slot,
        pool,
        table,
        content,
        holder,
    )
    return True


@_piece
def _schedule(
    now_ns: int,
    rows: Ints,
    running: Ints,
    tally: Ints,
    slots: Ints,
    whole: Ints,
    result: Ints,
    ids: Ints,
    pool: Any,
    table: Any,
    content: Any,
    holder: Any,
) -> None:
    """Choose the batch of a step: `rows[TAKE]` of everybody who runs."""
    result[:] = 0
    tally[STEP_COUNT] += 1
    if whole[SLOT_COUNT]:
        _touch_running(rows, running, tally, slots, whole)
    alone = _admit_alone(
        now_ns, rows, running, tally, slots, whole, result, ids, pool, table, content, holder
    )
    if not alone:
        budget = _continue_running(rows, running, tally, whole, result, pool, table, content, holder)
        if result[PREEMPTED] == 0:
            _admit_waiting(
                now_ns, rows, running, tally, slots, whole, result, ids, budget, pool, table, content, holder
            )
    result[T_NS] = now_ns
    result[STEP_RUNNING] = tally[RUNNING_COUNT]
    result[STEP_WAITING] = tally[WAITING_COUNT]
    result[KV_USED] = whole[BLOCK_COUNT] - tally[FREE]


@_piece
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
def _locate(axes: Floats, which: int, points: int, at: float) -> tuple[int, float]:
    """`predict.profile.locate` on one of the four axes."""
    if at <= axes[which, 0]:
        return 0, 0.0
    low, high = 0, points - 1
    while high - low > 1:
        middle = (low + high) // 2
        if axes[which, middle] <= at:
            low = middle
        else:
            high = middle
    return low, (at - axes[which, low]) / (axes[which, low + 1] - axes[which, low])


@_part
def _between(a: float, b: float, along: float) -> float:
    return a + (b - a) * along


@_piece
def _corner(
    grid: Floats, i: int, along_i: float, j: int, along_j: float, k: int, along_k: float, m: int
) -> float:
    """The grid at point `m` of decode KV, between the points of the other three axes."""
    value: float = _between(
        _between(
            _between(grid[i, j, k, m], grid[i, j, k + 1, m], along_k),
            _between(grid[i, j + 1, k, m], grid[i, j + 1, k + 1, m], along_k),
            along_j,
        ),
        _between(
            _between(grid[i + 1, j, k, m], grid[i + 1, j, k + 1, m], along_k),
            _between(grid[i + 1, j + 1, k, m], grid[i + 1, j + 1, k + 1, m], along_k),
            along_j,
        ),
        along_i,
    )
    return value


@_part
def _attention_us(
    axes: Floats,
    grid: Floats,
    whole: Ints,
    skew: float,
    chunk: float,
    before: float,
    decodes: int,
    mean: float,
    longest: int,
) -> float:
    """`predict.profile`: attention of a batch, unequal KV included."""
    if 0.0 < chunk < axes[0, 1]:
        chunk = axes[0, 1]
    i, along_i = _locate(axes, 0, whole[CHUNK_POINTS], chunk)
    j, along_j = _locate(axes, 1, whole[CHUNK_POINTS + 1], before)
    k, along_k = _locate(axes, 2, whole[CHUNK_POINTS + 2], float(decodes))
    m, along_m = _locate(axes, 3, whole[DECODE_KV_POINTS], mean)
    a = _between(
        _corner(grid, i, along_i, j, along_j, k, along_k, m),
        _corner(grid, i, along_i, j, along_j, k, along_k, m + 1),
        along_m,
    )
    if decodes > 1 and skew > 0.0:
        m, along_m = _locate(axes, 3, whole[DECODE_KV_POINTS], float(longest))
        most = _between(
            _corner(grid, i, along_i, j, along_j, k, along_k, m),
            _corner(grid, i, along_i, j, along_j, k, along_k, m + 1),
            along_m,
        )
        a += skew * (most - a)
    return float(a)


@_part
def _decode_us(figures: Floats, n: int, total: int, longest: int) -> float:
    read = total + figures[SKEW] * (n * longest - total)
    return float(figures[DECODE_US] + n * figures[DECODE_US_PER_SEQ] + read * figures[DECODE_US_PER_KV_TOKEN])


@_part
def _add_chunks(t: float, rows: Ints, running: Ints, tally: Ints, figures: Floats) -> float:
    """`t` and the attention of the batch's prefill chunks, added one after the other."""
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        take = rows[r, TAKE]
        computed = rows[r, COMPUTED]
        if take > 0 and not (rows[r, GENERATED] > 0 and computed + 1 == rows[r, TOTAL]):
            t += figures[PREFILL_US] + take * (
                figures[PREFILL_US_PER_TOKEN] + (computed + take / 2) * figures[PREFILL_US_PER_TOKEN_KV]
            )
    return t


@_piece
def _step_us(
    rows: Ints,
    running: Ints,
    tally: Ints,
    whole: Ints,
    figures: Floats,
    dense: Floats,
    head: Floats,
    axes: Floats,
    grid: Floats,
    result: Ints,
) -> tuple[float, int, int, int]:
    """`predict.steptime.step_time_us` of the batch in `rows[TAKE]`, less `overhead_us`; counts tokens and recomputation.

    With `TABLES` it is `predict.profile.profile_time_us`.  Host time is accounted for in `_prepare`; only when that is the chain of
    stages, a step that runs eager costs the device more.  Returns with it the sequences in the batch, the blocks newly
    taken, and the blocks a sequence holds on average (rounded up).
    """
    tokens = emitting = n = total = longest = chunk = before = seqs = held = fresh = 0
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        take = rows[r, TAKE]
        if take == 0:
            continue
        computed = rows[r, COMPUTED]
        seqs += 1
        tokens += take
        held += rows[r, BLOCKS]
        fresh += rows[r, FRESH]
        emitting += computed + take == rows[r, TOTAL]
        if computed < rows[r, PEAK]:
            result[RECOMPUTED_TOKENS] += min(computed + take, rows[r, PEAK]) - computed
        if rows[r, GENERATED] > 0 and computed + 1 == rows[r, TOTAL]:
            n += 1
            total += computed + 1
            longest = max(longest, computed + 1)
        else:
            chunk += take
            before += take * computed
    t = _line(dense, tokens)
    if emitting > 0:
        t += _line(head, emitting)
    if whole[TABLES]:
        before_mean = before / chunk if chunk else 0.0
        mean = total / n if n else 0.0
        t += _attention_us(axes, grid, whole, figures[SKEW], float(chunk), before_mean, n, mean, longest)
    else:
        if chunk:
            t = _add_chunks(t, rows, running, tally, figures)
        if n:
            t += _decode_us(figures, n, total, longest)
    result[DECODE_TOKENS] = n
    result[PREFILL_TOKENS] = tokens - n
    if n < tokens or n > whole[GRAPH_SEQS_MAX]:
        result[EAGER] = 1
        if whole[HOST_CHAIN]:
            t += figures[EAGER_US]
    return t, seqs, fresh, (held + seqs - 1) // max(1, seqs)


@_part
def _device_ns(device_us: float, noise: float) -> int:
    return int(device_us * noise * 1000.0 + 0.5)


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


@_piece
def _prepare(
    now_ns: int,
    seqs: int,
    new_blocks: int,
    table_blocks: int,
    whole: Ints,
    figures: Floats,
    links: Floats,
    costs: Floats,
    result: Ints,
) -> None:
    """`predict.prepare.prepare_ns`: the eight stages and the copies in them; `table_blocks` are a sequence's.

    Without `HOST_CHAIN`: the figure for all of it, which is booked as the last stage.
    """
    if whole[HOST_CHAIN] == 0:
        host_us = figures[OVERHEAD_US]
        if result[EAGER]:
            host_us += figures[EAGER_US]
        result[PREPARE_NS] = result[STAGE_0 + 7] = int(host_us * 1000.0 + 0.5)
        return
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
    result[PREPARE_NS] = 0
    for stage in range(STAGE_COUNT):
        result[PREPARE_NS] += result[STAGE_0 + stage]
    result[COPY_BYTES] = restore_bytes + input_bytes
    result[COPY_NS] = result[STAGE_0 + 1] + result[STAGE_0 + 3]
    if links.shape[0] > 1:
        result[COPY_NS] += result[STAGE_0 + 6] - np.ceil(costs[BARRIER_NS])


@_piece
def _retire(rows: Ints, running: Ints, tally: Ints, pool: Any, table: Any) -> None:
    """Whose last token has come in leaves, with asynchronous scheduling; without, there is nobody."""
    if tally[ENDING_COUNT] == 0:
        return
    kept = 0
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        if rows[r, PLACE] == ENDING:
            _free(rows, tally, r, pool, table)
            rows[r, PLACE] = GONE
            continue
        running[kept] = r
        kept += 1
    tally[RUNNING_COUNT] = kept
    tally[ENDING_COUNT] = 0


@_piece
def _emit(
    rows: Ints,
    running: Ints,
    tally: Ints,
    whole: Ints,
    result: Ints,
    ids: Ints,
    end_ns: int,
    pool: Any,
    table: Any,
) -> None:
    """Book the step's tokens; requests whose tokens all have KV emit one, finished ones leave."""
    kept = 0
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        take = rows[r, TAKE]
        rows[r, TAKE] = 0
        rows[r, FRESH] = 0
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
                ids[FINISHED, result[FINISHED_COUNT]] = r
                result[FINISHED_COUNT] += 1
                if whole[ASYNC]:
                    rows[r, PLACE] = ENDING
                    tally[ENDING_COUNT] += 1
                else:
                    _free(rows, tally, r, pool, table)
                    rows[r, PLACE] = GONE
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
    axes: Floats,
    grid: Floats,
    links: Floats,
    costs: Floats,
    result: Ints,
    ids: Ints,
) -> None:
    """Run one step that starts at `now_ns`; there must be work.  Fills `result` and `ids`.

    `noise` multiplies the device time.  Times of the requests concerned are written to `rows`.
    """
    seqs = fresh = table_blocks = preempted = 0
    while (
        seqs == 0
    ):  # again when, by priority, somebody went before he was served, and all after him came to nothing
        _schedule(now_ns, rows, running, tally, slots, whole, result, ids, None, None, None, None)
        preempted += result[PREEMPTED]
        device_us, seqs, fresh, table_blocks = _step_us(
            rows, running, tally, whole, figures, dense, head, axes, grid, result
        )
    result[PREEMPTED] = preempted
    result[DENIED] = max(result[DENIED], preempted > 0)
    _prepare(now_ns, seqs, fresh, table_blocks, whole, figures, links, costs, result)
    result[DURATION_NS] = result[PREPARE_NS] + _device_ns(device_us, noise)
    _emit(rows, running, tally, whole, result, ids, now_ns + result[DURATION_NS], None, None)


@_piece
def _uneventful(rows: Ints, running: Ints, tally: Ints, whole: Ints, through: bool) -> int:
    """How many steps from now can be nothing but a token for everybody, blocks permitting.

    They end before the one in which somebody finishes; `through`: with it, and although others are about to leave.
    """
    count = tally[RUNNING_COUNT] - tally[ENDING_COUNT]
    if count == 0 or count > whole[TOKENS_MAX] or (tally[ENDING_COUNT] and not through):
        return 0
    left = NEVER_NS
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        if rows[r, PLACE] == ENDING:
            continue
        if rows[r, GENERATED] == 0 or rows[r, TOTAL] - rows[r, COMPUTED] != 1:
            return 0
        left = min(left, rows[r, OUTPUT] - rows[r, GENERATED])
    return int(left) if through else int(left - 1)


@_piece
def _blocked(rows: Ints, tally: Ints, whole: Ints, pool: Any, content: Any, holder: Any) -> bool:
    """Whether nobody, waiting or yet to come, can be admitted while everybody who runs only decodes.

    Seats and tokens stay taken, and free blocks only become fewer.  Where an adapter, a priority or an unchunked
    prompt could make a difference, the answer is no, which costs time but no correctness.
    """
    count = tally[RUNNING_COUNT]
    if count == whole[SEQS_MAX] or count == whole[TOKENS_MAX]:
        return bool(whole[CHUNKED] or count == whole[SEQS_MAX])
    r = tally[HEAD]
    if r < 0 or whole[PRIORITY_FIRST] or whole[SLOT_COUNT] or whole[CHUNKED] == 0:
        return False
    hits, idle = _find(rows, whole, r, pool, content, holder)
    asked = rows[r, TOTAL]
    if whole[RESERVE_FULL] == 0:
        computed = hits * whole[BLOCK_SIZE]
        take = min(asked - computed, whole[TOKENS_MAX] - count)
        if 0 < whole[LONG_PREFILL] < take:
            take = whole[LONG_PREFILL]
        asked = computed + take
        if hits:  # an eviction would move the first chunk
            return False
    return bool(_blocks_of(whole, asked) - hits + idle > tally[FREE])


@_part
def _page(
    done: int,
    rows: Ints,
    running: Ints,
    tally: Ints,
    whole: Ints,
    pool: Any,
    table: Any,
    content: Any,
    holder: Any,
) -> None:
    """Blocks of step `done` of a stretch, request by request: whose last block is full gets one, who fills one is remembered."""
    size = whole[BLOCK_SIZE]
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        if rows[r, PLACE] == ENDING:
            continue
        computed = rows[r, COMPUTED] + done
        if computed % size == 0:
            _take_blocks(rows, tally, r, 1, pool, table, holder)
        if (computed + 1) % size == 0:
            _remember(rows, whole, r, computed, 1, pool, table, content, holder)


@_part
def _steady(links: Floats) -> bool:
    """Whether copies take the same time whenever they start."""
    dips = 0
    for rank in range(links.shape[0]):
        dips += links[rank, PERIOD_NS] != 0.0
    return dips == 0


@_piece
def _run_decodes(  # noqa: C901  (one hot loop: what is cut out of it is paid for every step)
    left: int,
    now_ns: int,
    busy_ns: int,
    host_free_ns: int,
    until_ns: int,
    first_step: int,
    noise_ring: Floats,
    due: Ints,
    stretch: Ints,
    rows: Ints,
    running: Ints,
    tally: Ints,
    slots: Ints,
    whole: Ints,
    figures: Floats,
    dense: Floats,
    head: Floats,
    axes: Floats,
    grid: Floats,
    links: Floats,
    costs: Floats,
    result: Ints,
    pool: Any,
    table: Any,
    content: Any,
    holder: Any,
) -> tuple[int, int, int, int, int]:
    """Run up to `left` steps that give everybody a token and change nothing else, none scheduled at `until_ns` or later.

    In the last of them somebody may finish, and who was about to leave before leaves after the first.  Returns how many
    steps, how many finished, and the three times after them: of the next scheduling, when the device and when the host is free.  `due[i]` counts requests that need a block in step i modulo the block size.  Row i of `stretch`, if
    it has one, is the report of step i.
    """
    count, size = tally[RUNNING_COUNT] - tally[ENDING_COUNT], whole[BLOCK_SIZE]
    due[:] = 0
    total = longest = held = 0
    for i in range(tally[RUNNING_COUNT]):
        r = running[i]
        if rows[r, PLACE] == ENDING:
            continue
        due[-rows[r, COMPUTED] % size] += 1
        total += rows[r, COMPUTED] + 1
        longest = max(longest, rows[r, COMPUTED] + 1)
        held += rows[r, BLOCKS]
    result[:] = 0
    result[STEP_RUNNING] = result[DECODE_TOKENS] = count
    result[STEP_WAITING] = tally[WAITING_COUNT]
    result[EAGER] = count > whole[GRAPH_SEQS_MAX]
    base_us = _line(dense, count) + _line(head, count)
    k, along_k = 0, 0.0
    if whole[TABLES]:
        k, along_k = _locate(axes, 2, whole[CHUNK_POINTS + 2], float(count))
    m_mean = m_most = -1
    mean_low = mean_high = most_low = most_high = 0.0
    unequal = count > 1 and figures[SKEW] > 0.0
    steady = _steady(links)
    fresh_before = rows_before = -1
    done = 0
    while done < left and now_ns < until_ns:
        fresh = due[done % size]
        if fresh > tally[FREE]:
            break
        if pool is None:
            tally[FREE] -= fresh
        elif fresh or due[(done + 1) % size]:
            _page(done, rows, running, tally, whole, pool, table, content, holder)
        held += fresh
        device_us = base_us
        if whole[TABLES]:
            m, along_m = _locate(axes, 3, whole[DECODE_KV_POINTS], total / count)
            if m != m_mean:
                m_mean = m
                mean_low = _between(grid[0, 0, k, m], grid[0, 0, k + 1, m], along_k)
                mean_high = _between(grid[0, 0, k, m + 1], grid[0, 0, k + 1, m + 1], along_k)
            a = _between(mean_low, mean_high, along_m)
            if unequal:
                m, along_m = _locate(axes, 3, whole[DECODE_KV_POINTS], float(longest))
                if m != m_most:
                    m_most = m
                    most_low = _between(grid[0, 0, k, m], grid[0, 0, k + 1, m], along_k)
                    most_high = _between(grid[0, 0, k, m + 1], grid[0, 0, k + 1, m + 1], along_k)
                a += figures[SKEW] * (_between(most_low, most_high, along_m) - a)
            device_us += a
        else:
            device_us += _decode_us(figures, count, total, longest)
        if result[EAGER] and whole[HOST_CHAIN]:
            device_us += figures[EAGER_US]
        begin_ns = max(now_ns, host_free_ns)
        table_blocks = (held + count - 1) // count
        if not steady or fresh != fresh_before or table_blocks != rows_before:
            _prepare(begin_ns, count, fresh, table_blocks, whole, figures, links, costs, result)
            fresh_before, rows_before = fresh, table_blocks
        host_free_ns = begin_ns + result[PREPARE_NS]
        device_ns = _device_ns(device_us, noise_ring[(first_step + done) % noise_ring.shape[0]])
        end_ns = max(busy_ns, host_free_ns) + device_ns
        if done < stretch.shape[0]:
            result[T_NS] = now_ns
            result[DURATION_NS] = end_ns - now_ns
            result[KV_USED] = whole[BLOCK_COUNT] - tally[FREE]
            for cell in range(STARTED_COUNT):
                stretch[done, cell] = result[cell]
        now_ns = max(now_ns, busy_ns) if whole[ASYNC] else end_ns
        busy_ns = end_ns
        if done == 0:
            _retire(rows, running, tally, pool, table)
        total += count
        longest += 1
        done += 1
    finished = 0
    if done:
        for i in range(count):
            r = running[i]
            rows[r, COMPUTED] += done
            rows[r, TOTAL] += done
            rows[r, GENERATED] += done
            rows[r, BLOCKS] = _blocks_of(whole, rows[r, COMPUTED])
            rows[r, FRESH] = 0
            if rows[r, GENERATED] == rows[r, OUTPUT]:
                rows[r, LAST_NS] = busy_ns
                rows[r, PLACE] = ENDING
                finished += 1
        tally[ENDING_COUNT] = finished
        if not whole[ASYNC]:
            _retire(rows, running, tally, pool, table)
        tally[STEP_COUNT] += done
        if whole[SLOT_COUNT]:
            _touch_running(rows, running, tally, slots, whole)
    return done, finished, now_ns, busy_ns, host_free_ns


@_part
def _simulate(
    queued_ns: Ints,
    rows: Ints,
    running: Ints,
    tally: Ints,
    slots: Ints,
    whole: Ints,
    figures: Floats,
    dense: Floats,
    head: Floats,
    axes: Floats,
    grid: Floats,
    links: Floats,
    costs: Floats,
    noise_ring: Floats,
    pool: Any,
    table: Any,
    content: Any,
    holder: Any,
) -> tuple[int, int, int]:
    count = rows.shape[0]
    result = np.zeros(RESULT_COUNT, np.int64)
    ids = np.empty((ID_LISTS, running.shape[0]), np.int64)
    due = np.zeros(whole[BLOCK_SIZE], np.int64)
    unseen = np.empty((0, STARTED_COUNT), np.int64)
    plain = whole[SLOT_COUNT] == 0 and _steady(links)
    # A plain 0 has a type of its own, and everything called with it would be compiled once more; a cell has not.
    now_ns = busy_ns = host_free_ns = steps = int(tally[STEP_COUNT])
    arrived = finished = preempted = 0
    while finished < count:
        if tally[RUNNING_COUNT] == 0 and tally[HEAD] < 0:
            now_ns = max(now_ns, int(queued_ns[arrived]))
        while arrived < count and queued_ns[arrived] <= now_ns:
            rows[arrived, SEQUENCE] = arrived
            _enqueue(rows, tally, arrived, whole[PRIORITY_FIRST])
            arrived += 1
        blocked = _blocked(rows, tally, whole, pool, content, holder)
        if blocked or tally[HEAD] < 0:
            through = plain and tally[HEAD] < 0
            left = _uneventful(rows, running, tally, whole, through)
            if left:
                never = arrived == count or (blocked and not through)
                until_ns = NEVER_NS if never else int(queued_ns[arrived])
                done, ended, now_ns, busy_ns, host_free_ns = _run_decodes(
                    left,
                    now_ns,
                    busy_ns,
                    host_free_ns,
                    until_ns,
                    steps,
                    noise_ring,
                    due,
                    unseen,
                    rows,
                    running,
                    tally,
                    slots,
                    whole,
                    figures,
                    dense,
                    head,
                    axes,
                    grid,
                    links,
                    costs,
                    result,
                    pool,
                    table,
                    content,
                    holder,
                )
                steps += done
                finished += ended
                if done:
                    continue
        _schedule(now_ns, rows, running, tally, slots, whole, result, ids, pool, table, content, holder)
        preempted += result[PREEMPTED]
        device_us, seqs, fresh, table_blocks = _step_us(
            rows, running, tally, whole, figures, dense, head, axes, grid, result
        )
        if seqs == 0:  # who runs is about to finish and nobody gets in before; or see `step`
            _retire(rows, running, tally, pool, table)
            now_ns = max(now_ns, busy_ns)
            continue
        begin_ns = max(now_ns, host_free_ns)
        _prepare(begin_ns, seqs, fresh, table_blocks, whole, figures, links, costs, result)
        host_free_ns = begin_ns + result[PREPARE_NS]
        device_ns = _device_ns(device_us, noise_ring[steps % noise_ring.shape[0]])
        end_ns = max(busy_ns, host_free_ns) + device_ns
        _retire(rows, running, tally, pool, table)
        _emit(rows, running, tally, whole, result, ids, end_ns, pool, table)
        now_ns = max(now_ns, busy_ns) if whole[ASYNC] else end_ns
        busy_ns = end_ns
        finished += int(result[FINISHED_COUNT])
        steps += 1
    return steps, busy_ns, preempted


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
    axes: Floats,
    grid: Floats,
    links: Floats,
    costs: Floats,
    noise_ring: Floats,
) -> tuple[int, int, int]:
    """Run a whole trace without a block cache: row `r` joins the waiting queue at `queued_ns[r]` (ascending).

    Returns steps, the end of the last one, and how often somebody was preempted.  The answer lies in `rows`: scheduled,
    first and last token times, preemptions.
    """
    done: tuple[int, int, int] = _simulate(
        queued_ns,
        rows,
        running,
        tally,
        slots,
        whole,
        figures,
        dense,
        head,
        axes,
        grid,
        links,
        costs,
        noise_ring,
        None,
        None,
        None,
        None,
    )
    return done


@_entry
def simulate_cached(
    queued_ns: Ints,
    rows: Ints,
    running: Ints,
    tally: Ints,
    slots: Ints,
    whole: Ints,
    figures: Floats,
    dense: Floats,
    head: Floats,
    axes: Floats,
    grid: Floats,
    links: Floats,
    costs: Floats,
    noise_ring: Floats,
    pool: Ints,
    table: Ints,
    content: Ints,
    holder: Ints,
) -> tuple[int, int, int]:
    """`simulate` with a block cache.

    The blocks of row r are `table[START + i]`, and `content[START + i]` says by which number block i can be found
    when it is full; `holder[number]` is the block that is found.
    """
    done: tuple[int, int, int] = _simulate(
        queued_ns,
        rows,
        running,
        tally,
        slots,
        whole,
        figures,
        dense,
        head,
        axes,
        grid,
        links,
        costs,
        noise_ring,
        pool,
        table,
        content,
        holder,
    )
    return done


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
    axes: Floats,
    grid: Floats,
    links: Floats,
    costs: Floats,
    result: Ints,
    ids: Ints,
) -> int:
    """Run steps in which nothing happens but one token for everybody; returns how many.

    Such a step has an empty waiting queue, only decodes, blocks for all of them, and finishes nobody.  At most
    `len(stretch)` are run; row i of `stretch` is the report of step i, cells `T_NS` to `PREPARE_NS`.  `rewind` takes the last of them back.
    """
    if tally[HEAD] >= 0:
        return 0
    left = min(stretch.shape[0], _uneventful(rows, running, tally, whole, False))
    if left <= 0:
        return 0
    done, _, _, _, _ = _run_decodes(
        left,
        now_ns,
        now_ns,
        now_ns,
        NEVER_NS,
        first_step,
        noise_ring,
        np.zeros(whole[BLOCK_SIZE], np.int64),
        stretch,
        rows,
        running,
        tally,
        slots,
        whole,
        figures,
        dense,
        head,
        axes,
        grid,
        links,
        costs,
        result,
        None,
        None,
        None,
        None,
    )
    return int(done)


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
"""What Python calls here, to be compiled or loaded ahead of use; `simulate_cached` is when it is first needed."""
