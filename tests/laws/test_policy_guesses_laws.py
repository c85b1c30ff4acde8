"""Laws of the pace at which keys may be tried."""

from hypothesis import given
from hypothesis import strategies as st

from sits.policy.guesses import ALL_EVERY_NS, OWN_BURST, OWN_EVERY_NS, charged, judge

gaps = st.lists(st.integers(0, 3 * OWN_EVERY_NS), max_size=80)


@given(gaps)
def test_an_address_never_has_more_than_its_burst_and_its_rate(gaps):
    now_ns = own_ns = tried = 0
    for gap_ns in gaps:
        now_ns += gap_ns
        if judge(own_ns, 0, now_ns).outcome == "may_try":
            own_ns, tried = charged(own_ns, OWN_EVERY_NS, now_ns), tried + 1
    assert tried <= OWN_BURST + now_ns // OWN_EVERY_NS


@given(st.integers(0, 10**15), st.integers(0, 10**15), st.integers(0, 10**15))
def test_who_waits_as_long_as_told_may_try(own_ns, all_ns, now_ns):
    decision = judge(own_ns, all_ns, now_ns)
    assert (decision.outcome == "may_try") == (decision.reasons["wait_ns"] == 0)
    assert judge(own_ns, all_ns, now_ns + decision.reasons["wait_ns"]).outcome == "may_try"


@given(st.integers(1, 10**15), st.integers(0, 10**6))
def test_one_address_alone_never_keeps_out_another(now_ns, wrong):
    own_ns = all_ns = 0
    for _ in range(min(wrong, 300)):
        if judge(own_ns, all_ns, now_ns).outcome == "may_try":
            own_ns, all_ns = charged(own_ns, OWN_EVERY_NS, now_ns), charged(all_ns, ALL_EVERY_NS, now_ns)
    assert judge(0, all_ns, now_ns).outcome == "may_try"
