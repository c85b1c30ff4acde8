import os
import subprocess
import sys

import numpy as np
import pytest

from sits.core.errors import CapacityError, ConfigError
from sits.predict import prepare, steptime
from sits.predict.prepare import Rank
from sits.predict.profile import Profile
from sits.predict.transfer import Dips
from sits.sim.model import EngineModel, compile_kernel, simulate
from sits.testing.loop import small_spec
from sits.world import stream_generator


def one_point_profile():
    axis = (0.0, 1.0)
    return Profile(
        source="flat",
        layers=1,
        dense_tokens=axis,
        dense_us=(10.0, 10.0),
        head_seqs=axis,
        head_us=(1.0, 1.0),
        axes=(axis, axis, axis, axis),
        attention_us=np.ones((2, 2, 2, 2)),
    )


def run(model, now_ns=0):
    """Every step until the model is idle."""
    steps = []
    while (result := model.step(now_ns)) is not None:
        steps.append(result)
        now_ns += result.duration_ns
    return steps


def test_one_request_by_hand():
    # 32 prompt tokens in one step, then two decodes: three tokens in all.
    model = EngineModel(small_spec())
    model.add("a", 32, 3)
    prefill, second, third = run(model)
    assert (prefill.prefill_tokens, prefill.decode_tokens, prefill.kv_used, prefill.eager) == (32, 0, 2, 1)
    assert (prefill.started, prefill.first, prefill.finished) == (["a"], ["a"], [])
    # dense 10 ms + 32 * 20 us, head 100, chunk 50 + 32 * (0.5 + 16 * 0.001), eager 400; overhead is `host`
    device_us = 10_640 + 100 + 50 + 32 * (0.5 + 16 * 0.001) + 400
    assert prefill.duration_ns - prefill.prepare_ns == round(device_us * 1000)
    assert (second.kv_used, second.decode_tokens, second.emitted) == (3, 1, ["a"])
    device_us = 10_020 + 100 + 100 + 5 + 33 * 0.05
    assert second.duration_ns - second.prepare_ns == round(device_us * 1000)
    assert third.finished == ["a"]
    assert third.preemptions == [0]
    assert (len(model), model.blocks_free) == (0, 64)


def test_long_prompts_are_cut_at_the_budget_and_decodes_go_first():
    model = EngineModel(small_spec(blocks=100))
    model.add("short", 10, 50)
    model.step(0)
    model.add("long", 600, 2)
    seen = [model.step(i) for i in range(1, 4)]
    assert [(s.prefill_tokens, s.decode_tokens) for s in seen] == [(255, 1), (255, 1), (90, 1)]
    assert [s.first for s in seen] == [[], [], ["long"]]


def test_a_threshold_keeps_a_long_prompt_from_filling_the_step():
    model = EngineModel(small_spec(blocks=100, long_prefill_token_threshold=64))
    model.add("long", 600, 2)
    model.add("short", 20, 2)
    first = model.step(0)
    assert first.prefill_tokens == 84
    assert first.first == ["short"]


def test_without_chunked_prefill_an_oversized_prompt_gets_a_step_alone():
    model = EngineModel(small_spec(blocks=100, chunked_prefill=False))
    model.add("short", 10, 5)
    model.step(0)
    model.add("long", 600, 2)
    alone = model.step(1)
    assert (alone.prefill_tokens, alone.decode_tokens, alone.emitted) == (600, 0, ["long"])
    after = model.step(2)
    assert (after.prefill_tokens, after.decode_tokens) == (0, 2)


def test_without_blocks_the_youngest_is_preempted_and_computed_again():
    model = EngineModel(small_spec(blocks=4))
    model.add("old", 30, 8)
    model.add("young", 30, 8)
    steps = run(model)
    [denial] = [s for s in steps if s.preempted]
    assert denial.denied == 1
    assert denial.started == []
    assert denial.waiting == 1
    assert sum(s.recomputed_tokens for s in steps) == 32
    assert [(s.finished, s.preemptions) for s in steps if s.finished] == [(["old"], [0]), (["young"], [1])]
    assert sum(s.tokens for s in steps) == 16


def test_a_prompt_admitted_before_its_blocks_are_free_is_computed_again_and_again():
    """64 blocks; the first request holds 39, the second needs 38 for its prompt and finds 25."""

    def recomputed(reserve):
        model = EngineModel(small_spec(reserve_full_isl=reserve))
        model.add("first", 600, 20)
        model.add("second", 600, 20)
        steps = run(model)
        assert sum(s.tokens for s in steps) == 40
        return sum(s.recomputed_tokens for s in steps), sum(s.preempted for s in steps)

    assert recomputed(True) == (0, 0)
    tokens, times = recomputed(False)
    assert times > 3
    assert tokens > 600


def test_an_adapter_is_loaded_once_and_the_whole_batch_waits():
    spec = small_spec(lora_slots=1, adapter_bytes=240_000_000, adapter_copies=10)
    model = EngineModel(spec)
    model.add("a", 10, 3, "x")
    model.add("b", 10, 3, "x")
    model.add("c", 10, 3, "y")
    model.add("d", 10, 3)
    steps = run(model)
    first = steps[0]
    assert first.started == ["a", "b", "d"]  # c is passed over: no slot for a second adapter
    assert (first.adapter_loads, first.stages_ns[1]) == (
        1,
        10_080_000,
    )  # 10 ms of bytes, 10 latencies of 8 us
    later = next(s for s in steps if "c" in s.started)
    assert later.adapter_loads == 1
    assert sum(s.adapter_loads for s in steps) == 2


def test_one_far_rank_delays_all_and_shows_as_collective_sync():
    near, far = Rank(bandwidth=24e9), Rank(bandwidth=12e9)
    durations = []
    for ranks in ((near, near), (near, far)):
        model = EngineModel(small_spec(ranks=ranks, lora_slots=1, adapter_bytes=24_000_000))
        model.add("a", 10, 1, "x")
        durations.append(model.step(0))
    even, uneven = durations
    assert uneven.stages_ns[1] == even.stages_ns[1]
    assert uneven.stages_ns[6] - even.stages_ns[6] == pytest.approx(1_000_000, rel=0.001)
    assert uneven.copy_ns - even.copy_ns == pytest.approx(1_000_000, rel=0.001)


def test_links_dip_only_under_load():
    link = Rank(bandwidth=24e9, dips=Dips(depth=0.5, width_ns=10e6, period_ns=20e6))
    spec = small_spec(ranks=(link,), dips_busy_min=2, lora_slots=1, adapter_bytes=24_000_000)
    quiet = EngineModel(spec)
    quiet.add("a", 10, 1, "x")
    busy = EngineModel(spec)
    busy.add("a", 10, 1, "x")
    busy.add("b", 10, 1, "x")
    assert quiet.step(0).stages_ns[1] == 1_008_000
    assert busy.step(0).stages_ns[1] == 2_008_000


def test_what_never_fits_is_refused_by_name():
    model = EngineModel(small_spec())
    for prompt, output, adapter, why in (
        (1025, 1, "", "needs 65 KV blocks"),
        (1000, 26, "", "needs 65 KV blocks"),
        (0, 1, "", "at least 1"),
        (1, 0, "", "at least 1"),
        (1, 1, "x", "no adapter slots"),
    ):
        with pytest.raises(CapacityError, match=f"request r: .*{why}"):
            model.add("r", prompt, output, adapter)
    model.add("r", 1000, 25)
    with pytest.raises(ValueError, match="already"):
        model.add("r", 1, 1)
    assert run(model)[-1].finished == ["r"]


def test_noise_is_drawn_from_the_given_stream_only():
    def total(rng):
        model = EngineModel(small_spec(), rng)
        model.add("a", 32, 200)
        return sum(s.duration_ns for s in run(model))

    plain = total(None)
    noisy = total(stream_generator(1, "n"))
    assert noisy == total(stream_generator(1, "n")) != plain
    assert noisy == pytest.approx(plain, rel=0.02)


def test_simulate_checks_its_columns():
    spec = small_spec()
    with pytest.raises(ValueError, match="rows do not make one trace"):
        simulate(np.array([1, 2]), np.array([1]), np.array([1, 1]), None, spec)
    with pytest.raises(ValueError, match="sort the trace"):
        simulate(np.array([2, 1]), np.array([1, 1]), np.array([1, 1]), None, spec)
    empty = simulate(np.array([], int), np.array([], int), np.array([], int), None, spec)
    assert (empty.steps, len(empty.queued_ns)) == (0, 0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"blocks": 0}, "blocks"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"lora_slots": -1}, "lora_slots"),
        ({"ranks": ()}, "ranks"),
        ({"ranks": (Rank(bandwidth=0.0),)}, "ranks.bandwidth"),
        ({"chunked_prefill": False, "long_prefill_token_threshold": 9}, "long_prefill_token_threshold"),
    ],
)
def test_a_spec_that_cannot_work_says_which_field(change, field):
    with pytest.raises(ConfigError) as caught:
        small_spec(**change)
    assert caught.value.field == field
    assert caught.value.hint


def test_the_kernel_reads_figures_where_predictors_put_them():
    from sits.sim import kernel

    for name in steptime.SCALARS:
        if name not in {"overhead_us", "noise_cv"}:
            assert getattr(kernel, name.upper()) == steptime.SCALARS.index(name), name
    fields = prepare.HostCosts.__struct_fields__
    assert [getattr(kernel, name.upper()) for name in fields] == list(range(len(fields)))


def test_importing_the_rooms_does_not_import_numba():
    code = (
        "import sys; import sits.sim.model, sits.sim.oracle, sits.engine.emulated, sits.testing.loop; "
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_compiled_function_is_made_ready_with_the_types_it_is_used_with():
    from sits.sim import kernel

    compile_kernel()
    assert compile_kernel() == 0
    model = EngineModel(small_spec(lora_slots=1), stream_generator(1, "n"))
    model.add("a", 9, 20, "x")
    model.step(0)
    assert len(model.coast(0)) == 18
    model.rewind(3)
    model.cancel("a")
    column = np.array([1, 2])
    simulate(column, column, column, column - 2, small_spec(lora_slots=1), stream_generator(1, "n"))
    profiled = small_spec(prefix_caching=True, step=one_point_profile(), host=None)
    for prefixes in ([[], []], [[7], [7, 8]]):
        simulate(column, column + 40, column, None, profiled, prefixes=prefixes)
    entries = [*kernel.ENTRIES, kernel.simulate_cached]
    assert {entry.__name__: len(entry.signatures) for entry in entries} == dict.fromkeys(
        ("add", "cancel", "step", "simulate", "simulate_cached", "coast", "rewind"), 1
    )
    cached = [name for name, f in vars(kernel).items() if hasattr(f, "stats") and f.stats.cache_path]
    assert sorted(cached) == sorted(entry.__name__ for entry in entries)


def test_only_what_coasted_can_be_taken_back():
    model = EngineModel(small_spec())
    model.add("a", 9, 20)
    model.step(0)
    done = len(model.coast(0))
    held = model.blocks_held
    taken = model.blocks_taken(done - 1)
    with pytest.raises(ValueError, match="whose first stays"):
        model.rewind(done)
    model.rewind(done - 1)
    assert held - model.blocks_held == taken == 1
    with pytest.raises(ValueError, match="1 steps back, of a stretch of 1"):
        model.rewind(1)
    model.step(0)
    with pytest.raises(ValueError, match="stretch of 0"):
        model.rewind(1)


def test_compiled_code_is_kept_on_disk_for_the_next_process():
    EngineModel(small_spec())  # compiled at the latest now
    code = (
        "from sits.testing.loop import small_spec; from sits.sim.model import EngineModel\n"
        "m = EngineModel(small_spec()); m.add('a', 1, 1); m.step(0)\n"
        "from sits.sim import kernel\n"
        "print(sum(kernel.step.stats.cache_hits.values()), sum(kernel.step.stats.cache_misses.values()))"
    )
    model = EngineModel(small_spec())
    model.add("a", 1, 1)
    model.step(0)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.split() == ["1", "0"]
