"""What engines call things: every family's page is read in our names, renames both ways, traps never."""

import pytest

from sits.core.engine_names import (
    BY_NAME,
    FAMILIES,
    SIGNALS,
    TITLES,
    TRAPS,
    detect,
    names_of,
    on_page,
    release,
)
from sits.telemetry.prometheus_text import parse
from sits.telemetry.signals import rows, view

TRITON = """
nv_inference_request_success{model="m",version="1"} 40
nv_inference_queue_duration_us{model="m",version="1"} 2500000
nv_inference_pending_request_count{model="m"} 3
nv_trt_llm_request_metrics{model="m",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="m",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 7
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m",version="1"} 1560
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 6240
nv_trt_llm_general_metrics{general_type="timestamp",model="m",version="1"} 1700074049
"""


def told(text):
    seen = view(parse(text))
    return seen.family, seen.values


def histogram(name, labels, count, total, bound="0.5"):
    inner = ",".join(part for part in (labels, 'le="{}"') if part)
    plain = "{" + labels + "}" if labels else ""
    return (
        f"{name}_bucket{{{inner.format(bound)}}} {count}\n{name}_bucket{{{inner.format('+Inf')}}} {count}\n"
        f"{name}_count{plain} {count}\n{name}_sum{plain} {total}\n"
    )


def test_triton_tells_the_share_of_blocks_as_two_numbers_or_as_one():
    family, values = told(TRITON)
    assert family == "triton"
    assert values == {
        "requests_running": 7,
        "requests_waiting": 3,
        "kv_usage": 0.25,
        "finished_total": 40,
        "queue_seconds_total": 2.5,
    }
    newer = TRITON + (
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.5\n'
        'nv_trt_llm_request_metrics{model="m",request_type="waiting"} 9\n'
    )
    assert told(newer)[1]["kv_usage"] == 0.5
    assert told(newer)[1]["requests_waiting"] == 9


def test_a_pool_of_no_blocks_has_no_share():
    text = "".join(
        f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{kind}"}} 0\n' for kind in ("used", "max")
    )
    assert told(text) == ("triton", {})


def test_tensorrt_llm_before_and_after_its_prefix_changed():
    new = (
        'trtllm_num_requests_running{model_name="m"} 4\ntrtllm_num_requests_waiting{model_name="m"} 2\n'
        'trtllm_kv_cache_utilization{model_name="m"} 0.75\ntrtllm_kv_cache_hit_rate{model_name="m"} 0.9\n'
        'trtllm_spec_decode_num_draft_tokens_total{model_name="m"} 10\n'
        'trtllm_spec_decode_num_accepted_tokens_total{model_name="m"} 6\n'
    ) + histogram("trtllm_time_per_output_token_seconds", 'model_name="m"', 8, 0.4)
    seen = view(parse(new), "m")
    assert seen.family == "trtllm"
    assert seen.values["kv_usage"] == 0.75
    assert (seen.values["draft_tokens_total"], seen.values["draft_accepted_tokens_total"]) == (10, 6)
    assert seen.histograms["tpot_seconds"].mean == pytest.approx(0.05)
    assert "prefix_hit_rate" not in seen.values
    old = view(parse('trtllm:request_success_total{model_name="m",finished_reason="stop"} 5\n'))
    assert (old.family, old.values) == ("trtllm", {"finished_total": 5.0})


def test_text_generation_inference_counts_tokens_in_its_histograms():
    text = (
        'tgi_queue_size 3\ntgi_batch_current_size 8\ntgi_request_failure{err="overloaded"} 2\n'
        'tgi_request_failure{err="validation"} 5\n'
    )
    text += histogram("tgi_request_generated_tokens", "", 4, 400, "128")
    family, values = told(text)
    assert family == "tgi"
    assert values == {
        "requests_running": 8,
        "requests_waiting": 3,
        "rejections_total": 2,
        "failed_total": 7,
        "output_tokens_total": 400,
    }


def test_the_frontend_of_dynamo_tells_its_tokenizer_in_milliseconds_and_we_in_seconds():
    text = 'dynamo_frontend_inflight_requests{model="m"} 5\ndynamo_frontend_queued_requests{model="m"} 1\n'
    text += histogram("dynamo_frontend_tokenizer_latency_ms", 'operation="tokenize"', 10, 25, "4")
    text += histogram("dynamo_frontend_tokenizer_latency_ms", 'operation="detokenize"', 10, 9000, "4")
    seen = view(parse(text))
    assert (seen.family, seen.values) == ("dynamo", {"requests_running": 5.0, "requests_waiting": 1.0})
    found = seen.histograms["tokenize_seconds"]
    assert (found.mean, found.bounds[0]) == (pytest.approx(0.0025), pytest.approx(0.004))


def test_adapters_are_in_the_labels_of_the_newest_series():
    def line(running, waiting, when):
        return f'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"}} {when}\n'

    text = line("old,older,oldest", "", "1.7e9") + line("sql,law", "law", "1.8e9")
    assert told(text)[1] == {"adapters_running": 2, "adapters_waiting": 1, "adapters_max": 4}
    assert told(line("", "", "1.7e9"))[1]["adapters_running"] == 0
    assert told('vllm:lora_requests_info{max_lora="many"} 1\n')[1] == {}


def test_waiting_is_told_by_reason_where_the_engine_does():
    text = "".join(
        f'vllm:num_requests_waiting_by_reason{{engine="{engine}",reason="{reason}"}} {count}\n'
        for engine, reason, count in ((0, "capacity", 3), (1, "capacity", 4), (0, "deferred", 2))
    )
    assert told(text)[1] == {"requests_waiting_capacity": 7, "requests_waiting_deferred": 2}


def test_what_is_no_number_is_absent():
    assert told("vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n")[1] == {}


def test_sglang_counts_retractions_and_its_gauge_of_the_same_sound_is_not_read():
    text = "sglang:num_retracted_reqs 1\nsglang:num_retracted_requests_total 48\nsglang:cache_hit_rate 0.9\n"
    assert told(text) == ("sglang", {"preemptions_total": 48})
    assert told("sglang:num_retracted_reqs 1\n") == ("sglang", {})


def test_one_histogram_that_is_none_leaves_the_others_alone():
    text = "vllm:num_requests_running 1\n" + histogram("vllm:e2e_request_latency_seconds", "", 8, 2.0)
    text += (
        'vllm:time_to_first_token_seconds_bucket{le="1"} 9\nvllm:time_to_first_token_seconds_bucket{le="+Inf"} 3\n'
        "vllm:time_to_first_token_seconds_count 3\nvllm:time_to_first_token_seconds_sum 1\n"
    )
    seen = view(parse(text))
    assert (seen.values, set(seen.histograms)) == ({"requests_running": 1.0}, {"e2e_seconds"})


def test_no_trap_is_read_as_a_value():
    for signal in SIGNALS:
        for row in signal.names:
            assert row.name not in TRAPS or row.listed or row.told or row.labels, row.name


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (("vllm:gpu_cache_usage_perc",), "<0.12"),
        (("vllm:kv_cache_usage_perc",), ">=0.10"),
        (("vllm:inter_token_latency_seconds_count", "vllm:kv_cache_usage_perc"), ">=0.11"),
        (("vllm:num_requests_running",), ""),
        ((), ""),
    ],
)
def test_the_release_is_a_range_that_the_names_prove(names, known):
    assert release("vllm", set(names)) == known


def test_every_signal_of_every_family_is_read_from_a_page_that_has_it():
    """A page made of the table itself: each name, alone, with the labels it asks for, gives its signal and no other's value."""
    for signal in SIGNALS:
        for row in signal.names:
            labels = ",".join(f'{name}="{value}"' for name, value in row.labels)
            if row.listed or row.told:
                continue
            if signal.kind == "histogram":
                text = histogram(row.name, labels, 4, 2)
            else:
                text = f"{row.name}{{{labels}}} 0.5\n"
            if row.over is not None:
                over = ",".join(f'{name}="{value}"' for name, value in row.over[1])
                text += f"{row.over[0]}{{{over}}} 2\n"
            seen = view(parse(text))
            assert seen.family == row.family == detect(parse(text).names)
            assert signal.name in seen.values or signal.name in seen.histograms, row.name
            assert seen.used[signal.name] == row.name


def test_the_table_is_whole():
    assert set(TITLES) == set(FAMILIES)
    for family in FAMILIES:
        mine = [signal.name for signal in SIGNALS if any(names_of(signal.name, family))]
        assert {"requests_running", "requests_waiting"} <= set(mine), family
    assert list(on_page("kv_usage", "vllm", ())) == []
    assert all(signal.unit and signal.meaning for signal in BY_NAME.values())


def test_a_histogram_is_two_rows_so_that_its_mean_over_any_time_can_be_had():
    text = "vllm:num_requests_running 1\n" + histogram("vllm:time_to_first_token_seconds", "", 8, 2.0)
    assert rows(view(parse(text)), "e", 5) == [
        (5, "e", "requests_running", 1.0),
        (5, "e", "ttft_seconds_count", 8.0),
        (5, "e", "ttft_seconds_sum", 2.0),
    ]
