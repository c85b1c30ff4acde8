"""Looking up what engines call things: which family a page is of, which of its names stands for a signal, which release it is.

The table is `core.engine_signals`.  A family is told by the prefix of its metrics; a release by the bounds of the renamed
metrics that are on the page, so it is a range and never a guess.

Deliberately absent: reading a page (`telemetry.prometheus_text`), and any name of a metric.
"""

import re
from collections.abc import Collection, Iterator

from sits.core.engine_signals import SIGNALS, TRAPS, EngineName, Kind, Signal

__all__ = [
    "BY_NAME",
    "FAMILIES",
    "SIGNALS",
    "TITLES",
    "TRAPS",
    "EngineName",
    "Kind",
    "Signal",
    "chosen",
    "detect",
    "names_of",
    "on_page",
    "release",
]

TITLES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "triton": "Triton Inference Server",
    "dynamo": "Dynamo frontend",
    "llamacpp": "llama.cpp",
    "tgi": "Text Generation Inference",
}
FAMILIES = tuple(TITLES)

_PREFIXES = {
    "vllm": ("vllm:",),
    "sglang": ("sglang:",),
    "trtllm": ("trtllm_", "trtllm:"),
    "triton": ("nv_",),
    "dynamo": ("dynamo_frontend_",),
    "llamacpp": ("llamacpp:",),
    "tgi": ("tgi_",),
}
_BOUND = re.compile(r"(>=|<)(\d+(?:\.\d+)*)")

BY_NAME: dict[str, Signal] = {signal.name: signal for signal in SIGNALS}


def detect(names: Collection[str]) -> str:
    """The engine family whose metrics are on a page, `""` when none is; the one with most names when several are.

    >>> detect({"python_info", "vllm:num_requests_running"})
    'vllm'
    """
    seen = {
        family: sum(name.startswith(prefixes) for name in names) for family, prefixes in _PREFIXES.items()
    }
    best = max(seen, key=lambda family: seen[family])
    return best if seen[best] else ""


def names_of(signal: str, family: str) -> Iterator[EngineName]:
    """What `family` calls `signal`, newest name first.

    >>> [row.name for row in names_of("kv_usage", "vllm")]
    ['vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc']
    """
    return (row for row in BY_NAME[signal].names if row.family == family)


def on_page(signal: str, family: str, names: Collection[str]) -> Iterator[EngineName]:
    """Those names of `signal` that are on a page with series `names`, newest first.  A histogram `x` is there as `x_count`."""
    histogram = BY_NAME[signal].kind == "histogram"
    return (
        row for row in names_of(signal, family) if (f"{row.name}_count" if histogram else row.name) in names
    )


def chosen(signal: str, family: str, names: Collection[str]) -> EngineName | None:
    """The newest name of `signal` that is on a page with series `names`; None when the engine does not tell."""
    return next(on_page(signal, family, names), None)


def release(family: str, names: Collection[str]) -> str:
    """What the names on a page say about the engine's release: `">=0.11"`, `">=0.10, <0.12"`, or `""` when they say nothing.

    Where an engine shows an old name beside the new one, both bounds hold.

    >>> release("vllm", {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"})
    '>=0.10, <0.12'
    """
    bounds: dict[str, list[str]] = {">=": [], "<": []}
    for signal in SIGNALS:
        for row in on_page(signal.name, family, names):
            if match := _BOUND.fullmatch(row.versions):
                bounds[match[1]].append(match[2])
    low = max(bounds[">="], key=_parts, default="")
    high = min(bounds["<"], key=_parts, default="")
    return ", ".join([f">={low}"] * bool(low) + [f"<{high}"] * bool(high))


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
