"""The page parser, checked against the reference parser on pages real engines sent."""

import math
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sits.core.engine_names import BY_NAME, FAMILIES, SIGNALS, chosen, detect, names_of
from sits.core.errors import EngineError
from sits.telemetry.prometheus_text import Histogram, between, parse
from sits.telemetry.signals import change, engine_facts, rows, view

PAGES = Path(__file__).parents[1] / "data" / "engines"


def page(name):
    return (PAGES / name).read_text()


@pytest.mark.parametrize("name", sorted(path.name for path in PAGES.glob("*.txt")))
def test_every_series_of_a_real_page_is_read_as_the_reference_parser_reads_it(name):
    expected = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(name))
        for sample in family.samples
    }
    got = parse(page(name)).series
    # The reference appends `_total` to a counter that lacks it (llama.cpp has one); we keep what was sent.
    expected = {
        (n if (n, labels) in got else n.removesuffix("_total"), labels): value
        for (n, labels), value in expected.items()
    }
    assert got.keys() == expected.keys()
    assert len(got) >= 15
    for key, value in expected.items():
        assert got[key] == value or (math.isnan(value) and math.isnan(got[key])), key


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("m 1", (), 1.0),
        ("m{} 1", (), 1.0),
        ('m{a="b"} 2.5e-3', (("a", "b"),), 0.0025),
        ('m{ b = "x" , a = "y", } +Inf 1700000000', (("a", "y"), ("b", "x")), math.inf),
        (r'm{a="q\"u\\o\n{}="} -3', (("a", 'q"u\\o\n{}='),), -3.0),
        ('m{le="0.1"} 4 # {trace_id="x"} 0.07', (("le", "0.1"),), 4.0),
        ("m\t5 \r", (), 5.0),
    ],
)
def test_what_engines_may_send(line, labels, value):
    assert parse(line).series == {("m", labels): value}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ok 1\n<html>", r"line 2 .*no metric name"),
        ("m", "no value"),
        ("m{a} 1", "labels that do not end"),
        ('m{a="b" 1', "labels that do not end"),
        ("m one", "'one' is not a number"),
        ("m 1_0", "'1_0' is not a number"),
    ],
)
def test_garbage_names_the_line_and_the_way_out(text, says):
    with pytest.raises(EngineError, match=says) as caught:
        parse(text)
    assert "Prometheus text page?" in str(caught.value)


def test_a_quantile_lies_in_its_bucket_and_the_mean_is_exact():
    histogram = Histogram((0.1, 0.5, 1.0, math.inf), (10, 80, 8, 2), sum=33.0, count=100)
    assert histogram.mean == 0.33
    median = histogram.quantile(0.5)
    assert (median.low, median.high) == (0.1, 0.5)
    assert median.value == pytest.approx(0.3)
    top = histogram.quantile(0.99)
    assert (top.value, top.low, top.high) == (1.0, 1.0, math.inf)
    assert Histogram((1.0, math.inf), (0, 0), 0.0, 0).quantile(0.5) is None
    assert Histogram((1.0, math.inf), (0, 0), 0.0, 0).mean is None


def test_the_largest_deviation_uses_the_sum():
    """All values in 0..0.3 with a mean of 0.0003: at most one in a thousand can be at 0.3."""
    tight = Histogram((0.3, math.inf), (1000, 0), 0.3, 1000)
    assert tight.deviation_max() == pytest.approx(math.sqrt(0.3 * 0.0003 - 0.0003**2))
    two_ends = Histogram((1.0, 2.0, math.inf), (5, 5, 0), 10.0, 10)  # five at 0 and five at 2 fit
    assert two_ends.deviation_max() == pytest.approx(1.0)
    assert Histogram((1.0, math.inf), (0, 0), 0.0, 0).deviation_max() == 0.0


def test_decreasing_buckets_are_no_histogram():
    text = 'h_bucket{le="1"} 5\nh_bucket{le="2"} 3\nh_bucket{le="+Inf"} 5\nh_count 5\nh_sum 1\n'
    with pytest.raises(EngineError, match="buckets of h decrease"):
        parse(text).histogram("h")


def test_between_two_pages_counters_differ_and_gauges_stand():
    before = parse("# TYPE c counter\nc_total 5\n# TYPE g gauge\ng 7\n")
    after = parse('# TYPE c counter\nc_total 9\nc_total{new="1"} 2\n# TYPE g gauge\ng 3\n')
    delta = between(before, after)
    assert delta.scrape.series == {("c_total", ()): 4.0, ("c_total", (("new", "1"),)): 2.0, ("g", ()): 3.0}
    assert delta.resets == ()


def test_a_counter_that_went_down_was_reset():
    text = '# TYPE h histogram\nh_bucket{{le="+Inf"}} {0}\nh_count {0}\nh_sum {1}\n'
    delta = between(parse(text.format(10, 100.0)), parse(text.format(3, 700.0)))
    assert delta.resets == ("h",)
    assert delta.scrape.histogram("h") == Histogram((math.inf,), (3.0,), 700.0, 3.0)


def test_an_engine_that_restarted_counted_everything_anew():
    text = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {}\n# TYPE c counter\nc_total {}\n"
    delta = between(parse(text.format(1, 5)), parse(text.format(2, 8)))
    assert delta.resets == ("c",)
    assert delta.scrape.total("c_total") == 8


def test_without_a_declared_type_the_suffix_decides():
    assert between(parse("x_total 3\ny 3\n"), parse("x_total 5\ny 5\n")).scrape.series == {
        ("x_total", ()): 2.0,
        ("y", ()): 5.0,
    }


def test_a_recorded_vllm_page_gives_our_signals():
    seen = view(parse(page("vllm_metrics_load.txt")), "tiny")
    assert seen.family == "vllm"
    assert (seen.values["requests_running"], seen.values["requests_waiting"]) == (16, 16)
    assert seen.values["kv_usage"] == pytest.approx(0.0547, abs=1e-4)
    assert seen.histograms["queue_seconds"].count == 3
    assert seen.histograms["ttft_seconds"].mean == pytest.approx(29.346 / 19, rel=1e-3)
    missing = {s.name for s in SIGNALS} - seen.values.keys() - seen.histograms.keys()
    no_series = {
        "adapters_running",
        "adapters_waiting",
        "adapters_max",
        "draft_tokens_total",
        "kv_transfer_seconds",
    }
    assert missing == no_series | {
        s.name
        for s in SIGNALS
        if not any(row.family == "vllm" and "<" not in row.versions for row in s.names)
    } | {"draft_accepted_tokens_total"}
    assert rows(seen, "e0", 7)[0] == (7, "e0", "requests_running", 16.0)


def test_between_two_recorded_pages_of_one_engine():
    got = change(parse(page("vllm_metrics_load.txt")), parse(page("vllm_metrics_after.txt")), "tiny")
    assert got.resets == ()
    queue = got.view.histograms["queue_seconds"]
    assert queue.count == 188
    assert queue.mean == pytest.approx((650.2794 - 0.8724) / 188, rel=1e-4)
    assert sum(queue.counts) == 188


def test_a_recorded_llama_page_tells_less_and_invents_nothing():
    seen = view(parse(page("llama_metrics_load.txt")))
    assert seen.family == "llamacpp"
    assert seen.histograms == {}
    assert seen.values["requests_running"] == 2
    assert seen.values["prefill_seconds_total"] == 18.727
    assert "kv_usage" not in seen.values


def test_a_page_of_another_program_has_no_engine():
    assert view(parse("go_goroutines 7\n")).family == ""
    assert view(parse("go_goroutines 7\n")).values == {}


def test_an_old_engine_is_read_by_its_old_names_and_new_names_win():
    old = view(parse('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'), "m")
    both = view(parse("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n"))
    assert (old.values, old.used) == ({"kv_usage": 0.5}, {"kv_usage": "vllm:gpu_cache_usage_perc"})
    assert both.values == {"kv_usage": 0.25}


def test_replicas_add_up_and_the_fullest_counts_for_shares():
    text = "\n".join(
        f'vllm:{name}{{engine="{i}"}} {value}'
        for name, values in {"num_requests_running": (2, 3), "kv_cache_usage_perc": (0.2, 0.9)}.items()
        for i, value in enumerate(values)
    )
    assert view(parse(text)).values == {"requests_running": 5.0, "kv_usage": 0.9}


def test_a_page_of_two_models_is_read_for_the_one_asked():
    text = 'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 6\n'
    assert view(parse(text), "a").values == {"requests_running": 1.0}
    assert view(parse(text), "unlisted").values == {"requests_running": 7.0}


def test_a_stage_of_sglang_is_one_label_of_one_metric():
    stages = {"prefill_forward": 0.5, "decode_forward": 2.0}
    text = "".join(
        f'sglang:per_stage_req_latency_seconds_{part}{{stage="{stage}"{le}}} {value}\n'
        for stage, seconds in stages.items()
        for part, le, value in (("bucket", ',le="+Inf"', 4), ("count", "", 4), ("sum", "", 4 * seconds))
    )
    seen = view(parse(text))
    assert seen.family == "sglang"
    assert {name: histogram.mean for name, histogram in seen.histograms.items()} == {
        "prefill_seconds": 0.5,
        "decode_seconds": 2.0,
    }


def test_the_engine_tells_its_cache_configuration():
    assert engine_facts(parse(page("vllm_metrics_idle.txt")))["block_size"] == "128"
    assert engine_facts(parse("x 1\n")) == {}


def test_the_table_is_sound():
    assert len(BY_NAME) == len(SIGNALS)
    for signal in SIGNALS:
        assert signal.names, signal.name
        assert {row.family for row in signal.names} <= set(FAMILIES)
        for family in FAMILIES:
            names = [(row.name, row.labels) for row in names_of(signal.name, family)]
            assert len(names) == len(set(names))
            assert chosen(signal.name, family, set()) is None
    assert detect(set()) == ""
