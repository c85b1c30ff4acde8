"""The vLLM plug-in, in processes with a small vLLM: what it tells of a request, and when it stands down."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import sits
import vllm_fake
from otlp_receiver import otlp_receiver
from sits.core.breakpoints import INDEX, NAMES
from sits.telemetry.otlp.mapping import decoded
from sits.telemetry.otlp.sighted import sighting_columns
from sits.telemetry.probe import known
from sits.telemetry.probe.patching import Patches
from sits.telemetry.probe.plugin import look, traces_url
from sits.telemetry.probe.reading import differences, version_of
from sits.telemetry.probe.seeing import offset

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ALL = NAMES[INDEX["engine_recv"] : INDEX["first_token"] + 1]


class Ran:
    """A process with a small vLLM and the probe: its spans by (request, name), what it said."""

    def __init__(self, folder, version=vllm_fake.VERSION, changed=None, environment=None, **script):
        vllm_fake.write(folder, version, changed)
        file = folder / "sightings.jsonl"
        environment = {"SITS_PROBE_FILE": str(file)} if environment is None else environment
        done = subprocess.run(
            [sys.executable, "-c", vllm_fake.script(**script)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PYTHONPATH": f"{folder}:{Path(sits.__file__).parents[1]}", **environment},
        )
        assert done.returncode == 0, done.stderr
        self.out, self.said = done.stdout, done.stderr.splitlines()
        self.spans, self.resources = {}, []
        for line in file.read_text().splitlines() if file.exists() else ():
            for batch in json.loads(line)["resourceSpans"]:
                self.resources.append({a["key"]: a["value"] for a in batch["resource"]["attributes"]})
                for span in batch["scopeSpans"][0]["spans"]:
                    span["attributes"] = {
                        a["key"]: next(iter(a["value"].values())) for a in span["attributes"]
                    }
                    self.spans[span["attributes"]["sits.vllm.request_id"], span["name"]] = span

    def points(self, request_id):
        """Times (Unix ns) by point, and how those that were not measured came to be."""
        at, how = {}, {}
        for (of, _), span in self.spans.items():
            if of == request_id:
                for key, value in span["attributes"].items():
                    kind, _, name = key.removeprefix("sits.").partition(".")
                    if kind == "bp":
                        assert name not in at
                        at[name] = int(value)
                    elif kind == "exactness":
                        how[name] = value
        return at, how


def test_each_process_tells_its_points_of_a_request_in_order(tmp_path):
    ran = Ran(tmp_path)
    assert ran.said == []
    for request_id in ("cmpl-r1-0-0123abcd", "cmpl-r2-0-0123abcd"):
        at, how = ran.points(request_id)
        assert tuple(sorted(at, key=INDEX.get)) == ALL
        times = [at[name] for name in ALL]
        assert times == sorted(times)
        assert how == {"kv_ready": "derived", "collective_ready": "derived"}
    assert len(ran.spans) == 6, "nothing is told of steps that start no request"
    assert {r["service.name"]["stringValue"] for r in ran.resources} == {"vllm"}


def test_the_trace_of_the_caller_reaches_all_three_and_without_one_they_agree(tmp_path):
    ran = Ran(tmp_path)
    names = ("vllm.front", "vllm.core", "vllm.worker")
    first = [ran.spans["cmpl-r1-0-0123abcd", name] for name in names]
    assert {(span["traceId"], span["parentSpanId"]) for span in first} == {(TRACE, PARENT)}
    second = [ran.spans["cmpl-r2-0-0123abcd", name] for name in names]
    assert len({span["traceId"] for span in second}) == 1
    assert not any("parentSpanId" in span for span in second)
    assert second[0]["traceId"] != TRACE


def test_the_arrival_is_right_when_the_process_loses_the_processor_between_two_clocks(tmp_path):
    before = """
plugin.load()
looks = []
def interrupted():
    looks.append(1)
    if len(looks) == 1:
        time.sleep(0.05)
    return time.time_ns()
plugin.running().seeing.wall_ns = interrupted
"""
    ran = Ran(tmp_path, before=before, more="asked = time.time_ns()", after="print(asked)")
    assert ran.points("cmpl-r1-0-0123abcd")[0]["engine_recv"] > int(ran.out) - 10_000_000


def test_kv_from_elsewhere_is_ready_when_it_came(tmp_path):
    more = """
import vllm.v1.request as r
core.add_request(r.Request("far", headers))
core.fetching.append(core.waiting[0])
request = core.waiting[0]
core.schedule()
between = time.time_ns()
core._update_waiting_for_remote_kv(request)
core.waiting, core.running = [request], []
"""
    ran = Ran(tmp_path, more=more, after="print(between)")
    at, how = ran.points("far")
    assert at["queued"] <= at["scheduled"] <= at["kv_allocated"] <= int(ran.out) + 1_000_000
    assert at["kv_allocated"] < at["kv_ready"] <= at["batch_built"]
    assert "kv_ready" not in how


def test_the_second_runner_tells_all_but_its_graph(tmp_path):
    at, how = Ran(tmp_path, runner="gpu.model_runner").points("cmpl-r1-0-0123abcd")
    assert tuple(sorted(at, key=INDEX.get)) == tuple(name for name in ALL if name != "graph_chosen")
    times = [at[name] for name in sorted(at, key=INDEX.get)]
    assert times == sorted(times)
    assert how["collective_ready"] == "derived"


def test_on_a_device_that_queues_the_launch_is_derived_and_of_many_ranks_the_first_speaks(tmp_path):
    more = "runner.device.type, runner.parallel_config.world_size = 'cuda', 2"
    at, how = Ran(tmp_path, more=more).points("cmpl-r1-0-0123abcd")
    assert "collective_ready" not in at
    assert how["inputs_copied"] == how["kernel_launch"] == "derived"
    other = Ran(tmp_path / "other", more=f"{more}\nrunner.parallel_config.rank = 1")
    assert {name for _, name in other.spans} == {"vllm.front", "vllm.core"}


def test_modules_already_loaded_and_modules_loaded_later_are_wrapped_alike(tmp_path):
    ran = Ran(tmp_path, before="import vllm.v1.core.sched.scheduler, vllm.v1.worker.gpu_model_runner")
    assert tuple(sorted(ran.points("cmpl-r1-0-0123abcd")[0], key=INDEX.get)) == ALL


def test_a_forked_process_has_the_wrappers_and_a_way_out_of_its_own(tmp_path):
    before = "plugin.load()\nimport vllm.v1.core.sched.scheduler\npid = os.fork()\nif pid: os.waitpid(pid, 0); sys.exit(0)"
    assert len(Ran(tmp_path, before=before).spans) == 6


UNTOUCHED = """
import vllm.v1.core.sched.scheduler as s, vllm.v1.engine.async_llm as a, vllm.v1.worker.gpu_model_runner as g
import vllm.v1.core.kv_cache_manager as k, vllm.v1.engine.input_processor as i
of = (s.Scheduler, a.AsyncLLM, g.GPUModelRunner, k.KVCacheManager, i.InputProcessor)
print([n for c in of for n, f in vars(c).items() if hasattr(getattr(f, "__func__", f), "__wrapped__")])
print([f for f in sys.meta_path if type(f).__module__.startswith("sits")])
print([t.name for t in __import__("threading").enumerate() if "sits" in t.name])
"""


@pytest.mark.parametrize(
    ("version", "changed", "why"),
    [
        ("0.33.0", {}, "vLLM 0.33.0 is not one the probe knows (0.32.x)"),
        ("0.32.1.dev3+g1234567", {}, "is not one the probe knows"),
        ("", {}, "is not one the probe knows"),
        (
            "0.32.9",
            {
                "v1/core/kv_cache_manager.py": [
                    ("def get_blocks(self, request_id", "def get_blocks(self, request")
                ]
            },
            "get_blocks begins with parameters ('self', 'request') and not ('self', 'request_id')",
        ),
        (
            "0.32.0",
            {"v1/core/sched/scheduler.py": [("_update_waiting_for_remote_kv", "_kv_is_here")]},
            "there is no vllm.v1.core.sched.scheduler:Scheduler._update_waiting_for_remote_kv",
        ),
        ("0.32.0", {"v1/request.py": [("trace_headers", "headers")]}, "Request has no field trace_headers"),
        ("0.32.0", {"v1/core/kv_cache_manager.py": [("class", "klass")]}, "cannot be read"),
    ],
)
def test_what_is_unknown_or_differs_leaves_everything_as_it_is_with_one_warning(
    tmp_path, version, changed, why
):
    script = 'plugin.load(); plugin.load(); print("loaded")' + UNTOUCHED
    broken = changed.get("v1/core/kv_cache_manager.py", [("", "")])[0][1] == "klass"
    vllm_fake.write(tmp_path, version, changed)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\nfrom sits.telemetry.probe import plugin\n{script if not broken else 'plugin.load(); plugin.load()'}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            "PYTHONPATH": f"{tmp_path}:{Path(sits.__file__).parents[1]}",
            "SITS_PROBE_FILE": str(tmp_path / "none"),
        },
    )
    assert done.returncode == 0, done.stderr
    warnings = done.stderr.splitlines()
    assert len(warnings) == 1
    assert why in warnings[0]
    assert "stands down" in warnings[0]
    if not broken:
        assert done.stdout.splitlines() == ["loaded", "[]", "[]", "[]"]
    assert not (tmp_path / "none").exists()


def test_the_engine_works_as_before_under_an_unknown_version(tmp_path):
    ran = Ran(tmp_path, version="0.99.0")
    assert ran.spans == {}
    assert len(ran.said) == 1


def test_a_function_that_is_not_there_after_all_undoes_the_others(tmp_path):
    # Its source has the class and the function; the module as imported has not.
    whole = vllm_fake.FILES["v1/worker/gpu_model_runner.py"]
    changed = {"v1/worker/gpu_model_runner.py": [(whole, f"{whole}\ndel GPUModelRunner._preprocess\n")]}
    vllm_fake.write(tmp_path, changed=changed)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\nfrom sits.telemetry.probe import plugin\nplugin.load()\nassert plugin.running()\n{UNTOUCHED}\nassert not plugin.running()",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": f"{tmp_path}:{Path(sits.__file__).parents[1]}"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "[]", "[]"]
    assert len(done.stderr.splitlines()) == 1


def test_trouble_in_a_wrapper_ends_the_probe_and_the_request_goes_on(tmp_path):
    ran = Ran(tmp_path, before="plugin.load()\nplugin._running[0].seeing.put = lambda span: 1 // 0")
    assert ran.spans == {}
    assert len(ran.said) == 1
    assert "ZeroDivisionError" in ran.said[0]


def test_it_can_be_switched_off(tmp_path):
    ran = Ran(
        tmp_path, environment={"SITS_PROBE": "off", "SITS_PROBE_FILE": str(tmp_path / "sightings.jsonl")}
    )
    assert (ran.spans, ran.said) == ({}, [])


def test_nobody_at_the_endpoint_is_told_once_and_costs_nothing_else(tmp_path):
    after = "plugin.running().out.flush(0.2)"
    ran = Ran(tmp_path, environment={"SITS_PROBE_ENDPOINT": "http://127.0.0.1:9"}, after=after)
    assert len(ran.said) == 1
    assert "http://127.0.0.1:9/v1/traces cannot be sent to" in ran.said[0]


def test_spans_go_to_a_receiver_with_the_headers_asked_for(tmp_path):
    with otlp_receiver() as received:
        environment = {
            "SITS_PROBE_ENDPOINT": received.url,
            "SITS_PROBE_HEADERS": "authorization=Bearer%20secret",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20of-vllm",
        }
        ran = Ran(tmp_path, environment=environment)
        status, body = received.next()
    assert (status, ran.said) == (200, [])
    assert received.headers[0]["authorization"] == "Bearer secret"
    batch = decoded(json.dumps(body).encode())
    assert (len(batch.spans), batch.rejected) == (6, 0)
    rows = sighting_columns("run", batch.spans)
    assert sorted(zip(rows["scheme"], rows["parent_id"], strict=True)) == [("sits", ""), ("sits", PARENT)]
    assert (
        rows["exactness"][list(rows["parent_id"]).index(PARENT)]
        == "00000" + "33333" + "2" + "3333" + "2" + "3" + "300"
    )


def test_statistics_of_finished_requests_are_in_their_trace(tmp_path):
    more = """
from types import SimpleNamespace as N
from sits.telemetry.probe.stats import SitsStats
from vllm.v1.metrics.loggers import StatLoggerBase
assert issubclass(SitsStats, StatLoggerBase)
stats = SitsStats(None, 0)
"""
    after = """
done = N(request_id="cmpl-r1-0", num_prompt_tokens=5, num_generation_tokens=7, e2e_latency=0.5, queued_time=0.1,
         prefill_time=0.2, decode_time=0.2, num_preemptions=1, num_cached_tokens=3, finish_reason="stop")
step_ = N(num_prompt_tokens=5, num_generation_tokens=7, num_preempted_reqs=1, finished_requests=[done])
stats.record(N(num_running_reqs=2, num_waiting_reqs=4, kv_cache_usage=0.5), step_)
stats.record(None, None)
"""
    span = Ran(tmp_path, more=more, after=after).spans["cmpl-r1-0", "vllm.finished"]
    assert (span["traceId"], span["parentSpanId"]) == (TRACE, PARENT)
    assert int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]) == 500_000_000
    told = span["attributes"]
    assert (told["gen_ai.usage.prompt_tokens"], told["sits.preemptions"]) == ("5", "1")
    assert (told["gen_ai.latency.time_in_queue"], told["sits.vllm.cached_tokens"]) == (0.1, "3")


def test_a_request_that_never_starts_is_told_and_forgotten(tmp_path):
    more = """
import vllm.v1.request as r, sits.telemetry.probe.scheduling as s
s.PENDING_MAX = 2
for i in range(4):
    core.add_request(r.Request(f"lost{i}", headers))
core.waiting = []
"""
    ran = Ran(tmp_path, more=more)
    assert ran.points("lost0")[0].keys() == {"queued"}


def test_check_says_what_would_be_wrapped_and_what_is_missing(tmp_path):
    vllm_fake.write(tmp_path, "0.31.0")

    def check(path):
        environment = {"PYTHONPATH": f"{path}:{Path(sits.__file__).parents[1]}"}
        return subprocess.run(
            [sys.executable, "-m", "sits.telemetry.probe"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
        )

    shown = check(tmp_path)
    assert shown.returncode == 1
    assert "PROBLEM vLLM 0.31.0 is not one the probe knows" in shown.stdout
    vllm_fake.write(tmp_path)
    shown = check(tmp_path)
    assert "vllm.v1.core.sched.scheduler:Scheduler.schedule" in shown.stdout
    assert "PROBLEM" not in shown.stdout


def test_no_vllm_at_all():
    assert "no vLLM" in look().problems[0] or look().package is not None


def test_the_small_vllm_has_all_that_is_known(tmp_path):
    package = vllm_fake.write(tmp_path)
    assert version_of(package) == "0.32.0"
    assert differences(package, known.VERSIONS["0.32"]) == []


def test_each_site_names_a_wrapper_and_no_two_the_same_function():
    for about in known.VERSIONS.values():
        functions = [(site.module, site.owner, site.name) for site in about.sites]
        assert len(set(functions)) == len(functions)


def test_undo_gives_back_the_very_functions():
    site = known.Site("vllm_fake", "", "write", (), "", "")
    before = vllm_fake.write

    def twice(function):
        def called(*arguments):
            return function(*arguments)

        return called

    patches = Patches({site: twice}, pytest.fail)
    patches.apply()
    assert vllm_fake.write is not before
    assert (vllm_fake.write.__wrapped__, patches.applied) == (before, 1)
    patches.undo()
    assert vllm_fake.write is before
    assert patches not in sys.meta_path


def test_the_clock_offset_is_of_the_closest_pair_of_readings():
    now = iter([0, 100, 200, 210, 300, 400])
    wall = iter([1_050, 1_205, 9_999])
    assert offset(lambda: next(now), lambda: next(wall), tries=3) == 1_000


def test_addresses():
    assert traces_url("http://a:1/") == "http://a:1/v1/traces"
    assert traces_url("http://a:1/x") == "http://a:1/x"


def test_its_imports_are_the_standard_library_msgspec_and_ours():
    code = (
        "import sys; before = set(sys.modules); import sits.telemetry.probe.plugin, sits.telemetry.probe.__main__;"
        "new = {n.partition('.')[0] for n in set(sys.modules) - before};"
        "print(sorted(n for n in new if n not in sys.stdlib_module_names))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(ast.literal_eval(shown.stdout))
    assert loaded - {"typing_extensions"} == {"msgspec", "sits"}, "msgspec looks for typing_extensions itself"
