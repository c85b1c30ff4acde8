"""What the keeper and workers look at besides engines: GPUs and the machine, and the connections to engines."""

import asyncio
from types import SimpleNamespace

import pytest

from sits.app.up.senses import ASK_AGAIN_NS, Senses
from sits.app.up.wires import TICKS, WireWatch
from sits.core.config import load_fleet
from sits.core.errors import ConfigErrors, EngineError
from sits.core.fleet_signals import Signals
from sits.core.units import Ns
from sits.engine.openai import OpenAIEngine
from sits.telemetry.gpu.nvml import NoDeviceError
from sits.telemetry.gpu.report import Device, Report
from sits.telemetry.host.retransmits import ProbeRefusedError
from sits.world import RealWorld

SECOND = 1_000_000_000


class Clock:
    """A world with only the time."""

    def __init__(self):
        self.t = 500 * SECOND

    def now_ns(self):
        return self.t


class Gpus:
    """An NVML that has GPUs while `there`."""

    def __init__(self):
        self.there, self.opened = False, 0

    def open(self, _world):
        self.opened += 1
        if not self.there:
            raise NoDeviceError("NVML: none")
        return self

    def look(self):
        if not self.there:
            raise NoDeviceError("NVML: gone")
        return Report("NVML", (Device("GPU0", {"gpu_busy_share": 0.5}), Device("GPU1", {})))

    def close(self):
        self.there = False


def gpus_of(senses):
    return [(source, dict(values)) for source, values in senses.look(Signals(host="off"))]


def test_a_machine_without_gpu_is_asked_again_a_minute_later_and_nothing_is_said():
    clock, gpus, said = Clock(), Gpus(), []
    senses = Senses(clock, lambda *_: None, lambda *line, **_: said.append(line), gpus.open)
    assert (gpus_of(senses), gpus_of(senses), gpus.opened) == ([], [], 1)
    clock.t += ASK_AGAIN_NS
    gpus.there = True
    assert gpus_of(senses) == [("GPU0", {"gpu_busy_share": 0.5})]
    assert said == []
    gpus.there = False
    assert gpus_of(senses) == []
    assert said == [("GPUs are not seen any more: NVML: gone", "warning")]
    clock.t += ASK_AGAIN_NS
    assert gpus_of(senses) == []
    assert len(said) == 1
    senses.stop()


def test_the_machine_and_the_gpus_are_told_as_often_as_it_says_and_off_is_off():
    async def run():
        found, told = [], asyncio.Event()

        def hear(source, now_ns, values):
            found.append((source, now_ns, dict(values)))
            if source == "GPU0":
                told.set()

        gpus = Gpus()
        gpus.there = True
        senses = Senses(RealWorld(0), hear, lambda *_, **__: None, gpus.open)
        senses.adopt(Signals(every=Ns(3600 * SECOND)), {})
        await told.wait()
        assert list(dict.fromkeys(source for source, _, _ in found)) == ["host", "GPU0"]
        assert found[0][2]["host_memory_total_bytes"] > 0
        senses.adopt(Signals(gpu="off", host="off"), {})
        await asyncio.sleep(0)
        await senses._task
        senses.stop()

    asyncio.run(run())


def test_a_look_that_fails_as_none_did_before_is_told_once_and_the_next_are_taken():
    async def run():
        told, said = asyncio.Event(), []
        senses = Senses(RealWorld(0), lambda *_: told.set(), lambda *line, **_: said.append(line))
        looks = iter((1.0, 0.0, 0.0, 2.0, *[1.0] * 1000))

        def look(_):
            return [("host", {"ratio": 1.0 / next(looks)})]

        senses.look = look
        senses.adopt(Signals(every=Ns(1_000_000)), {})
        await told.wait()
        told.clear()
        await told.wait()
        senses.stop()
        assert said == [
            ("a look at the machine failed: ZeroDivisionError: float division by zero", "warning")
        ]

    asyncio.run(run())


class Probe:
    """A probe in the kernel that saw some segments sent again."""

    def since(self):
        return {("127.0.0.1", 8000): 3, ("192.0.2.9", 1): 4}

    def close(self):
        """Nothing to close."""


def refuse():
    raise ProbeRefusedError("counting retransmits in the kernel needs something")


def test_segments_sent_again_are_told_of_all_and_of_each_engine(monkeypatch):
    monkeypatch.setattr("sits.app.up.senses.Retransmits", Probe)
    only = Signals(gpu="off", host="off", retransmits="auto")

    async def run():
        senses = Senses(RealWorld(0), lambda *_: None, lambda *_, **__: None)
        senses.adopt(
            only, {"e": ("127.0.0.1", 8000), "f": ("127.0.0.1", 8001), "gone": ("no.such.host.invalid", 1)}
        )
        seen = senses.look(only)
        senses.stop()
        return seen

    assert asyncio.run(run()) == [
        ("host", {"host_tcp_retransmits": 7.0}),
        ("e", {"tcp_kernel_retransmits": 3.0}),
        ("f", {"tcp_kernel_retransmits": 0.0}),
    ]


def test_a_kernel_that_refuses_is_told_once(monkeypatch):
    monkeypatch.setattr("sits.app.up.senses.Retransmits", refuse)
    said = []
    senses = Senses(Clock(), lambda *_: None, lambda text, *_, **__: said.append(text))
    only = Signals(gpu="off", host="off", retransmits="auto")
    assert (senses.look(only), senses.look(only)) == ([], [])
    assert said == [
        "counting retransmits in the kernel needs something; retransmits are counted for sampled connections only"
    ]
    senses.stop()


def test_each_engine_has_its_turn_once_in_ten_ticks_and_costs_its_requests_nothing():
    async def run():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        world = RealWorld(0)
        engines = {name: OpenAIEngine(name, f"http://127.0.0.1:{port}", world=world) for name in ("a", "b")}
        for engine in engines.values():
            connection = await engine.connected()
            engine.put_back(connection)
            assert engine.connections == (connection,)
            assert connection.descriptor > 0
        rows = []
        watch = WireWatch(world)
        for _ in range(2 * TICKS):
            watch.tick(
                engines | {"pretended": SimpleNamespace()}, lambda table, row: rows.append((table, row))
            )
        times = [(row[1], row[2]) for table, row in rows if table == "signals"]
        assert times.count(("a", "tcp_rtt_ms")) == times.count(("b", "tcp_rtt_ms")) == 2
        assert {source for source, _ in times} == {"a", "b"}
        for engine in engines.values():
            await engine.close()
        await asyncio.sleep(0)
        assert connection.descriptor == -1
        before = len(rows)
        for _ in range(TICKS):
            watch.tick(engines, lambda table, row: rows.append((table, row)))
        assert len(rows) == before, "no connection, nothing to tell"
        server.close()

    asyncio.run(run())


def test_gpus_of_other_machines_come_from_their_exporters_and_one_that_is_away_is_told_once(monkeypatch):
    pages = {
        "http://gpu7:9400/metrics": 'DCGM_FI_DEV_GPU_UTIL{gpu="3"} 97\nDCGM_FI_DEV_FB_USED{gpu="4"} NaN\n'
    }

    def fetch(url, timeout_s):
        if url not in pages:
            raise EngineError(f"{url} does not answer")
        return pages[url]

    monkeypatch.setattr("sits.app.up.senses.fetch", fetch)
    said, found = [], []
    only = Signals(
        gpu="off",
        host="off",
        every=Ns(3600 * SECOND),
        exporters={"rack7": "http://gpu7:9400/metrics", "gone": "http://x/"},
    )

    async def run():
        told = asyncio.Event()

        def hear(*seen):
            found.append(seen)
            told.set()

        senses = Senses(Clock(), hear, lambda text, *_, **__: said.append(text))
        senses.adopt(only, {})
        await told.wait()
        assert senses.ask("gone", "http://x/") == []
        senses.stop()

    asyncio.run(run())
    assert found == [("rack7/GPU3", 500 * SECOND, {"gpu_busy_share": 0.97})]
    assert said == ["exporter gone: http://x/ does not answer"]


FLEET = """
name: f
engines: [{{kind: openai, name: e, url: "http://127.0.0.1:9", models: [m]}}]
telemetry: {{signals: {{{said}}}}}
"""


def test_the_section_is_read_and_what_cannot_be_is_refused():
    assert load_fleet(FLEET.format(said="")).telemetry.signals == Signals()
    told = load_fleet(FLEET.format(said="gpu: off, every: 2s")).telemetry.signals
    assert (told.gpu, told.every) == ("off", 2 * SECOND)
    with pytest.raises(ConfigErrors, match="no period"):
        load_fleet(FLEET.format(said="every: 10ms"))
    exporters = load_fleet(
        FLEET.format(said="exporters: {a: 'http://n1:9400/metrics'}")
    ).telemetry.signals.exporters
    assert exporters == {"a": "http://n1:9400/metrics"}
    for bad in ("{a: n1}", "{'a/b': 'http://n1/'}", "{a: 'http://n1:x/'}"):
        with pytest.raises(ConfigErrors, match="exporters"):
            load_fleet(FLEET.format(said=f"exporters: {bad}"))
    with pytest.raises(ConfigErrors, match="gpus"):
        load_fleet(FLEET.format(said="gpus: off"))
