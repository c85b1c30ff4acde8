"""Odd and hostile input of the commands that predict: refused with field, value and way out, or answered; never a traceback or a silent guess."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine_recordings import engine
from sits.app import output
from sits.app.cli import main
from sits.bench.asked import read_asked
from sits.bench.recording import read_recording
from sits.bench.traces import read_trace
from sits.bench.windows import at_rate
from sits.core.errors import ConfigError
from sits.predict.fit_model import decode_model
from sits.predict.queue_service import gamma
from sits.predict.startup_log import read_spans

LINE = '{"arrival":0,"prompt_tokens":100,"output_tokens":10}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n"


def told(capsys, *arguments):
    """Exit code and standard error; anything but an exit is a traceback for the user."""
    with pytest.raises(SystemExit) as stop:
        main([str(one) for one in arguments])
    return stop.value.code, capsys.readouterr().err


def wrote(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (LINE.replace("100", "9" * 400), "prompt_tokens"),
        (LINE.replace("100", "1" + "0" * 30), "at most"),
        ("[" * 100_000, "not JSON"),
        ('{"x":' * 5000 + "1" + "}" * 5000, "not JSON"),
        (LINE + LINE.replace('"arrival":0', '"arrival":1e18'), "another unit"),
        (LINE.replace('"output_tokens":10', '"output_tokens":0'), "no request"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"\x1f\x8b\x00", "gzip"),
    ],
)
def test_requests_that_are_none_are_refused(tmp_path, content, said):
    with pytest.raises(ConfigError, match=said):
        read_asked(wrote(tmp_path / "r.jsonl", content))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("arrival,prompt_tokens,output_tokens\n1,2,3,4\n", "more cells"),
        ("arrival,arrival,prompt_tokens,output_tokens\n1,2,3,4\n", "two columns"),
        ("arrival,prompt_tokens,output_tokens\n1,2," + "9" * 200_000 + "\n", "no CSV"),
    ],
)
def test_tables_of_requests_that_are_none_are_refused(tmp_path, content, said):
    with pytest.raises(ConfigError, match=said):
        read_asked(wrote(tmp_path / "r.csv", content))


def test_names_with_odd_characters_and_a_mark_at_the_start_are_read(tmp_path):
    lines = "\ufeff" + LINE.replace("{", '{"id":"a\u2028b\x85",') + LINE.replace("{", '{"id":"ü😀",')
    (asked,) = read_asked(wrote(tmp_path / "r.jsonl", lines))
    assert asked.ids == ("a\u2028b\x85", "ü😀")
    (asked,) = read_asked(
        wrote(tmp_path / "r.csv", '\ufeffarrival,id,prompt_tokens,output_tokens\n1,"x,\ny",3,4\n')
    )
    assert asked.ids == ("x,\ny",)


def test_a_request_without_an_answer_is_left_out_and_counted(tmp_path):
    (asked,) = read_asked(
        wrote(tmp_path / "r.jsonl", LINE + LINE.replace('"output_tokens":10', '"output_tokens":0'))
    )
    assert (len(asked), asked.failed) == (1, 1)


@pytest.mark.parametrize(
    ("head", "line", "said"),
    [
        ({"wall_s": "long"}, {}, "wall_s"),
        ({"t0_unix": 1e300}, {}, "t0_unix"),
        ({"concurrency": 1e300}, {}, "concurrency"),
        ({}, {"chunks": ["x"]}, "chunks"),
        ({}, {"chunks": [[None, 1]]}, "chunks"),
    ],
)
def test_recordings_with_odd_values_are_refused(tmp_path, head, line, said):
    wrote(tmp_path / "runs.jsonl", json.dumps({"run": "a"} | head))
    asked = {"run": "a", "sent": 0, "prompt_tokens": 5, "output_tokens": 2, "ttft_ms": 1, "e2e_ms": 2}
    wrote(tmp_path / "requests.jsonl", json.dumps(asked | line))
    wrote(tmp_path / "steps.csv", "run,ctx_reqs,ctx_tokens,gen_reqs,elapsed_ms\na,1,5,0,10\n")
    with pytest.raises(ConfigError, match=said):
        read_recording(tmp_path)


def changed(model, path, value):
    built = msgspec.to_builtins(model)
    *inner, last = path.split("/")
    place = built
    for name in inner:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    return msgspec.json.encode(built)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((f"limits/{name}/value", 0) for name in ("blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")),
        ("steps/base_ms", -1.0),
        ("steps/pause_ms", -50.0),
        ("steps/base_ms", 1e300),
        ("steps/levels", {}),
        ("steps/slow", []),
        ("steps/decode/factor", []),
        ("steps/decode/beyond_ms", []),
        ("steps/mixed/factor", []),
        ("front/bins", []),
        ("front/serial_ms", -5.0),
        ("front/bins/0/weight", []),
        ("front/bins/0/enter_ms", []),
        ("front/bins/0/in_flight_min", 3),
        ("prefix/closed", 5.0),
    ],
)  # fmt: skip
def test_a_model_edited_to_what_no_fit_writes_is_refused(path, value):
    model = engine()
    assert decode_model(model.encode(), "m.json") == model
    with pytest.raises(ConfigError, match=r"m\.json: ") as refused:
        decode_model(changed(model, path, value), "m.json")
    assert "calibrate again" in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("2023-11-16 18:15:50,-3,5\n", "ContextTokens is -3"),
        (",3,5\n", "no TIMESTAMP"),
        ("2023-11-16 18:15:50,,5\n", "no ContextTokens"),
        ("2023-11-16 18:15:50,1e30,5\n", "ContextTokens"),
        ("2023-11-16 18:15:50,nan,5\n", "ContextTokens"),
        ("1723-11-16 18:15:50,3,5\n", "another unit"),
    ],
)
def test_traces_with_odd_cells_are_refused(tmp_path, rows, said):
    with pytest.raises(ConfigError, match=said):
        read_trace(wrote(tmp_path / "t.csv", AZURE + rows))


def test_a_trace_that_is_binary_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError) as refused:
        read_trace(wrote(tmp_path / "t.csv", bytes(range(256)) * 4))
    assert "\n" not in str(refused.value)


def test_a_rate_no_trace_can_have_is_refused():
    with pytest.raises(ConfigError, match="at one time"):
        at_rate(np.zeros(3), 0.0)
    with pytest.raises(ConfigError, match="lower --rate"):
        at_rate(np.array([0.0, 1.0]), 1e9)


def test_spans_that_are_none_are_refused():
    with pytest.raises(ConfigError, match="Load weights"):
        read_spans([{"name": "Load weights", "start_ns": 5, "end_ns": 1}])
    with pytest.raises(ConfigError, match="Load weights"):
        read_spans([{"name": "Load weights", "start_ns": "x"}])


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "queue", "--service", "50ms", "--rate", "nan"),
        ("plan", "queue", "--service", "50ms", "--rate", "1", "--arrival-cv", "nan"),
        ("plan", "persist", "--disk", "1GB/s", "--rate", "inf"),
        ("plan", "persist", "--disk", "1GB/s", "--rate", "1e-9"),
        ("plan", "persist", "--disk", "1GB/s", "--pcie", "0GB/s", "-q"),
        ("plan", "capacity", "--rate", "1e-9"),
        ("plan", "capacity", "--rate", "1", "--slo-ttft", "0ms"),
        ("plan", "memory", "--gpu-memory", "1000TiB"),
        ("plan", "memory", "--shared-prefix", "1" + "0" * 18),
        ("plan", "network", "--layers", "1" + "0" * 400),
        ("predict", "--model", "m", "--requests", "r", "--level", "nan"),
        ("predict", "--model", "m", "--requests", "r", "--think", "1s"),
        ("predict", "--model", "m", "--requests", "r", "--set", "blocks=3"),
        ("predict", "--model", "m", "--requests", "r", "--prefix-hits", "nan"),
    ],
)
def test_numbers_out_of_this_world_are_refused(capsys, arguments):
    code, said = told(capsys, *arguments)
    assert code == 2
    assert said


@pytest.mark.parametrize(
    "content",
    [b"\xb6\xff", "1,nan\n", "0,1\n1,inf\n", "1,-5\n", "1e200,1e200\n2e200,3e200\n", "1,4,-1\n2,5,-1\n"],
)  # fmt: skip
@pytest.mark.parametrize("command", [("queue", "--points"), ("network", "--scaling")])
def test_tables_of_points_that_are_none_are_refused(tmp_path, capsys, content, command):
    code, said = told(capsys, "plan", *command, wrote(tmp_path / "p.csv", content))
    assert code == 2
    assert "p.csv" in said


def test_the_median_of_service_times_most_of_which_are_nothing_is_told():
    from sits.predict.queue import predict_queue

    seen = predict_queue(10.0, gamma(50e6, 10.0))
    assert 0.0 <= seen.p50_ns <= seen.p99_ns < float("inf")


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = wrote(tmp_path / "model.json", "old")
    path.chmod(0o640)
    output.write_text(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    link = tmp_path / "link"
    link.symlink_to(path)
    output.write_text(link, "through")
    assert link.is_symlink()
    assert path.read_text() == "through"

    def interrupted(self, content):
        with self.open("wb") as file:
            file.write(content[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        output.write_text(path, "half")
    assert path.read_text() == "through"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "model.json"]


def test_what_is_no_plain_file_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    output.write_text(pipe, "through")
    assert reader.communicate()[0] == b"through"
    assert pipe.is_fifo()


def test_an_interrupt_exits_with_130_and_leaves_nothing(tmp_path):
    """The command is interrupted when it has said that it fits, whatever it is doing then."""
    from engine_recordings import RECORDINGS

    out = tmp_path / "model.json"
    command = [sys.executable, "-m", "sits.app.cli", "calibrate", str(RECORDINGS / "small-closed"), "-o", str(out)]  # fmt: skip
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    running.stderr.read(1)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate()
    assert running.returncode == 130
    assert b"Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_nobody_knows_is_no_success(tmp_path, capsys):
    code, _ = told(capsys, "plan", "memory", "--gpu", "nope", "--requests", "5", "--context", "2048", "-q")
    assert code == 1
    few = ("--rate", "1", "--requests", "10", "--seeds", "1", "--tp", "1", "--replicas", "1")
    code, _ = told(capsys, "plan", "capacity", "--gpu", "nope", *few, "-o", tmp_path / "out", "-q")
    assert code == 1


def test_a_sweep_over_a_trace_that_is_none_leaves_nothing_behind(tmp_path, capsys):
    trace, out = wrote(tmp_path / "t.csv", AZURE + ",,\n"), tmp_path / "out"
    code, said = told(capsys, "plan", "capacity", "--trace", trace, "-o", out, "-q")
    assert (code, out.exists()) == (2, False)
    assert "row 2 has no" in said
