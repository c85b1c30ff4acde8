"""Laws of admission."""

from hypothesis import given
from hypothesis import strategies as st

from sits.core.fleet import Admit
from sits.policy.admit import admit

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
