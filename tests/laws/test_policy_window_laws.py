"""Laws of the batching window, of its reactions and of what it learns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.core.fleet_window import ENDPOINTS, Window, held_in_vain, holds
from sits.policy.pace import CallTime, Pace
from sits.policy.window import decide, feedback, held_until_ns, mean_gap, reacted, window_ns

MS, SECOND = 10**6, 10**9


@st.composite
def windows(draw, kinds=("none", "fixed", "adaptive"), reactions=("free", "fill", "burst", "slack")):
    """Any window a file can hold."""
    low = draw(st.integers(0, 10**8))
    high = draw(st.integers(max(1, low), 10**9))
    return Window(
        kind=draw(st.sampled_from(kinds)),
        reaction=draw(st.sampled_from(reactions)),
        detector=draw(st.sampled_from(["cusum", "ewma"])),
        base=draw(st.integers(low, high)),
        low=low,
        high=high,
        max_batch=draw(st.integers(1, 64)),
        objective=draw(st.sampled_from([0, 10**8])),
    )


RATES = st.floats(0, 1e7)
STATES = st.fixed_dictionaries(
    {
        "rate_per_s": RATES,
        "stretch": st.floats(0.01, 100),
        "scale": st.floats(0.01, 100),
        "under_way": st.integers(0, 100),
        "deadline_ns": st.integers(0, 10**11),
        "fixed_ns": st.floats(0, 1e9),
        "item_ns": st.floats(0, 1e8),
    }
)


def bound_of(config):
    return {"none": 0, "fixed": config.base, "adaptive": config.high}[config.kind]


@given(windows(), STATES, st.integers(1, 100), st.integers(0, 10**15), st.integers(0, 10**10))
def test_nobody_is_held_past_the_bound_and_a_full_batch_goes_at_once(config, state, pending, oldest, waited):
    state["deadline_ns"] += oldest
    decision = decide(config, pending=pending, oldest_ns=oldest, now_ns=oldest + waited, **state)
    if decision.outcome == "hold":
        assert waited < bound_of(config)
        assert oldest + waited < decision.reasons["hold_until_ns"] <= oldest + bound_of(config)
        assert pending < config.max_batch
    else:
        assert decision.outcome == "flush"


@given(
    windows(), STATES, st.integers(1, 100), st.integers(0, 10**10), st.integers(0, 10**10), st.integers(0, 9)
)
def test_waiting_longer_or_more_company_never_turns_flush_into_hold(
    config, state, pending, waited, more, extra
):
    first = decide(config, pending=pending, oldest_ns=0, now_ns=waited, **state)
    later = decide(config, pending=pending + extra, oldest_ns=0, now_ns=waited + more, **state)
    assert not (first.outcome == "flush" and later.outcome == "hold")


@given(windows(), STATES, st.integers(1, 100))
def test_an_engine_that_becomes_free_never_turns_flush_into_hold(config, state, pending):
    busy = decide(config, pending=pending, oldest_ns=0, now_ns=0, **state)
    free = decide(config, pending=pending, oldest_ns=0, now_ns=0, **{**state, "under_way": 0})
    assert not (busy.outcome == "flush" and free.outcome == "hold")


@given(windows(kinds=["adaptive"], reactions=["free"]), STATES, st.integers(1, 3))
def test_nobody_waits_before_a_free_engine(config, state, pending):
    assert (
        decide(config, pending=pending, oldest_ns=5, now_ns=5, **{**state, "under_way": 0}).outcome == "flush"
    )


@given(windows(kinds=["adaptive"], reactions=["slack"]), STATES, st.integers(1, 64))
def test_slack_holds_only_while_one_more_would_still_meet_the_deadline(config, state, pending):
    decision = decide(config, pending=pending, oldest_ns=0, now_ns=0, **state)
    if decision.outcome == "hold":
        until = decision.reasons["hold_until_ns"]
        call = state["fixed_ns"] + state["item_ns"] * (pending + 1)
        assert until + call <= state["deadline_ns"] + 1


@given(windows(), RATES, st.floats(0.01, 100), st.floats(0.01, 100))
def test_the_window_is_within_its_bounds_whatever_was_learnt(config, rate, stretch, scale):
    length = window_ns(config, rate, stretch, scale)
    if config.kind == "adaptive":
        assert config.low <= length <= config.high
    else:
        assert length == bound_of(config)


@given(windows(kinds=["adaptive"], reactions=["fill"]), RATES, RATES)
def test_the_fill_window_shrinks_with_load_where_batches_fill(config, one, other):
    slow, fast = sorted((one, other))
    if slow > 0:
        if config.max_batch / slow * SECOND <= config.high:
            assert window_ns(config, fast) <= window_ns(config, slow)
        else:
            assert window_ns(config, slow) == config.low


@given(windows(kinds=["adaptive"], reactions=["fill"]), RATES)
def test_the_fill_window_holds_beyond_low_only_for_a_batch_that_fills_within_it(config, rate):
    if rate > 0 and (length := window_ns(config, rate)) > config.low:
        assert rate * (length + 1) >= config.max_batch * SECOND * (1 - 1e-9)


@given(windows(), st.lists(st.sampled_from([-1, 0, 1]), max_size=80))
def test_stretched_windows_stay_in_bounds_and_quiet_brings_the_base_back(config, verdicts):
    stretch, quiet = 1.0, 0
    for verdict in verdicts:
        stretch, quiet = reacted(config, stretch, quiet, verdict)
        assert config.low - 1e-6 <= max(1, config.base) * stretch <= config.high + 1e-6 or stretch == 1.0
    for _ in range(3):
        stretch, quiet = reacted(config, stretch, quiet, 0)
    assert stretch == 1.0


@given(windows(), st.lists(st.tuples(st.floats(0, 1e10), st.floats(0, 1)), max_size=80))
def test_the_scale_stays_within_what_the_bounds_allow_and_comes_back(config, looks):
    scale = 1.0
    for p99, share in looks:
        scale = feedback(config, scale, p99, share * p99, 10**8)
        assert (
            max(1, config.low) / config.high * (1 - 1e-9)
            <= scale
            <= config.high / max(1, config.low) * (1 + 1e-9)
        )
    for _ in range(80):
        scale = feedback(config, scale, 1e6, 0.0, 10**8)
    assert scale == pytest.approx(1.0)


@given(windows(), st.floats(0.1, 10), st.floats(1e8 + 1, 1e10), st.floats(0, 1))
def test_feedback_shortens_a_window_that_is_the_wait_and_lengthens_one_that_starves_the_engine(
    config, scale, p99, share
):
    moved = feedback(config, scale, p99, share * p99, 10**8)
    most = config.high / max(1, config.low)
    if 1 / most <= scale <= most:
        assert moved <= scale if share > 0.5 else moved >= scale


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50))
def test_the_mean_gap_stays_among_the_gaps(gaps):
    mean = 0.0
    for gap in gaps:
        mean = mean_gap(mean, gap)
    assert min(gaps) * (1 - 1e-9) <= mean <= max(gaps) * (1 + 1e-9)


@given(st.floats(0, 1e8), st.floats(0, 1e7), st.lists(st.integers(1, 64), min_size=1, max_size=200))
def test_the_line_of_a_call_is_found_exactly_and_is_never_negative(fixed, item, sizes):
    call = CallTime()
    for size in sizes:
        call.took(size, fixed + item * size)
        mean = fixed + item * size
        assert call.fixed_ns >= -1e-6 * mean - 1e-6
        assert call.item_ns >= 0.0
    for size in (1, 32, 64) * 60:
        call.took(size, fixed + item * size)
    for size in (1, 16, 64):
        assert call.fixed_ns + call.item_ns * size == pytest.approx(fixed + item * size, rel=1e-3, abs=10)


@given(windows(kinds=["adaptive"]), st.lists(st.integers(0, 3 * SECOND), max_size=60), st.integers(1, 10**15))
def test_what_is_learnt_of_arrivals_depends_on_their_distances_only(config, gaps, shift):
    paces = Pace(config, 10**8), Pace(config, 10**8)
    now = 1
    for gap in gaps:
        now += gap
        paces[0].arrived(now)
        paces[1].arrived(now + shift)
        assert paces[0].length_ns == paces[1].length_ns


@given(windows(), STATES, st.integers(1, 64), st.integers(0, 10**10))
def test_the_live_path_decides_as_the_explained_decision_says(config, state, pending, oldest):
    pace = Pace(config, 10**8)
    pace.stretch, pace.scale = state["stretch"], state["scale"]
    pace.call.fixed_ns, pace.call.item_ns = state["fixed_ns"], state["item_ns"]
    length = pace.length_ns
    until = pace.until_ns(length, pending, oldest, state["under_way"], 0)
    told = {**state, "rate_per_s": 0.0, "deadline_ns": oldest + pace.objective_ns}
    decision = decide(config, pending=pending, oldest_ns=oldest, now_ns=oldest, **told)
    assert decision.reasons["window_ns"] == length
    assert decision.reasons["hold_until_ns"] == until
    assert (decision.outcome == "flush") == (until <= oldest)


@given(windows(), st.sampled_from(["unknown", "continuous", "by_call"]), st.lists(st.sampled_from(ENDPOINTS)))
def test_only_what_batches_by_call_is_held_without_a_warning(config, batches, endpoints):
    config = Window(kind=config.kind, endpoints=tuple(endpoints))
    for endpoint in ENDPOINTS:
        if holds(config, batches, endpoint):
            assert batches != "continuous"
            assert not config.endpoints or endpoint in config.endpoints
            said = batches == "by_call" or (endpoint == "/v1/embeddings" and endpoint in config.endpoints)
            assert (endpoint in held_in_vain(config, batches)) == (not said)
        else:
            assert endpoint not in held_in_vain(config, batches)


def test_a_full_window_is_over_whatever_the_clock_says():
    config = Window(kind="fixed", base=10**12, max_batch=3)
    assert held_until_ns(config, 10**12, 3, 7) == 7
