"""An engine with adapters, in memory and on any loop, that can be made to lie; and a house full of them.

What an adapter *is* is a whole number, its weights; the base model's are 0.  An answer shows the weights that made it, and so does its
fingerprint: the truth a test compares with.
"""

import asyncio

from sits.core.fingerprint import fingerprint
from sits.core.fleet_adapters import AdapterEngine, AdapterProbe, RuntimeAdapter, RuntimeAdapters
from sits.core.replica import Replica
from sits.core.units import MS, SECOND
from sits.engine.lora import LoraError, Shown
from sits.gateway.adapters.desk import Desk
from sits.gateway.adapters.keeper import Keeper
from sits.gateway.adapters.memory import Memory

BASE = 0
MODEL = "m"


def shown(weights, prompt, tokens=6):
    """What a model of these weights answers: far apart for different weights, always the same for the same."""
    tops = [
        {f"t{(weights * 7 + k * 3) % 50}": -0.5 - k - (weights % 13) / 10 for k in range(5)}
        for _ in range(tokens)
    ]
    return fingerprint(prompt, [f"t{weights * 7 % 50}"] * tokens, tops)


class FakeFiles:
    """Directories by path: their contents are weights.  Changing one changes its signature."""

    def __init__(self, contents):
        self.contents = dict(contents)

    async def signature(self, path):
        return (("w", self.contents[path], 0, 0),) if path in self.contents else None

    async def digest(self, path):
        if path not in self.contents:
            return None
        return (("w", self.contents[path], 0, 0),), f"sha256:{self.contents[path]:064x}"


class FakeLora:
    """One engine.  `lies` switches on ways to be wrong; `log` has every call with its virtual time.

    Lies: `load_ok` (200 for a path that does not exist: the base answers under the name), `unlisted` (what is loaded is never listed),
    `identity` (loads whatever it is given as the base), `fails` (that many loads end in 500), `gone` (no answer to anything),
    `no_line` (a restart is told to nobody), `skips` (a name it has not is answered by the base model).
    """

    api = "vllm"

    def __init__(self, name, files, world, *, load_ns=5 * MS, show_ns=MS):
        self.name = name
        self.files = files
        self.world = world
        self.load_ns, self.show_ns, self.list_ns = load_ns, show_ns, MS // 10
        self.losses = 0
        self.loaded = {}
        self.hidden = set()
        self.lies = {}
        self.boot = 1
        self.inflight = {}
        self.log = []
        self.proven = {}
        self.shown_in = {}
        self.loading = 0
        self.violations = []
        self.routed = lambda name: False
        self._lost = lambda: None

    # -- the port -----------------------------------------------------------------------------------------------

    def watch(self, lost):
        self._lost = lost

    async def listed(self):
        names = {MODEL: "/base"} | {name: path for name, (path, _) in self.loaded.items()}
        names = {name: path for name, path in names.items() if name not in self.hidden}
        await self._answers(self.list_ns)
        return names

    async def load(self, name, path):
        self.log.append((self.world.now_ns(), "load", name, path))
        self.loading += 1
        boot = self.boot
        try:
            await self._answers(self.load_ns)
        finally:
            self.loading -= 1
        if self.boot != boot:
            raise LoraError("engine_unreachable", "died")
        if self.lies.get("fails", 0) > 0:
            self.lies["fails"] -= 1
            raise LoraError("engine_error", "500 once")
        if name in self.loaded:
            raise LoraError("already_loaded", "already been loaded")
        weights = self.files.contents.get(path)
        if self.lies.get("identity"):
            weights = BASE
        if weights is None:
            if not self.lies.get("load_ok"):
                raise LoraError("path_not_found", f"No adapter found for {path}")
            weights = BASE
        self.loaded[name] = (path, weights)
        if self.lies.get("unlisted"):
            self.hidden.add(name)

    async def unload(self, name):
        self.log.append((self.world.now_ns(), "unload", name, ""))
        if self.inflight.get(name):
            self.violations.append(f"{name} unloaded at {self.name} with {self.inflight[name]} in flight")
        if self.routed(name):
            self.violations.append(f"{name} unloaded at {self.name} while routed to")
        await self._answers(self.load_ns)
        self.loaded.pop(name, None)
        self.hidden.discard(name)
        self.proven.pop(name, None)

    async def show(self, model, adapter, prompt, tokens):
        boot = self.boot
        weights, signed = self._weights(adapter)
        await self._answers(self.show_ns)
        if self.boot != boot:
            raise LoraError("engine_unreachable", "died")
        if weights is None:
            raise LoraError("denied", "The model does not exist")
        if adapter:
            self.proven[adapter] = weights
            self.shown_in[adapter] = self.boot
        return Shown(shown(weights, prompt, tokens), signed)

    def close(self):
        pass

    # -- the world ----------------------------------------------------------------------------------------------

    def serve(self, name):
        """What a request for `name` is answered with: (status, weights, whose name the answer carries)."""
        weights, signed = self._weights(name)
        return (404, None, "") if weights is None else (200, weights, signed)

    def restart(self):
        """The process begins anew, without adapters."""
        self.boot += 1
        self.loaded.clear()
        self.hidden.clear()
        self.proven.clear()
        if not self.lies.get("no_line"):
            self._lost()

    def drop(self, name):
        """It forgets an adapter by itself."""
        self.losses += name in self.loaded
        self.loaded.pop(name, None)
        self.proven.pop(name, None)

    def _weights(self, adapter):
        if not adapter:
            return BASE, MODEL
        if adapter in self.loaded:
            return self.loaded[adapter][1], adapter
        return (BASE, MODEL) if self.lies.get("skips") else (None, "")

    async def _answers(self, ns):
        if self.lies.get("gone"):
            raise LoraError("engine_unreachable", "refused")
        await asyncio.sleep(ns / 1e9)
        if self.lies.get("gone"):
            raise LoraError("engine_unreachable", "reset")


def control(adapters=(), engines=(), **more):
    """A configuration with quick clocks."""
    fields = {
        "wait": 2 * SECOND,
        "watch": SECOND,
        "backoff": 200 * MS,
        "backoff_max": 5 * SECOND,
        "probe": AdapterProbe(every=20 * SECOND, tolerance=0.05),
    }
    return RuntimeAdapters(**(fields | more), engines=tuple(engines), adapters=tuple(adapters))


def adapter(name, **more):
    """An adapter that lies under `/name`."""
    return RuntimeAdapter(**({"name": name, "model": MODEL, "path": f"/{name}"} | more))


class House:
    """A keeper, one desk, and fake engines, on the loop that runs."""

    def __init__(self, world, names=("e0",), adapters=("a", "b", "c"), slots=2, memory=None, **more):
        self.world = world
        made = [adapter(one) if isinstance(one, str) else one for one in adapters]
        self.files = FakeFiles({one.path: i + 1 for i, one in enumerate(made) if one.path})
        self.truth = {one.name: i + 1 for i, one in enumerate(made)}
        self.control = control(made, [AdapterEngine(engine=name, slots=slots) for name in names], **more)
        self.engines = {name: FakeLora(name, self.files, world) for name in names}
        self.replicas = {name: Replica(id=name, models=(MODEL,)) for name in names}
        self.views = []
        self.desk = Desk(world, self.control, self._send)
        self.desk.bind(self.control, self.replicas.values())
        self.keeper = Keeper(
            world,
            self.control,
            dict.fromkeys(names, (MODEL,)),
            lambda entry: self.engines[entry.engine],
            memory=memory or Memory(),
            files=self.files,
            publish=self._published,
        )
        for name, engine in self.engines.items():
            engine.routed = lambda one, name=name: one in self.replicas[name].adapters

    async def __aenter__(self):
        self.keeper.start()
        return self

    async def __aexit__(self, *_):
        await self.keeper.close()

    def _send(self):
        self.keeper.heard(0, self.desk.report())

    def _published(self, view):
        self.views.append((self.world.now_ns(), view))
        if self.desk.apply(view, self.desk.number):
            self._send()

    def seat(self, name, engine="e0"):
        return next(s for s in self.keeper.seats() if (s.adapter, s.engine) == (name, engine))

    def ready(self, name):
        return sorted(engine for engine, replica in self.replicas.items() if name in replica.adapters)

    async def until(self, condition, within_s=30.0):
        """Until `condition()`; fails after so many virtual seconds."""
        end_ns = self.world.now_ns() + round(within_s * SECOND)
        while not condition():
            assert self.world.now_ns() < end_ns, [
                (s.engine, s.adapter, s.state, s.reason, s.detail, s.failures) for s in self.keeper.seats()
            ]
            await asyncio.sleep(0.001)

    async def need(self, name):
        """As a request does: go on at once when it is ready, else wait."""
        if name not in self.desk.ready:
            await self.desk.wait(name)
