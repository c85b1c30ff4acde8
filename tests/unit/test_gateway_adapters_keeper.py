"""The life of runtime adapters: loaded once, proven before anything is routed, watched, evicted, taken back."""

import asyncio
import itertools

import pytest

from adapters_fake import BASE, House, adapter, control
from sits.core.errors import CapacityError
from sits.core.fleet_adapters import AdapterEngine
from sits.core.units import MS, SECOND
from sits.gateway.adapters.memory import Memory
from sits.gateway.adapters.view import Report
from sits.policy.adapters import LEAVING
from sits.sim.loop import run_virtual


def lived(life, **house):
    """Run `life(house)` in a house on virtual time."""

    async def main(world):
        async with House(world, **house) as home:
            found = await life(home)
            assert not [v for e in home.engines.values() for v in e.violations]
            return found

    return run_virtual(main)


def test_an_adapter_asked_for_is_loaded_proven_and_then_routed():
    async def life(home):
        assert home.ready("a") == []
        await home.need("a")
        assert home.ready("a") == ["e0"]
        engine = home.engines["e0"]
        assert engine.proven == {"a": home.truth["a"]}
        assert [entry[1:3] for entry in engine.log] == [("load", "a")]
        assert home.keeper.counts.success_share() == 1.0

    lived(life)


def test_concurrent_demand_loads_it_once_at_one_engine():
    async def life(home):
        await asyncio.gather(*(home.need("a") for _ in range(200)))
        assert sum(len(e.log) for e in home.engines.values()) == 1
        assert len(home.ready("a")) == 1

    lived(life, names=("e0", "e1", "e2"))


def test_a_200_for_a_path_that_does_not_exist_is_found_out_by_the_proof():
    async def life(home):
        home.engines["e0"].lies["load_ok"] = True
        del home.files.contents["/a"]
        with pytest.raises(CapacityError) as raised:
            await home.need("a")
        assert raised.value.code == "adapter_not_ready"
        assert "answers as the base model does" in str(raised.value)
        assert home.ready("a") == []
        await home.until(lambda: "a" not in home.engines["e0"].loaded)
        failed = home.keeper.counts.failed
        assert {key[2] for key in failed} == {"answers_as_base"}
        assert all("a" not in names for _, view in home.views for names in view.ready.values())

    lived(life)


def test_an_adapter_none_of_whose_weights_fit_is_never_routed():
    async def life(home):
        home.engines["e0"].lies["identity"] = True
        with pytest.raises(CapacityError, match="answers as the base model"):
            await home.need("a")
        assert all("a" not in names for _, view in home.views for names in view.ready.values())

    lived(life)


def test_what_is_taken_and_never_listed_is_not_routed():
    async def life(home):
        home.engines["e0"].lies["unlisted"] = True
        with pytest.raises(CapacityError, match="does not list it"):
            await home.need("a")

    lived(life)


def test_a_500_once_is_tried_again_within_the_wait():
    async def life(home):
        home.engines["e0"].lies["fails"] = 1
        await home.need("a")
        assert home.ready("a") == ["e0"]
        counts = home.keeper.counts
        assert (counts.attempted.total(), counts.succeeded.total()) == (2, 1)
        assert dict(counts.failed) == {("e0", "a", "engine_error"): 1}
        assert counts.success_share() == 0.5

    lived(life)


def test_failures_back_off_and_are_told_with_the_time_of_the_next_attempt():
    async def life(home):
        del home.files.contents["/a"]
        with pytest.raises(CapacityError) as raised:
            await home.need("a")
        assert "finds no adapter at its path" in str(raised.value)
        times = [entry[0] for entry in home.engines["e0"].log]
        pauses = [b - a for a, b in itertools.pairwise(times)]
        assert pauses == sorted(pauses)
        seen = len(home.engines["e0"].log)
        with pytest.raises(CapacityError) as again:
            await home.need("a")
        assert again.value.retry_after_s >= 2.0
        assert len(home.engines["e0"].log) - seen <= 2

    lived(life)


def test_a_failing_engine_does_not_keep_another_from_loading_it():
    async def life(home):
        home.engines["e0"].lies["fails"] = 99
        await home.need("a")
        assert home.ready("a") == ["e1"]

    lived(life, names=("e0", "e1"))


def test_already_loaded_by_somebody_else_is_proven_and_used():
    async def life(home):
        home.engines["e0"].loaded["a"] = ("/a", home.truth["a"])
        await home.until(lambda: home.ready("a") == ["e0"])
        assert home.engines["e0"].log == []

    lived(life)


def test_loaded_under_our_name_from_another_path_is_replaced():
    async def life(home):
        home.engines["e0"].loaded["a"] = ("/elsewhere", 77)
        await home.need("a")
        assert home.engines["e0"].loaded["a"] == ("/a", home.truth["a"])

    lived(life)


def test_the_lru_idle_adapter_makes_room():
    async def life(home):
        for name in ("a", "b", "a"):
            await home.need(name)
            home.desk.take(name, "e0", home.world.now_ns())
            home.desk.let_go(name, "e0")
            await asyncio.sleep(0.01)
        await home.need("c")
        assert sorted(home.engines["e0"].loaded) == ["a", "c"]
        assert dict(home.keeper.counts.evicted) == {("e0", "b"): 1}

    lived(life)


def test_what_was_loaded_just_now_is_not_evicted_because_its_use_is_not_told_yet():
    async def life(home):
        # Of seats never used "a" would go first.  The one whose requests use "a" tells of it a moment later.
        await home.need("z")
        home.desk.take("z", "e0", home.world.now_ns())
        home.desk.let_go("z", "e0")
        await asyncio.sleep(0.01)
        home.keeper.heard(1, Report(1, home.keeper.view.life, 0, wanted=("a",)))
        await home.until(lambda: home.ready("a"))
        home.keeper.heard(1, Report(2, home.keeper.view.life, home.keeper.view.generation))
        waiting = asyncio.ensure_future(home.need("b"))
        await home.until(lambda: home.seat("z").state == LEAVING or home.seat("a").state == LEAVING)
        home.keeper.heard(1, Report(3, home.keeper.view.life, home.keeper.view.generation))
        await waiting
        assert sorted(home.engines["e0"].loaded) == ["a", "b"]

    lived(life, adapters=("a", "b", "z"))


def test_what_is_in_flight_is_never_evicted_and_the_newcomer_is_told_why():
    async def life(home):
        engine = home.engines["e0"]
        for name in ("a", "b"):
            await home.need(name)
            home.desk.take(name, "e0", home.world.now_ns())
            engine.inflight[name] = 1
        with pytest.raises(CapacityError, match="all slots are taken"):
            await home.need("c")
        assert sorted(engine.loaded) == ["a", "b"]
        waiting = asyncio.ensure_future(home.need("c"))
        await asyncio.sleep(0.1)
        engine.inflight["a"] = 0
        home.desk.let_go("a", "e0")
        await waiting
        assert sorted(engine.loaded) == ["b", "c"]

    lived(life)


def test_copies_are_kept_and_not_evicted():
    async def life(home):
        await home.until(lambda: home.ready("a") == ["e0", "e1"])
        for name in ("b", "c", "d"):
            await home.need(name)
        assert home.ready("a") == ["e0", "e1"]

    lived(life, names=("e0", "e1"), adapters=(adapter("a", copies=2), "b", "c", "d"), slots=2)

    async def crowded(home):
        await home.until(lambda: home.ready("a") == ["e0", "e1"])
        with pytest.raises(CapacityError, match="all slots are taken"):
            await home.need("b")
        assert home.ready("a") == ["e0", "e1"]

    lived(crowded, names=("e0", "e1"), adapters=(adapter("a", copies=2), "b"), slots=1)


def test_a_restart_makes_everything_unknown_at_once_and_brings_it_back():
    async def life(home):
        await home.need("a")
        home.engines["e0"].restart()
        assert home.ready("a") == []
        assert home.seat("a").state == "unknown"
        await home.need("a")
        assert home.engines["e0"].proven == {"a": home.truth["a"]}
        assert home.keeper.counts.withdrawn["e0", "a", "engine_restarted"] == 1

    lived(life)


def test_a_restart_in_the_middle_of_a_load_or_a_proof_proves_nothing():
    async def life(home):
        engine = home.engines["e0"]
        for pause_s in (0.0002, 0.003, 0.0055, 0.0065, 0.0075, 0.0085):
            waiting = asyncio.ensure_future(home.need("a"))
            await asyncio.sleep(pause_s)
            engine.restart()
            await waiting
            await home.need("a")
            assert engine.proven == {"a": home.truth["a"]}
            counts = home.keeper.counts
            assert counts.attempted.total() == counts.succeeded.total() + counts.failed.total()
            engine.restart()

    lived(life)


def test_an_engine_that_cannot_be_asked_is_unknown_not_empty():
    async def life(home):
        await home.need("a")
        home.engines["e0"].lies["gone"] = True
        home.engines["e0"]._lost()
        assert home.ready("a") == []
        await asyncio.sleep(5)
        assert home.seat("a").state == "unknown"
        assert [entry[1] for entry in home.engines["e0"].log] == ["load"]
        with pytest.raises(CapacityError, match="cannot be reached"):
            await home.need("a")
        home.engines["e0"].lies["gone"] = False
        await home.need("a")
        assert [entry[1] for entry in home.engines["e0"].log] == ["load"]  # it still had it: proven again

    lived(life)


def test_an_adapter_that_vanishes_is_noticed_by_the_watch_and_loaded_again():
    async def life(home):
        await home.need("a")
        home.engines["e0"].drop("a")
        await home.until(lambda: home.ready("a") == [], within_s=1.5)
        await home.until(lambda: home.ready("a") == ["e0"])
        assert home.keeper.counts.withdrawn["e0", "a", "vanished"] == 1

    lived(life)


def test_a_request_that_is_denied_withdraws_it_in_the_same_moment():
    async def life(home):
        await home.need("a")
        home.engines["e0"].drop("a")
        assert home.engines["e0"].serve("a")[0] == 404
        home.desk.deny("a", "e0", "denied", "The model `a` does not exist.")
        assert home.ready("a") == []
        await home.need("a")
        assert home.engines["e0"].serve("a") == (200, home.truth["a"], "a")
        assert home.keeper.counts.withdrawn["e0", "a", "denied"] == 1

    lived(life)


def test_weights_that_change_while_loaded_are_noticed_and_the_path_is_burnt():
    async def life(home):
        await home.need("a")
        home.files.contents["/a"] = 99
        await home.until(lambda: home.ready("a") == [], within_s=1.5)
        with pytest.raises(CapacityError, match="changed under the same path"):
            await home.need("a")
        home.files.contents["/a"] = home.truth["a"]
        await asyncio.sleep(5)
        await home.need("a")

    lived(life)


def test_files_that_go_away_withdraw_it_before_the_engine_stumbles_over_them():
    async def life(home):
        await home.need("a")
        kept = home.files.contents.pop("/a")
        await home.until(lambda: home.ready("a") == [], within_s=1.5)
        assert home.seat("a").reason == "files_missing"
        home.files.contents["/a"] = kept
        await home.until(lambda: home.ready("a") == ["e0"], within_s=10)

    lived(life)


def test_a_digest_of_the_configuration_must_hold():
    async def life(home):
        with pytest.raises(CapacityError, match="another digest"):
            await home.need("a")
        assert home.engines["e0"].log == []

    lived(life, adapters=(adapter("a", digest="sha256:" + "0" * 64),))


def test_the_first_proof_is_recorded_and_binds_every_later_one():
    async def life(home):
        await home.need("a")
        home.engines["e1"].lies["identity"] = False
        home.engines["e1"].files = type(home.files)({"/a": 55})  # other weights on the other machine's disk
        home.engines["e0"].lies["gone"] = True
        home.engines["e0"]._lost()
        with pytest.raises(CapacityError, match="unlike its registered fingerprint"):
            await home.need("a")
        assert home.ready("a") == []

    lived(life, names=("e0", "e1"))


def test_what_is_ready_is_asked_again_and_withdrawn_when_it_answers_as_another():
    async def life(home):
        await home.need("a")
        home.engines["e0"].loaded["a"] = ("/a", BASE)
        await home.until(lambda: home.ready("a") == [], within_s=25)
        assert home.keeper.counts.withdrawn["e0", "a", "answers_as_base"] == 1
        await home.until(lambda: home.ready("a") == ["e0"])
        assert home.engines["e0"].loaded["a"] == ("/a", home.truth["a"])

    lived(life)


def test_an_adapter_the_engine_brings_itself_is_only_proven():
    async def life(home):
        engine = home.engines["e0"]
        with pytest.raises(CapacityError):
            await home.need("s")
        engine.loaded["s"] = ("/its/own", 7)
        await home.until(lambda: home.ready("s") == ["e0"], within_s=3)
        assert engine.log == []

    lived(life, adapters=(adapter("s", path=""),))


def test_wait_zero_refuses_at_once_and_loads_all_the_same():
    async def life(home):
        before = home.world.now_ns()
        with pytest.raises(CapacityError) as raised:
            await home.need("a")
        assert home.world.now_ns() == before
        assert raised.value.code == "adapter_not_ready"
        await home.until(lambda: home.ready("a") == ["e0"], within_s=1)

    lived(life, wait=0)


def test_a_slow_load_does_not_hide_a_restart_or_a_vanished_neighbour():
    async def life(home):
        engine = home.engines["e0"]
        await home.need("a")
        engine.load_ns = 30 * SECOND
        waiting = asyncio.ensure_future(home.need("b"))
        await asyncio.sleep(0.5)
        engine.drop("a")
        await home.until(lambda: home.ready("a") == [], within_s=1.6)
        with pytest.raises(CapacityError, match="e0: "):
            await waiting
        await home.until(lambda: home.ready("b") == ["e0"], within_s=40)

    lived(life)


def test_foreign_adapters_take_slots_and_are_left_alone():
    async def life(home):
        home.engines["e0"].loaded |= {"x": ("/x", 50), "y": ("/y", 51)}
        with pytest.raises(CapacityError, match="all slots are taken"):
            await home.need("a")
        assert home.engines["e0"].log == []

    lived(life)


def test_a_new_configuration_keeps_what_is_the_same_and_replaces_what_is_not():
    async def life(home):
        await home.need("a")
        await home.need("b")
        home.files.contents["/b2"] = 42
        changed = control([adapter("a"), adapter("b", path="/b2")], [AdapterEngine(engine="e0", slots=2)])
        home.keeper.reconfigure(changed, {"e0": ("m",)})
        home.desk.bind(changed, home.replicas.values())
        assert home.ready("a") == ["e0"]
        assert home.ready("b") == []
        await home.need("b")
        assert home.engines["e0"].loaded["b"] == ("/b2", 42)
        assert [entry[1:3] for entry in home.engines["e0"].log].count(("load", "a")) == 1

    lived(life)


def test_records_outlive_the_keeper(tmp_path):
    async def first(home):
        await home.need("a")
        return home.keeper.memory.record_of(adapter("a"), "")

    path = tmp_path / "adapters.json"
    record = lived(first, memory=Memory(path))
    assert record.digest.startswith("sha256:")
    assert record.fingerprint.startswith("fp1:")

    async def second(home):
        home.files.contents["/a"] = 9  # another version under the same path: proven and recorded anew
        await home.need("a")
        return home.keeper.memory.record_of(adapter("a"), "")

    later = lived(second, memory=Memory(path))
    assert later.digest != record.digest

    async def third(home):
        home.files.contents.pop("/a")
        home.engines["e0"].files = type(home.files)({"/a": 10})  # the engine sees a disk that we do not
        with pytest.raises(CapacityError, match="unlike its registered"):
            await home.need("a")

    lived(third, memory=Memory(path))


def test_a_list_that_was_under_way_does_not_bring_back_what_was_unloaded():
    async def life(home):
        engine = home.engines["e0"]
        for name in ("a", "b"):
            await home.need(name)
        engine.list_ns, engine.load_ns = 300 * MS, 250 * MS
        for _ in range(10):  # somewhere in these seconds a list is under way while one is unloaded
            for name in ("c", "a", "b"):
                await home.need(name)
                await asyncio.sleep(0.11)
        assert not [key for key in home.keeper.counts.withdrawn if key[2] != "evicted"]
        assert not home.keeper.counts.failed
        assert [entry[1] for entry in engine.log].count("unload") == home.keeper.counts.evicted.total()

    lived(life)


def test_a_record_that_cannot_be_written_is_told_and_the_adapter_serves(tmp_path):
    file = tmp_path / "file"
    file.write_text("")

    async def life(home):
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        await home.need("a")
        await asyncio.sleep(1)
        assert told == ["cannot record the proof of adapter 'a'"]
        assert home.keeper.counts.success_share() == 1.0

    lived(life, memory=Memory(file / "adapters.json"))
