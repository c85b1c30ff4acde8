"""How a stage is called and explained on the page: its words, its layer, its place in the chain.

The names come from the breakpoint table; what is not in it (an unattributed stretch) keeps its own name.
"""

from sits.core.breakpoints import BREAKPOINTS

LAYERS = ("http", "scheduler", "device", "result")
UNATTRIBUTED = "unattributed"

AFTER_FIRST_TOKEN = frozenset({"decode", "send"})
"""Stages after the first token: no part of TTFT."""

MEANINGS = {
    "parse": "reading the request",
    "authorize": "waiting for the gateway's CPU to check access",
    "route": "choosing a replica",
    "admit_window": "held in the gateway's window",
    "to_engine": "on the way to the engine",
    "tokenize": "turning text into tokens",
    "engine_queue": "waiting in the engine's queue",
    "kv_allocate": "getting blocks of the KV cache",
    "kv_restore": "loading the adapter or stored KV",
    "input_copy": "copying inputs to the device",
    "collective_sync": "waiting for the other GPUs",
    "prefill": "computing the prompt (prefill)",
    "decode": "generating tokens (decode)",
}
"""What happens in a stage, as part of a sentence."""

_BY_STAGE = {point.stage: point for point in BREAKPOINTS[1:]}

ABBREVIATIONS = {
    word.lower(): word
    for word in (
        "KV",
        "NUMA",
        "PCIe",
        "GPU",
        "CPU",
        "LoRA",
        "TTFT",
        "E2E",
        "P50",
        "P95",
        "P99",
        "HTTP",
        "TP",
        "CV",
    )
}

EXACTNESS = {
    "measured": "timestamps of this request",
    "derived": "computed from other timestamps",
    "sampled": "taken from a sample of steps",
    "missing": "no timestamp",
    UNATTRIBUTED: "time that no stage explains",
}


def words(stage: str) -> str:
    """The stage in words: underscores are for programs, except in the breakpoints of an unattributed stretch.

    >>> words("kv_restore"), words("unattributed (kv_ready..launch)")
    ('KV restore', 'unattributed (kv_ready..launch)')
    """
    if is_unattributed(stage):
        return stage
    return " ".join(ABBREVIATIONS.get(word, word) for word in stage.split("_"))


def meaning(stage: str) -> str:
    """The stage as part of a sentence: what happens in it, or its name.

    >>> meaning("engine_queue"), meaning("launch")
    ("waiting in the engine's queue", 'in launch')
    """
    if is_unattributed(stage):
        return f"that no stage explains{stage.removeprefix(UNATTRIBUTED)}"
    return MEANINGS.get(stage, f"in {words(stage)}")


def explain(stage: str) -> str:
    """One line: from which breakpoint to which, and what happened then."""
    point = _BY_STAGE.get(stage)
    if point is None:
        return "time between two breakpoints that no stage explains" if is_unattributed(stage) else ""
    return f"{BREAKPOINTS[point.index - 1].name} → {point.name}: {point.moment}"


def is_unattributed(stage: str) -> bool:
    """Whether the stage is a stretch that nothing explains."""
    return stage.startswith(UNATTRIBUTED)


def css_layer(layer: str, stage: str = "") -> str:
    """The class that colours a layer; unknown layers are drawn as unattributed."""
    if is_unattributed(stage) or layer not in LAYERS:
        return UNATTRIBUTED
    return layer
