"""Packed rows thinned on their way to the store: which rows are left, whole, with their weight, and their decisions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, SENT
from sits.core.timeline import Timeline
from sits.core.units import MS
from sits.policy.outcome import is_error
from sits.policy.sample import WHOLE, Keep, Sampler
from sits.policy.slowest import FEW
from sits.telemetry.packing import pack
from sits.telemetry.recorder import row_of
from sits.telemetry.rows import request_columns
from sits.telemetry.store import DuckStore
from sits.telemetry.thinning import Thinning, standing_for
from sits.world import RealWorld, stream_generator

TEXTS = ("adapter", "arm", "prompt_hash", "abstraction_layer", "parent_id")
WORLD = RealWorld()


def row(i, ttft_ms=20, outcome="completed", status=200, detail="", tenant="t", engine="e", trace_id=""):
    timeline = Timeline()
    timeline.mark(API_RECV, 1_000)
    if ttft_ms is not None:
        timeline.mark(FIRST_TOKEN, 1_000 + ttft_ms * MS)
        timeline.mark(SENT, 2_000 + ttft_ms * MS)
    numbers = {"prompt_tokens": i, "output_tokens": 2 * i, "cached_tokens": 0, "preemptions": 0}
    own = {"tenant": tenant, "engine": engine, "trace_id": trace_id}
    return row_of(timeline, id=f"{i:032x}", model="m", outcome=outcome, status=status, detail=detail, **dict.fromkeys(TEXTS, ""), **numbers, **own)  # fmt: skip


def warmed(keep):
    """One that knows how slow the slowest are, and so keeps no row for being of a new model."""
    thinning = Thinning(Sampler(Keep()), WORLD)
    thinning.sampler.keep = keep
    thinning.requests([("r", pack([row(i, 25) for i in range(2 * FEW)]))])
    return thinning


def test_rows_that_went_wrong_are_kept_whole_with_their_decisions_and_the_others_are_gone():
    thinning = warmed(Keep(share=0.0))
    rows = [
        row(1),
        row(2, outcome="failed", status=502),
        row(3, 5_000),
        row(4, None, outcome="cancelled", status=499),
        row(5, 20, outcome="cancelled", status=499),
        row(6, None, outcome="refused", status=503, detail="refused_full"),
        row(7, None, outcome="refused", status=429, detail="quota_exceeded"),
        row(8, None, outcome="refused", status=429, detail="engine_429"),
        row(9, None, outcome="refused", status=401, detail="invalid_api_key"),
        row(10, engine=""),
    ]
    columns = thinning.requests([("r", pack(rows[:4])), ("s", pack(rows[4:]))])
    whole = request_columns([("r", pack(rows[:4])), ("s", pack(rows[4:]))], WORLD)
    left = [1, 2, 3, 5, 7]
    assert columns["prompt_tokens"].tolist() == [2, 3, 4, 6, 8]
    for name, values in columns.items():
        if name != "wall_ns":
            assert values.tolist() == whole[name][left].tolist(), name
    assert columns["run_id"].tolist() == ["r", "r", "r", "s", "s"]
    decisions = [(f"{i:032x}", 5, b"record") for i in (1, 2, 3, 10, 77)]
    kept = thinning.decisions([("s", decisions)])
    assert kept["id"].tolist() == [f"{i:032x}" for i in (2, 3, 77)]
    assert thinning.thinned == 5


def test_the_share_is_by_trace_and_rows_say_what_they_stand_for():
    thinning = warmed(Keep(share=0.25))
    high, low = f"{WHOLE * 3 // 4:032x}", f"{WHOLE * 3 // 4 - 1:032x}"
    columns = thinning.requests([("r", pack([row(1, trace_id=high), row(2, trace_id=low)]))])
    assert (columns["prompt_tokens"].tolist(), columns["weight"].tolist()) == ([1], [4.0])


@pytest.mark.parametrize(
    "pin", [{"tenants": {"acme"}}, {"engines": {"a0"}}, {"models": {"m"}}, {"traces": {"9" * 32}}]
)
def test_what_is_pinned_is_kept(pin):
    thinning = warmed(Keep(share=0.0, **{name: frozenset(values) for name, values in pin.items()}))
    columns = thinning.requests([("r", pack([row(1, tenant="acme", engine="a0", trace_id="9" * 32)]))])
    assert columns["weight"].tolist() == [1.0]


@given(st.lists(st.lists(st.integers(0, 999), max_size=30), max_size=6))
def test_at_full_share_rows_are_what_they_were(parts):
    thinning = Thinning(Sampler(Keep()), WORLD)
    batches = [("r", pack([row(i) for i in part])) for part in parts]
    columns, whole = thinning.requests(batches), request_columns(batches, WORLD)
    assert [values.tolist() for name, values in columns.items() if name != "wall_ns"] == [
        values.tolist() for name, values in whole.items() if name != "wall_ns"
    ]
    assert (columns["weight"] == 1.0).all()
    assert thinning.thinned == 0


@pytest.mark.parametrize(
    ("outcome", "status", "detail", "wrong"),
    [
        ("completed", 200, "", False),
        ("failed", 502, "engine_died", True),
        ("refused", 503, "no_healthy_engine", True),
        ("refused", 500, "engine_500", True),
        ("refused", 429, "engine_429", True),
        ("refused", 429, "quota_exceeded", False),
        ("refused", 404, "model_not_found", False),
        ("cancelled", 499, "client_left", False),
    ],
)
def test_what_counts_as_an_error(outcome, status, detail, wrong):
    assert is_error(outcome, status, detail) is wrong


@given(st.lists(st.floats(0, 40), max_size=40))
def test_a_row_counts_as_often_as_it_stands_for(weights):
    columns = {"id": np.arange(len(weights)), "weight": np.array(weights)}
    whole = standing_for(columns)
    assert abs(len(whole["id"]) - sum(max(w, 1.0) for w in weights)) <= 0.5 + 1e-6
    counts = np.bincount(whole["id"], minlength=len(weights))
    assert all(abs(n - max(w, 1.0)) <= 1 for n, w in zip(counts, weights, strict=True))
    assert (np.diff(whole["id"]) >= 0).all()


def test_quantiles_of_a_thinned_store_are_those_of_all_its_requests():
    """At a tenth: the P99 exactly, for the slowest are all kept; the median within what a tenth can say."""
    rng = stream_generator(7, "thinning")
    thinning, true, found = Thinning(Sampler(Keep(share=0.1)), WORLD), [], []
    for turn in range(12):
        times = rng.lognormal(np.log(100), 0.5, 2_000).astype(int)
        rows = [row(i, int(ms)) for i, ms in enumerate(times)]
        columns = thinning.requests([("r", pack([(rng.bytes(16).hex(), *one[1:]) for one in rows]))])
        if turn >= 2:  # the bound is known
            whole = standing_for(columns)
            true.append(times)
            found.append((whole["first_token"] - whole["api_recv"]) / MS)
    true, found = np.concatenate(true), np.concatenate(found)
    assert abs(len(found) / len(true) - 1) < 0.08
    assert abs(np.quantile(found, 0.5) / np.quantile(true, 0.5) - 1) < 0.05
    assert abs(np.quantile(found, 0.99) / np.quantile(true, 0.99) - 1) < 0.05
    kept = sum(thinning.kept) / (sum(thinning.kept) + thinning.thinned)
    assert kept < 0.2


def test_a_thinned_store_counts_the_requests_and_not_the_rows():
    """Counts and sums of a store that keeps a tenth are those of all requests, within what chance allows."""
    offered = 20_000
    thinning = warmed(Keep(share=0.1))
    rows = [row(i, trace_id=f"{i * 0x9E3779B97F4A7C15 % 2**128:032x}") for i in range(offered)]
    rows += [row(offered + i, outcome="failed", status=502) for i in range(50)]
    with DuckStore(world=WORLD) as store:
        store.append("requests", thinning.requests([("r", pack(rows))]))
        found = {one["outcome"]: one["n"] for one in store.scan("outcomes")}
        (load,) = store.scan("load_by_model")
        kept = len(store.scan("requests_window"))
    assert kept < offered / 5
    assert found["failed"] == 50
    chance = 4 * np.sqrt(offered * 0.1 * 0.9) / 0.1
    assert abs(found["completed"] - offered) < chance
    assert load["n"] == found["failed"] + found["completed"]
    assert load["completed"] == found["completed"]
    assert load["output_tokens"] == pytest.approx(2 * sum(range(offered + 50)), rel=0.1)
