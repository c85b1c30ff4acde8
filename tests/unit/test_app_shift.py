"""A shift carried out: what counts as a row of it, the book that survives its keeper, orders, and what the board says."""

import json

import pytest
from click.testing import CliRunner

from shift_cases import finished, fleet_of, replace
from sits.app.cli import cli
from sits.app.shift import board, book, controller
from sits.app.shift.book import Book, Event, Order, overlaid, plan_name, read_book, write
from sits.app.shift.controller import ShiftController, arms_asking
from sits.app.shift.rows import rows_of
from sits.core.config import dump_fleet
from sits.core.errors import ConfigError
from sits.core.fleet import Objective
from sits.core.units import SECOND
from sits.policy.shift import State, plan_of, share_of
from sits.world import RealWorld


class StillWorld(RealWorld):
    """A wall clock that stands."""

    @staticmethod
    def wall_ns():
        return 1_764_500_000 * SECOND


class Kept:
    """A controller with its own clock, and what it said."""

    def __init__(self, fleet, store):
        self.said = []
        self.store = store
        self.world = StillWorld()
        self.now_ns = 0
        self.number = 0
        self.again(fleet)

    def again(self, fleet):
        """A new keeper takes over."""
        self.controller = ShiftController(fleet, self.store, self.world, self.said.append)

    def order(self, verb):
        self.number += 1
        write(self.store, Order(number=self.number, verb=verb, wall_ns=0))

    def tick(self, *requests, seconds=1, loads=()):
        self.now_ns += seconds * SECOND
        return self.controller.tick(finished(*requests), self.now_ns, loads)


def share(fleet):
    return round(share_of(fleet.routes[0].arms, "canary"), 6)


def traffic(canary, stable, slow=0, failed=0):
    """So many requests of each arm; of the canary's, so many slow and failed."""
    yield from (("chat/canary", "completed", 2_000) for _ in range(slow))
    yield from (("chat/canary", "failed", 0) for _ in range(failed))
    yield from (("chat/canary", "completed", 200) for _ in range(canary - slow - failed))
    yield from (("chat/stable", "completed", 200) for _ in range(stable))


def test_a_sound_arm_goes_all_the_way_and_each_change_is_a_fleet_to_serve(tmp_path):
    kept = Kept(fleet_of(), tmp_path)
    assert kept.tick(*traffic(5, 5)) is None
    kept.order("start")
    shares = [share(kept.tick())]
    for _ in range(60):
        changed = kept.tick(*traffic(10, 10))
        if changed is not None:
            shares.append(share(changed))
    assert shares == [0.1, 0.5, 1.0]
    kept_book = read_book(tmp_path)
    assert kept_book.state.status == "complete"
    assert [event.what for event in kept_book.history] == ["started", "advanced", "advanced", "completed"]
    assert share(kept.controller.fleet) == 1.0
    assert kept.tick(*traffic(10, 0, slow=10)) is None
    assert kept.said == []


def test_a_bad_arm_is_taken_back_and_the_board_says_why(tmp_path):
    fleet = fleet_of(store=tmp_path)
    kept = Kept(fleet, tmp_path)
    kept.order("start")
    kept.tick()
    changed = None
    for _ in range(20):
        changed = changed or kept.tick(*traffic(10, 90, slow=2))
    assert share(changed) == 0.0
    assert read_book(tmp_path).state.status == "rolled_back"
    assert read_book(tmp_path).history[-1].why == "p99"
    told = board.state(fleet, 0)
    assert told["status"] == "rolled_back"
    assert told["detail"] == "Because: P99 over the objective."
    assert [arm["share"] for arm in told["arms"]] == [1.0, 0.0]
    assert told["tests"][0]["verdict"] == "proven"


def test_rollback_manual_leaves_the_shares(tmp_path):
    kept = Kept(fleet_of(rollback="manual"), tmp_path)
    kept.order("start")
    kept.tick()
    for _ in range(20):
        assert kept.tick(*traffic(10, 90, failed=5)) is None
    assert read_book(tmp_path).state.status == "halted"
    assert read_book(tmp_path).state.why == "worse_errors"
    assert share(kept.controller.fleet) == 0.1


def test_a_keeper_that_dies_is_followed_by_one_that_goes_on(tmp_path):
    kept = Kept(fleet_of(), tmp_path)
    kept.order("start")
    kept.tick()
    for _ in range(9):
        kept.tick(*traffic(10, 10))
    before = read_book(tmp_path)
    kept.again(fleet_of())
    assert share(kept.controller.fleet) == 0.1
    assert kept.tick(*traffic(1, 1), seconds=500) is None
    after = read_book(tmp_path)
    assert after.state.counts["chat/canary"].requests == before.state.counts["chat/canary"].requests + 1
    assert after.state.held_ns == before.state.held_ns, "nobody watched in between"
    assert kept.tick(*traffic(1, 1), seconds=500) is not None
    assert read_book(tmp_path).watched_ns == before.watched_ns + controller.GAP_NS


def test_orders_are_obeyed_once_and_refused_with_a_reason(tmp_path):
    kept = Kept(fleet_of(), tmp_path)
    kept.order("halt")
    assert kept.tick() is None
    assert read_book(tmp_path).history[-1].why == "none is running"
    kept.order("start")
    assert share(kept.tick()) == 0.1
    kept.order("start")
    assert kept.tick() is None
    assert read_book(tmp_path).history[-1] == Event(
        wall_ns=kept.world.wall_ns(), what="start refused", share=0.1, why="it is running"
    )
    kept.order("halt")
    assert kept.tick() is None
    assert read_book(tmp_path).state.status == "halted"
    kept.again(fleet_of())
    assert kept.tick() is None
    assert share(kept.controller.fleet) == 0.1
    kept.order("rollback")
    assert share(kept.tick()) == 0.0
    kept.order("rollback")
    assert kept.tick() is None
    assert read_book(tmp_path).history[-1].why == "there is nothing to take back"
    kept.order("start")
    assert share(kept.tick()) == 0.1
    assert read_book(tmp_path).obeyed == 7


def test_a_plan_the_file_has_no_more_changes_nothing_any_more(tmp_path):
    kept = Kept(fleet_of(), tmp_path)
    kept.order("start")
    kept.tick()
    other = fleet_of(min_requests=60)
    kept.controller.adopt(other)
    assert read_book(tmp_path).state.status == "superseded"
    assert kept.controller.fleet == other
    assert board.state_of(other, read_book(tmp_path))["status"] == "none"
    kept.controller.adopt(fleet_of())
    assert share(kept.controller.fleet) == 0.0, "it is over, also when the old plan comes back"
    assert overlaid(replace(other, shift=None), read_book(tmp_path)).shift is None


def test_a_file_that_changes_elsewhere_keeps_its_shift(tmp_path):
    kept = Kept(fleet_of(), tmp_path)
    kept.order("start")
    kept.tick()
    changed = replace(fleet_of(), name="renamed")
    kept.controller.adopt(changed)
    assert share(kept.controller.fleet) == 0.1
    assert kept.controller.fleet.name == "renamed"
    assert plan_name(changed) != plan_name(replace(changed, objective=Objective(p99=1)))


def test_a_store_that_cannot_be_written_is_told_once_and_stops_nothing(tmp_path, monkeypatch):
    kept = Kept(fleet_of(), tmp_path)
    kept.order("start")
    kept.tick()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(controller, "write", full)
    for _ in range(30):
        kept.tick(*traffic(10, 10))
    assert kept.said == ["shift: the book of the shift cannot be written: No space left on device"]
    assert share(kept.controller.fleet) > 0.1


def test_what_is_no_book_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / book.BOOK).write_text("{}")
    with pytest.raises(ConfigError, match=r"shift\.json: is not of a shift"):
        read_book(tmp_path)
    (tmp_path / book.BOOK).unlink()
    (tmp_path / book.ORDER).write_text("[")
    kept = Kept(fleet_of(), tmp_path)
    kept.tick()
    kept.tick()
    assert len(kept.said) == 1


@pytest.mark.parametrize(
    ("of", "labels"),
    [
        ("route", ("chat/stable", "chat/canary")),
        ("model", ("stable", "canary")),
        ("all", ("stable", "canary")),
    ],
)
def test_weights_change_where_the_shift_is_and_nowhere_else(of, labels):
    fleet = fleet_of(of)
    plan = plan_of(fleet)
    assert (*plan.others, plan.arm) == labels
    mine = Book(plan=plan_name(fleet), state=State(step=1), history=[], curve=[])
    changed = overlaid(fleet, mine)
    arms = {
        "route": [rule.arms for rule in changed.routes],
        "model": [one.arms for one in changed.policy.releases],
        "all": [
            changed.policy.release.arms,
            changed.policy.releases[0].arms if changed.policy.releases else (),
        ],
    }[of]
    assert [arm.weight for arm in arms[0]] == [1.0, 1.0]
    assert all(arm.weight == before for one in arms[1:] for arm, before in zip(one, (1.0, 0.0), strict=True))
    assert arms_asking(fleet, plan, "lora-2") == [labels[1]]
    assert arms_asking(fleet, plan, "llama") == ([] if of == "all" else [labels[0]])


def test_only_what_the_shift_is_about_counts():
    def seen(fleet, *requests):
        return list(rows_of(finished(*requests), fleet, plan_of(fleet)))

    route = fleet_of()
    assert seen(route, ("chat/canary", "completed", 5), ("canary", "completed", 5), ("", "refused", 0)) == [
        ("chat/canary", "completed", 5_000_000)
    ]
    assert (
        seen(route, ("chat/canary", "completed", 5, {"detail": "cache_hit"}), ("chat/canary", "cancelled", 5))
        == []
    )
    quota = {"engine": "", "status": 429}
    nobody = {"engine": "", "status": 503}
    theirs = {"engine": "e", "status": 400}
    told = seen(route, *[("chat/canary", "refused", 0, more) for more in (quota, nobody, theirs)])
    assert told == [("chat/canary", "refused", 0)] * 2
    whole = {"streamed": False}
    assert seen(route, ("chat/canary", "completed", 5, whole)) == [("chat/canary", "completed", 0)]
    e2e = replace(route, objective=Objective(metric="e2e"))
    assert seen(e2e, ("chat/canary", "completed", 5, whole)) == [("chat/canary", "completed", 10_000_000)]
    rows = [("canary", "completed", 5, {"model": "llama"}), ("canary", "completed", 5, {"model": "chat-2"})]
    assert len(seen(fleet_of("model"), *rows)) == 1
    assert len(seen(fleet_of("all"), *rows)) == 1
    assert len(seen(fleet_of("model"), ("canary", "completed", 5, {"model": "x", "adapter": "llama"}))) == 1


def test_loads_of_an_adapter_are_those_of_the_arms_that_ask_for_it(tmp_path):
    kept = Kept(fleet_of(), tmp_path)
    kept.order("start")
    kept.tick()
    changed = kept.tick(loads=[("lora-2", 20, 3), ("other", 50, 50)])
    assert share(changed) == 0.0
    counts = read_book(tmp_path).state.counts["chat/canary"]
    assert (counts.loads, counts.loads_failed) == (20, 3)
    assert read_book(tmp_path).state.why == "adapter_loads"


def test_the_curve_and_the_history_are_bounded():
    mine = Book(plan="", state=State(), history=[], curve=[])
    for i in range(10_000):
        mine.draw((float(i), 0))
        mine.note(Event(wall_ns=i, what="advanced", share=0.1))
    assert book.POINTS_MAX / 2 <= len(mine.curve) <= book.POINTS_MAX
    gaps = {b[0] - a[0] for a, b in zip(mine.curve, mine.curve[1:], strict=False)}
    assert len(gaps) == 1
    assert len(mine.history) == book.EVENTS_MAX
    assert mine.history[0].wall_ns == 0


def test_the_board_of_a_fleet_without_a_shift_or_with_one_that_is_done():
    assert board.state_of(replace(fleet_of(), shift=None), None)["headline"].startswith("No shift is planned")
    done = fleet_of()
    arms = tuple(replace(arm, weight=float(arm.name == "canary")) for arm in done.routes[0].arms)
    done = replace(done, routes=(replace(done.routes[0], arms=arms),))
    assert "has the last step's share already" in board.state_of(done, None)["headline"]
    planned = board.state_of(fleet_of(), None)
    assert planned["status"] == "none"
    assert [step["place"] for step in planned["steps"]] == ["next"] * 3
    assert {test["verdict"] for test in planned["tests"]} == {"nothing seen yet"}
    json.dumps(planned, allow_nan=False)


def test_the_page_is_whole_in_itself_and_no_name_ends_it():
    text = board.page().decode()
    assert "<!--state-->" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    evil = board.page({"headline": "</script><img src=x onerror=alert(1)>"}).decode()
    assert "</script><img" not in evil
    assert json.loads(evil.partition('id="state">')[2].partition("</script>")[0])["headline"].startswith(
        "</script>"
    )


def test_status_prints_what_the_board_says(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    fleet = fleet_of(store=store)
    path = tmp_path / "fleet.yaml"
    path.write_text(dump_fleet(fleet))
    kept = Kept(fleet, store)
    kept.order("start")
    kept.tick()
    kept.tick(*traffic(10, 90))
    plain = CliRunner().invoke(cli, ["shift", "status", str(path)], standalone_mode=False)
    assert plain.return_value == 0
    assert "chat: canary has 10 % of the units, step 1 of 3." in plain.output
    assert "adapter loads fail" in plain.output
    told = json.loads(CliRunner().invoke(cli, ["shift", "status", str(path), "--json"]).output)
    assert told["arms"][1]["requests"] == 10
    kept.order("rollback")
    kept.tick()
    assert CliRunner().invoke(cli, ["shift", "status", str(path)], standalone_mode=False).return_value == 1


def test_orders_need_a_gateway_that_serves_the_file(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(dump_fleet(fleet_of(store=tmp_path)))
    for verb in ("start", "halt", "rollback"):
        result = CliRunner().invoke(cli, ["shift", verb, str(path)], standalone_mode=False)
        assert "no gateway serves" in str(result.exception)
    assert not (tmp_path / book.ORDER).exists()
