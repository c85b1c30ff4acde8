"""How hard a pool is pressed, and whether a GPU's own memory agrees with the plan for it."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.bench.sweep_memory import pressure_under, tensor_engine, work_of
from sits.core.errors import ConfigError
from sits.predict.paged_pressure import (
    CONTENTION_HIGH,
    USE_HIGH,
    device_check,
    pressure_of,
    read_device_memory,
)
from sits.predict.sharding_models import MODELS

SAMPLES = Path(__file__).parents[3] / "shared/data/gpu-samples"
STEPS = st.lists(
    st.tuples(
        st.integers(1, 50),
        st.integers(0, 20),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 9),
        st.integers(0, 90),
    ),
    min_size=1,
    max_size=40,
)


@given(STEPS)
def test_use_is_weighted_by_time_and_contention_counts_steps(steps):
    durations, used, denied, preempted, recomputed, computed = np.array(steps).T
    seen = pressure_of(durations, used, 20, denied, preempted, recomputed, computed)
    moments = np.sort(np.repeat(used, durations)) / 20  # one value a nanosecond
    assert seen.use_p50 == moments[max(0, -(-len(moments) // 2) - 1)]
    assert seen.above_high == pytest.approx((moments > USE_HIGH).mean())
    assert seen.contention == pytest.approx(np.mean([d > 0 for d in denied]))
    assert seen.preemptions_per_s == pytest.approx(sum(preempted) / sum(durations) * 1e9)
    assert 0 <= seen.use_p50 <= seen.use_p99 <= 1


def test_a_smaller_pool_is_pressed_harder_until_it_is_short():
    spec = tensor_engine(MODELS["llama-3-8b"], "A100-SXM4-80GB", 1, gpu_memory=80 * 2**30)
    work = work_of("conversation", 8192, 150, seed=0)
    seen = {
        blocks: pressure_under(msgspec.structs.replace(spec, blocks=blocks), work, 5.0, seed=0)
        for blocks in (20_000, 2000, 700)
    }
    assert [seen[blocks].verdict for blocks in seen] == ["roomy", "pressed", "short"]
    contention = [pressure.contention for pressure in seen.values()]
    assert contention == sorted(contention)
    assert contention[0] == 0.0
    assert contention[-1] > CONTENTION_HIGH
    assert seen[700].recomputed > seen[2000].recomputed > 0


def test_requests_that_never_fit_are_left_out_and_nothing_is_no_pressure():
    spec = tensor_engine(MODELS["llama-3-8b"], "A100-SXM4-80GB", 1, gpu_memory=80 * 2**30)
    work = work_of("full", 131_072, 2, seed=0)
    with pytest.raises(ConfigError, match="no steps"):
        pressure_under(msgspec.structs.replace(spec, blocks=10), work, 1.0, seed=0)


def test_a_device_agrees_or_not():
    gib = 2**30
    assert device_check(74 * gib, 80 * gib, 34 * gib, 36 * gib).agrees
    assert "less than" in device_check(69 * gib, 80 * gib, 34 * gib, 36 * gib).said
    assert "something else" in device_check(79 * gib, 80 * gib, 30 * gib, 36 * gib).said


QUERY = """\
Attached GPUs                             : 1
GPU 00000000:00:04.0
    FB Memory Usage
        Total                             : 40960 MiB
        Reserved                          : 520 MiB
        Used                              : 33000 MiB
        Free                              : 7440 MiB
    BAR1 Memory Usage
        Total                             : 65536 MiB
        Used                              : 1 MiB
    MIG Devices
        MIG Device
            FB Memory Usage
                Total                     : 4864 MiB
                Used                      : 12 MiB
"""
XML = """\
<gpu><mig_devices><mig_device><fb_memory_usage><total>4864 MiB</total><used>1 MiB</used></fb_memory_usage></mig_device></mig_devices>
<fb_memory_usage><total>40960 MiB</total><reserved>520 MiB</reserved><used>33000 MiB</used></fb_memory_usage>
<bar1_memory_usage><total>65536 MiB</total><used>1 MiB</used></bar1_memory_usage></gpu>
"""


@pytest.mark.parametrize(
    "text", [QUERY, XML, "#Entity FBTTL FBUSD\nID\nGPU 0 40960 33000\nGPU-I 0 4864 12\nGPU 0 40960 N/A\n"]
)
def test_readings_are_of_whole_gpus(text):
    assert read_device_memory(text) == [(33_000 * 2**20, 40_960 * 2**20)]


def test_what_holds_no_memory_is_told():
    with pytest.raises(ConfigError, match="dcgmi dmon"):
        read_device_memory("#Entity GRACT\nGPU 0 0.9\n")


def test_readings_of_real_gpus():
    if not SAMPLES.is_dir():
        pytest.skip("no samples of real GPUs here")
    read = {
        path.name: read_device_memory(path.read_text(encoding="utf-8", errors="replace"))
        for path in [*SAMPLES.glob("nvidia-smi-xml/*.xml"), SAMPLES / "nvidia-smi-q/a100-40gb-q-d-memory.txt"]
    }
    assert len(read) == 5
    assert {name: len(gpus) for name, gpus in read.items()} == dict.fromkeys(read, 1)
    assert read["a10g.xml"] == [(22 * 2**20, 23_028 * 2**20)]
    assert read["a100-40gb-q-d-memory.txt"] == [(0, 40_960 * 2**20)]
