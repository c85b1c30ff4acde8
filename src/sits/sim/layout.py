"""Where things lie in the kernel's arrays: names for rows and cells, shared by `kernel` and `model`.

The kernel's state is a struct of arrays packed into few matrices, because every array handed to a compiled
function costs a tenth of a microsecond a call: `rows[FIELD, row]` holds one request per column, `tally` the
scalars of the state, `slots` the adapter slots, and `result` what one step reports.  All are int64.

Deliberately absent: numba.  Importing this costs nothing.
"""

# rows[field, row]: one request.
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

# tally[cell]
FREE, HEAD, TAIL, RUNNING_COUNT, WAITING_COUNT, STEP_COUNT, PREEMPTION_COUNT = range(7)
TALLY_COUNT = 7

# whole[cell]: integer settings
(BLOCK_SIZE, BLOCK_COUNT, SEQS_MAX, TOKENS_MAX, LONG_PREFILL, CHUNKED, GRAPH_SEQS_MAX, SLOT_COUNT, ADAPTER_BYTES) = range(9)  # fmt: skip
WHOLE_COUNT = 9

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
"""The device-preparation stages `kv_allocate` .. `launch`; their durations follow each other from `STAGE_0`."""

RESULT_COUNT = STAGE_0 + STAGE_COUNT

# ids[list, i]: rows scheduled for the first time, with a first token, finished, and with any token in a step.
STARTED, FIRST, FINISHED, EMITTED = range(4)
ID_LISTS = 4
