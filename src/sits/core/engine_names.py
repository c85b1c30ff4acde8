"""What engines call things: our signal name -> metric names by engine family and version.

One table, so that nothing else in the program spells an engine's metric.  A renamed metric has a row for each of its
names, newest first; a reader takes the first that is on the page, so old and new engines are both read.  `versions` says
which releases show the name (as far as known; empty = all seen).  Signal names are ours, units last.

Sources: vLLM 0.32 pages recorded by us; renames from vllm pull requests 15458 (hides the 0.7 names), 18354
(`gpu_cache_usage_perc`), 24110 and 32661 (`time_per_output_token_seconds`).  SGLang 0.5 from its documentation and
source; llama.cpp b11434 pages recorded by us; TGI (archived in March 2026) from its documentation, read only.

Deliberately absent: reading a page (`telemetry.prometheus_text`), and metrics nobody here uses.
"""

from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

Kind = Literal["gauge", "share", "counter", "histogram"]
"""`gauge` adds up over replicas; `share` is 0..1 and the fullest replica counts; `counter` only grows;
`histogram` is of seconds."""

FAMILIES = ("vllm", "sglang", "llamacpp", "tgi")

_PREFIXES = {"vllm": "vllm:", "sglang": "sglang:", "llamacpp": "llamacpp:", "tgi": "tgi_"}


class EngineName(msgspec.Struct, frozen=True):
    """One name of one family.  Only series whose labels include `labels` are meant."""

    family: str
    name: str
    versions: str = ""
    labels: tuple[tuple[str, str], ...] = ()


class Signal(msgspec.Struct, frozen=True):
    """One signal of ours: kind, unit, meaning, and what engines call it (newest name of a family first)."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    names: tuple[EngineName, ...]


def _signal(name: str, kind: Kind, unit: str, meaning: str, **names: tuple[EngineName, ...] | str) -> Signal:
    rows: list[EngineName] = []
    for family, given in names.items():
        rows += [EngineName(family, given)] if isinstance(given, str) else given
    return Signal(name, kind, unit, meaning, tuple(rows))


def _vllm(*rows: tuple[str, str]) -> tuple[EngineName, ...]:
    return tuple(EngineName("vllm", f"vllm:{name}", versions) for name, versions in rows)


def _sglang(*rows: tuple[str, str]) -> tuple[EngineName, ...]:
    return tuple(EngineName("sglang", f"sglang:{name}", versions) for name, versions in rows)


def _sglang_stage(stage: str) -> tuple[EngineName, ...]:
    return (EngineName("sglang", "sglang:per_stage_req_latency_seconds", ">=0.5", (("stage", stage),)),)


SIGNALS: tuple[Signal, ...] = (
    _signal(
        "requests_running",
        "gauge",
        "requests",
        "in the running batch",
        vllm="vllm:num_requests_running",
        sglang="sglang:num_running_reqs",
        llamacpp="llamacpp:requests_processing",
        tgi="tgi_batch_current_size",
    ),
    _signal(
        "requests_waiting",
        "gauge",
        "requests",
        "in the engine core's queue; not those the front end still holds",
        vllm="vllm:num_requests_waiting",
        sglang="sglang:num_queue_reqs",
        llamacpp="llamacpp:requests_deferred",
        tgi="tgi_queue_size",
    ),
    _signal(
        "kv_usage",
        "share",
        "share",
        "KV blocks in use of all KV blocks",
        vllm=_vllm(("kv_cache_usage_perc", ">=0.10"), ("gpu_cache_usage_perc", "<0.12")),
        sglang="sglang:token_usage",
        llamacpp=(EngineName("llamacpp", "llamacpp:kv_cache_usage_ratio", "before mid 2025"),),
    ),
    _signal(
        "preemptions_total",
        "counter",
        "requests",
        "requests whose KV was taken away and recomputed",
        vllm="vllm:num_preemptions_total",
        sglang=_sglang(("num_retracted_requests_total", ">=0.5"), ("num_retracted_reqs_total", "<0.5")),
    ),
    _signal(
        "rejections_total",
        "counter",
        "requests",
        "refused by the engine's own admission control",
        vllm=_vllm(("admission_rejections_total", ">=0.32")),
        sglang="sglang:num_aborted_requests_total",
    ),
    _signal(
        "prompt_tokens_total",
        "counter",
        "tokens",
        "prompt tokens taken in",
        vllm="vllm:prompt_tokens_total",
        sglang="sglang:prompt_tokens_total",
        llamacpp="llamacpp:prompt_tokens_total",
    ),
    _signal(
        "output_tokens_total",
        "counter",
        "tokens",
        "tokens generated",
        vllm="vllm:generation_tokens_total",
        sglang="sglang:generation_tokens_total",
        llamacpp="llamacpp:tokens_predicted_total",
    ),
    _signal(
        "prefix_queried_tokens_total",
        "counter",
        "tokens",
        "prompt tokens looked up in the prefix cache",
        vllm=_vllm(("prefix_cache_queries_total", ">=0.10"), ("gpu_prefix_cache_queries_total", "<0.12")),
    ),
    _signal(
        "prefix_hit_tokens_total",
        "counter",
        "tokens",
        "prompt tokens found in the prefix cache",
        vllm=_vllm(("prefix_cache_hits_total", ">=0.10"), ("gpu_prefix_cache_hits_total", "<0.12")),
        sglang="sglang:cached_tokens_total",
        llamacpp="llamacpp:prompt_tokens_cached_total",
    ),
    _signal(
        "finished_total",
        "counter",
        "requests",
        "requests that ended, however",
        vllm="vllm:request_success_total",
        sglang="sglang:num_requests_total",
        tgi="tgi_request_success",
    ),
    _signal(
        "ttft_seconds",
        "histogram",
        "s",
        "arrival at the API server to first token, queue included",
        vllm="vllm:time_to_first_token_seconds",
        sglang="sglang:time_to_first_token_seconds",
    ),
    _signal(
        "inter_token_seconds",
        "histogram",
        "s",
        "between two outputs of a request",
        vllm=_vllm(("inter_token_latency_seconds", ">=0.11"), ("time_per_output_token_seconds", "<0.13")),
        sglang=_sglang(("inter_token_latency_seconds", ">=0.4"), ("time_per_output_token_seconds", "<0.4")),
        tgi="tgi_request_mean_time_per_token_duration",
    ),
    _signal(
        "e2e_seconds",
        "histogram",
        "s",
        "arrival at the API server to last token",
        vllm="vllm:e2e_request_latency_seconds",
        sglang="sglang:e2e_request_latency_seconds",
        tgi="tgi_request_duration",
    ),
    _signal(
        "queue_seconds",
        "histogram",
        "s",
        "in the engine core's queue: queued to scheduled",
        vllm=_vllm(("request_queue_time_seconds", ""), ("time_in_queue_requests", "<0.9")),
        sglang=_sglang(("queue_time_seconds", ">=0.5"), ("request_queue_time_seconds", "<0.5")),
        tgi="tgi_request_queue_duration",
    ),
    _signal(
        "prefill_seconds",
        "histogram",
        "s",
        "scheduled to first token",
        vllm="vllm:request_prefill_time_seconds",
        sglang=_sglang_stage("prefill_forward"),
    ),
    _signal(
        "decode_seconds",
        "histogram",
        "s",
        "first token to last token",
        vllm="vllm:request_decode_time_seconds",
        sglang=_sglang_stage("decode_forward"),
    ),
    _signal(
        "prefill_seconds_total",
        "counter",
        "s",
        "prefill time of all requests added up, where there is no histogram",
        llamacpp="llamacpp:prompt_seconds_total",
    ),
    _signal(
        "decode_seconds_total",
        "counter",
        "s",
        "generation time of all requests added up, where there is no histogram",
        llamacpp="llamacpp:tokens_predicted_seconds_total",
    ),
)

BY_NAME: dict[str, Signal] = {signal.name: signal for signal in SIGNALS}


def detect(names: Collection[str]) -> str:
    """The engine family whose metrics are on a page, `""` when none is; the one with most names when several are.

    >>> detect({"python_info", "vllm:num_requests_running"})
    'vllm'
    """
    seen = {family: sum(name.startswith(prefix) for name in names) for family, prefix in _PREFIXES.items()}
    best = max(seen, key=lambda family: seen[family])
    return best if seen[best] else ""


def names_of(signal: str, family: str) -> Iterator[EngineName]:
    """What `family` calls `signal`, newest name first.

    >>> [row.name for row in names_of("kv_usage", "vllm")]
    ['vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc']
    """
    return (row for row in BY_NAME[signal].names if row.family == family)


def chosen(signal: str, family: str, names: Collection[str]) -> EngineName | None:
    """The newest name of `signal` that is on a page with series `names`; None when the engine does not tell.

    A histogram `x` is on the page as `x_count`.
    """
    histogram = BY_NAME[signal].kind == "histogram"
    for row in names_of(signal, family):
        if (f"{row.name}_count" if histogram else row.name) in names:
            return row
    return None
