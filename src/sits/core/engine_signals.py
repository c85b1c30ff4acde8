"""What engines call things: our signal name -> metric names by engine family and version.

One table, so that nothing else in the program spells an engine's metric.  A renamed metric has a row for each of its
names, newest first; a reader takes the first that is on the page, so old and new engines are both read.  `versions` says
which releases show the name (`>=x` from x on, `<x` before x; empty = all seen).  Signal names are ours, units last.

Sources: vLLM 0.32 pages recorded by us; renames from vllm pull requests 15458 (hides the 0.7 names), 18354
(`gpu_cache_usage_perc`), 24110 and 32661 (`time_per_output_token_seconds`).  SGLang 0.5.23, its `metrics_collector` in the
wheel, and of its request stages those that it observes as metrics (`decode_forward` and `tokenize` are spans only there);
names before 0.5 from its documentation.  TensorRT-LLM: `tensorrt_llm/metrics/collector.py` of 2026 (path
`/prometheus/metrics`; before 1.1 Dynamo wrote the prefix as `trtllm:`).  Triton: its own `nv_inference_*` counters and the
TensorRT-LLM backend's `nv_trt_llm_*` (custom_metrics_reporter).  Dynamo's frontend: `prometheus_names.rs`, 1.x.  llama.cpp
b11434 pages recorded by us.  TGI (archived in March 2026) from its documentation, read only.

Deliberately absent: looking names up (`core.engine_names`), reading a page (`telemetry.prometheus_text`), and metrics
nobody here uses.
"""

from typing import Literal

import msgspec

Kind = Literal["gauge", "share", "counter", "histogram"]
"""`gauge` adds up over replicas; `share` is 0..1 and the fullest replica counts; `counter` only grows;
`histogram` is of seconds."""

Labels = tuple[tuple[str, str], ...]


class EngineName(msgspec.Struct, frozen=True):
    """One name of one family.  Only series whose labels include `labels` are meant.

    `scale` turns what the engine counts in into our unit.  `over` is a second metric (same labels but for those named) by
    which the value is divided: a share that is told as two numbers.  `listed` and `told` are for values that hide in
    labels of the newest series (its value is then a time): how many names the label lists, or the number it is.
    """

    family: str
    name: str
    versions: str = ""
    labels: Labels = ()
    scale: float = 1.0
    over: tuple[str, Labels] | None = None
    listed: str = ""
    told: str = ""


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


def _vllm_waiting(reason: str) -> tuple[EngineName, ...]:
    return (EngineName("vllm", "vllm:num_requests_waiting_by_reason", labels=(("reason", reason),)),)


def _vllm_adapters(*, listed: str = "", told: str = "") -> tuple[EngineName, ...]:
    return (EngineName("vllm", "vllm:lora_requests_info", listed=listed, told=told),)


def _sglang(*rows: tuple[str, str]) -> tuple[EngineName, ...]:
    return tuple(EngineName("sglang", f"sglang:{name}", versions) for name, versions in rows)


def _sglang_stage(stage: str) -> tuple[EngineName, ...]:
    return (EngineName("sglang", "sglang:per_stage_req_latency_seconds", ">=0.5", (("stage", stage),)),)


def _trtllm(name: str) -> tuple[EngineName, ...]:
    return EngineName("trtllm", f"trtllm_{name}"), EngineName("trtllm", f"trtllm:{name}", "<1.1")


def _triton_requests(kind: str) -> tuple[EngineName, ...]:
    return (EngineName("triton", "nv_trt_llm_request_metrics", labels=(("request_type", kind),)),)


def _triton_us(name: str) -> tuple[EngineName, ...]:
    return (EngineName("triton", f"nv_inference_{name}_duration_us", scale=1e-6),)


_TRITON_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"

STATE: tuple[Signal, ...] = (
    _signal(
        "requests_running", "gauge", "requests", "in the running batch",
        vllm="vllm:num_requests_running",
        sglang="sglang:num_running_reqs",
        trtllm="trtllm_num_requests_running",
        triton=_triton_requests("active"),
        dynamo="dynamo_frontend_inflight_requests",
        llamacpp="llamacpp:requests_processing",
        tgi="tgi_batch_current_size",
    ),
    _signal(
        "requests_waiting", "gauge", "requests", "in the engine core's queue; not those the front end still holds",
        vllm="vllm:num_requests_waiting",
        sglang="sglang:num_queue_reqs",
        trtllm="trtllm_num_requests_waiting",
        triton=(*_triton_requests("waiting"), EngineName("triton", "nv_inference_pending_request_count")),
        dynamo="dynamo_frontend_queued_requests",
        llamacpp="llamacpp:requests_deferred",
        tgi="tgi_queue_size",
    ),
    _signal(
        "requests_waiting_capacity", "gauge", "requests", "waiting because the batch or the KV pool is full",
        vllm=_vllm_waiting("capacity"),
    ),
    _signal(
        "requests_waiting_deferred", "gauge", "requests",
        "waiting for something else: an adapter's slot, a KV transfer, a grammar",
        vllm=_vllm_waiting("deferred"),
        sglang="sglang:num_grammar_queue_reqs",
    ),
    _signal(
        "requests_paused", "gauge", "requests", "started, then taken out of the batch",
        sglang="sglang:num_paused_reqs",
        trtllm="trtllm_num_paused_requests",
        triton=(
            EngineName(
                "triton", "nv_trt_llm_inflight_batcher_metrics",
                labels=(("inflight_batcher_specific_metric", "paused_requests"),),
            ),
        ),
    ),
    _signal(
        "kv_usage", "share", "share", "KV blocks in use of all KV blocks",
        vllm=_vllm(("kv_cache_usage_perc", ">=0.10"), ("gpu_cache_usage_perc", "<0.12")),
        sglang="sglang:token_usage",
        trtllm="trtllm_kv_cache_utilization",
        triton=(
            EngineName("triton", _TRITON_BLOCKS, labels=(("kv_cache_block_type", "fraction"),)),
            EngineName(
                "triton", _TRITON_BLOCKS, labels=(("kv_cache_block_type", "used"),),
                over=(_TRITON_BLOCKS, (("kv_cache_block_type", "max"),)),
            ),
        ),
        llamacpp=(EngineName("llamacpp", "llamacpp:kv_cache_usage_ratio", "before mid 2025"),),
    ),
    _signal(
        "kv_capacity_tokens", "gauge", "tokens", "tokens that the KV pool holds",
        sglang="sglang:max_total_num_tokens",
    ),
    _signal(
        "adapters_running", "gauge", "adapters", "LoRA adapters with a request in the batch",
        vllm=_vllm_adapters(listed="running_lora_adapters"),
        sglang="sglang:lora_pool_slots_used",
    ),
    _signal(
        "adapters_waiting", "gauge", "adapters", "LoRA adapters with a request that waits",
        vllm=_vllm_adapters(listed="waiting_lora_adapters"),
    ),
    _signal(
        "adapters_max", "gauge", "adapters", "LoRA adapters that fit into one batch",
        vllm=_vllm_adapters(told="max_lora"),
        sglang="sglang:lora_pool_slots_total",
    ),
)  # fmt: skip

COUNTS: tuple[Signal, ...] = (
    _signal(
        "preemptions_total", "counter", "requests", "requests whose KV was taken away and recomputed",
        vllm="vllm:num_preemptions_total",
        sglang=_sglang(("num_retracted_requests_total", ">=0.5"), ("num_retracted_reqs_total", "<0.5")),
    ),
    _signal(
        "rejections_total", "counter", "requests", "refused by the engine's own admission control",
        vllm=_vllm(("admission_rejections_total", "seen in 0.32")),
        tgi=(EngineName("tgi", "tgi_request_failure", labels=(("err", "overloaded"),)),),
    ),
    _signal(
        "aborted_total", "counter", "requests", "given up before their end: by the client, a timeout or the queue's limit",
        sglang="sglang:num_aborted_requests_total",
        vllm=(EngineName("vllm", "vllm:request_success_total", labels=(("finished_reason", "abort"),)),),
    ),
    _signal(
        "finished_total", "counter", "requests", "requests that ended, however",
        vllm="vllm:request_success_total",
        sglang="sglang:num_requests_total",
        trtllm=_trtllm("request_success_total"),
        triton="nv_inference_request_success",
        dynamo="dynamo_frontend_requests_total",
        tgi="tgi_request_success",
    ),
    _signal(
        "failed_total", "counter", "requests", "requests that ended with an error",
        trtllm="trtllm_request_error_total",
        triton="nv_inference_request_failure",
        dynamo=(EngineName("dynamo", "dynamo_frontend_requests_total", labels=(("status", "error"),)),),
        tgi="tgi_request_failure",
    ),
    _signal(
        "prompt_tokens_total", "counter", "tokens", "prompt tokens taken in; llama.cpp counts those it computed",
        vllm="vllm:prompt_tokens_total",
        sglang="sglang:prompt_tokens_total",
        trtllm="trtllm_prompt_tokens_total",
        dynamo="dynamo_frontend_input_sequence_tokens_sum",
        llamacpp="llamacpp:prompt_tokens_total",
        tgi="tgi_request_input_length_sum",
    ),
    _signal(
        "output_tokens_total", "counter", "tokens", "tokens generated",
        vllm="vllm:generation_tokens_total",
        sglang="sglang:generation_tokens_total",
        trtllm="trtllm_generation_tokens_total",
        dynamo="dynamo_frontend_output_tokens_total",
        llamacpp="llamacpp:tokens_predicted_total",
        tgi="tgi_request_generated_tokens_sum",
    ),
    _signal(
        "prefix_queried_tokens_total", "counter", "tokens", "prompt tokens looked up in the prefix cache",
        vllm=_vllm(("prefix_cache_queries_total", ">=0.10"), ("gpu_prefix_cache_queries_total", "<0.12")),
    ),
    _signal(
        "prefix_hit_tokens_total", "counter", "tokens", "prompt tokens found in the prefix cache",
        vllm=_vllm(("prefix_cache_hits_total", ">=0.10"), ("gpu_prefix_cache_hits_total", "<0.12")),
        sglang="sglang:cached_tokens_total",
        trtllm="trtllm_prompt_cached_tokens_total",
        dynamo="dynamo_frontend_cached_tokens_sum",
        llamacpp="llamacpp:prompt_tokens_cached_total",
    ),
    _signal(
        "external_queried_tokens_total", "counter", "tokens", "prompt tokens looked up in a KV store outside the engine",
        vllm="vllm:external_prefix_cache_queries_total",
    ),
    _signal(
        "external_hit_tokens_total", "counter", "tokens", "prompt tokens found in a KV store outside the engine",
        vllm="vllm:external_prefix_cache_hits_total",
        sglang="sglang:load_back_tokens_total",
    ),
    _signal(
        "draft_tokens_total", "counter", "tokens", "tokens proposed by speculative decoding",
        vllm="vllm:spec_decode_num_draft_tokens_total",
        trtllm="trtllm_spec_decode_num_draft_tokens_total",
        llamacpp="llamacpp:spec_decode_num_draft_tokens_total",
    ),
    _signal(
        "draft_accepted_tokens_total", "counter", "tokens", "proposed tokens that were kept",
        vllm="vllm:spec_decode_num_accepted_tokens_total",
        trtllm="trtllm_spec_decode_num_accepted_tokens_total",
        llamacpp="llamacpp:spec_decode_num_accepted_tokens_total",
    ),
    _signal(
        "draft_acceptance", "share", "share",
        "proposed tokens that were kept of those proposed lately, where it is told as a share",
        sglang="sglang:spec_accept_rate",
        vllm=_vllm(("spec_decode_draft_acceptance_rate", "<0.9")),
    ),
    _signal(
        "prefill_seconds_total", "counter", "s", "prefill time of all requests added up, where there is no histogram",
        llamacpp="llamacpp:prompt_seconds_total",
    ),
    _signal(
        "decode_seconds_total", "counter", "s", "generation time of all requests added up, where there is no histogram",
        llamacpp="llamacpp:tokens_predicted_seconds_total",
    ),
    _signal(
        "queue_seconds_total", "counter", "s", "queueing time of all requests added up, where there is no histogram",
        triton=_triton_us("queue"),
    ),
    _signal(
        "e2e_seconds_total", "counter", "s", "time of all requests added up, where there is no histogram",
        triton=_triton_us("request"),
    ),
)  # fmt: skip

TIMES: tuple[Signal, ...] = (
    _signal(
        "ttft_seconds", "histogram", "s", "arrival at the API server to first token, queue included",
        vllm="vllm:time_to_first_token_seconds",
        sglang="sglang:time_to_first_token_seconds",
        trtllm=_trtllm("time_to_first_token_seconds"),
        dynamo="dynamo_frontend_time_to_first_token_seconds",
    ),
    _signal(
        "inter_token_seconds", "histogram", "s", "between two outputs of a request",
        vllm=_vllm(("inter_token_latency_seconds", ">=0.11"), ("time_per_output_token_seconds", "<0.13")),
        sglang=_sglang(("inter_token_latency_seconds", ">=0.4"), ("time_per_output_token_seconds", "<0.4")),
        dynamo="dynamo_frontend_inter_token_latency_seconds",
    ),
    _signal(
        "tpot_seconds", "histogram", "s", "time per output token after the first, one mean a request (TPOT)",
        vllm="vllm:request_time_per_output_token_seconds",
        sglang="sglang:request_time_per_output_token_seconds",
        trtllm=_trtllm("time_per_output_token_seconds"),
        tgi="tgi_request_mean_time_per_token_duration",
    ),
    _signal(
        "e2e_seconds", "histogram", "s", "arrival at the API server to last token",
        vllm="vllm:e2e_request_latency_seconds",
        sglang="sglang:e2e_request_latency_seconds",
        trtllm=_trtllm("e2e_request_latency_seconds"),
        dynamo="dynamo_frontend_request_duration_seconds",
        tgi="tgi_request_duration",
    ),
    _signal(
        "tokenize_seconds", "histogram", "s", "making ids of the prompt's text",
        dynamo=(
            EngineName(
                "dynamo", "dynamo_frontend_tokenizer_latency_ms", labels=(("operation", "tokenize"),), scale=1e-3
            ),
        ),
    ),
    _signal(
        "queue_seconds", "histogram", "s", "in the engine core's queue: queued to scheduled",
        vllm=_vllm(("request_queue_time_seconds", ""), ("time_in_queue_requests", "<0.9")),
        sglang=_sglang(("queue_time_seconds", ">=0.5"), ("request_queue_time_seconds", "<0.5")),
        trtllm=_trtllm("request_queue_time_seconds"),
        tgi="tgi_request_queue_duration",
    ),
    _signal(
        "prefill_seconds", "histogram", "s", "scheduled to first token",
        vllm="vllm:request_prefill_time_seconds",
        sglang=_sglang_stage("prefill_forward"),
        trtllm="trtllm_request_prefill_time_seconds",
    ),
    _signal(
        "decode_seconds", "histogram", "s", "first token to last token",
        vllm="vllm:request_decode_time_seconds",
        sglang=_sglang_stage("decode_forward"),
        trtllm="trtllm_request_decode_time_seconds",
    ),
    _signal(
        "inference_seconds", "histogram", "s", "scheduled to last token",
        vllm="vllm:request_inference_time_seconds",
        trtllm="trtllm_request_inference_time_seconds",
        tgi="tgi_request_inference_duration",
    ),
    _signal(
        "kv_transfer_seconds", "histogram", "s", "moving KV from one engine to another",
        vllm="vllm:nixl_xfer_time_seconds",
        sglang=(*_sglang_stage("prefill_transfer_kv_cache"), *_sglang_stage("decode_transferred")),
    ),
)  # fmt: skip

SIGNALS: tuple[Signal, ...] = (*STATE, *COUNTS, *TIMES)

TRAPS: dict[str, str] = {
    "llamacpp:prompt_tokens_seconds": "an average since the last scrape: each scrape resets it, so two readers spoil each other",
    "llamacpp:predicted_tokens_seconds": "an average since the last scrape: each scrape resets it, so two readers spoil each other",
    "llamacpp:n_tokens_max": "typed counter, but the largest sequence seen; its rate means nothing",
    "llamacpp:n_busy_slots_per_decode": "an average since the server started, not now",
    "sglang:num_retracted_reqs": "a gauge of the last batch; the count is num_retracted_requests_total",
    "sglang:cache_hit_rate": "of the last prefill batch only; the counters tell the rate of any window",
    "sglang:gen_throughput": "of the last log interval, and it stays when the engine goes idle",
    "vllm:lora_requests_info": "its value is a time; the adapters are in the labels of the newest series",
    "vllm:iteration_tokens_total": "a histogram in spite of its name",
    "trtllm_kv_cache_hit_rate": "since the server started, not now",
    "nv_trt_llm_general_metrics": "a time and an iteration number, not a load",
}
"""Metrics that look like what one wants and are not: never read, with the reason."""
