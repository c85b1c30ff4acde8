"""Recordings as they come: gzipped or not, and whatever is wrong is named with its file, line, field, value and way out."""

import gzip
import json
import re

import numpy as np
import pytest

from engine_recordings import RECORDINGS, write_recording
from sits.bench.calibrating import calibrate
from sits.bench.recording import read_recording
from sits.core.errors import ConfigError


def broken(folder, name, change):
    """Rewrite one file of a recording."""
    path = folder / f"{name}.gz"
    if not path.exists():
        path = folder / name
        path.write_text(change(path.read_text()))
        return folder
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()).decode()).encode()))
    return folder


def test_a_real_recording_is_read_as_it_is():
    recording = read_recording(RECORDINGS / "small-closed")
    assert [run.users for run in recording.runs][-6:] == [1, 2, 4, 8, 16, 32]
    assert sum(len(run) for run in recording.runs) == 698
    last = recording.runs[-1]
    assert last.name == "closed-c32-cal"
    assert int(last.cached_tokens.sum()) == 40192
    # The engine's books: what was prefilled is what was asked less what the prefix cache gave.
    assert last.steps.prompt_tokens.sum() == (last.prompt_tokens - last.cached_tokens).sum()
    assert last.steps.decodes.sum() == (last.output_tokens - 1).sum()


def test_gzip_is_recognised_by_content_and_either_name_is_found(tmp_path):
    plain = read_recording(write_recording(tmp_path / "plain", zipped=False))
    zipped = read_recording(write_recording(tmp_path / "zipped"))
    for a, b in zip(plain.runs, zipped.runs, strict=True):
        assert np.array_equal(a.sent_ms, b.sent_ms)
        assert np.array_equal(a.steps.elapsed_ms, b.steps.elapsed_ms)


def test_unknown_columns_and_blank_lines_do_not_matter(tmp_path):
    folder = write_recording(tmp_path)
    broken(folder, "requests.jsonl", lambda text: "\n\n" + text.replace('"run"', '"colour": "blue", "run"'))
    broken(
        folder,
        "steps.csv",
        lambda text: "\n".join(line + ",9" for line in text.splitlines()).replace("kv_pct,9", "kv_pct,x"),
    )
    assert len(read_recording(folder).runs) == 2


def test_failed_requests_are_counted_and_left_out(tmp_path):
    folder = broken(
        write_recording(tmp_path),
        "requests.jsonl",
        lambda text: text.replace('"status": 200', '"status": 500', 3),
    )
    run = read_recording(folder).runs[0]
    assert (run.failed, len(run)) == (3, 27)
    assert calibrate(read_recording(folder)).fitted_on.failed == 3


def test_steps_are_read_from_the_engines_own_log_too(tmp_path):
    import time

    folder = write_recording(tmp_path)
    log, rows = [], gzip.decompress((folder / "steps.csv.gz").read_bytes()).decode().splitlines()[1:]
    (folder / "steps.csv.gz").unlink()
    for row in rows:
        run, chunks, prompt, decodes, elapsed, kv = row.split(",")
        at = time.strftime("%m-%d %H:%M:%S", time.localtime({"one": 1005, "two": 1065}[run]))
        log.append(
            f"(APIServer pid=1) INFO {at} [loggers.py:199] Engine 000: Iteration(1): {chunks} context requests, {prompt} context tokens, "
            f"{decodes} generation requests, {decodes} generation tokens, iteration elapsed time: {elapsed} ms, CPU KV cache usage: {kv}%"
        )
    (folder / "engine.log").write_text("\n".join(["something else", *log]))
    recording = read_recording(folder)
    assert [len(run.steps) for run in recording.runs] == [60, 60]
    assert recording.runs[0].kv_used[0] == pytest.approx(0.01)


MISSING = {
    "runs.jsonl": "no runs.jsonl",
    "requests.jsonl.gz": "no requests.jsonl",
    "steps.csv.gz": "neither steps.csv.* nor engine.log",
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_file_is_named_with_what_it_should_hold(tmp_path, name):
    folder = write_recording(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=MISSING[name]) as error:
        read_recording(folder)
    assert error.value.hint


def test_without_scrapes_the_pool_must_be_told(tmp_path):
    folder = write_recording(tmp_path)
    (folder / "scrapes.csv.gz").unlink()
    with pytest.raises(ConfigError, match="how many KV blocks"):
        calibrate(read_recording(folder))


WRONG = {
    "empty runs": ("runs.jsonl", lambda _text: "", "holds no run"),
    "empty requests": ("requests.jsonl", lambda _text: "", "holds no request"),
    "empty steps": ("steps.csv", lambda _text: "", "no column run"),
    "no steps": ("steps.csv", lambda text: text.splitlines()[0], "no engine step"),
    "not JSON": ("requests.jsonl", lambda text: "{" + text, r"requests.jsonl.gz:1: not JSON"),
    "not an object": ("requests.jsonl", lambda text: "[1]\n" + text, "is not an object"),
    "NaN": ("steps.csv", lambda text: re.sub("\none,1,100,0,[^,\n]*", "\none,1,100,0,nan", text, count=1), r"steps.csv.gz:2: elapsed_ms is 'nan'"),
    "negative": ("requests.jsonl", lambda text: text.replace('"ttft_ms": 40.0', '"ttft_ms": -1', 1), "ttft_ms is -1"),
    "text": ("requests.jsonl", lambda text: text.replace('"prompt_tokens": 100', '"prompt_tokens": "many"', 1), "prompt_tokens is 'many'"),
    "half a token": ("requests.jsonl", lambda text: text.replace('"prompt_tokens": 100', '"prompt_tokens": 2.5', 1), "whole number"),
    "a boolean": ("requests.jsonl", lambda text: text.replace('"prompt_tokens": 100', '"prompt_tokens": true', 1), "prompt_tokens is True"),
    "run twice": ("runs.jsonl", lambda text: text + "\n" + text, "named twice"),
    "run unknown": ("requests.jsonl", lambda text: text.replace('"run": "two"', '"run": "three"'), "'three' is not in runs.jsonl"),
    "all cached": ("requests.jsonl", lambda text: text.replace('"status"', '"cached_tokens": 100, "status"', 1), "100 of 100 prompt tokens"),
    "a step of no time": ("steps.csv", lambda text: re.sub("\none,0,0,1,[^,\n]*", "\none,0,0,1,0", text, count=1), "a step of 0 ms"),
    "all failed": ("requests.jsonl", lambda text: text.replace('"status": 200', '"status": 500'), "requests failed"),
    "a request of ages": ("requests.jsonl", lambda text: text.replace('"ttft_ms": 40.0', '"ttft_ms": 1e30', 1), "ttft_ms is 1e"),
    "sent in another unit": ("requests.jsonl", lambda text: re.sub('"sent": [^,]*', '"sent": 1e18', text, count=1), "sent is 1e"),
    "sent before time": ("requests.jsonl", lambda text: re.sub('"sent": [^,]*', '"sent": -1e18', text, count=1), "sent is -1e"),
    "a step of ages": ("steps.csv", lambda text: re.sub("\none,0,0,1,[^,\n]*", "\none,0,0,1,1e30", text, count=1), "elapsed_ms is '1e30'"),
    "nested": ("requests.jsonl", lambda text: "[" * 100_000 + text, "not JSON"),
    "steps of other runs": (
        "steps.csv",
        lambda text: text.replace("\none,", "\nother,").replace("\ntwo,", "\nother,"),
        "no engine step",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(tmp_path, what):
    name, change, text = WRONG[what]
    folder = broken(write_recording(tmp_path), name, change)
    with pytest.raises(ConfigError, match=text) as error:
        read_recording(folder)
    assert error.value.hint


def test_a_damaged_archive_is_told(tmp_path):
    folder = write_recording(tmp_path)
    path = folder / "requests.jsonl.gz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="damaged gzip"):
        read_recording(folder)


def test_a_file_is_no_recording(tmp_path):
    with pytest.raises(ConfigError, match="no directory"):
        read_recording(tmp_path / "nothing")


def test_a_short_recording_cannot_carry_a_law(tmp_path):
    folder = write_recording(tmp_path, requests=1, steps=5)
    with pytest.raises(ConfigError, match="too few to fit a law"):
        calibrate(read_recording(folder))


def test_json_numbers_stay_as_precise_as_they_are(tmp_path):
    folder = write_recording(tmp_path, zipped=False)
    first = json.loads((folder / "requests.jsonl").read_text().splitlines()[0])
    assert read_recording(folder).runs[0].sent_ms[0] == pytest.approx(first["sent"] * 1e3, abs=1e-9)


def test_a_run_that_cannot_be_used_is_left_out_in_print(tmp_path):
    folder = broken(
        write_recording(tmp_path / "a"), "steps.csv", lambda text: text.replace("\ntwo,", "\nother,")
    )
    recording = read_recording(folder)
    assert [run.name for run in recording.runs] == ["one"]
    assert recording.left_out == ("run two is left out: it has 30 requests and not one engine step",)
    assert recording.left_out[0] in calibrate(recording).assumed
    failed = broken(
        write_recording(tmp_path / "b"),
        "requests.jsonl",
        lambda text: text.replace('"status": 200', '"status": 500', 30),
    )
    assert read_recording(failed).left_out == ("run one is left out: all 30 requests failed",)
