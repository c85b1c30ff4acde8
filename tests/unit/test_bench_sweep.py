"""A sweep's points, what holds between them, and the file that keeps their results."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.sweep import Point, Result, Sweep, assigned, grid, run_point, windowed
from sits.bench.sweep_engines import run_here, run_on_ray
from sits.bench.sweep_front import cheapest, front, p99_ns, usable
from sits.bench.sweep_store import Results
from sits.core.errors import ConfigError
from sits.predict.sharding_models import MODELS
from sits.sim.model import simulate
from sits.world import stream_generator

SWEEP = Sweep(
    model=MODELS["llama-3-8b"],
    gpu="A100-SXM4-80GB",
    gpu_memory=80 * 2**30,
    rate=6.0,
    requests=300,
    seeds=2,
    ttft_slo_ns=10**9,
    tpot_slo_ns=50 * 10**6,
)
ONE = Point(1, 1, 0, 128, 2048)


def changed(thing, **fields):
    return type(thing)(**{name: getattr(thing, name) for name in thing.__struct_fields__} | fields)


def test_one_replica_without_a_window_is_the_plain_simulation():
    import msgspec

    from sits.bench.sweep import _requests, spec_of

    sweep = changed(SWEEP, seeds=1)
    arrivals, prompt, output = _requests(msgspec.json.encode(sweep), 0)
    spec, _ = spec_of(sweep, ONE)
    seen = simulate(arrivals, prompt, output, None, spec, stream_generator(0, "sweep-noise-0"))
    result = run_point(sweep, ONE)
    assert result.ttft_ns[1] == np.quantile(seen.first_token_ns - arrivals, 0.99, method="higher")
    assert result.e2e_ns[0] == np.quantile(seen.last_token_ns - arrivals, 0.5, method="higher")
    assert result.never_fit == 0
    assert result.keeps_up


def test_more_replicas_are_never_slower_and_a_window_only_adds_itself():
    base, more = run_point(SWEEP, ONE), run_point(SWEEP, changed(ONE, replicas=3))
    assert more.ttft_ns[1] < base.ttft_ns[1]
    assert more.good >= base.good
    assert more.gpu_hours_per_million == pytest.approx(3 * base.gpu_hours_per_million, rel=0.05)
    held = run_point(SWEEP, changed(ONE, window_ns=100_000_000))
    assert held.ttft_ns[0] > base.ttft_ns[0] + 30_000_000


def test_the_same_point_gives_the_same_result_and_another_seed_another():
    assert run_point(SWEEP, ONE) == run_point(SWEEP, ONE)
    assert run_point(changed(SWEEP, seed=7), ONE) != run_point(SWEEP, ONE)


def test_a_load_no_replica_carries_is_told_and_one_in_bursts_is_not_mistaken_for_it():
    assert not run_point(changed(SWEEP, rate=40.0, requests=1500), ONE).keeps_up
    assert run_point(changed(SWEEP, rate=3.0, cv=4.0, requests=1500), changed(ONE, replicas=2)).keeps_up


def test_what_cannot_be_is_a_result_with_its_reason():
    seventy = changed(SWEEP, model=MODELS["llama-3-70b"])
    assert "does not fit" in run_point(seventy, ONE).refused
    assert "no all-reduce figures" in run_point(SWEEP, changed(ONE, tp=16)).refused
    assert not usable(run_point(seventy, ONE))


def test_blocks_the_engine_told_beat_the_formula():
    few = run_point(changed(SWEEP, kv_blocks={1: 600}), ONE)
    assert any("600 KV blocks a replica, by the engine" in text for text in few.assumed)
    assert few.ttft_ns[1] > run_point(SWEEP, ONE).ttft_ns[1]


def test_a_trace_keeps_arrivals_and_lengths_together(tmp_path):
    trace = tmp_path / "trace.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2026-01-01 00:00:{i // 2:02d}.{i % 2 * 5}00000,{100 + i},{10 + i % 5}" for i in range(100)]
    trace.write_text("\n".join(rows) + "\n")
    sweep = changed(SWEEP, trace=str(trace), rate=0.0, requests=100)
    seen = run_point(sweep, ONE)
    assert seen.never_fit == 0
    assert run_point(changed(sweep, rate=4.0, requests=200), ONE).output_per_s > 1.5 * seen.output_per_s
    trace.write_text("\n".join(rows[:-1]) + "\n")
    assert sweep.digest() != changed(sweep, trace="").digest()


ARRIVALS = st.lists(st.integers(0, 1000), min_size=1, max_size=60).map(np.cumsum)


@given(ARRIVALS, st.integers(0, 500), st.integers(1, 9))
def test_a_window_holds_nobody_longer_than_itself_and_keeps_order(arrivals, window, most):
    out = windowed(arrivals, window, most)
    assert (out >= arrivals).all()
    assert (out <= arrivals + window).all()
    assert (np.diff(out) >= 0).all()
    if window:
        assert np.unique(out, return_counts=True)[1].max() <= most * max(
            1, np.bincount(arrivals - arrivals[0]).max()
        )


@given(ARRIVALS, st.integers(1, 6), st.floats(0, 500))
def test_requests_go_to_the_least_work(arrivals, replicas, work):
    chosen = assigned(arrivals, np.full(len(arrivals), work), replicas)
    assert set(chosen.tolist()) <= set(range(replicas))
    if (
        work > arrivals[-1] - arrivals[0] and len(arrivals) >= replicas
    ):  # nobody is done before the last comes
        counts = np.bincount(chosen, minlength=replicas)
        assert counts.max() - counts.min() <= 1


OUTCOMES = st.lists(
    st.tuples(
        st.builds(
            Point, st.integers(1, 6), st.sampled_from((1, 2, 4)), st.just(0), st.just(8), st.integers(1, 9)
        ),
        st.builds(
            Result,
            ttft_ns=st.tuples(st.just(0.0), st.integers(1, 9).map(float)),
            keeps_up=st.booleans(),
            good=st.sampled_from((0.5, 0.99, 1.0)),
            refused=st.sampled_from(("", "", "no")),
        ),
    ),
    max_size=20,
    unique_by=lambda pair: pair[0],
)


@given(OUTCOMES)
def test_nothing_beats_a_point_of_the_front_and_everything_else_is_beaten(outcomes):
    kept = front(outcomes)
    good = [outcome for outcome in outcomes if usable(outcome[1])]

    def beats(one, other):
        mine, theirs = ((point.gpus, p99_ns(result, "ttft")) for point, result in (one, other))
        return mine[0] <= theirs[0] and mine[1] <= theirs[1]

    for one in kept:
        assert usable(one[1])
        assert not any(beats(other, one) and not beats(one, other) for other in good)
    for one in good:
        assert any(beats(other, one) for other in kept)
    best = cheapest(outcomes)
    meeting = [point.gpus for point, result in good if result.good >= 0.99]
    assert (best[0].gpus if best else None) == min(meeting, default=None)


def filled(path, points):
    with Results(path, SWEEP) as results:
        for point in points:
            results.keep(point, Result(good=point.replicas / 100))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 5), st.integers(0, 400))
def test_a_torn_end_costs_its_own_line_and_nothing_else(tmp_path_factory, count, cut):
    path = tmp_path_factory.mktemp("store") / "results.jsonl"
    points = grid(range(1, 6), [1], [0], [8], [512])
    filled(path, points)
    lines = path.read_bytes().splitlines(keepends=True)
    whole, torn = b"".join(lines[: 1 + count]), lines[(1 + count) % len(lines)][:cut].rstrip(b"\n")
    path.write_bytes(whole + torn)
    with Results(path, SWEEP) as results:
        assert sorted(results.done) == sorted(point.key for point in points[:count])
        for point in points[count:]:
            results.keep(point, Result(good=point.replicas / 100))
    with Results(path, SWEEP) as results:
        assert {key: result.good for key, (_, result) in results.done.items()} == {
            point.key: point.replicas / 100 for point in points
        }
    assert path.read_bytes() == b"".join(lines)


def test_a_torn_head_is_a_new_file(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"format":1,"dig')
    filled(path, [ONE])
    with Results(path, SWEEP) as results:
        assert list(results.done) == [ONE.key]


def test_files_that_are_not_this_sweeps_are_refused_and_left_alone(tmp_path):
    path = tmp_path / "results.jsonl"
    filled(path, [ONE])
    kept = path.read_bytes()
    with pytest.raises(ConfigError, match="another sweep"):
        Results(path, changed(SWEEP, rate=7.0))
    path.write_bytes(kept.splitlines(keepends=True)[0] + b"nonsense\n" + kept.splitlines(keepends=True)[1])
    with pytest.raises(ConfigError, match="line 2"):
        Results(path, SWEEP)
    nested = b'{"x":' * 100_000 + b"\n"
    path.write_bytes(kept.splitlines(keepends=True)[0] + nested)
    with pytest.raises(ConfigError, match="line 2"):
        Results(path, SWEEP)
    path.write_bytes(nested)
    with pytest.raises(ConfigError, match="not the head"):
        Results(path, SWEEP)
    notes = tmp_path / "notes.txt"
    notes.write_text("shopping list\n")
    with pytest.raises(ConfigError, match="not the head"):
        Results(notes, SWEEP)
    assert notes.read_text() == "shopping list\n"


def test_two_writers_are_one_too_many(tmp_path):
    path = tmp_path / "results.jsonl"
    with Results(path, SWEEP), pytest.raises(ConfigError, match="another sweep is writing"):
        Results(path, SWEEP)


@pytest.mark.timeout(400)  # a cluster takes a minute to start on a busy machine
def test_a_real_ray_cluster_gives_what_one_process_gives():
    pytest.importorskip("ray", reason="the extra sitsctl[ray] is not installed")
    points, small = grid([1, 2], [1], [0], [64, 128], [2048]), changed(SWEEP, requests=60, seeds=1)
    assert dict(run_on_ray(small, points, 2)) == dict(run_here(small, points, 1))


def test_without_ray_it_is_said_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"sitsctl\[ray\]"):
        list(run_on_ray(SWEEP, [ONE], 1))
