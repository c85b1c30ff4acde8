"""Requests for a prediction: many spellings, clear errors, and nothing measured is ever looked at."""

import gzip
import json

import numpy as np
import pytest

from engine_recordings import RECORDINGS, engine
from sits.bench.asked import ARRIVAL, read_asked
from sits.bench.predictions import Wanted, document, predict
from sits.core.errors import ConfigError


def wrote(path, lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def line(**changes):
    return {"arrival": 1.0, "prompt_tokens": 10, "output_tokens": 4} | changes


@pytest.mark.parametrize("name", ARRIVAL)
def test_arrivals_are_taken_under_any_of_their_names(tmp_path, name):
    lines = [{name: at, "prompt_tokens": 10, "output_tokens": 4} for at in (5, 5.5, 7)]
    (asked,) = read_asked(wrote(tmp_path / "r.jsonl", lines))
    unit = 1 if name.endswith("_ms") else 1000
    assert asked.arrival_ms.tolist() == [0, 0.5 * unit, 2 * unit]


def test_other_names_of_tokens_and_gzip(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(
        gzip.compress(json.dumps({"timestamp": 1, "input_length": 7, "output_length": 3}).encode())
    )
    (asked,) = read_asked(path)
    assert (asked.prompt_tokens[0], asked.output_tokens[0]) == (7, 3)
    assert asked.cached_tokens is None


def test_requests_are_sorted_by_arrival_and_told_in_the_order_of_the_file(tmp_path):
    path = wrote(tmp_path / "r.jsonl", [line(arrival=9, id="late"), line(arrival=1, id="early")])
    (asked,) = read_asked(path)
    assert asked.ids == ("early", "late")
    told = document({}, [predict(engine(), asked, Wanted(passes=2))])
    assert [row["id"] for row in told["requests"]] == ["late", "early"]


def test_runs_are_told_apart():
    runs = read_asked(RECORDINGS / "small-closed" / "requests.jsonl.gz")
    assert len(runs) == 14
    assert runs[-1].run == "closed-c32-cal"
    assert runs[-1].cached_tokens.sum() == 40192


MEASURED = ("headers", "end", "ttft_ms", "e2e_ms", "tpot_ms", "server_metrics", "chunks")


def test_nothing_measured_reaches_a_prediction(tmp_path):
    with gzip.open(RECORDINGS / "small-closed" / "requests.jsonl.gz", "rt") as file:
        lines = [json.loads(text) for text in file]
    lines = [one for one in lines if one["run"] == "closed-c4-cal"]
    bare = [{name: value for name, value in one.items() if name not in MEASURED} for one in lines]
    false = [
        one | {"ttft_ms": 1e9, "e2e_ms": 1e9, "chunks": [[1e9, 1]], "end": 1e9, "tpot_ms": -3}
        for one in lines
    ]
    predictions = []
    for name, given in (("all", lines), ("bare", bare), ("false", false)):
        (asked,) = read_asked(wrote(tmp_path / name, given))
        predictions.append(predict(engine(max_num_seqs=16), asked, Wanted(passes=2)))
    for other in predictions[1:]:
        assert np.array_equal(predictions[0].e2e_ms, other.e2e_ms)
        assert np.array_equal(predictions[0].ttft_ms, other.ttft_ms)


def test_failed_requests_are_left_out_and_told(tmp_path):
    path = wrote(tmp_path / "r.jsonl", [line(), line(status=503, output_tokens=0), line(error="x")])
    (asked,) = read_asked(path)
    assert (len(asked), asked.failed) == (1, 2)
    assert "2 requests are marked as failed" in predict(engine(), asked, Wanted(passes=2)).warnings[0]


def test_a_closed_loop_needs_no_arrivals(tmp_path):
    path = wrote(tmp_path / "r.jsonl", [{"prompt_tokens": 10, "output_tokens": 4}] * 3)
    (asked,) = read_asked(path, arrivals=False)
    assert len(asked) == 3
    with pytest.raises(ConfigError, match="no arrival") as error:
        read_asked(path)
    assert "--users" in error.value.hint


WRONG = {
    "nothing": ([], "holds no request"),
    "only failures": ([line(status=500)], "holds no request"),
    "no prompt": ([{"arrival": 1, "output_tokens": 4}], "no prompt_tokens; it has arrival, output_tokens"),
    "no output": ([{"arrival": 1, "prompt_tokens": 4}], "no output_tokens"),
    "no tokens": ([line(prompt_tokens=0)], "prompt_tokens is 0"),
    "NaN": (['{"arrival": NaN, "prompt_tokens": 1, "output_tokens": 1}'], "not JSON"),
    "infinite": ([line(arrival="inf")], "arrival is 'inf'"),
    "a date": ([line(arrival="2026-11-30")], "arrival is '2026-11-30'"),
    "id twice": ([line(id="a"), line(id="a")], "id 'a' was there before"),
    "negative": ([line(cached_tokens=-1)], "cached_tokens is -1"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(tmp_path, what):
    lines, text = WRONG[what]
    with pytest.raises(ConfigError, match=text) as error:
        read_asked(wrote(tmp_path / "r.jsonl", lines))
    assert error.value.hint


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ConfigError, match="no file"):
        read_asked(tmp_path / "nothing.jsonl")


def test_a_recorded_request_without_hits_had_none_and_a_bare_one_is_unknown(tmp_path):
    recorded = read_asked(wrote(tmp_path / "recorded.jsonl", [line(server_metrics={}), line()]))
    bare = read_asked(wrote(tmp_path / "bare.jsonl", [line(), line()]))
    assert recorded[0].cached_tokens.tolist() == [0, 0]
    assert bare[0].cached_tokens is None
