"""Adapters looked at, loaded and unloaded by hand: straight at the engines of a fleet, with the tests a gateway applies.

A gateway that runs notices within its `watch`: what was loaded is proven there and used, what was unloaded is out of its routes
(and loaded again, if it keeps copies of it).

Rules: nothing is recorded; what a gateway has recorded in its store is taken into account.

Deliberately absent: printing (app.adapters).
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from sits.core.errors import CallerError, UnknownError
from sits.core.fingerprint import Fingerprint, distance
from sits.core.fleet import Fleet
from sits.core.fleet_adapters import AdapterEngine, RuntimeAdapter
from sits.core.ports import World
from sits.core.problems import near
from sits.core.units import MS
from sits.engine.lora import LoraError
from sits.gateway.adapters.files import Files
from sits.gateway.adapters.memory import Memory
from sits.gateway.adapters.proof import LoraPort, prove, told
from sits.gateway.adapters.service import MEMORY, lora_of, models_of
from sits.policy.adapters import REASONS


class Finding(msgspec.Struct, kw_only=True):
    """How one adapter is at one engine.

    `state`: `proven`, `loaded` (not asked), `absent`, `unknown` (the engine does not tell), `wrong` (with the `reason`).
    """

    engine: str
    adapter: str
    state: str
    reason: str = ""
    detail: str = ""
    digest: str = ""
    numbers: dict[str, Any] = {}
    took_ms: float = 0.0

    def words(self) -> str:
        """For people."""
        text = REASONS.get(self.reason, "")
        return f"{text} ({self.detail})" if text and self.detail else text or self.detail


class Taken(msgspec.Struct, kw_only=True):
    """A fingerprint taken: what to write into a fleet's file, and whether it is of use.

    `from_base` is its distance from the base model's answer, `repeated` that of two probes of the same; nats.
    """

    engine: str
    adapter: str
    fingerprint: str
    digest: str
    from_base: float
    repeated: float
    tolerance: float

    @property
    def tells(self) -> bool:
        """Whether it tells the adapter from its base."""
        return self.from_base > self.tolerance >= self.repeated


class Hands:
    """What can be done by hand to the adapters of a fleet."""

    def __init__(self, fleet: Fleet, world: World) -> None:
        self.fleet = fleet
        self.world = world
        self.control = fleet.runtime_adapters
        self.memory = Memory(Path(fleet.gateway.store) / MEMORY)
        self.files = Files()

    def adapter(self, name: str) -> RuntimeAdapter:
        """The adapter of this name.  Raises UnknownError."""
        for one in self.control.adapters:
            if one.name == name:
                return one
        hint = near(name, [one.name for one in self.control.adapters])
        raise UnknownError(f"there is no runtime adapter {name!r} in this fleet", value=name, hint=hint)

    def engines(self, adapter: RuntimeAdapter, name: str = "") -> list[AdapterEngine]:
        """The engines it can be loaded into, or the one of this name.  Raises UnknownError."""
        models = models_of(self.fleet)
        able = [entry for entry in self.control.engines if adapter.model in models[entry.engine]]
        found = [entry for entry in able if not name or entry.engine == name]
        if not found:
            hint = near(name, [entry.engine for entry in able])
            raise UnknownError(
                f"no engine {name!r} that {adapter.name!r} is loaded into", value=name, hint=hint
            )
        return found

    async def status(self, *, probe: bool) -> list[Finding]:
        """How every adapter is at every engine; `probe` asks those that are loaded, too."""
        found = []
        for adapter in self.control.adapters:
            for entry in self.engines(adapter):
                async with self._at(entry) as lora:
                    found.append(await self._look(adapter, lora, probe=probe))
        return found

    async def load(self, adapter: RuntimeAdapter, entry: AdapterEngine) -> Finding:
        """Load it there and prove it."""
        if not adapter.path:
            raise CallerError(f"{adapter.name!r} has no path: its engine brings it itself", field="path")
        began_ns = self.world.now_ns()
        async with self._at(entry) as lora:
            try:
                await lora.load(adapter.name, adapter.path)
            except LoraError as error:
                if error.reason != "already_loaded":
                    return self._finding(adapter, lora, "wrong", error.reason, error.detail)
            found = await self._look(adapter, lora, probe=True)
            found.took_ms = (self.world.now_ns() - began_ns) / MS
            return found

    async def unload(self, adapter: RuntimeAdapter, entry: AdapterEngine) -> Finding:
        """Unload it there."""
        async with self._at(entry) as lora:
            try:
                await lora.unload(adapter.name)
            except LoraError as error:
                return self._finding(adapter, lora, "wrong", error.reason, error.detail)
            return await self._look(adapter, lora, probe=False)

    async def fingerprint(self, adapter: RuntimeAdapter, entry: AdapterEngine) -> Taken:
        """Take the fingerprint of what is loaded there.

        Raises:
            CallerError: it is not loaded there, or gives no usable answer.

        """
        prompt, tokens = adapter.prompt or self.control.probe.prompt, self.control.probe.tokens

        async def shown(name: str) -> Fingerprint:
            return (await lora.show(adapter.model, name, prompt, tokens)).fingerprint

        async with self._at(entry) as lora:
            try:
                base, first, again = await shown(""), await shown(adapter.name), await shown(adapter.name)
            except LoraError as error:
                raise CallerError(
                    f"engine {entry.engine!r}: {REASONS.get(error.reason, error.reason)} ({error.detail})",
                    hint=f"load it first: sitsctl adapters load FLEET {adapter.name} --engine {entry.engine}",
                ) from None
        seen = await self.files.digest(adapter.files or adapter.path) if adapter.path else None
        return Taken(
            engine=entry.engine,
            adapter=adapter.name,
            fingerprint=str(first),
            digest=seen[1] if seen else "",
            from_base=distance(first, base),
            repeated=distance(first, again),
            tolerance=adapter.tolerance or self.control.probe.tolerance,
        )

    async def _look(self, adapter: RuntimeAdapter, lora: LoraPort, *, probe: bool) -> Finding:
        try:
            listed = await lora.listed()
        except LoraError as error:
            return self._finding(adapter, lora, "unknown", error.reason, error.detail)
        if adapter.name not in listed:
            return self._finding(adapter, lora, "absent", "not_loaded")
        root = listed[adapter.name]
        if root and adapter.path and root != adapter.path:
            return self._finding(adapter, lora, "wrong", "other_path", root)
        seen = await self.files.digest(adapter.files or adapter.path) if adapter.path else None
        digest = seen[1] if seen else ""
        if adapter.digest and digest and digest != adapter.digest:
            return self._finding(adapter, lora, "wrong", "digest_mismatch", digest)
        if not probe:
            return self._finding(adapter, lora, "loaded", digest=digest)
        try:
            proof = await prove(lora, adapter, self.control, self.memory, digest)
        except LoraError as error:
            return self._finding(adapter, lora, "wrong", error.reason, error.detail, digest=digest)
        numbers = dict(proof.decision.reasons) | {"mixed": proof.mixed}
        good = proof.decision.outcome == "proven"
        return self._finding(
            adapter,
            lora,
            "proven" if good else "wrong",
            "" if good else proof.decision.outcome,
            told(proof.decision),
            digest=digest,
            numbers=numbers,
        )

    def _finding(
        self,
        adapter: RuntimeAdapter,
        lora: LoraPort,
        state: str,
        reason: str = "",
        detail: str = "",
        **more: Any,
    ) -> Finding:
        return Finding(
            engine=lora.name, adapter=adapter.name, state=state, reason=reason, detail=detail, **more
        )

    @contextlib.asynccontextmanager
    async def _at(self, entry: AdapterEngine) -> AsyncIterator[LoraPort]:
        lora = lora_of(self.fleet, entry, self.world)
        try:
            yield lora
        finally:
            lora.close()
