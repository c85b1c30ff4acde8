"""What to do next about adapters at an engine, as pure decisions."""

import pytest

from adapters_fake import adapter, control
from sits.core.fleet_adapters import AdapterEngine
from sits.core.units import SECOND
from sits.policy.adapters import (
    ABSENT,
    LEAVING,
    LOADED,
    LOADING,
    READY,
    REASONS,
    UNKNOWN,
    UNPROVEN,
    Berth,
    Seat,
    next_change_ns,
    next_step,
    pause_ns,
)

NOW = 100 * SECOND


class World:
    """Engines with seats, written as `{"e0": {"a": READY}}`."""

    def __init__(self, seats, *, slots=2, adapters=("a", "b", "c"), known=True, **busy):
        self.control = control(
            [adapter(one) if isinstance(one, str) else one for one in adapters],
            [AdapterEngine(engine=name, slots=slots) for name in seats],
        )
        self.berths = [
            Berth(engine=name, models=("m",), slots=slots, known=known, busy=busy.get(name, 0))
            for name in seats
        ]
        self.seats = {
            name: {
                one.name: Seat(engine=name, adapter=one.name, state=mine.get(one.name, ABSENT), proven_ns=NOW)
                for one in self.control.adapters
            }
            for name, mine in seats.items()
        }

    def next(self, engine="e0", **demand):
        berth = next(berth for berth in self.berths if berth.engine == engine)
        decision = next_step(berth, self.berths, self.seats, self.control, demand, NOW)
        assert decision.policy == "adapters"
        return decision.outcome, decision.choice


def test_nothing_is_assumed_of_an_engine_that_does_not_tell():
    assert World({"e0": {}}, known=False).next(a=1) == ("unknown", "")


def test_one_thing_at_a_time():
    assert World({"e0": {"a": LOADING}}).next(b=1) == ("busy", "")


def test_what_is_asked_for_longest_is_loaded_first():
    world = World({"e0": {}})
    assert world.next(a=5, b=3) == ("load", "b")
    assert world.next() == ("enough", "")


def test_what_is_loaded_is_proven_before_anything_is_loaded():
    assert World({"e0": {"a": LOADED}}).next(b=1) == ("prove", "a")


def test_the_engine_with_room_takes_it_then_the_less_busy_one():
    full = {"a": READY, "b": READY}
    world = World({"e0": full, "e1": {}})
    assert world.next("e0", c=1) == ("enough", "")
    assert world.next("e1", c=1) == ("load", "c")
    world = World({"e0": {}, "e1": {}}, e0=500)
    assert world.next("e0", c=1) == ("enough", "")
    assert world.next("e1", c=1) == ("load", "c")


def test_a_failing_seat_waits_and_leaves_it_to_another_engine():
    world = World({"e0": {}, "e1": {}})
    world.seats["e0"]["a"].retry_ns = NOW + 1
    assert world.next("e0", a=1) == ("enough", "")
    assert world.next("e1", a=1) == ("load", "a")


def test_the_victim_is_idle_unwanted_and_used_longest_ago():
    world = World({"e0": {"a": READY, "b": READY}})
    world.seats["e0"]["a"].used_ns = 9
    assert world.next(c=1) == ("evict", "b")
    world.seats["e0"]["b"].inflight = 1
    assert world.next(c=1) == ("evict", "a")
    assert world.next(c=1, a=2) == ("no_room", "c")
    world.seats["e0"]["a"].inflight = 1
    assert world.next(c=1) == ("no_room", "c")


def test_what_fails_its_proof_goes_before_what_works():
    world = World({"e0": {"a": READY, "b": LOADED}})
    world.seats["e0"]["b"].failures, world.seats["e0"]["b"].retry_ns = 2, NOW + SECOND
    world.seats["e0"]["b"].used_ns = NOW
    assert world.next(c=1) == ("evict", "b")


def test_copies_are_made_and_kept():
    world = World({"e0": {"a": READY}, "e1": {}}, adapters=(adapter("a", copies=2), "b"), slots=1)
    assert world.next("e1") == ("load", "a")
    world = World({"e0": {"a": READY}, "e1": {"a": READY}}, adapters=(adapter("a", copies=2), "b"), slots=1)
    assert world.next("e0", b=1) == ("no_room", "b")


def test_while_one_leaves_no_second_is_sent_away():
    assert World({"e0": {"a": LEAVING, "b": READY}}).next(c=1) == ("busy", "")


def test_what_was_lost_is_wanted_without_being_asked_for():
    world = World({"e0": {"a": UNKNOWN}, "e1": {}})
    assert world.next("e1") == ("enough", "")
    world.seats["e0"]["a"].lost = True
    assert world.next("e1") == ("load", "a")


def test_what_is_ready_is_asked_again_in_time():
    world = World({"e0": {"a": READY}})
    assert world.next() == ("enough", "")
    world.seats["e0"]["a"].proven_ns = NOW - 20 * SECOND
    assert world.next() == ("prove_again", "a")
    assert next_change_ns(world.seats["e0"].values(), 20 * SECOND) == NOW


def test_an_adapter_without_a_path_is_never_loaded_or_evicted():
    world = World({"e0": {"a": READY, "b": READY}}, adapters=(adapter("a", path=""), "b", "c"))
    assert world.next(c=1) == ("evict", "b")
    assert World({"e0": {}}, adapters=(adapter("a", path=""),)).next(a=1) == ("enough", "")


@pytest.mark.parametrize("failures", [1, 2, 5, 60])
def test_pauses_grow_and_are_spread(failures):
    low, high = pause_ns(failures, 100, 5000, 0.0), pause_ns(failures, 100, 5000, 1.0)
    assert high == min(5000, 100 * 2 ** (failures - 1))
    assert low == round(high / 2)


def test_reasons_are_a_closed_set_in_words():
    assert set(REASONS) >= UNPROVEN
    assert all(text and not text.endswith(".") for text in REASONS.values())
