"""The 17 breakpoints of a request, and the three milestones after them.

One table cuts every request's timeline: consecutive rows bound a *stage*, so the stages of a request, plus
what no stage explains, add up to its end-to-end time by construction.  A breakpoint that nobody saw merges
the two stages around it into one named "unattributed (a..b)"; time is never dropped and never invented.

Points 0-3 belong to the HTTP layer, 4-8 to the scheduler layer, 9-16 to the device-preparation chain, and
17-19 are results.  The first 17 stages end at `first_token`: they are the anatomy of TTFT.

Deliberately absent: how a breakpoint is observed on a given engine (that is the engine's or a probe's
business; the `source` column only says where to look).
"""

from enum import IntEnum

import msgspec


class Breakpoint(msgspec.Struct, frozen=True):
    """One row of the table: the moment named `name`, and the stage that *ends* there.

    `stage` is the name of the interval from the previous breakpoint to this one (empty for the first);
    `layer` is one of `http`, `scheduler`, `device`, `result`.
    """

    index: int
    layer: str
    name: str
    stage: str
    moment: str
    source: str


class Exactness(IntEnum):
    """How a timestamp came to be.  The order is that of trust; `MISSING` cells hold no time at all."""

    MISSING = 0
    SAMPLED = 1
    DERIVED = 2
    MEASURED = 3


BREAKPOINTS: tuple[Breakpoint, ...] = tuple(
    Breakpoint(i, *row)
    for i, row in enumerate(
        (
            ("http", "api_recv", "", "first byte of the request", "gateway"),
            ("http", "parsed", "parse", "head and body understood, caller identified", "gateway"),
            ("http", "authorized", "authorize", "access, contract, quota, cache answered", "gateway"),
            ("http", "routed", "route", "release assigned, adapter ready, replica chosen", "gateway"),
            ("scheduler", "dispatched", "admit_window", "admission and window passed, request written to the engine", "gateway"),
            ("scheduler", "engine_recv", "to_engine", "engine front end has it", "engine span start"),
            ("scheduler", "tokenized", "tokenize", "prompt is ids", "probe"),
            ("scheduler", "queued", "enqueue", "in the engine's waiting queue", "engine event"),
            ("scheduler", "scheduled", "engine_queue", "first picked for a step", "engine event"),
            ("device", "kv_allocated", "kv_allocate", "blocks reserved, prefix hit known", "probe"),
            ("device", "kv_ready", "kv_restore", "transferred, restored or attached KV (and adapter) is in place", "probe"),
            ("device", "batch_built", "batch_build", "host tensors of the step assembled", "probe"),
            ("device", "inputs_copied", "input_copy", "inputs on the device", "probe"),
            ("device", "graph_chosen", "graph_choose", "captured graph or eager path picked", "probe"),
            ("device", "attention_ready", "attention_prep", "block tables and attention metadata built", "probe"),
            ("device", "collective_ready", "collective_sync", "ranks in step", "probe"),
            ("device", "kernel_launch", "launch", "first kernel of the request's first step", "probe"),
            ("result", "first_token", "prefill", "first token handed to the client's side of the gateway", "engine and gateway"),
            ("result", "last_token", "decode", "last token handed over", "engine and gateway"),
            ("result", "sent", "send", "answer flushed", "gateway"),
        )
    )
)  # fmt: skip

BREAKPOINT_COUNT = 17
"""Breakpoints proper: `api_recv` (0) to `kernel_launch` (16)."""

POINT_COUNT = len(BREAKPOINTS)
"""Breakpoints and milestones: the width of a timeline row (20)."""

NAMES: tuple[str, ...] = tuple(b.name for b in BREAKPOINTS)
STAGES: tuple[str, ...] = tuple(b.stage for b in BREAKPOINTS[1:])
"""The 19 stages; `STAGES[i]` runs from point `i` to point `i + 1`.  The first 17 add up to TTFT."""

TTFT_STAGES: tuple[str, ...] = STAGES[:BREAKPOINT_COUNT]

INDEX: dict[str, int] = {name: i for i, name in enumerate(NAMES)}

(
    API_RECV,
    PARSED,
    AUTHORIZED,
    ROUTED,
    DISPATCHED,
    ENGINE_RECV,
    TOKENIZED,
    QUEUED,
    SCHEDULED,
    KV_ALLOCATED,
    KV_READY,
    BATCH_BUILT,
    INPUTS_COPIED,
    GRAPH_CHOSEN,
    ATTENTION_READY,
    COLLECTIVE_READY,
    KERNEL_LAUNCH,
    FIRST_TOKEN,
    LAST_TOKEN,
    SENT,
) = range(POINT_COUNT)
