"""Sampling the processes of a gateway: the end in a worker, which samples, and the desk in the keeper, which keeps.

```
sitsctl profile ──order (file in the store)──> desk ──(hz, seconds)──> workers ──samples, 10 a second──> desk ──> table `profiles`, push
```
Rules: a process that is not sampled has no timer, no handler, and has not even loaded the sampler.  A worker gives its samples away as they
come, each tenth of a second the few there are, so that naming them never holds up a request for long.  The desk closes a profile when
its window is over, its order done, or its process silent; a keeper that is killed loses the windows that were open.
Rate and window follow the configuration; an order takes precedence while it lasts.

Deliberately absent: what samples mean (telemetry.profile).
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sits.app.up.link import Link
from sits.core.fleet import Fleet
from sits.core.fleet_profile import HZ_MAX, Profiling
from sits.core.ports import World
from sits.core.units import SECOND
from sits.gateway.pipeline import Gateway

if TYPE_CHECKING:
    from types import FrameType

    from sits.telemetry.profile.profile import Profile
    from sits.telemetry.profile.push import Pusher
    from sits.telemetry.profile.sampler import Sampler

SECONDS_MAX = 600

ROLES = "sits/app/up/roles.py"
"""Where a process of ours begins its own life."""


class Order(msgspec.Struct, frozen=True):
    """Somebody wants profiles: at this rate, for so long."""

    hz: int
    seconds: float


class Part(msgspec.Struct, frozen=True):
    """Some samples of one process, as they travel; `last`: there will be no more of this rate or order; `trouble`: why there are none."""

    wall_ns: int
    duration_ns: int
    period_ns: int
    batch: dict[str, Any]
    last: bool = False
    trouble: str = ""


class Profiler:
    """Samples this process: as its configuration says, or as an order does; `give` takes what was sampled."""

    def __init__(self, world: World, give: Callable[[Part], object]) -> None:
        self._world = world
        self._give = give
        self._configured_hz = 0
        self._until_ns = 0
        self._since_wall_ns = self._since_ns = 0
        self._sampler: Sampler | None = None

    def adopt(self, profile: Profiling) -> None:
        """Follow this configuration from now on; an order that runs is let end first."""
        self._configured_hz = profile.hz
        if not self._until_ns:
            self._sample(profile.hz)

    def order(self, body: Any) -> None:
        """Sample as ordered, then as configured again."""
        order = msgspec.convert(body, Order)
        self._until_ns = self._world.now_ns() + int(min(order.seconds, SECONDS_MAX) * SECOND)
        self._sample(order.hz, again=True)

    def tick(self) -> None:
        """Give away what there is; called ten times a second."""
        if self._sampler is None:
            return
        if self._until_ns and self._world.now_ns() >= self._until_ns:
            self._until_ns = 0
            self._sample(self._configured_hz, again=True)
        else:
            self._tell(last=False)

    def close(self) -> None:
        """End it, and give the last away."""
        self._sample(0)

    def _sample(self, hz: int, *, again: bool = False) -> None:
        """Sample at this rate; `again`: what was before is told to be over though the rate is the same."""
        if self._sampler is not None:
            if self._sampler.hz == hz and not again:
                return
            self._sampler.stop()
            self._tell(last=True)
            self._sampler = None
        if hz:
            from sits.telemetry.profile.sampler import Sampler  # noqa: PLC0415  (only who is sampled loads it)

            self._since_wall_ns, self._since_ns = self._world.wall_ns(), self._world.now_ns()
            sampler = Sampler(hz, carriers=_carriers(), restart=True)
            try:
                sampler.start()
            except (
                OSError
            ) as error:  # a kernel, or a sandbox, without such timers: nobody is served worse for it
                nothing = sampler.take()
                self._give(Part(self._since_wall_ns, 0, SECOND // hz, nothing, last=True, trouble=str(error)))
            else:
                self._sampler = sampler

    def _tell(self, *, last: bool) -> None:
        assert self._sampler is not None
        wall_ns, now_ns = self._world.wall_ns(), self._world.now_ns()
        batch = self._sampler.take()
        since_wall_ns, since_ns = self._since_wall_ns, self._since_ns
        self._since_wall_ns, self._since_ns = wall_ns, now_ns
        self._give(Part(since_wall_ns, now_ns - since_ns, SECOND // self._sampler.hz, batch, last))


def _carriers() -> "dict[int, Callable[[FrameType], str]]":
    """The function every request passes, and how to read from its frame whose request it is; none when it is compiled."""
    code = getattr(Gateway.handle, "__code__", None)
    return {} if code is None else {id(code): _trace_of}


def _trace_of(frame: "FrameType") -> str:
    request = frame.f_locals["request"]
    trace: str = request.trace_id or request.id
    return trace


class Desk:
    """The keeper's end: gathers parts to profiles, keeps them, has them pushed, obeys orders."""

    def __init__(
        self,
        world: World,
        store: Path,
        tell: Callable[[str, Any], object],
        keep: Callable[[tuple[Any, ...]], object],
        say: Callable[[str], object],
    ) -> None:
        self._world = world
        self._store = store
        self._tell = tell
        self._keep = keep
        self._say = say
        self._open: dict[str, list[Profile]] = {}
        self._window_ns = 10 * SECOND
        self._pusher: Pusher | None = None
        self._leaving: list[Pusher] = []
        self._told = ""
        self._past = dict.fromkeys(("sent", "dropped", "refused"), 0)
        self._mine = Profiler(world, lambda part: self.hear("keeper", msgspec.to_builtins(part)))

    def adopt(self, fleet: Fleet) -> None:
        """Follow this configuration from now on."""
        profile = fleet.telemetry.profile
        self._window_ns = profile.window
        self._mine.adopt(profile)
        self._push_to(profile, fleet.name)

    def hear(self, process: str, body: Any) -> None:
        """A part of a process's profile."""
        from sits.telemetry.profile.ops import label  # noqa: PLC0415
        from sits.telemetry.profile.profile import from_batch  # noqa: PLC0415

        part = msgspec.convert(body, Part)
        if part.trouble:
            self._say(f"{process} cannot be sampled: {part.trouble}")
        made = from_batch(
            _from_its_loop(part.batch),
            label,
            process=process,
            wall_ns=part.wall_ns,
            duration_ns=part.duration_ns,
            period_ns=part.period_ns,
        )
        parts = self._open.setdefault(process, [])
        parts.append(made)
        if part.last or made.end_wall_ns - parts[0].wall_ns >= self._window_ns:
            self._close(process)

    def look(self) -> None:
        """Once a second: is there an order; has a process fallen silent?"""
        order = take_order(self._store)
        if order is not None:
            self._tell("profile", msgspec.to_builtins(order))
            self._mine.order(msgspec.to_builtins(order))
        self._mine.tick()
        self._look_after_pushing()
        wall_ns = (
            self._world.wall_ns()
        )  # profiles of a process lie on the wall clock, also for whoever reads them
        for process, parts in list(self._open.items()):
            if wall_ns - parts[0].wall_ns > 2 * self._window_ns:
                self._close(process)

    def close(self) -> None:
        """Keep what is open, and send what waits."""
        self._mine.close()
        for process in list(self._open):
            self._close(process)
        if self._pusher is not None:
            self._pusher.close()

    def vitals(self) -> dict[str, dict[str, float]]:
        """Profiles by what became of pushing them; nothing where none are pushed."""
        pushers = [*self._leaving, *([self._pusher] if self._pusher else [])]
        if not pushers and not any(self._past.values()):
            return {}
        counts = {
            name: past + sum(getattr(one, name) for one in pushers) for name, past in self._past.items()
        }
        return {"sits_profiles_pushed_total": {f'result="{name}"': count for name, count in counts.items()}}

    def _close(self, process: str) -> None:
        from sits.telemetry.profile.kept import row_of  # noqa: PLC0415
        from sits.telemetry.profile.profile import merged  # noqa: PLC0415

        made = merged(self._open.pop(process), process)
        self._keep(row_of(made))
        if self._pusher is not None:
            self._pusher.add(made)

    def _push_to(self, profile: Profiling, fleet: str) -> None:
        from sits.telemetry.profile.push import Pusher, Target  # noqa: PLC0415

        target = None
        if profile.push:
            headers: Mapping[str, str] = {}
            if profile.push_tenant:
                headers = {"X-Scope-OrgID": profile.push_tenant}
            if profile.push_auth_env:
                headers = {**headers, "Authorization": os.environ.get(profile.push_auth_env, "")}
            target = Target(profile.push, profile.name or fleet, profile.labels, headers)
        if target == (self._pusher.target if self._pusher else None):
            return
        if self._pusher is not None:
            self._pusher.end()
            self._leaving.append(self._pusher)
            self._pusher = None
        if target is not None:
            self._pusher = Pusher(target)
            self._pusher.start()

    def _look_after_pushing(self) -> None:
        """Say what is wrong with it when that is something else; keep the counts of those that have ended."""
        for old in [one for one in self._leaving if one.ended]:
            self._leaving.remove(old)
            for name in self._past:
                self._past[name] += getattr(old, name)
        trouble = self._pusher.trouble if self._pusher is not None else ""
        if trouble != self._told:
            self._told = trouble
            if trouble:
                self._say(f"profiles are not pushed: {trouble}")


def worker_profiler(world: World, link: Link) -> Profiler:
    """The one of a worker, whose samples go over its link."""
    return Profiler(world, lambda part: link.send("profile", msgspec.to_builtins(part)))


def _from_its_loop(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Stacks without what every process of ours has above its loop: the command, the supervisor, the fork."""
    roles = {number for number, (_, file, _) in enumerate(batch["frames"]) if file.endswith(ROLES)}
    samples = []
    for *head, places in batch["samples"]:
        above = next((at for at, place in enumerate(places) if place in roles), len(places))
        samples.append([*head, places[: above or len(places)]])
    return {**batch, "samples": samples}


# -- orders ------------------------------------------------------------------------------------------------------

FILE = "profile-order.json"
ORDER_MAX = 4096


def put_order(store: Path, order: Order) -> None:
    """Leave an order for the gateway that records to `store`."""
    new = store / f".{FILE}"
    new.write_bytes(msgspec.json.encode(order))
    new.rename(store / FILE)


def take_order(store: Path) -> Order | None:
    """The order that waits, once; one that cannot be read is none."""
    path = store / FILE
    try:
        with path.open("rb") as file:
            data = file.read(ORDER_MAX)
        path.unlink()
    except (
        OSError
    ):  # mostly there is none; a directory of that name, or a file of somebody else's, is none either
        return None
    try:
        order = msgspec.json.decode(data, type=Order)
    except (ValueError, RecursionError):
        return None
    return order if 0 < order.hz <= HZ_MAX and order.seconds > 0 else None
