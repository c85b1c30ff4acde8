"""Which balances a request is charged to, what it costs, and the arithmetic of one balance."""

import pytest

from sits.core.caller import Caller
from sits.core.fleet_quota import Quota, QuotaMatch, QuotaWeights
from sits.core.units import SECOND
from sits.policy.lease import (
    EARLY_NS,
    FORGET_NS,
    SCARCE_NS,
    Account,
    AskLine,
    ask,
    balance,
    expire,
    release,
)
from sits.policy.quota import RESERVED, UNLIMITED, Room, account, compile_quotas, decide

TTL = 10 * SECOND
T0 = 1_000_000 * SECOND


def meter(**more):
    return compile_quotas([Quota(name="q", **{"tokens": 1000, **more})])[0]


def line(
    seq=1, used=0, returned=0, reserved=0, need=0, want=0, life=1, window=0, per_ns=0, granted=0, limit=1000
):
    return AskLine("q", window, per_ns, limit, life, seq, granted, used, returned, reserved, need, want)


def in_balance(found, now_ns=T0):
    b = balance(found, now_ns)
    assert b.granted + b.debt == b.settled + b.reserved + b.leased + b.free
    assert not (b.free and b.debt)
    return b


# ---- meters


@pytest.mark.parametrize(
    ("weights", "tokens", "cost"),
    [
        (QuotaWeights(), (100, 50, 0), 150),
        (QuotaWeights(), (100, 50, 80), 150),
        (QuotaWeights(cached=0.1), (100, 50, 80), 20 + 8 + 50),
        (QuotaWeights(output=4), (100, 50, 0), 300),
        (QuotaWeights(input=0.001, cached=0), (1, 0, 0), 1),  # a part of a token is a token
        (QuotaWeights(input=0.001, cached=0), (0, 0, 0), 0),
        (QuotaWeights(input=0, cached=0), (10**6, 7, 0), 7),
    ],
)
def test_costs_are_whole_and_rounded_up(weights, tokens, cost):
    assert meter(weights=weights).cost(*tokens) == cost


def test_a_request_counts_as_one_whatever_it_takes():
    requests = compile_quotas([Quota(name="q", tokens=5, requests=9)])[1]
    assert (requests.unit, requests.limit) == ("requests", 9)
    assert requests.cost(0, 0) == requests.cost(10**9, 10**9, 10**8) == 1


def test_a_reservation_covers_every_settlement_within_it():
    for cached in (0, 1, 50, 100):
        m = meter(weights=QuotaWeights(input=0.3, output=1.7, cached=0.05))
        assert m.cost(100, 80) >= m.cost(100, 80, cached) >= m.cost(100, 3, cached)


def test_windows_are_aligned_to_the_wall_clock():
    hour = meter(per="1h")
    noon = 500_000 * 3600 * SECOND
    assert hour.window(noon - 1) + 1 == hour.window(noon) == hour.window(noon + 3599 * SECOND)
    assert hour.ends_ns(hour.window(noon)) == noon + 3600 * SECOND
    total = meter(per="total")
    assert total.window(noon) == total.window(0) == 0
    assert total.ends_ns(0) > noon


def test_a_child_is_within_its_parent_however_deep():
    top = Quota(name="top", match=QuotaMatch(tenant="acme"), tokens=9)
    middle = Quota(name="middle", parent="top", match=QuotaMatch(team="web"), tokens=8)
    low = Quota(name="low", parent="middle", match=QuotaMatch(model="m"), tokens=7)
    meters = compile_quotas([low, top, middle])
    assert meters[0].match == QuotaMatch(tenant="acme", team="web", model="m")
    web, sales = Caller(tenant="acme", team="web"), Caller(tenant="acme", team="sales")
    assert [bool(account(m, web, "m")) for m in meters] == [True, True, True]
    assert [bool(account(m, web, "n")) for m in meters] == [False, True, True]
    assert [bool(account(m, sales, "m")) for m in meters] == [False, True, False]


def test_each_splits_and_nobody_shares_a_balance_by_a_trick_of_names():
    m = meter(each=("key", "model"))
    names = {
        account(m, Caller(key_id=key), model)
        for key in ("a", "b", "a|model=b", "a%7C", "", "ä")
        for model in ("x", "x|y", "key=a")
    }
    assert len(names) == 18
    assert all(name.isascii() for name in names)
    team = meter(each=("team",))
    assert account(team, Caller(tenant="a", team="web"), "m") != account(
        team, Caller(tenant="b", team="web"), "m"
    )
    assert len(account(meter(each=("model",)), Caller(), "x" * 10**6)) < 1000


# ---- deciding


def test_the_first_balance_in_the_way_is_named_and_larger_than_all_comes_first():
    m = meter()
    full = Room(m, 10**6, 0, 10**6, 60)
    assert decide([], 1, 1, 0) is UNLIMITED
    assert decide([full], 500, 500, 0) is RESERVED
    assert decide([full, Room(m, 5, 0, 10**6, 60)], 3, 3, 0).outcome == "refused_quota"
    assert decide([full, Room(m, 5, 1, 10**6, 60)], 3, 3, 0).outcome == "short"
    assert decide([Room(m, 5, 1, 10**6, 60), Room(m, 0, 5, 5, 60)], 3, 3, 0).outcome == "refused_too_large"
    told = decide([Room(m, -20, 50, 1000, 60 * SECOND)], 40, 0, 10 * SECOND).reasons
    assert told == {
        "unit": "tokens",
        "per": "1m",
        "limit": 1000,
        "used": 970,
        "need": 40,
        "reset_ns": 50 * SECOND,
    }


# ---- the arithmetic of one balance


def test_a_grant_covers_the_need_or_is_nothing_and_shares_what_is_free():
    found = Account()
    assert ask(found, "a", line(need=600, want=900), T0, TTL).granted == 600
    told = ask(found, "b", line(need=500, want=500), T0, TTL)
    assert (told.granted, told.free, told.scarce, told.elsewhere) == (0, 400, True, 600)
    assert ask(found, "b", line(seq=2, need=10, want=10_000), T0, TTL).granted == 100, "free / (2 * holders)"
    assert ask(found, "a", line(seq=2), T0 + SCARCE_NS, TTL).scarce is False
    in_balance(found)


def test_repeated_and_overtaken_messages_change_nothing():
    found = Account()
    first, second = line(1, need=100, want=100), line(2, used=40, returned=10, granted=100)
    assert ask(found, "a", first, T0, TTL).granted == 100
    for again in (first, second, first, second, second):
        told = ask(found, "a", again, T0, TTL)
        assert told.granted == 100
    assert (told.used, told.returned) == (40, 10)
    b = in_balance(found)
    assert (b.settled, b.leased, b.free) == (40, 50, 910)


def test_what_a_silent_holder_had_comes_back_and_its_late_report_still_counts():
    found = Account()
    ask(found, "a", line(need=300, want=300), T0, TTL)
    assert ask(found, "b", line(need=800, want=800), T0, TTL).granted == 0
    late = T0 + TTL
    assert ask(found, "b", line(2, need=800, want=800), late, TTL).granted == 800
    b = in_balance(found, late)
    assert (b.expired, b.leased, b.free) == (300, 800, 200)
    told = ask(found, "a", line(2, used=250, granted=300), late, TTL)
    assert (told.used, told.returned) == (250, 300), "it hears that its lease was taken back"
    b = in_balance(found, late)
    assert (b.settled, b.debt, b.free) == (250, 50, 0)
    ask(found, "a", line(3, used=250, granted=300), late, TTL)
    assert in_balance(found, late).leased == 800, "returning less than was taken back lends nothing anew"


def test_a_dead_holder_is_released_by_name_and_no_other():
    found = Account()
    for holder in ("gw", "gw.1", "gw1"):
        ask(found, holder, line(need=100, want=100), T0, TTL)
    assert release(found, "gw", T0)
    b = in_balance(found)
    assert (b.leased, b.expired, b.holders) == (200, 100, 2)
    assert not release(found, "gw", T0)
    assert not release(found, "nobody", T0)


def test_over_use_is_debt_that_a_gift_covers():
    found = Account()
    ask(found, "a", line(need=1000, want=1000), T0, TTL)
    ask(found, "a", line(2, used=1300, granted=1000), T0, TTL)
    assert in_balance(found).debt == 300
    assert ask(found, "a", line(3, used=1300, granted=1000, need=1, want=1), T0, TTL).granted == 1000
    found.gifts["more"] = 500
    told = ask(found, "a", line(4, used=1300, granted=1000, need=100, want=100), T0, TTL)
    assert told.granted - told.used - told.returned == 100
    assert in_balance(found).free == 100


def test_a_lower_limit_is_debt_until_the_window_ends_and_takes_nothing_from_holders():
    found = Account()
    ask(found, "a", line(need=900, want=900), T0, TTL)
    told = ask(found, "a", line(2, limit=500, granted=900), T0, TTL)
    assert (told.granted, told.total, told.free) == (900, 500, 0)
    assert in_balance(found).debt == 400


@pytest.mark.parametrize(
    ("at_ns", "granted"),
    [(-EARLY_NS - 1, 0), (-EARLY_NS, 10), (0, 10), (60 * SECOND - 1, 10), (60 * SECOND, 0)],
)
def test_a_window_grants_from_shortly_before_it_begins_until_it_ends(at_ns, granted):
    window = 20_000
    one = line(window=window, per_ns=60 * SECOND, need=10, want=10)
    assert ask(Account(), "a", one, window * 60 * SECOND + at_ns, TTL).granted == granted


def test_leases_long_gone_are_folded_and_stay_settled():
    found = Account()
    ask(found, "a", line(need=100, want=100), T0, TTL)
    ask(found, "a", line(2, used=70, returned=30, granted=100), T0, TTL)
    assert not expire(found, T0 + TTL + FORGET_NS)
    assert expire(found, T0 + TTL + FORGET_NS + 1)
    assert (found.folded, found.leases) == (70, {})
    assert in_balance(found).settled == 70


def test_an_authority_without_memory_believes_the_totals_it_is_told():
    found = Account()
    told = ask(found, "a", line(9, used=300, returned=50, granted=500), T0, TTL)
    assert (told.granted, told.used, told.returned) == (500, 300, 50)
    b = in_balance(found)
    assert (b.settled, b.leased, b.free) == (300, 150, 550)
