"""Desks and the service between processes: views that come late, in pieces or from another life; files; records."""

import asyncio
import os

import msgspec
import pytest

from adapters_fake import FakeFiles, FakeLora, adapter, control, shown
from sits.core.errors import CapacityError, ConfigError
from sits.core.fleet_adapters import PROMPT, AdapterEngine
from sits.core.replica import Replica
from sits.core.units import SECOND
from sits.gateway.adapters.desk import Desk
from sits.gateway.adapters.files import Files
from sits.gateway.adapters.keeper import Keeper
from sits.gateway.adapters.memory import Memory, Record
from sits.gateway.adapters.service import Service
from sits.gateway.adapters.view import Reply, Report, View, Why
from sits.sim.loop import run_virtual


def on_loop(test):
    def run():
        run_virtual(test)

    run.__name__ = test.__name__
    return run


class Counter:
    def __init__(self, world, **more):
        self.sent = []
        self.desk = Desk(world, control([adapter("a"), adapter("b")], **more), self._send)
        self.replica = Replica(id="e0", models=("m",), adapters=("fixed",))
        self.desk.bind(self.desk.control, [self.replica])

    def _send(self):
        self.sent.append(self.desk.report())

    @property
    def has(self):
        return sorted(self.replica.adapters)


@on_loop
async def test_fixed_adapters_stay_and_proven_ones_join_them(world):
    counter = Counter(world)
    assert counter.has == ["fixed"]
    counter.desk.apply(View(1, 1, {"e0": ("a",), "e9": ("b",)}), 0)
    assert counter.has == ["a", "fixed"]
    assert counter.desk.ready == {"a": 1, "b": 1}
    counter.desk.apply(View(1, 2, {"e0": ()}), 0)
    assert counter.has == ["fixed"]


@on_loop
async def test_a_denied_adapter_stays_out_until_the_keeper_has_heard(world):
    counter = Counter(world)
    desk = counter.desk
    desk.apply(View(1, 1, {"e0": ("a",)}), 0)
    desk.deny("a", "e0", "denied", "no such model")
    assert counter.has == ["fixed"]
    report = counter.sent[-1]
    assert [(d.engine, d.adapter, d.reason) for d in report.denied] == [("e0", "a", "denied")]
    desk.apply(View(1, 2, {"e0": ("a",)}), report.number - 1)  # made before the keeper heard
    assert counter.has == ["fixed"]
    assert [d.adapter for d in desk.report().denied] == ["a"]  # said again: the first may be lost
    desk.apply(View(1, 3, {"e0": ("a",)}), report.number)  # heard, and proven again meanwhile
    assert counter.has == ["a", "fixed"]
    assert not desk.report().denied


@on_loop
async def test_waiting_is_bounded_single_and_can_be_given_up(world):
    counter = Counter(world, wait=2 * SECOND)
    desk = counter.desk
    waits = [asyncio.ensure_future(_awaited(desk.wait("a"))) for _ in range(5)]
    await asyncio.sleep(0.1)
    assert len(counter.sent) == 1
    assert counter.sent[0].wanted == ("a",)
    waits[0].cancel()
    await asyncio.sleep(0)
    assert desk.waiting == 4
    desk.apply(
        View(1, 1, {"e0": ("b",)}, why={"a": Why("not_loaded", "e0: it is not loaded", 0, hopeless=False)}), 1
    )
    assert desk.waiting == 4
    began_ns = world.now_ns()
    for one in waits[1:]:
        with pytest.raises(CapacityError, match="it is not loaded"):
            await one
    assert world.now_ns() - began_ns <= 2 * SECOND
    assert desk.waiting == 0


async def _awaited(waiting):
    await waiting


@on_loop
async def test_what_was_waited_for_and_served_is_not_told_as_asked_for_later(world):
    counter = Counter(world, wait=2 * SECOND)
    desk = counter.desk
    waits = [asyncio.ensure_future(_awaited(desk.wait("a"))) for _ in range(3)]
    await asyncio.sleep(0)
    assert counter.sent[0].wanted == ("a",)
    desk.apply(View(1, 1, {"e0": ("a",)}), 1)
    await asyncio.gather(*waits)
    desk.apply(View(1, 2, {}, {"e0": ("a",)}), 2)  # it leaves for another: nobody here has asked for it since
    assert desk.report().wanted == ()


@on_loop
async def test_waiting_in_vain_ends_at_once(world):
    counter = Counter(world, wait=2 * SECOND)
    desk = counter.desk
    late_ns = world.now_ns() + 9 * SECOND
    why = {"a": Why("path_not_found", "e0: nothing there", late_ns, hopeless=True)}
    desk.apply(View(1, 1, {}, why=why), 0)
    with pytest.raises(CapacityError) as raised:
        desk.wait("a")
    assert raised.value.retry_after_s == pytest.approx(9.0)
    assert counter.sent[-1].wanted == ("a",)
    waiting = asyncio.ensure_future(_awaited(desk.wait("b")))
    await asyncio.sleep(0)
    desk.apply(
        View(1, 2, {}, why={"b": Why("path_not_found", "e0: nothing there", late_ns, hopeless=True)}), 0
    )
    with pytest.raises(CapacityError, match="nothing there"):
        await waiting


@on_loop
async def test_replicas_of_the_last_generation_are_kept_up_to_date(world):
    counter = Counter(world)
    desk, old = counter.desk, counter.replica
    new = Replica(id="e0", models=("m",))
    desk.bind(desk.control, [new])
    desk.apply(View(1, 1, {"e0": ("a",)}), 0)
    assert (sorted(old.adapters), sorted(new.adapters)) == (["a", "fixed"], ["a"])
    newest = Replica(id="e0", models=("m",))
    desk.bind(desk.control, [newest])
    desk.apply(View(1, 2, {"e0": ()}), 0)
    assert sorted(old.adapters) == ["a", "fixed"]  # two generations ago: nobody routes by it
    assert (sorted(new.adapters), sorted(newest.adapters)) == ([], [])


class Office:
    """A service and desks of two workers, with messages as they travel: encoded, and only when let through."""

    def __init__(self, world):
        self.world = world
        self.control = control([adapter("a"), adapter("b")], [AdapterEngine(engine="e0", slots=1)])
        files = FakeFiles({"/a": 1, "/b": 2})
        self.engine = FakeLora("e0", files, world)
        self.service = object.__new__(Service)
        self.service._heard = {}
        self.service._send = self._reply
        self.service.keeper = Keeper(
            world,
            self.control,
            {"e0": ("m",)},
            lambda _: self.engine,
            memory=Memory(),
            files=files,
            publish=self.service._published,
        )
        self.replicas = [Replica(id="e0", models=("m",)) for _ in range(2)]
        self.desks = [Desk(world, self.control, lambda i=i: self._report(i)) for i in range(2)]
        for desk, replica in zip(self.desks, self.replicas, strict=True):
            desk.bind(self.control, [replica])
        self.held = set()

    def _report(self, worker):
        body = msgspec.msgpack.decode(msgspec.msgpack.encode(self.desks[worker].report()))
        self.service.hear(worker, body)

    def _reply(self, worker, reply):
        if worker not in self.held:
            told = msgspec.convert(msgspec.msgpack.decode(msgspec.msgpack.encode(reply)), Reply)
            if self.desks[worker].apply(told.view, told.heard):
                asyncio.get_running_loop().call_soon(self._report, worker)


@on_loop
async def test_nothing_is_unloaded_before_every_worker_has_let_go(world):
    office = Office(world)
    office.service.start()
    for worker in range(2):
        office._report(worker)
    await office.desks[0].wait("a")
    office.desks[1].take(
        "a", "e0", world.now_ns()
    )  # worker 1 has it in flight, and the keeper does not know yet
    office.held.add(1)  # and hears nothing for a while
    waiting = asyncio.ensure_future(_awaited(office.desks[0].wait("b")))
    await asyncio.sleep(1)
    assert "a" in office.engine.loaded
    assert "a" not in office.replicas[0].adapters
    office.held.clear()
    office._report(1)  # its beat: it goes by the new view now, with one still in flight
    await asyncio.sleep(0.1)
    assert "a" not in office.replicas[1].adapters
    assert "a" in office.engine.loaded
    office.desks[1].let_go("a", "e0")
    await waiting
    assert list(office.engine.loaded) == ["b"]
    await office.service.close()


@on_loop
async def test_a_worker_that_died_holds_nothing(world):
    office = Office(world)
    office.service.start()
    for worker in range(2):
        office._report(worker)
    await office.desks[0].wait("a")
    office.desks[1].take("a", "e0", world.now_ns())
    office._report(1)
    waiting = asyncio.ensure_future(_awaited(office.desks[0].wait("b")))
    await asyncio.sleep(0.1)
    assert "a" in office.engine.loaded
    office.service.lost(1)
    await waiting
    await office.service.close()


@on_loop
async def test_views_of_another_keepers_life_are_no_acknowledgement(world):
    office = Office(world)
    office.service.start()
    keeper = office.service.keeper
    office._report(0)
    await office.desks[0].wait("a")
    keeper.heard(7, Report(1, life=keeper.view.life + 1, generation=10**6))
    keeper.want("b")
    await asyncio.sleep(0.5)
    assert "a" in office.engine.loaded
    await office.service.close()


def test_the_digest_is_of_names_and_contents(tmp_path):
    async def main():
        files = Files()
        assert await files.digest(str(tmp_path / "none")) is None
        one, two = tmp_path / "one", tmp_path / "two"
        for root in (one, two):
            (root / "deep").mkdir(parents=True)
            (root / "x.bin").write_bytes(b"weights")
            (root / "deep" / "y").write_bytes(b"")
        first = await files.digest(str(one))
        assert first[1] == (await files.digest(str(two)))[1]
        assert await files.digest(str(one)) is first  # remembered by the signature
        (two / "x.bin").write_bytes(b"Weights")
        assert (await files.digest(str(two)))[1] != first[1]
        before = await files.signature(str(one))
        os.utime(one / "x.bin", ns=(1, 1))
        assert await files.signature(str(one)) != before
        assert (await files.digest(str(one)))[1] == first[1]
        (two / "x.bin").rename(two / "z.bin")
        (two / "z.bin").write_bytes(b"weights")
        assert (await files.digest(str(two)))[1] != first[1]
        (tmp_path / "link").symlink_to(one)
        assert (await files.digest(str(tmp_path / "link")))[1] == first[1]

    asyncio.run(main())


def test_records_bind_a_version_and_bases_are_kept_apart(tmp_path):
    path = tmp_path / "adapters.json"
    memory = Memory(path)
    one = adapter("a")
    print_of = str(shown(1, PROMPT))
    memory.keep(one, Record(path="/a", digest="sha256:1", fingerprint=print_of, engine="e0", wall_ns=1))
    again = Memory(path)
    assert str(again.expected(one, "sha256:1")) == print_of
    assert str(again.expected(one, "")) == print_of  # files that we do not see cannot be another version
    assert again.expected(one, "sha256:2") is None
    assert again.expected(adapter("a", path="/b"), "sha256:1") is None
    told = adapter("a", fingerprint=str(shown(5, PROMPT)))
    assert str(again.expected(told, "sha256:2")) == told.fingerprint
    for weights in (0, 0, 7):
        again.keep_base("m", shown(weights, PROMPT), 0.05)
    assert len(Memory(path).bases("m", shown(0, PROMPT).probe)) == 2
    assert Memory(path).bases("m", "00000000") == []
    path.write_text("{")
    with pytest.raises(ConfigError, match="delete it"):
        Memory(path)
