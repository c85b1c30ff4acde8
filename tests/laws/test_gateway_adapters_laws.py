"""Whatever engines do and in whatever order: what is routed was proven, what answers is what was asked for.

An engine here restarts, forgets, lies, falls silent and is slow, while requests come and go.  Every view the keeper publishes and
every request's answer is held against the truth that only the engine knows.  With SITS_SOAK=1 there are fifty times as many cases.
"""

import asyncio
import collections
import contextlib
import os

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters_fake import House, adapter, shown
from sits.core.errors import CapacityError
from sits.core.fleet_adapters import PROMPT
from sits.core.units import MS, SECOND
from sits.gateway.adapters.desk import Desk
from sits.sim.loop import run_virtual

SOAK = os.environ.get("SITS_SOAK") == "1"
CASES = 3000 if SOAK else 60
pytestmark = pytest.mark.timeout(14_400 if SOAK else 120)

ENGINES = ("e0", "e1")
NAMES = ("a", "b", "c")

engine = st.sampled_from(ENGINES)
name = st.sampled_from(NAMES)
pause = st.sampled_from((0.0, 0.0005, 0.004, 0.012, 0.1, 0.7, 3.0, 25.0))
brief = st.sampled_from((0.0, 0.0005, 0.004, 0.1))
event = st.one_of(
    st.tuples(st.just("ask"), name, st.sampled_from((0.0, 0.002, 0.5, 6.0))),
    st.tuples(st.just("ask"), name, st.sampled_from((0.0, 0.002, 0.5, 6.0))),
    st.tuples(st.just("ask"), name, st.sampled_from((0.0, 0.002, 0.5, 6.0))),
    st.tuples(st.just("restart"), engine, st.none()),
    st.tuples(st.just("drop"), engine, name),
    st.tuples(st.just("fails"), engine, st.integers(1, 3)),
    st.tuples(st.just("lie"), engine, st.sampled_from(("load_ok", "unlisted", "identity", "skips", "gone"))),
    st.tuples(st.just("honest"), engine, st.none()),
    st.tuples(st.just("slow"), engine, st.sampled_from((5 * MS, 500 * MS, 8 * SECOND))),
    st.tuples(st.just("slow_list"), engine, st.sampled_from((MS // 10, 20 * MS, 900 * MS))),
    st.tuples(st.just("files"), name, st.sampled_from(("gone", "changed", "back"))),
    st.tuples(st.just("foreign"), engine, st.booleans()),
)


class Witness:
    """Follows a house and holds the laws."""

    def __init__(self, home):
        self.home = home
        self.answers = 0
        self.refused = 0
        self.wrong = []

    def look(self):
        """At every view: what is routed there was shown to us by that engine in this life of it."""
        home = self.home
        for engine in home.engines.values():
            routed = home.replicas[engine.name].adapters
            for name in routed:
                # It may have dropped or swapped it a moment ago without telling; it cannot have restarted since.
                shown = engine.proven.get(name)
                self.hold(shown in (None, home.truth[name]), f"{name} at {engine.name} showed {shown}")
                lives = engine.shown_in.get(name), engine.boot
                self.hold(lives[0] == lives[1], f"{name} at {engine.name} was shown in life {lives}")
                self.hold(home.seat(name, engine.name).state == "ready", f"{name} at {engine.name} not READY")
            ours = [one for one in engine.loaded if one in home.truth]
            self.hold(len(ours) <= 2, f"{ours} in 2 slots of {engine.name}")
            self.hold(engine.loading <= 1, f"{engine.loading} loads at once at {engine.name}")
        counts = home.keeper.counts
        vanished = sum(n for (where, _, why), n in counts.withdrawn.items() if why == "vanished")
        self.hold(vanished <= sum(one.losses for one in home.engines.values()), "a stale list was believed")
        doing = counts.attempted.total() - counts.succeeded.total() - counts.failed.total()
        self.hold(0 <= doing <= len(home.engines), f"{doing} loads under way")

    def hold(self, truth, otherwise):
        if not truth:
            self.wrong.append(otherwise)

    async def request(self, name, holds_s):
        """One request, from its arrival to its end, as the pipeline does it."""
        home, world, desk = self.home, self.home.world, self.home.desk
        began_ns = world.now_ns()
        tried = []
        try:
            while True:
                if name not in desk.ready:
                    await desk.wait(name)
                    waited_ns = world.now_ns() - began_ns
                    self.hold(
                        waited_ns <= home.control.wait * (1 + len(tried)) + MS, f"waited {waited_ns} ns"
                    )
                able = [e for e in home.ready(name) if e not in tried]
                if not able:
                    raise desk.refusal(name)
                where = able[0]
                desk.take(name, where, world.now_ns())
                engine = home.engines[where]
                status, weights, signed = engine.serve(name)
                if status == 404 or signed != name:
                    desk.deny(name, where, "denied" if status == 404 else "names_base", "")
                    desk.let_go(name, where)
                    tried.append(where)
                    if len(tried) > 1:
                        raise desk.refusal(name)
                    continue
                engine.inflight[name] = engine.inflight.get(name, 0) + 1
                await asyncio.sleep(holds_s)
                engine.inflight[name] -= 1
                desk.let_go(name, where)
                self.answers += 1
                if weights != home.truth[name]:
                    self.wrong.append(f"{name} at {where} was answered by {weights}")
                return
        except CapacityError as error:
            self.hold(error.code == "adapter_not_ready" and error.retry_after_s > 0, repr(error))
            self.refused += 1


def tell(home, kind, what, how):
    """Let something happen."""
    if kind == "restart":
        home.engines[what].restart()
    elif kind == "drop":
        home.engines[what].drop(how)
    elif kind == "fails":
        home.engines[what].lies["fails"] = how
    elif kind == "lie":
        home.engines[what].lies[how] = True
        if how == "gone":
            home.engines[what]._lost()
    elif kind == "honest":
        home.engines[what].lies.clear()
    elif kind == "slow":
        home.engines[what].load_ns = how
    elif kind == "slow_list":
        home.engines[what].list_ns = how
    elif kind == "files":
        if how == "gone":
            home.files.contents.pop(f"/{what}", None)
        else:
            home.files.contents[f"/{what}"] = home.truth[what] if how == "back" else 90 + home.truth[what]
    elif kind == "foreign":
        loaded = home.engines[what].loaded
        if how:
            loaded["x"] = ("/x", 50)
        else:
            loaded.pop("x", None)


@settings(max_examples=CASES)
@given(st.lists(st.tuples(event, pause), max_size=40), st.integers(0, 1))
@example([(("ask", "a", 6.0), 0.7), (("restart", "e0", None), 0.0), (("ask", "a", 0.0), 0.1)], 0)
@example(
    [
        (("lie", "e0", "skips"), 0.0),
        (("ask", "a", 0.0), 0.7),
        (("restart", "e0", None), 0.0),
        (("ask", "a", 0.0), 0.0),
    ],
    0,
)
def test_what_answers_is_what_was_asked_for(events, copies):
    """Laws: no answer by other weights; routed => proven; slots, single flight and waits are bounded; nothing in flight is unloaded."""

    async def main(world):
        # Fingerprints are registered, so that no first proof need be trusted.
        adapters = [adapter(one, fingerprint=str(shown(i + 1, PROMPT))) for i, one in enumerate(NAMES)]
        adapters[0] = msgspec.structs.replace(adapters[0], copies=copies)
        async with House(world, names=ENGINES, adapters=adapters, slots=2) as home:
            witness = Witness(home)
            published = home.keeper._publish

            def publish(view):
                published(view)
                witness.look()

            home.keeper._publish = publish
            tasks = []
            for (kind, what, how), pause_s in events:
                if kind == "ask":
                    tasks.append(asyncio.ensure_future(witness.request(what, how)))
                else:
                    tell(home, kind, what, how)
                await asyncio.sleep(pause_s)
                witness.look()
            await asyncio.gather(*tasks)
            assert not witness.wrong
            assert not [v for one in home.engines.values() for v in one.violations]
            assert home.desk.waiting == 0
            assert all(use.inflight == 0 for use in home.desk.report().uses)
            # Once all is well again, it becomes well again.
            for one in home.engines.values():
                one.lies.clear()
                one.loaded.pop("x", None)
                one.load_ns, one.list_ns = 5 * MS, MS // 10
                one.restart()
            for known in NAMES:
                home.files.contents[f"/{known}"] = home.truth[known]
            await asyncio.sleep(40)
            for known in NAMES:
                with contextlib.suppress(CapacityError):
                    await home.need(known)
                await home.need(known)
                assert home.ready(known)
            assert not witness.wrong

    run_virtual(main)


@settings(max_examples=CASES)
@given(
    st.lists(
        st.tuples(name, st.lists(st.integers(0, 1), min_size=1, max_size=4), brief, st.booleans()),
        max_size=10,
    ),
    st.tuples(brief, brief),
)
@example([("a", [0, 0], 0.0, False), ("b", [1], 0.0, False), ("c", [1], 0.0, False)], (0.0, 0.0))
def test_nothing_is_loaded_that_nobody_waits_for(bursts, late_s):
    """Law: however late two workers hear and tell, an adapter is loaded at most once for each time that somebody found it missing.

    A burst is some requests for one adapter, spread over the workers; the next begins when all of it are answered.
    """

    async def main(world):
        async with House(world, names=("e0",), slots=2) as home:
            workers = [home.desk, Desk(world, home.control, lambda: tell(1))]
            workers[0].send = lambda: tell(0)
            soon = asyncio.get_running_loop().call_later

            def tell(at):
                soon(late_s[at], hear, at, workers[at].report())

            def hear(at, report):
                home.keeper.heard(at, report)
                soon(late_s[at], show, at, home.keeper.view, report.number)

            def show(at, view, heard):
                if workers[at].apply(view, heard):
                    tell(at)

            def publish(view):
                for at in range(len(workers)):
                    soon(late_s[at], show, at, view, 0)

            home.keeper._publish = publish
            missed = collections.Counter()
            for one, spread, pause_s, beat in bursts:
                missing = [at for at in spread if one not in workers[at].ready]
                missed[one] += bool(missing)
                await asyncio.gather(*(workers[at].wait(one) for at in missing))
                for at in spread:
                    workers[at].take(one, "e0", world.now_ns())
                    workers[at].let_go(one, "e0")
                if beat:
                    tell(0)
                    tell(1)
                await asyncio.sleep(pause_s)
            await asyncio.sleep(1)
            loads = collections.Counter(what for _, act, what, _ in home.engines["e0"].log if act == "load")
            assert loads <= missed, (loads, missed)

    run_virtual(main)
