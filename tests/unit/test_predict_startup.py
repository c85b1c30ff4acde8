"""Start-up: stages add up, recordings of one start agree, advice follows from what is set."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.core.errors import ConfigError
from sits.core.units import SECOND
from sits.predict.startup import STAGES, Fact, Mark, Startup, advise, attribute, jit_needed
from sits.predict.startup_log import go_duration_ns, read_log, read_spans

DATA = Path(__file__).parents[1] / "data/startup"
NAMES = st.sampled_from(STAGES)


@given(
    start=st.integers(0, 50),
    marks=st.lists(st.builds(Mark, st.integers(50, 200), NAMES), min_size=1, max_size=12),
    facts=st.lists(st.builds(Fact, st.integers(0, 250), NAMES, st.integers(0, 300)), max_size=8),
)
def test_stages_add_up_to_the_whole_whatever_was_stated(start, marks, facts):
    seen = attribute(start, marks, facts)
    assert sum(seen.stages_ns.values()) == seen.total_ns == max(mark.at_ns for mark in marks) - start
    assert all(took > 0 for took in seen.stages_ns.values())
    assert list(seen.stages_ns) == [stage for stage in STAGES if stage in seen.stages_ns]


def test_nothing_of_a_start_is_told():
    with pytest.raises(ConfigError, match="beginning"):
        attribute(10, [Mark(5, "imports")])
    with pytest.raises(ConfigError, match="no stage"):
        attribute(0, [Mark(5, "breakfast")])
    with pytest.raises(ConfigError, match="no line"):
        read_log(["hello", "world"])
    with pytest.raises(ConfigError, match="no span"):
        read_spans([{"name": "llm_request", "start_ns": 0, "end_ns": 5}])


def test_log_and_spans_of_one_start_agree_as_far_as_a_log_of_seconds_can():
    log = read_log((DATA / "vllm.log").read_text().splitlines())
    spans = read_spans(map(json.loads, (DATA / "spans.jsonl").read_text().splitlines()))
    assert log.exact_ns == SECOND
    assert spans.total_ns == 41_773_480_189
    assert sum(spans.stages_ns.values()) == spans.total_ns
    for stage in ("imports", "device", "weights", "memory"):
        told = [seen.stages_ns.get(stage, 0) / SECOND for seen in (log, spans)]
        assert told[0] == pytest.approx(told[1], abs=2.1), stage
    assert spans.stages_ns["imports"] > 0.8 * spans.total_ns  # the three processes import in turn
    assert "Loading weights took 0.08 seconds" in log.of["weights"]


def test_a_start_of_llama_cpp_is_exact_to_a_microsecond():
    seen = read_log((DATA / "llama.log").read_text().splitlines())
    assert (seen.total_ns, seen.exact_ns) == (2_284_867_000, 1000)
    assert seen.stages_ns["weights"] == (2_281_903 - 6_795) * 1000


GPU_LOG = """\
(APIServer pid=1) INFO 02-28 23:59:50 [api_utils.py:1] version 0.32.0
(EngineCore pid=2) INFO 02-28 23:59:58 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config
(Worker pid=3) INFO 03-01 00:00:05 [gpu_model_runner.py:5] Starting to load model meta/llama
(Worker pid=3) INFO 03-01 00:00:30 [default_loader.py:5] Loading weights took 22.10 seconds
(Worker pid=3) INFO 03-01 00:00:31 [gpu_model_runner.py:5] Model loading took 14.99 GiB memory and 24.300000 seconds
(Worker pid=3) INFO 03-01 00:00:45 [backends.py:1] Dynamo bytecode transform time: 5.10 s
(Worker pid=3) INFO 03-01 00:01:05 [monitor.py:1] torch.compile takes 25.20 s in total
(EngineCore pid=2) INFO 03-01 00:01:08 [kv_cache_utils.py:1] GPU KV cache size: 401,232 tokens
(Worker pid=3) INFO 03-01 00:01:30 [gpu_model_runner.py:1] Graph capturing finished in 21 secs, took 0.62 GiB
(EngineCore pid=2) INFO 03-01 00:01:31 [core.py:402] init engine (profile, create kv cache, warmup model) took 60.10 seconds
(APIServer pid=1) INFO 03-01 00:01:33 [launcher.py:1] Application startup complete.
(APIServer pid=1) INFO 03-01 00:09:00 [launcher.py:1] Application startup complete.
"""


def test_a_start_on_a_gpu_tells_compiling_and_capturing_apart_over_midnight():
    seen = read_log(GPU_LOG.splitlines())
    told = {stage: took / SECOND for stage, took in seen.stages_ns.items()}
    assert (
        seen.total_ns == (86_400 + 103) * SECOND
    )  # a year without a number is a leap year: 29 February was between
    assert told["graphs"] == pytest.approx(21, abs=1.5)
    assert told["compile"] == pytest.approx(34, abs=1.5)
    assert told["weights"] == pytest.approx(26, abs=1.5)


RUNTIME = """\
2026-11-30T10:00:00.000Z kubelet Pulling image "registry/vllm:v1"
2026-11-30T10:01:02.500Z kubelet Successfully pulled image "registry/vllm:v1" in 1m2.5s (1m2.5s including waiting)
2026-11-30T10:01:02.900Z kubelet Created container engine
2026-11-30T10:01:03.400Z kubelet Started container engine
"""


def test_a_container_runtime_tells_of_image_and_container():
    seen = read_log(RUNTIME.splitlines())
    assert seen.stages_ns == {"image": 62_500_000_000, "container": 900_000_000}
    lone = read_log(
        RUNTIME.splitlines()[1:]
    )  # events are kept for an hour only: the pull says how long it took
    assert lone.stages_ns == seen.stages_ns


@pytest.mark.parametrize(("text", "seconds"), [("1h2m3s", 3723), ("0.5s", 0.5), ("250ms", 0.25), ("1m", 60)])
def test_durations_of_go(text, seconds):
    assert go_duration_ns(text) == seconds * SECOND


@pytest.mark.parametrize(
    ("device", "shipped", "compiles"),
    [
        ("sm_90", "sm_90a compute_90", False),
        ("sm_90", "sm_80 compute_80", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_86 compute_75", True),
        ("sm_120", "sm_120", False),
        ("sm_120", "sm_90 compute_90", True),
    ],
)
def test_what_the_driver_must_compile(device, shipped, compiles):
    assert jit_needed(device, shipped.split()) is compiles


@pytest.mark.parametrize(
    ("device", "shipped"), [("sm_90", "sm_80"), ("sm_90", ""), ("sm_80", "compute_90"), ("ampere", "sm_80")]
)
def test_what_cannot_run_is_told(device, shipped):
    with pytest.raises(ConfigError):
        jit_needed(device, shipped.split())


def start(**seconds):
    stages = {stage: round(took * SECOND) for stage, took in seconds.items()}
    return Startup(stages_ns=stages, total_ns=sum(stages.values()))


def texts(seen, environment=None, **more):
    return {tip.stage: tip.text for tip in advise(seen, environment or {}, **more)}


def test_advice_is_ordered_by_what_is_at_stake_and_small_stages_get_none():
    tips = advise(start(imports=10, compile=30, graphs=20, configuration=5, device=0.5), {})
    assert [tip.stage for tip in tips] == ["compile", "graphs", "imports"]
    assert tips[0].stake_ns == 30 * SECOND


@pytest.mark.parametrize(
    ("stage", "environment", "says"),
    [
        ("imports", {"PYTHONDONTWRITEBYTECODE": "1"}, "unset it"),
        ("imports", {}, "fork server"),
        ("device", {"CUDA_MODULE_LOADING": "EAGER"}, "LAZY"),
        ("device", {"CUDA_MODULE_LOADING": "LAZY"}, "124 ms to 320 ms"),
        ("compile", {"CUDA_CACHE_DISABLE": "1"}, "unset it"),
        ("compile", {"TRITON_CACHE_DIR": "/tmp/triton"}, "volume"),
        ("compile", {}, "SASS"),
        ("graphs", {}, "fewer batch sizes"),
        ("image", {}, "pre-pull"),
        ("answer", {}, "readiness"),
    ],
)
def test_advice_looks_at_what_is_set(stage, environment, says):
    assert says in texts(start(**{stage: 5}), environment)[stage]


def test_what_is_set_already_is_not_advised():
    assert texts(start(compile=5), {"TORCHINDUCTOR_CACHE_DIR": "/var/cache/inductor"}) == {}


def test_weights_are_judged_by_the_disk():
    seen = start(weights=10)
    assert (
        "0.50 GB/s, the disk gives 2.00"
        in texts(seen, weights_bytes=5 * 10**9, disk_bytes_per_s=2e9)["weights"]
    )
    assert (
        "about what the disk gives" in texts(seen, weights_bytes=19 * 10**9, disk_bytes_per_s=2e9)["weights"]
    )
