"""The delay of an alert, measured: a gateway, a Prometheus, an Alertmanager and a webhook, all real; then answers turn slow.

```
reload injects a delay ─> first slow answer ─> scraped ─> pending ─> firing ─> webhook
```
The gateway serves the fleet's objective and environment with an emulated engine in place of its own, so that nothing of the fleet is
touched; answers turn slow at once by an injected delay (`injections`), all or a share of them, which is how a real one turns slow to whoever watches.  Each
repetition begins at another moment of the scrape interval, after the one before has been told to be over.

Rules: times are of one wall clock, counted from the moment the first request was *sent* whose answer was too slow; that answer comes an
objective later.

Deliberately absent: messages beyond the webhook (mail, pagers).
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import msgspec

from sits.app.alerts.delays import delays
from sits.app.alerts.objectives import indicators, selector
from sits.app.alerts.rules import fast
from sits.app.alerts.stack import LOOK_S, Stack, Told, free_port
from sits.app.up.notice import Notice, notice_of
from sits.core.config import dump_fleet, load_fleet
from sits.core.errors import EngineError, SitsError
from sits.core.fleet import Fleet
from sits.core.fleet_environment import profile_of
from sits.core.fleet_inject import Injection
from sits.core.ports import World
from sits.core.units import MS, SECOND, Ns, Share
from sits.policy.burn_rate import P99_BUDGET

RATE = 20
"""Requests a second."""

MODEL = "llama-3-8b"
ENGINE = """
name: probe
gateway: {listen: "127.0.0.1:0"}
models:
  - {name: llama-3-8b, layers: 32, hidden: 4096, heads: 32, kv_heads: 8, head_dim: 128, intermediate: 14336, vocab: 128256, weights: 16GB}
nodes:
  - {name: node, gpu: A100-SXM4-80GB, gpus: 1, gpu_numa: [0], gpu_memory: 80GiB}
engines:
  - {kind: emulated, name: emulated, node: node, gpus: [0], model: llama-3-8b}
"""
ALERT = "SitsLatencyFastBurn"
LOOKS_S = round(1 / LOOK_S)
"""Looks a second."""


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """One repetition: seconds after the first request was sent whose answer was slow (None: not seen)."""

    bad_answer_s: float
    scraped_s: float | None
    pending_s: float | None
    firing_s: float | None
    webhook_s: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was promised, s, and what came."""

    environment: str
    share: float
    within_s: int
    scrape_s: int
    window_s: int
    delays: tuple[Delay, ...]

    @property
    def longest_s(self) -> float:
        """The longest time from the breach to the webhook."""
        return max(delay.webhook_s for delay in self.delays)


def measure(
    fleet: Fleet, times: int, world: World, say: Callable[[str], None], share: float = 1.0
) -> Measured:
    """Measure `times` breaches one after another, in each of which `share` of the answers turns slow.

    Raises:
        UnknownError: Prometheus or Alertmanager is not on this machine.
        EngineError: something did not start, or no alert came.

    """
    lengths = delays(profile_of(fleet.telemetry).alert_within)
    with tempfile.TemporaryDirectory(prefix="sits-alerts-") as folder:
        probe = Probe(Path(folder), fleet, say, share)
        with (
            Stack(Path(folder), probe.fleet, [probe.address], world) as stack,
            probe,
            Load(probe.address, fleet, world) as load,
        ):
            say(
                f"a whole window of {lengths.window_s} s without a breach, as in a service that has run for long"
            )
            seen = (
                f"min(count_over_time(sits_objective_requests_total{selector(probe.fleet)}[{fast(lengths)}]))"
            )
            full, patience = lengths.window_s // lengths.step_s, (lengths.window_s + 60) * LOOKS_S
            stack.wait("a window of samples", lambda: (stack.value(seen) or 0) >= full, patience)
            told = (f"breach {i + 1} of {times}" for i in range(times))
            found = [breach(stack, probe, load, world, what) for what in told]
    return Measured(
        environment=fleet.telemetry.environment,
        share=share,
        within_s=lengths.within_s,
        scrape_s=lengths.step_s,
        window_s=lengths.window_s,
        delays=tuple(found),
    )


def breach(stack: Stack, probe: "Probe", load: "Load", world: World, what: str) -> Delay:
    """One repetition: wait for calm, make answers slow, wait for the webhook.

    Raises:
        EngineError: no calm, or no alert, in twice the promised time and a minute.

    """
    lengths = delays(profile_of(probe.fleet.telemetry).alert_within)
    [ratio, missed] = [
        indicators(probe.fleet)[0].recorded(fast(lengths)),
        f"sum(sits_objective_missed_total{selector(probe.fleet)})",
    ]
    patience = (2 * lengths.within_s + 60) * LOOKS_S
    if probe.is_slow:
        probe.slow(False)
    probe.say(f"{what}: waiting for calm")

    def calm() -> bool:
        share = stack.value(ratio)
        return share is not None and share <= P99_BUDGET and not _alert(stack)

    stack.wait("calm", calm, patience)
    threading.Event().wait(float(world.rng("alerts").uniform(0, lengths.step_s)))
    before, seen = stack.value(missed) or 0.0, len(stack.webhook.told)
    load.slow = None
    probe.slow(True)
    probe.say(f"{what}: {probe.share:.0%} of the answers are slow from now on")
    at_s = dict[str, float]()

    def told() -> Any:
        if "scraped" not in at_s and (stack.value(missed) or 0.0) > before:
            seen_at = f"max(timestamp(sits_objective_missed_total{selector(probe.fleet)}))"
            at_s["scraped"] = stack.value(seen_at) or 0.0
        alert = _alert(stack)
        if alert:
            at_s.setdefault("pending", datetime.fromisoformat(alert["activeAt"]).timestamp())
        if alert.get("state") == "firing":
            at_s.setdefault("firing", world.wall_ns() / SECOND)
        new = stack.webhook.told[seen:]
        return next((one for one in new if one.name == ALERT and one.status == "firing"), None)

    arrived: Told = stack.wait("the alert", told, patience)
    found = _delay(load, at_s, arrived.wall_ns / SECOND)
    probe.say(f"{what}: the webhook was told {found.webhook_s:.1f} s after the breach began")
    return found


def _delay(load: "Load", at_s: dict[str, float], arrived_s: float) -> Delay:
    """Times since the first request was sent whose answer was slow."""
    if load.slow is None:
        raise EngineError("the alert came, but no answer was slow", hint="is the machine too busy to tell?")
    began_s, answered_s = load.slow

    def since(name: str) -> float | None:
        return round(min(at_s[name], arrived_s) - began_s, 2) if name in at_s else None

    return Delay(
        bad_answer_s=round(answered_s - began_s, 2),
        scraped_s=since("scraped"),
        pending_s=since("pending"),
        firing_s=since("firing"),
        webhook_s=round(arrived_s - began_s, 2),
    )


def _alert(stack: Stack) -> dict[str, Any]:
    """What Prometheus says of the alert while it is pending or firing."""
    alerts: list[dict[str, Any]] = stack.get("/api/v1/alerts")["alerts"]
    return next((one for one in alerts if one["labels"]["alertname"] == ALERT), {})


class Probe:
    """The gateway that is measured; serves `address` from entering to leaving."""

    def __init__(self, folder: Path, fleet: Fleet, say: Callable[[str], None], share: float = 1.0) -> None:
        base = load_fleet(ENGINE)
        self.address = f"127.0.0.1:{free_port()}"
        self.say = say
        self.share = share
        self.fleet = msgspec.structs.replace(
            base,
            name=fleet.name,
            objective=fleet.objective,
            telemetry=msgspec.structs.replace(fleet.telemetry, pinned=base.telemetry.pinned),
            gateway=msgspec.structs.replace(base.gateway, listen=self.address, store=str(folder / "store")),
        )
        self._file, self._log = folder / "fleet.yaml", folder / "gateway.log"
        self.is_slow = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.say("a gateway with an emulated engine starts")
        self._file.write_text(dump_fleet(self.fleet), encoding="utf-8")
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "sits.app.cli", "up", str(self._file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603
        try:
            self._notice(lambda notice: bool(notice.processes.get("keeper")))
        except BaseException:
            self.__exit__()
            raise
        return self

    def slow(self, slow: bool) -> None:
        """Make the share of the answers slower than the objective, or none; returns when the gateway says it has taken it."""
        assert self._process is not None
        delay = Ns(self.fleet.objective.p99 + self.fleet.objective.p99 // 4 + 50 * MS)
        injections = (Injection(name="breach", delay=delay, share=Share(self.share)),) if slow else ()
        self.is_slow = slow
        before = self._notice(lambda _: True)
        self._file.write_text(
            dump_fleet(msgspec.structs.replace(self.fleet, injections=injections)), encoding="utf-8"
        )
        command = [sys.executable, "-m", "sits.app.cli", "reload", str(self._file)]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603
        self._notice(lambda now: now.generation > before.generation)

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _notice(self, holds: Callable[[Notice], bool]) -> Notice:
        pause = threading.Event()
        for _ in range(600):
            if self._process is not None and self._process.poll() is not None:
                break
            with suppress(SitsError):
                notice = notice_of(Path(self.fleet.gateway.store), self._file)
                if holds(notice):
                    return notice
            pause.wait(0.1)
        raise EngineError("the gateway did not come up", hint=self._log.read_text(errors="replace")[-400:])


class Load:
    """Short streamed requests at a steady rate, each on a connection of its own, from a thread; `slow` is when the first request was sent whose answer was too slow, and
    when that began to come, wall clock, s.
    """

    def __init__(self, address: str, fleet: Fleet, world: World) -> None:
        self.slow: tuple[float, float] | None = None
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._objective_ns = fleet.objective.p99
        self._world = world
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        body = json.dumps(
            {
                "model": MODEL,
                "stream": True,
                "max_tokens": 2,
                "messages": [{"role": "user", "content": "hello"}],
            }
        )
        self._request = f"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    async def _run(self) -> None:
        running: set[asyncio.Task[None]] = set()
        while not self._stop.is_set():
            task = asyncio.create_task(self._one())
            running.add(task)
            task.add_done_callback(running.discard)
            await asyncio.sleep(1 / RATE)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _one(self) -> None:
        begun_ns, begun_s = self._world.now_ns(), self._world.wall_ns() / SECOND
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(self._request)
                await reader.read(1)
                took_ns = self._world.now_ns() - begun_ns
                if took_ns > self._objective_ns and self.slow is None:
                    self.slow = (begun_s, begun_s + took_ns / SECOND)
                await reader.read()
            finally:
                writer.close()


def table(found: Measured) -> str:
    """What came, as lines of text."""
    names = ("first slow answer", "scraped", "pending", "firing", "webhook")
    lines = [
        f"environment {found.environment}: promised within {found.within_s} s; scrape {found.scrape_s} s, window {found.window_s} s; {found.share:.0%} of the answers turn slow",
        "",
    ]
    lines.append("s after the first request " + "  ".join(f"{name:>17}" for name in names))
    for i, one in enumerate(found.delays, 1):
        values = (one.bad_answer_s, one.scraped_s, one.pending_s, one.firing_s, one.webhook_s)
        shown = "  ".join(f"{'not seen' if value is None else format(value, '.1f'):>17}" for value in values)
        lines.append(f"{f'breach {i}':<24}  {shown}")
    held = "kept" if found.longest_s <= found.within_s else "NOT kept"
    lines += ["", f"longest {found.longest_s:.1f} s: the promise is {held}"]
    return "\n".join(lines) + "\n"
