"""Collectives: units that cannot be mixed, formulas at their ends, fits of published tables, scaling over nodes."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.errors import ConfigError
from sits.core.units import parse_bandwidth
from sits.predict.bandwidth import GBps, Gbps, gigabytes, pcie
from sits.predict.collective import (
    Link,
    bus_bandwidth,
    measured_ns,
    rdma,
    ring_ns,
    step_calls,
    tcp,
    tree_ns,
    two_level_ns,
)
from sits.predict.collective_figures import FIGURES, find_measured
from sits.predict.collective_fit import fit_segments
from sits.predict.usl import fit_scaling
from sits.world import stream_generator

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "measurements"


def test_gigabits_are_not_gigabytes_when_it_runs():
    with pytest.raises(TypeError, match=r"use \.bytes"):
        Link(1_000.0, Gbps(400.0))
    with pytest.raises(TypeError, match="no unit"):
        Link(1_000.0, 50.0)
    with pytest.raises(TypeError, match="gigabits"):
        rdma(GBps(50.0))
    with pytest.raises(TypeError):
        GBps(1.0) + Gbps(1.0)
    with pytest.raises(TypeError):
        _ = GBps(1.0) < Gbps(1.0)
    assert GBps(8.0) != Gbps(8.0)
    assert gigabytes(Gbps(400.0).bytes()) == 50.0
    assert GBps(50.0).bytes_per_s == parse_bandwidth("400Gb/s")


def test_gigabits_are_not_gigabytes_to_mypy(tmp_path):
    """The mistake is found before the program runs; the right spelling passes."""
    api = pytest.importorskip("mypy.api")
    body = (
        "from sits.predict.bandwidth import GBps, Gbps\n"
        "from sits.predict.collective import Link, rdma\n"
        "Link(1.0, {wrong})\nrdma({card})\n"
    )
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(body.format(wrong="GBps(50.0)", card="Gbps(400.0)"))
    bad.write_text(body.format(wrong="Gbps(400.0)", card="GBps(50.0)"))
    options = [
        "--strict",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path / "c"),
    ]
    found = api.run([*options, str(good), str(bad)])[0]
    assert "good.py" not in found
    assert found.count("bad.py") == 2
    assert 'has incompatible type "Gbps"; expected "GBps"' in found
    assert 'has incompatible type "GBps"; expected "Gbps"' in found


def test_pcie_by_generation():
    assert pcie(4) == GBps(28.0)
    assert pcie(5) == GBps(55.0)
    assert gigabytes(pcie(3)) < gigabytes(pcie(4)) < gigabytes(pcie(5))
    for generation, lanes in ((2, 16), (4, 3)):
        with pytest.raises(ConfigError, match="pcie"):
            pcie(generation, lanes)


sizes = st.floats(0.0, 1e10)
links = st.builds(lambda a, b: Link(a, GBps(b)), st.floats(0.0, 1e6), st.floats(0.1, 1000.0))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 512), sizes, sizes, links)
def test_more_bytes_and_more_ranks_never_take_less(ranks, one, two, link):
    small, large = sorted((one, two))
    for model in (ring_ns, tree_ns):
        assert model(ranks, small, link) <= model(ranks, large, link)
        assert model(ranks, large, link) <= model(ranks + 1, large, link) * (1 + 1e-12)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 64), st.integers(1, 16), sizes, links, links)
def test_two_levels_lie_between_their_parts(nodes, per_node, size, inside, between):
    whole = two_level_ns(nodes, per_node, size, inside, between)
    assert whole >= min(ring_ns(nodes, size / per_node, between), tree_ns(nodes, size / per_node, between))
    assert whole >= ring_ns(per_node, size, inside)
    assert two_level_ns(1, per_node, size, inside, between) == ring_ns(per_node, size, inside)


def test_trees_win_small_messages_and_rings_large_ones():
    link = Link(5_000.0, GBps(25.0))
    assert tree_ns(64, 1024, link) < ring_ns(64, 1024, link)
    assert ring_ns(64, 2**32, link) < tree_ns(64, 2**32, link)


def test_rdma_beats_tcp_and_both_are_below_the_line():
    for card in (Gbps(25.0), Gbps(100.0), Gbps(400.0)):
        fast, slow = rdma(card), tcp(card)
        assert ring_ns(16, 2**20, fast) < ring_ns(16, 2**20, slow)
        assert gigabytes(slow.bandwidth) < gigabytes(fast.bandwidth) < gigabytes(card.bytes())


def test_figures_are_of_the_hardware():
    for one in FIGURES:
        at = measured_ns(one, one.to_bytes)
        assert measured_ns(one, one.from_bytes) > 3_000.0
        if one.kernel == "nccl":
            assert one.mape <= 0.0325
            assert len(one.segments) == 3
            assert 180 < gigabytes(bus_bandwidth(one.ranks, one.to_bytes, at)) < 480
    peaks = {"A100": 222, "H100": 445, "H200": 460}
    for gpu, peak in peaks.items():
        one = find_measured(gpu, 8)
        assert gigabytes(bus_bandwidth(8, 2**29, measured_ns(one, 2**29))) == pytest.approx(peak, rel=0.07)
    with pytest.raises(ConfigError, match="known: "):
        find_measured("B300", 8)


def test_a_decoding_step_is_made_of_start_up():
    """64 tokens of 8192: 1 MiB, 160 times; most of it is the first segment's start-up."""
    calls, size = step_calls(80, 8192, 64)
    one = find_measured("H100", 8)
    whole = calls * measured_ns(one, size)
    assert whole / 1e6 == pytest.approx(4.1, rel=0.1)
    assert calls * one.segments[0].alpha_us / 1e3 / (whole / 1e6) > 0.55
    assert calls * measured_ns(find_measured("H100", 8, "custom graph"), size) / 1e6 == pytest.approx(
        2.8, rel=0.1
    )


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(FIGURES), st.floats(256, 2**29), st.floats(256, 2**29))
def test_measured_times_never_fall_with_size(figures, one, two):
    small, large = sorted((one, two))
    assert measured_ns(figures, small) <= measured_ns(figures, large)


def left_out(known, count):
    """Mean |error| of each size by segments fitted to the others."""
    errors = []
    for place in range(1, len(known) - 1):
        size, us = known[place]
        rest = known[:place] + known[place + 1 :]
        found, _ = fit_segments(*zip(*rest, strict=True), count)
        one = next(segment for segment in found if size <= segment.to_bytes)
        errors.append(abs((one.alpha_us + one.us_per_byte * size) / us - 1))
    return sum(errors) / len(errors)


@pytest.mark.parametrize("table", ["a100_sxm__nccl2.27.3", "h100_sxm__nccl2.29.2", "h200_sxm__nccl2.29.2"])
def test_a_third_segment_is_no_ornament(table):
    """Three segments are nearer than two, and nearer to sizes that were left out of the fit: the data show a third protocol."""
    path = DATA / "aic_kernel_profiles" / f"{table}__nccl_perf.parquet"
    if not path.is_file():
        pytest.skip(f"{path.name} is published elsewhere and not part of the project")
    rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    for ranks in (2, 4, 8):
        known = sorted(
            (row["message_size"] * 2, row["latency"] * 1e3)
            for row in rows
            if row["op_name"] == "all_reduce" and row["nccl_dtype"] == "half" and row["num_gpus"] == ranks
        )
        one, two = (fit_segments(*zip(*known, strict=True), count) for count in (1, 2))
        three = fit_segments(*zip(*known, strict=True), 3)
        assert three[1] <= 0.03 < two[1] <= 0.0505 < one[1]
        assert ranks < 8 or left_out(known, 3) < left_out(known, 2)
        shipped = find_measured(table[:4], ranks)
        errors = [abs(measured_ns(shipped, size) / 1e3 / us - 1) for size, us in known]
        assert sum(errors) / len(errors) <= 0.0325


def test_fits_refuse_what_is_no_table():
    with pytest.raises(ConfigError, match="sizes"):
        fit_segments([1, 2, 3], [1, 1, 1], 2)
    with pytest.raises(ConfigError, match="sizes"):
        fit_segments([1, 3, 2, 4, 5, 6], [1] * 6, 2)


def test_scaling_finds_its_peak_with_an_interval_and_refuses_two_points():
    dice = stream_generator(1, "usl")
    counts = [1, 2, 4, 8, 12, 16, 24, 32]
    held = 0
    for seed in range(30):
        noise = stream_generator(seed, "noise").standard_normal(len(counts))
        seen = [
            100 * n / (1 + 0.03 * (n - 1) + 0.002 * n * (n - 1)) * math.exp(0.02 * e)
            for n, e in zip(counts, noise, strict=True)
        ]
        found = fit_scaling(counts, seen, dice)
        held += not found.refusal and found.peak.low <= math.sqrt(0.97 / 0.002) <= found.peak.high
    assert held >= 25
    assert "not enough" in fit_scaling([4, 8], [1520, 1465], dice).refusal
    assert "no peak in sight" in fit_scaling([1, 2, 3, 4, 5], [10, 20, 30, 40, 50], dice).refusal
    with pytest.raises(ConfigError, match="throughput"):
        fit_scaling([1, 2], [1], dice)
