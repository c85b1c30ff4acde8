"""Load an OpenAI-compatible engine for a minute and say where the time is.

Three phases, each drained before the next, the metrics page read around each and every half second during it: a
warm-up that sizes the rest (single requests, then bursts of eight); a *baseline* of requests that hardly ever meet (one
each 1.5 times what a single request takes); a *loaded* phase of Poisson arrivals, by default at 70 % of the rate at which
a burst of eight was answered.  All load is open loop with latency from schedule (`bench.load`).  The report is about the
loaded phase; each stage stands beside its baseline.  What no metric explains is a stage of its own (`bench.anatomy`),
claims have their bars (`bench.suspects`), the report is put together in `bench.verdict`.

Bounded in requests, time and open connections.  Needs nothing from the engine but its API; without metrics it says so.
Deliberately absent: closed loops, and a search for the capacity.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn

import msgspec
import numpy as np

from sits.bench.anatomy import Phase
from sits.bench.arrivals import Gamma
from sits.bench.load import Item, load, schedule
from sits.bench.target import Target, discover
from sits.bench.verdict import outcome_text, report_of
from sits.core.errors import ConfigError, EngineError, SitsError
from sits.core.fleet import Objective
from sits.core.ports import Engine, World
from sits.core.report import Report
from sits.core.units import SECOND
from sits.engine.openai import OpenAIEngine
from sits.telemetry.prometheus_text import Scrape
from sits.telemetry.signals import EngineView, change, engine_facts, view

BASELINE_SHARE = 1 / 3
"""Share of the duration that the baseline phase gets."""

BURST, UTILISATION = 8, 0.7
"""When no rate is given: the loaded phase has this share of the rate at which a burst of so many was answered."""

SAMPLE_S = 0.5
WARM_UP = 3


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to send: see `investigate`."""

    duration_ns: int = 60 * SECOND
    baseline_rate: float = 0.0
    loaded_rate: float = 0.0
    requests_max: int = 2_000
    prompt_tokens: tuple[int, int] = (32, 512)
    output_tokens: tuple[int, int] = (8, 64)
    in_flight_max: int = 512
    timeout_ns: int = 120 * SECOND
    drain_ns: int = 60 * SECOND

    @property
    def middle(self) -> tuple[int, int]:
        """Geometric middle of the prompt and of the output lengths."""
        (a, b), (c, d) = self.prompt_tokens, self.output_tokens
        return round((a * b) ** 0.5), round((c * d) ** 0.5)

    def __post_init__(self) -> None:
        for name, value, good in (
            ("duration", self.duration_ns, self.duration_ns > 0),
            ("baseline_rate", self.baseline_rate, 0 <= self.baseline_rate < 1e5),
            ("loaded_rate", self.loaded_rate, 0 <= self.loaded_rate < 1e5),
            ("requests_max", self.requests_max, self.requests_max >= 2),
            ("prompt_tokens", self.prompt_tokens, 1 <= self.prompt_tokens[0] <= self.prompt_tokens[1]),
            ("output_tokens", self.output_tokens, 1 <= self.output_tokens[0] <= self.output_tokens[1]),
        ):
            if not good:
                raise ConfigError(
                    f"{value!r} cannot be used", field=name, value=value, hint="positive, and low <= high"
                )


def investigate(
    target_url: str,
    *,
    world: World,
    model: str = "",
    api_key: str = "",
    metrics_url: str = "",
    duration_ns: int = 60 * SECOND,
    baseline_rate: float = 0.0,
    loaded_rate: float = 0.0,
    requests_max: int = 2_000,
    prompt_tokens: tuple[int, int] = (32, 512),
    output_tokens: tuple[int, int] = (8, 64),
    objective: Objective | None = None,
    progress: Callable[[str], None] | None = None,
    make_engine: Callable[[Target, World], Engine] | None = None,
) -> Report:
    """Load the server at `target_url` and report where the time is.

    Args:
        target_url: `http://host:port`, with or without `/v1`.
        world: clock and dice; prompts and arrivals are drawn from it.
        model: model to ask for; empty = the first served.
        api_key: sent as a bearer token; empty = none.
        metrics_url: Prometheus page; empty = `/metrics` of the server.
        duration_ns: of baseline and loaded phase together; warm-up and draining come on top.
        baseline_rate: requests a second of the baseline phase; 0 = sized from the warm-up.
        loaded_rate: requests a second of the loaded phase; 0 = sized from the warm-up.
        requests_max: bound on the requests of both phases.
        prompt_tokens: prompt lengths are drawn log-uniform between these, tokens.
        output_tokens: answer lengths, the same.
        objective: what the service promised; the report is about its metric.
        progress: told one line a phase.
        make_engine: builds the client; the default is `engine.openai`.

    Raises:
        ConfigError: a URL, model or bound that cannot be used.
        EngineError: nothing answers there, or no warm-up request completed.
        AuthError: the server wants a key.

    """
    plan = Plan(
        duration_ns=duration_ns,
        baseline_rate=baseline_rate,
        loaded_rate=loaded_rate,
        requests_max=requests_max,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    say = progress or _silent
    target = discover(target_url, model=model, metrics_url=metrics_url, api_key=api_key)
    say(f"{target.model} at {target.base}: {target.family or 'engine unknown, ' + target.metrics_error}")
    run = _run(target, plan, world, make_engine or openai_engine, say)
    return report_of(target, *asyncio.run(run), objective or Objective(), world)


def openai_engine(target: Target, world: World) -> Engine:
    """The client of an OpenAI-compatible server; it waits as long as a whole request may take."""
    return OpenAIEngine(
        target.family or "target",
        target.base,
        world=world,
        api_key=target.api_key,
        first_byte_timeout=Plan().timeout_ns,
    )


async def _run(
    target: Target,
    plan: Plan,
    world: World,
    make_engine: Callable[[Target, World], Engine],
    say: Callable[[str], None],
) -> tuple[Phase, Phase, dict[str, str]]:
    """Warm-up, baseline, loaded; the engine's own facts beside them."""
    engine = make_engine(target, world)
    try:
        alone_s = await _warm_up(engine, target, plan, world)
        calm = plan.baseline_rate or min(20.0, 1 / (1.5 * alone_s))
        busy = plan.loaded_rate or min(200.0, UTILISATION * await _burst_rate(engine, target, plan, world))
        baseline_ns = int(plan.duration_ns * BASELINE_SHARE)
        say(f"a request alone takes {alone_s:.3f} s; baseline {calm:.2g} req/s for {baseline_ns / 1e9:.0f} s")
        quarter = max(1, plan.requests_max // 4)
        items = _items(target, plan, world, "baseline", Gamma(rate=calm, cv=0.0), baseline_ns, quarter)
        baseline = await _phase("baseline", calm, engine, target, items, plan, world)
        loaded_ns = plan.duration_ns - baseline_ns
        say(f"loaded {busy:.2g} req/s for {loaded_ns / 1e9:.0f} s")
        items = _items(
            target, plan, world, "loaded", Gamma(rate=busy), loaded_ns, plan.requests_max - len(items)
        )
        loaded = await _phase("loaded", busy, engine, target, items, plan, world)
    finally:
        await engine.close()
    page = await _page(target)
    return baseline, loaded, dict(engine_facts(page)) if page is not None else {}


async def _warm_up(engine: Engine, target: Target, plan: Plan, world: World) -> float:
    """Single requests of middle length one after the other; seconds that one takes alone.

    Raises:
        EngineError: none completed; says what the last one met.

    """
    rng = world.rng("investigate/warm_up")
    took: list[int] = []
    for i in range(WARM_UP):
        item = Item(0, target.request(f"warm-up-{i}", *plan.middle, rng))
        (call,) = (
            await load(engine, [item], world, timeout_ns=plan.timeout_ns, drain_ns=plan.drain_ns)
        ).calls
        if call.outcome == "completed":
            took.append(call.last_ns - call.due_ns)
        elif i == WARM_UP - 1 and not took:
            raise EngineError(
                f"{target.base}{target.endpoint} completed no request: {call.outcome or 'no answer'}, {call.detail}",
                field="target",
                hint="try one request by hand; is the model a chat or completion model?",
            )
    return max(1e-3, min(took) / 1e9)


async def _burst_rate(engine: Engine, target: Target, plan: Plan, world: World) -> float:
    """Requests a second at which a burst of `BURST` middle requests is answered; the second of two bursts.

    Raises:
        EngineError: a burst had no completed request.

    """
    rng = world.rng("investigate/burst")
    rate = 0.0
    for turn in range(2):
        items = [Item(0, target.request(f"burst-{turn}-{i}", *plan.middle, rng)) for i in range(BURST)]
        done = await load(engine, items, world, timeout_ns=plan.timeout_ns, drain_ns=plan.drain_ns)
        ends = [call.last_ns for call in done.calls if call.outcome == "completed"]
        if not ends:
            raise EngineError(
                f"{target.base} completed none of {BURST} requests at once: {outcome_text(done)}",
                field="target",
                hint="give loaded_rate, or look at the engine's log",
            )
        rate = len(ends) / max(1e-3, (max(ends) - done.start_ns) / 1e9)
    return rate


def _items(
    target: Target, plan: Plan, world: World, name: str, arrivals: Gamma, duration_ns: int, most: int
) -> list[Item]:
    """Requests of one phase: at least one, at most `most`."""
    rng = world.rng(f"investigate/{name}")
    expected = int(arrivals.rate * duration_ns / 1e9)
    gaps = arrivals.gaps_s(rng, min(most, expected + 6 * int(expected**0.5) + 6))
    due = schedule(gaps, duration_ns).tolist()[:most] or [0]
    prompts = _log_uniform(rng, plan.prompt_tokens, len(due))
    outputs = _log_uniform(rng, plan.output_tokens, len(due))
    return [
        Item(at, target.request(f"{name}-{i:05d}", prompt, output, rng))
        for i, (at, prompt, output) in enumerate(zip(due, prompts, outputs, strict=True))
    ]


def _log_uniform(rng: np.random.Generator, bounds: tuple[int, int], count: int) -> list[int]:
    low, high = np.log(bounds[0]), np.log(bounds[1])
    drawn: list[int] = np.rint(np.exp(rng.uniform(low, high, count))).astype(np.int64).tolist()
    return drawn


async def _phase(
    name: str, rate: float, engine: Engine, target: Target, items: list[Item], plan: Plan, world: World
) -> Phase:
    """One load between two readings of the metrics page, with readings during it."""
    samples: list[tuple[int, EngineView]] = []
    before = await _page(target)
    watcher = asyncio.create_task(_watch(target, world, samples)) if before is not None else None
    try:
        done = await load(
            engine,
            items,
            world,
            timeout_ns=plan.timeout_ns,
            drain_ns=plan.drain_ns,
            in_flight_max=plan.in_flight_max,
        )
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
    after = await _page(target)
    both = before is not None and after is not None
    return Phase(
        name=name,
        rate=rate,
        load=done,
        columns=done.columns(world, f"investigate/{name}", target.family or "engine"),
        change=change(before, after, target.model) if both else None,  # type: ignore[arg-type]
        samples=tuple(samples),
    )


async def _watch(target: Target, world: World, samples: list[tuple[int, EngineView]]) -> NoReturn:
    while True:
        page = await _page(target)
        if page is not None:
            samples.append((world.now_ns(), view(page, target.model)))
        await asyncio.sleep(SAMPLE_S)


async def _page(target: Target) -> Scrape | None:
    """The metrics page, read and parsed in a thread; None when there is none (any more)."""
    if not target.metrics_url:
        return None
    try:
        return await asyncio.to_thread(target.scrape)
    except SitsError:
        return None


def _silent(_: str) -> None:
    """Nobody wants to be told."""
