"""Who is slow: chance names nobody, a bad engine is named whatever the order of rows, and the same requests are one name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose_tables import Knobs, dice, make
from sits.diagnose.groups import BAD_MIN, KINDS, deviations, groups

BOUND_MS = 10_000.0
"""Slower than anything in the quiet run."""


def table(n=400, seed=1, **texts):
    requests, _, _ = make(Knobs(n=n, seed=seed))
    requests |= {kind: np.full(n, "", dtype=object) for kind in KINDS}
    requests |= {kind: np.array(names, dtype=object) for kind, names in texts.items()}
    return requests


def made_slow(requests, rows):
    for point in ("first_token", "last_token", "first_chunk", "sent"):
        if point in requests:
            requests[point][rows] += int(2 * BOUND_MS * 1e6)
    return requests


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.floats(0.02, 0.6))
def test_what_is_dealt_out_at_random_names_nobody(seed, names, share):
    rng = dice(seed)
    picked = [f"e{i}" for i in rng.integers(0, names, 400)]
    tenants = [f"t{i}" for i in rng.integers(0, 30, 400)]
    requests = table(engine=picked, tenant=tenants)
    found = groups(made_slow(requests, rng.random(400) < share), "ttft", BOUND_MS)
    assert not [
        one for one in found if one.of_bad * one.n / one.of_n > 5
    ]  # where the binomial is near a normal one


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.floats(0.3, 1.0))
def test_the_engine_that_is_slow_is_named_whatever_the_order_of_rows(seed, names, share):
    rng = dice(seed)
    picked = np.array([f"e{i}" for i in rng.integers(0, names, 600)], dtype=object)
    slow = (picked == "e0") & (rng.random(600) < share)
    if slow.sum() < BAD_MIN:
        slow = picked == "e0"
    if deviations(float(slow.sum()), float(slow.sum()), float(np.mean(picked == "e0"))) <= 4.0:
        return
    requests = made_slow(table(600, engine=picked), slow)
    (one,) = groups(requests, "ttft", BOUND_MS)
    assert (one.kind, one.name, one.n) == ("engine", "e0", int((picked == "e0").sum()))
    assert (one.slow, one.wrong, one.bad, one.of_bad) == (
        int(slow.sum()),
        0,
        int(slow.sum()),
        int(slow.sum()),
    )
    assert one.p99_ms > BOUND_MS > one.others_p99_ms
    order = rng.permutation(600)
    assert groups({name: column[order] for name, column in requests.items()}, "ttft", BOUND_MS) == (one,)


def test_names_that_are_the_same_requests_are_told_as_one_and_others_for_themselves():
    at = np.arange(400)
    engine = np.where(at % 4 == 0, "v0", "a0")
    model = np.where(at % 4 == 0, "tiny", "big")
    tenant = np.where(at % 8 == 0, "acme", "other")
    requests = made_slow(table(engine=engine, model=model, tenant=tenant), at % 8 == 0)
    acme, v0 = groups(requests, "ttft", BOUND_MS)
    assert (acme.kind, acme.name, acme.same) == ("tenant", "acme", {})
    assert (v0.kind, v0.name, v0.same) == ("engine", "v0", {"model": "tiny"})


@pytest.mark.parametrize(
    ("outcome", "status", "detail", "counts"),
    [
        ("failed", 502, "", True),
        ("refused", 503, "refused_full", True),
        ("refused", 429, "quota_exceeded", False),
        ("refused", 400, "bad_request", False),
        ("cancelled", 499, "", False),
    ],
)
def test_what_went_wrong_counts_and_what_a_caller_did_himself_does_not(outcome, status, detail, counts):
    at = np.arange(400)
    requests = table(engine=np.where(at % 4 == 0, "v0", "a0"))
    for column, value in (("outcome", outcome), ("status", status), ("detail", detail)):
        requests[column] = np.where(at % 8 == 0, value, requests[column]).astype(requests[column].dtype)
    found = groups(requests, "ttft", BOUND_MS)
    assert [(one.name, one.slow, one.wrong, one.of_bad) for one in found] == (
        [("v0", 0, 50, 50)] if counts else []
    )


def test_few_bad_ones_and_the_only_name_there_is_say_nothing():
    at = np.arange(400)
    few = made_slow(table(engine=np.where(at < 9, "v0", "a0")), at < 9)
    assert groups(few, "ttft", BOUND_MS) == ()
    assert groups(made_slow(table(engine=np.full(400, "v0")), at % 2 == 0), "ttft", BOUND_MS) == ()
