"""Layer and operation of a stack: which part of serving a request the processor was busy with.

The innermost frame of a file the table knows decides, so a JSON parser called while a request is read counts as reading it.  Our own
files are known by their place; engines by the functions every version of them has.

Rules: an operation that the context named (a span of the program's own) comes first, in the layer `app`; layers are those of the
breakpoints (`http`, `gateway`, `scheduler`, `model`) and of what goes on beside requests (`telemetry`, `loop`).  What nobody knows
has no labels, and says so by that.

Deliberately absent: anything asked of the process itself; this works as well on a profile somebody else took.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from sits.telemetry.profile.profile import Frame, Labels

FILES: Mapping[str, str] = {
    "gateway/http": "http/parse",
    "gateway/connection": "http/connection",
    "gateway/server": "http/serve",
    "gateway/bodies": "http/parse",
    "gateway/endpoints": "http/parse",
    "gateway/openai_api": "http/parse",
    "gateway/openai_bodies": "http/parse",
    "gateway/anthropic_api": "http/parse",
    "gateway/trace": "http/parse",
    "gateway/sink": "http/write",
    "gateway/answer_forms": "http/write",
    "gateway/pipeline": "gateway/pipeline",
    "gateway/exchange": "gateway/pipeline",
    "gateway/strand": "gateway/pipeline",
    "gateway/access": "gateway/authorize",
    "gateway/standing": "gateway/authorize",
    "gateway/keys": "gateway/authorize",
    "gateway/tokens": "gateway/authorize",
    "gateway/signing_keys": "gateway/authorize",
    "gateway/quota": "gateway/quota",
    "gateway/ledger": "gateway/quota",
    "gateway/cache": "gateway/cache",
    "gateway/cached": "gateway/cache",
    "gateway/versions": "gateway/release",
    "gateway/routing": "gateway/route",
    "gateway/choosing": "gateway/route",
    "gateway/places": "gateway/route",
    "gateway/shared": "gateway/route",
    "gateway/adapters": "gateway/adapter",
    "gateway/holding": "scheduler/window",
    "gateway/joint": "scheduler/window",
    "gateway/relay": "model/llm_generate",
    "gateway/decisions": "telemetry/record",
    "gateway/metrics": "telemetry/metrics",
    "policy/route": "gateway/route",
    "policy/release": "gateway/release",
    "policy/admit": "gateway/admit",
    "policy/access": "gateway/authorize",
    "policy/quota": "gateway/quota",
    "policy/window": "scheduler/window",
    "policy": "gateway/policy",
    "engine/emulated": "model/emulate",
    "engine": "model/llm_generate",
    "sim": "model/emulate",
    "app/up/outbox": "telemetry/record",
    "app/up/link": "telemetry/record",
    "app/up/books": "telemetry/store",
    "app/up/watch": "telemetry/scrape",
    "telemetry/store": "telemetry/store",
    "telemetry/writer": "telemetry/store",
    "telemetry/profile": "telemetry/profile",
    "telemetry": "telemetry/record",
}
"""Files and directories below `sits/`; the longest name that fits counts."""

ENGINES: Mapping[str, Mapping[str, str]] = {
    "vllm/": {
        "Scheduler.schedule": "scheduler/schedule",
        "Scheduler.update_from_output": "scheduler/schedule",
        "KVCacheManager.": "scheduler/kv",
        "GPUModelRunner._prepare_inputs": "device/batch_build",
        "GPUModelRunner._update_states": "device/batch_build",
        "Sampler.": "model/sample",
        "GPUModelRunner._bookkeeping_sync": "model/sample",
        "GPUModelRunner.": "model/llm_generate",
        "CPUModelRunner.": "model/llm_generate",
        "Worker.execute_model": "model/llm_generate",
        "EngineCoreProc.": "scheduler/loop",
        "OpenAIServing": "http/serve",
    },
    "torch/": {"": "model/llm_generate"},
    "transformers/": {"": "scheduler/tokenize"},
    "tokenizers/": {"": "scheduler/tokenize"},
    "uvloop/": {"": "loop/io"},
    "asyncio/": {"": "loop/io"},
    "selectors.py": {"": "loop/io"},
}
"""Functions of engines, by the beginning of file and name; the first that fits counts."""


def label(stack: Sequence[Frame], op: str = "") -> Labels:
    """Labels of a stack, outermost frame first; without a trace.

    >>> label([Frame("run", "asyncio/runners.py"), Frame("HttpReader.feed", "sits/gateway/http.py"), Frame("loads", "json/__init__.py")])
    Labels(layer='http', op='parse', trace='')
    """
    if op:
        return Labels("app", op)
    for frame in reversed(stack):
        known = _known(frame.file, frame.function)
        if known:
            return Labels(*known.split("/"))
    return Labels()


@lru_cache(maxsize=16_384)
def _known(file: str, function: str) -> str:
    _, ours, below = file.rpartition("sits/")
    if ours:
        name = below.removesuffix(".py")
        while name:
            if name in FILES:
                return FILES[name]
            name = name.rpartition("/")[0]
        return ""
    for beginning, functions in ENGINES.items():
        if file.startswith(beginning) or f"/{beginning}" in file:
            for function_beginning, found in functions.items():
                if function.startswith(function_beginning):
                    return found
    return ""
