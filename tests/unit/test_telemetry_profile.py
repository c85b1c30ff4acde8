"""The sampler sees where CPU time goes, whoever uses it; profiles survive their formats."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from profile_programs import PROFILE, SPIN, pprof_class
from sits.core.errors import ConfigError
from sits.telemetry.profile import child, folded, pprof, speedscope
from sits.telemetry.profile.ops import label
from sits.telemetry.profile.profile import Frame, Labels, from_batch, merged

SHARED = Path(__file__).parents[3] / "shared" / "data" / "engines" / "vllm"


def sampled(tmp_path, *program, hz=200):
    """Run a program under the sampler; its profile, what it told, and its output."""
    result = tmp_path / "result.json"
    command = [sys.executable, "-I", child.__file__, str(result), str(hz), *program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    told = json.loads(result.read_text())
    profile = from_batch(told["batch"], label, wall_ns=told["wall_ns"], duration_ns=told["duration_ns"])
    return profile, told, ran


@pytest.fixture(scope="module")
def spun(tmp_path_factory):
    place = tmp_path_factory.mktemp("spin")
    (place / "spin.py").write_text(SPIN)
    return sampled(place, "spin.py", "--flag", "x")


def share(profile, function, root=None):
    """Of CPU time, the part below a function; `root`: only in threads that began with it."""
    return (
        sum(
            sample.ns
            for sample in profile.samples
            if any(frame.function == function for frame in sample.stack)
            and (root is None or any(frame.function == root for frame in sample.stack))
        )
        / profile.ns
    )


def test_python_c_and_other_threads_have_their_shares(spun):
    profile, told, _ = spun
    assert told["failures"] == 0
    # 0.3 s each by the threads' own CPU clocks, of about 1 s; at 200 Hz one share has a standard error of 3.5 points
    threads = share(profile, "python", "Thread.run")
    assert threads == pytest.approx(1 / 3, abs=0.13)
    assert share(profile, "python") - threads == pytest.approx(1 / 3, abs=0.13)
    assert share(profile, "compressing") == pytest.approx(1 / 3, abs=0.13)


def test_the_program_sees_itself_and_nothing_of_ours(spun):
    _, _, ran = spun
    assert ran.stdout == "__main__ ['--flag', 'x']\n"
    assert ran.returncode == 0


def test_a_module_runs_as_a_module_and_its_exit_code_is_its_own(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text("import sys\nprint(__package__)\nsys.exit(7)\n")
    _, told, ran = sampled(tmp_path, "-m", "package")
    assert (ran.returncode, ran.stdout) == (7, "package\n")
    assert told["failures"] == 0


def test_a_long_call_into_c_weighs_what_it_took(tmp_path):
    (tmp_path / "long.py").write_text("def long():\n    sum(range(20_000_000))\nlong()\n")
    profile, _, _ = sampled(tmp_path, "long.py", hz=100)
    found = [sample for sample in profile.samples if sample.stack[-1].function == "long"]
    assert sum(sample.count for sample in found) <= 3  # Python handles no signal within one call
    assert sum(sample.ns for sample in found) / profile.ns > 0.8


def test_lines_are_those_that_ran(spun):
    profile, _, _ = spun
    rows = SPIN.splitlines()
    lines = {
        frame.line for sample in profile.samples for frame in sample.stack if frame.function == "compressing"
    }
    assert any("zlib.compress" in rows[line - 1] for line in lines)
    assert {
        frame.file for sample in profile.samples for frame in sample.stack if frame.function == "python"
    } == {"spin.py"}


def test_an_opentelemetry_span_labels_samples(tmp_path):
    pytest.importorskip("opentelemetry.sdk")
    (tmp_path / "traced.py").write_text(
        """
import time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
with trace.get_tracer("t").start_as_current_span("rerank") as span:
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        sum(range(1000))
    print(f"{span.get_span_context().trace_id:032x}")
"""
    )
    profile, told, ran = sampled(tmp_path, "traced.py")
    assert told["failures"] == 0, ran.stderr
    mine = profile.of(op="rerank")
    assert mine.ns >= 0.1e9
    assert {sample.labels for sample in mine.samples} == {Labels("app", "rerank", ran.stdout.strip())}


def test_spans_of_ours_label_samples_and_the_inner_one_counts_whosever_it_is(tmp_path):
    pytest.importorskip("opentelemetry.sdk")
    (tmp_path / "ours.py").write_text(
        """
import asyncio, time
import sits

def spin():
    until = time.thread_time() + 0.12
    while time.thread_time() < until:
        sum(range(1000))

@sits.span("rank")
async def rank():
    spin()
    with sits.span("score"):
        spin()

asyncio.run(rank())
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
with sits.span("outer") as outer:
    with trace.get_tracer("t").start_as_current_span("theirs"):
        spin()
        with sits.span("innermost"):
            spin()
print(outer.context.trace_id)
"""
    )
    profile, told, ran = sampled(tmp_path, "ours.py")
    assert told["failures"] == 0, ran.stderr
    for op in ("rank", "score", "theirs", "innermost"):
        assert profile.of(op=op).ns >= 0.06e9, op
        assert {sample.labels.layer for sample in profile.of(op=op).samples} == {"app"}
    for op in ("theirs", "innermost"):
        assert {sample.labels.trace for sample in profile.of(op=op).samples} == {ran.stdout.strip()}


# -- formats -----------------------------------------------------------------------------------------------------


def test_pprof_says_to_an_independent_reader_what_the_profile_says():
    message = pprof_class()()
    message.ParseFromString(gzip.decompress(pprof.encode(PROFILE)))
    text = message.string_table
    assert text[0] == ""
    assert [(text[one.type], text[one.unit]) for one in message.sample_type] == [
        ("samples", "count"),
        ("cpu", "nanoseconds"),
    ]
    assert (message.time_nanos, message.duration_nanos, message.period) == (
        PROFILE.wall_ns,
        PROFILE.duration_ns,
        PROFILE.period_ns,
    )
    assert (text[message.period_type.type], text[message.default_sample_type]) == ("cpu", "cpu")
    functions = {one.id: (text[one.name], text[one.filename]) for one in message.function}
    locations = {one.id: (*functions[one.line[0].function_id], one.line[0].line) for one in message.location}
    assert 0 not in functions
    assert 0 not in locations
    seen = []
    for sample in message.sample:
        stack = tuple(Frame(*locations[one]) for one in reversed(sample.location_id))
        labels = {text[one.key]: text[one.str] for one in sample.label}
        assert labels.pop("process", "worker-0") == "worker-0"
        seen.append((stack, sample.value[1], sample.value[0], Labels(**labels)))
    assert seen[:-1] == [(one.stack, one.ns, one.count, one.labels) for one in PROFILE.samples]
    assert seen[-1][:3] == ((Frame(pprof.ELSEWHERE),), PROFILE.elsewhere_ns, 0)
    assert len(set(text)) == len(text)


def test_pprof_comes_back_as_it_was_and_equal_profiles_are_equal_bytes():
    assert pprof.decode(pprof.encode(PROFILE)) == PROFILE
    assert pprof.encode(PROFILE) == pprof.encode(msgspec.structs.replace(PROFILE))


def test_pprof_of_another_writer_is_read():
    """As Go writes it: no count in the first place, unpacked numbers, an address without a function, inlined lines."""
    message = pprof_class()()
    message.string_table.extend(["", "cpu", "nanoseconds", "inner", "outer", "x.go"])
    message.sample_type.add(type=1, unit=2)
    message.function.add(id=1, name=3, filename=5)
    message.function.add(id=2, name=4, filename=5)
    place = message.location.add(id=1)
    place.line.add(function_id=1, line=5)
    place.line.add(function_id=2, line=9)
    message.location.add(id=2, address=0xBEEF)
    message.sample.add(location_id=[1, 2], value=[42])
    profile = pprof.decode(message.SerializeToString())
    (sample,) = profile.samples
    assert sample.stack == (Frame("0xbeef"), Frame("outer", "x.go", 9), Frame("inner", "x.go", 5))
    assert sample.ns == 42


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b\x08nonsense", b"\xff" * 40, b"\x0a\x7f", pprof.encode(PROFILE)[:-20], b"hello there"],
)
def test_what_is_no_pprof_is_refused(data):
    with pytest.raises(ConfigError, match=r"no pprof profile.*"):
        pprof.decode(data, "x.pb.gz")


def test_collapsed_stacks_come_back():
    text = folded.encode(PROFILE, lines=True, labels=True)
    assert text.splitlines()[0] == (
        "[http/parse];main (server.py:3);handle (server.py:14);parse (http.py:7);loads (json/__init__.py:346) 3"
    )
    again = folded.decode(text)
    plain = [
        msgspec.structs.replace(one, labels=Labels(one.labels.layer, one.labels.op))
        for one in PROFILE.samples
    ]
    assert sorted(again.samples, key=repr) == sorted(plain, key=repr)


def test_a_line_that_is_no_stack_is_named():
    with pytest.raises(ConfigError, match="line 2"):
        folded.decode("a;b 3\na;b\n", "x.folded")


def test_an_engines_profile_by_another_tool_has_layers():
    file = SHARED / "worker_profile_slow_phase.folded.gz"
    if not file.exists():
        pytest.skip("the engine recordings are not here")
    text = gzip.decompress(file.read_bytes()).decode()
    profile = folded.decode(text, file.name)
    assert profile.count == sum(int(row.rpartition(" ")[2]) for row in text.splitlines())
    step = profile.only(lambda one: any(frame.function == "Worker.execute_model" for frame in one.stack))
    assert step.of(layer="model").count + step.of(layer="device").count == step.count > 300
    assert step.of(layer="model").count > step.of(op="batch_build").count > 0


def test_speedscope_weights_are_the_profiles():
    made = speedscope.encode(PROFILE)
    one = made["profiles"][0]
    assert sum(one["weights"]) == one["endValue"] == PROFILE.ns
    names = [[made["shared"]["frames"][place]["name"] for place in stack] for stack in one["samples"]]
    assert names[0] == ["main", "handle", "parse", "loads"]


def test_profiles_add_up_and_are_cut_by_label():
    both = merged([PROFILE, PROFILE])
    assert (both.ns, both.count, both.process) == (2 * PROFILE.ns, 2 * PROFILE.count, "worker-0")
    assert len(both.samples) == len(PROFILE.samples)
    assert both.of(layer="http", trace="aa").ns == 60_000_000
    assert both.of(op="nothing").samples == ()


@pytest.mark.parametrize(
    ("file", "function", "name"),
    [
        ("/x/site-packages/sits/gateway/http.py", "HttpReader.feed", "http/parse"),
        ("sits/gateway/ledger/book.py", "Book.take", "gateway/quota"),
        ("sits/policy/route.py", "choose", "gateway/route"),
        ("sits/engine/openai.py", "OpenAI.generate", "model/llm_generate"),
        ("vllm/v1/core/sched/scheduler.py", "Scheduler.schedule", "scheduler/schedule"),
        ("somebody/else.py", "main", ""),
    ],
)
def test_files_tell_layer_and_operation(file, function, name):
    assert (
        label([Frame("main", "m.py"), Frame(function, file), Frame("loads", "json/__init__.py")]).name == name
    )


def test_every_file_the_table_names_is_there():
    from sits.telemetry.profile.ops import FILES

    root = Path(child.__file__).parents[2]
    assert [
        name for name in FILES if not (root / name).is_dir() and not (root / f"{name}.py").is_file()
    ] == []
