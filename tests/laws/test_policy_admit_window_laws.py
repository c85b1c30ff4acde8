"""Laws of admission and of the batching window."""

from hypothesis import given
from hypothesis import strategies as st

from sits.core.fleet import Admit, Window
from sits.policy.admit import admit
from sits.policy.window import decide, mean_gap, window_ns

COUNT = st.integers(0, 10_000)


def ask(limits, requests=0, tokens=0, need=1, deadline=0, now=0):
    return admit(
        limits,
        inflight_requests=requests,
        inflight_tokens=tokens,
        need_tokens=need,
        deadline_ns=deadline,
        now_ns=now,
    )


LIMITS = st.builds(Admit, max_inflight=COUNT, max_inflight_tokens=COUNT)


@given(LIMITS, COUNT, COUNT, COUNT)
def test_admitted_keeps_the_limits_or_was_alone(limits, requests, tokens, need):
    if ask(limits, requests, tokens, need).outcome == "admitted":
        assert not limits.max_inflight or requests + 1 <= limits.max_inflight
        assert not limits.max_inflight_tokens or tokens + need <= limits.max_inflight_tokens or requests == 0


@given(LIMITS, COUNT, COUNT, COUNT, COUNT, COUNT)
def test_less_in_flight_never_turns_admission_into_refusal(limits, requests, tokens, need, fewer, lighter):
    if ask(limits, requests, tokens, need).outcome == "admitted":
        easier = ask(limits, min(requests, fewer), min(tokens, lighter), need)
        assert easier.outcome == "admitted"


@given(LIMITS, COUNT)
def test_an_idle_gateway_admits_anything(limits, need):
    assert ask(limits, need=need).outcome == "admitted"


@given(LIMITS, COUNT, COUNT, COUNT)
def test_a_refusal_for_room_says_when_to_come_back(limits, requests, tokens, need):
    decision = ask(limits, requests, tokens, need)
    if decision.outcome != "admitted":
        assert decision.reasons["retry_after_ns"] == limits.retry_after
        assert decision.reasons["limit"] > 0


@given(LIMITS, st.integers(1, 10**12), st.integers(0, 10**12))
def test_a_passed_deadline_is_refused_first(limits, deadline, late):
    decision = ask(limits, requests=10**6, deadline=deadline, now=deadline + late)
    assert decision.outcome == "refused_deadline"
    assert decision.reasons["late_ns"] == late


WINDOWS = st.builds(
    Window,
    kind=st.sampled_from(["none", "fixed", "adaptive"]),
    base=st.integers(0, 10**9),
    low=st.integers(0, 10**8),
    high=st.integers(10**8, 10**9),
    max_batch=st.integers(1, 64),
)
RATES = st.floats(0, 1e7)


@given(WINDOWS, RATES, st.integers(1, 100), st.integers(0, 10**15), st.integers(0, 10**10))
def test_nobody_is_held_past_the_window(config, rate, pending, oldest, waited):
    decision = decide(config, pending=pending, oldest_ns=oldest, rate_per_s=rate, now_ns=oldest + waited)
    length = window_ns(config, rate)
    if decision.outcome == "hold":
        assert waited < length
        assert decision.reasons["hold_until_ns"] == oldest + length
        assert pending < config.max_batch
        assert config.kind != "none"
    else:
        assert waited >= length or pending >= config.max_batch


@given(WINDOWS, RATES, st.integers(1, 100), st.integers(0, 10**10), st.integers(0, 10**10), st.integers(0, 9))
def test_waiting_longer_or_more_company_never_turns_flush_into_hold(
    config, rate, pending, waited, more, extra
):
    first = decide(config, pending=pending, oldest_ns=0, rate_per_s=rate, now_ns=waited)
    later = decide(config, pending=pending + extra, oldest_ns=0, rate_per_s=rate, now_ns=waited + more)
    assert not (first.outcome == "flush" and later.outcome == "hold")


@given(WINDOWS, RATES, RATES)
def test_the_adaptive_window_stays_in_bounds_and_shrinks_with_load_where_batches_fill(config, one, other):
    slow, fast = sorted((one, other))
    if config.kind == "adaptive" and slow > 0:
        assert config.low <= window_ns(config, fast) <= config.high
        if config.max_batch / slow * 10**9 <= config.high:
            assert window_ns(config, fast) <= window_ns(config, slow)
        else:
            assert window_ns(config, slow) == config.low


@given(WINDOWS, RATES)
def test_the_adaptive_window_holds_beyond_low_only_for_a_batch_that_fills_within_it(config, rate):
    if config.kind == "adaptive" and rate > 0 and (length := window_ns(config, rate)) > config.low:
        assert rate * (length + 1) >= config.max_batch * 10**9 * (1 - 1e-9)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50))
def test_the_mean_gap_stays_among_the_gaps(gaps):
    mean = 0.0
    for gap in gaps:
        mean = mean_gap(mean, gap)
    assert min(gaps) * (1 - 1e-9) <= mean <= max(gaps) * (1 + 1e-9)
