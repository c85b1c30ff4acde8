"""An engine is up, trying or down by the newest evidence of any worker."""

from hypothesis import given
from hypothesis import strategies as st

from sits.core.errors import EngineError
from sits.core.replica import Replica
from sits.core.units import MS, SECOND
from sits.gateway.liveness import DOWN, TRYING, UP, engine_state, liveness
from sits.gateway.places import BREAKER_FAILURES, BREAKER_OPEN_NS, Place, Places
from sits.gateway.shared import Shared

WORKERS = 3
OPEN = BREAKER_OPEN_NS
EVENTS = st.lists(
    st.tuples(
        st.integers(0, WORKERS - 1), st.sampled_from(("opened", "answered")), st.integers(1, 3 * SECOND)
    ),
    max_size=30,
)


def told(events):
    """The rows of the workers after these, the moment of the last one, and what it was."""
    until, reached, now_ns, last = [0] * WORKERS, [0] * WORKERS, SECOND, None
    for worker, what, after_ns in events:
        now_ns += after_ns
        last = what
        if what == "opened":
            until[worker] = now_ns + OPEN
        else:
            until[worker], reached[worker] = 0, now_ns
    return until, reached, now_ns, last


@given(EVENTS, st.integers(0, 10**15))
def test_the_newest_evidence_of_any_worker_wins_however_long_ago(events, later_ns):
    until, reached, now_ns, last = told(events)
    state = liveness(until, reached, OPEN, now_ns + later_ns)
    if last == "opened":
        assert state == (DOWN if later_ns < OPEN else TRYING)
    else:
        assert state == UP


@given(EVENTS, st.permutations(range(WORKERS)), st.integers(0, 10 * SECOND))
def test_it_is_the_same_whichever_worker_knows_it(events, order, later_ns):
    until, reached, now_ns, _ = told(events)
    shuffled = [until[i] for i in order], [reached[i] for i in reversed(order)]
    assert liveness(*shuffled, OPEN, now_ns + later_ns) == liveness(until, reached, OPEN, now_ns + later_ns)


@given(EVENTS, st.lists(st.integers(0, 100 * SECOND), min_size=2))
def test_time_alone_never_makes_it_up_and_never_makes_it_down(events, laters):
    until, reached, now_ns, _ = told(events)
    seen = [liveness(until, reached, OPEN, now_ns + later) for later in sorted(laters)]
    order = [state for i, state in enumerate(seen) if not i or seen[i - 1] != state]
    assert order in ([UP], [DOWN], [TRYING], [DOWN, TRYING])


@given(st.integers(0, 10 * SECOND))
def test_an_opening_and_an_answer_at_the_same_moment_are_an_opening(later_ns):
    at_ns = 5 * SECOND
    state = liveness([at_ns + OPEN, 0], [0, at_ns], OPEN, at_ns + later_ns)
    assert state == (DOWN if later_ns < OPEN else TRYING)
    _, (one, two, _) = several()
    opened(one, at_ns)
    two.reached(two.by_id["a"], at_ns)
    two.refresh(at_ns + OPEN + later_ns)
    assert "a" in two.suspects, "else its next answer would not be noted"


def opened(places, now_ns):
    for _ in range(BREAKER_FAILURES):
        places.failed(places.by_id["a"], EngineError("no", code="engine_unreachable"), now_ns)


def several():
    shared = Shared(WORKERS, 2)
    workers = [Places([Replica(id="a", models=("m",))], Place(shared, w, {"a": 1})) for w in range(WORKERS)]
    return shared, workers


def test_an_engine_that_stays_away_never_looks_as_if_it_had_come_back():
    shared, (one, *_) = several()
    now_ns, seen = 5 * SECOND, []
    opened(one, now_ns)
    for _ in range(600):  # a minute: tried once a second, refused each time
        now_ns += 100 * MS
        seen.append(engine_state(shared, 1, now_ns))
        one.refresh(now_ns)
        if one.by_id["a"].healthy:
            opened(one, now_ns)
    assert set(seen) == {DOWN, TRYING}


def test_any_worker_that_has_an_answer_later_brings_it_back_though_others_never_look_again():
    shared, (one, two, three) = several()
    opened(one, 5 * SECOND)
    opened(two, 5 * SECOND + MS)
    later_ns = 3600 * SECOND
    assert engine_state(shared, 1, later_ns) == TRYING
    three.refresh(later_ns)  # it was idle all the time that the breaker was open
    assert three.by_id["a"].healthy
    assert "a" in three.suspects
    three.reached(three.by_id["a"], later_ns)
    assert engine_state(shared, 1, later_ns) == UP
    assert not three.suspects
    three.refresh(later_ns + SECOND)
    assert not three.suspects, "what the others wrote an hour ago is older than the answer"
    opened(two, later_ns + 2 * SECOND)
    assert engine_state(shared, 1, later_ns + 2 * SECOND) == DOWN


def test_a_new_engine_of_the_slot_begins_as_if_nothing_had_been():
    shared, (one, *_) = several()
    opened(one, 5 * SECOND)
    shared.clear_slot(1)
    assert engine_state(shared, 1, 5 * SECOND) == UP
