"""`sitsctl plan queue`: what a rate does to latency, three ways by what is known.

`--service`: servers with given service times; one server and Poisson arrivals exactly, several or bursty ones by approximation.
FLEET: an emulated engine that batches continuously, as processor sharing.  `--points`: measured (load, P99) pairs, a curve and its knee.
`--trace` brings real arrivals: their burstiness is printed before anything is predicted, and used.

Rules: the burstiness report comes first; without arrivals the Poisson assumption is said.  The published L99 formula is printed with its
error wherever it would have been used.

Deliberately absent: a step-by-step simulation (`sitsctl reproduce`, `sitsctl predict`), which is what to use where this refuses.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits.app.quantities import DURATION, Number, Whole

if TYPE_CHECKING:
    from sits.predict.burstiness import Burstiness
    from sits.predict.knee import Knee, Point
    from sits.predict.queue_service import Service

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

DEFINITIONS = {
    "busy": "share of the time a server works",
    "wait": "time in the queue, service not included; mean over requests",
    "mean": "arrival to end, mean over requests",
    "p50, p99": "arrival to end that 50 % and 99 % of the requests do not exceed",
    "capacity": "requests a second the engine can at most finish",
    "tpot": "time between tokens of a request, the first token excluded; mean",
    "knee": "load at which P99 has become --factor times that of no load",
}


@click.command(short_help="What a rate does to P99; the knee of measured points.")
@click.argument("fleet", required=False, type=_FILE)
@click.option(
    "--rate",
    type=Number(min=0, min_open=True),
    default=None,
    help="Requests a second.  [default: the trace's]",
)
@click.option("--service", type=DURATION, default=None, help="Mean service time of a request.")
@click.option(
    "--cv",
    type=Number(0, 10),
    default=1.0,
    show_default=True,
    help="CV of service times (gamma-distributed).",
)
@click.option(
    "--service-times",
    type=_FILE,
    default=None,
    help="Measured service times, one a line, in ms; instead of --service and --cv.",
)
@click.option("--servers", type=Whole(min=1), default=1, show_default=True)
@click.option(
    "--arrival-cv",
    type=Number(0, 100),
    default=None,
    help="CV of independent gaps between arrivals; 1 is Poisson.",
)
@click.option(
    "--trace",
    type=_FILE,
    default=None,
    help="Real arrivals, and with FLEET lengths (Azure, Mooncake, BurstGPT format).",
)
@click.option("--engine", default=None, help="With FLEET: which emulated engine.  [default: the first]")
@click.option(
    "--prompt",
    type=Whole(min=1),
    default=1000,
    show_default=True,
    help="With FLEET: prompt tokens, without --trace.",
)
@click.option(
    "--output",
    "output_tokens",
    type=Whole(min=1),
    default=200,
    show_default=True,
    help="With FLEET: output tokens, without --trace.",
)
@click.option("--points", type=_FILE, default=None, help="Measured points: a CSV of load,p99_ms[,requests].")
@click.option(
    "--factor",
    type=Number(min=1, min_open=True),
    default=2.0,
    show_default=True,
    help="With --points: P99 at the knee over P99 of no load.",
)
@click.option(
    "--seed",
    type=Whole(min=0),
    default=0,
    show_default=True,
    help="With --points: of the bootstrap.",
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Also draw P99 against load."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
def queue(**asked: Any) -> int:
    """Predict latency at a rate: of servers (--service), of an engine (FLEET), or find the knee of measured --points.

    Exits with 1 when the rate cannot be kept up with, or no knee can be told.
    """  # fmt: skip
    ways = [name for name in ("fleet", "points") if asked[name] is not None]
    ways += ["service"] if asked["service"] is not None or asked["service_times"] is not None else []
    if len(ways) != 1:
        raise click.UsageError("give one of: --service (or --service-times), FLEET, --points")
    from sits.app import output  # noqa: PLC0415

    output.prepare(asked["svg"].parent if asked["svg"] else None)
    found, lines, curve = {"service": _servers, "fleet": _engine, "points": _points}[ways[0]](asked)
    found["definitions"] = DEFINITIONS
    if asked["svg"] is not None:
        from sits.app.queue_chart import drawing  # noqa: PLC0415

        output.write_text(asked["svg"], drawing(**curve))
    if asked["as_json"]:
        output.print_json(_finite(found))
    else:
        click.echo("\n".join(lines))
        named = [
            f"{name}: {text}"
            for name, text in DEFINITIONS.items()
            if any(name.split(",")[0] in line for line in lines)
        ]
        click.echo("\n" + "\n".join(named))
        if asked["svg"] is not None:
            click.echo(f"written: {asked['svg'].absolute()}")
    return 0 if found["steady"] else 1


def _servers(asked: dict[str, Any]) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    from sits.core.errors import ConfigError  # noqa: PLC0415
    from sits.predict.queue import predict_queue  # noqa: PLC0415
    from sits.predict.queue_reference import l99_reference_ns  # noqa: PLC0415
    from sits.predict.queue_servers import predict_servers  # noqa: PLC0415

    service = _service(asked)
    burst, rate = _arrivals(asked)
    exact = asked["servers"] == 1 and (burst is None or burst.poisson) and asked["arrival_cv"] in (None, 1.0)
    cv = 1.0 if asked["arrival_cv"] is None else asked["arrival_cv"]
    arrivals: Any = cv if burst is None else burst

    def at(load: float) -> Any:
        if exact:
            return predict_queue(load, service, method="inversion" if load == rate else "tail")
        return predict_servers(load, service, asked["servers"], arrivals)

    try:
        seen = at(rate)
    except ConfigError:
        # Refused for what the arrivals are: the report that shows it is printed all the same.
        click.echo("\n".join(_burst_lines(burst)), err=asked["as_json"])
        raise
    reference = l99_reference_ns(rate / asked["servers"], service.mean_ns, service.cv)
    error = reference / seen.p99_ns - 1.0 if seen.busy < 1.0 and exact else None
    lines = [
        *_burst_lines(burst),
        f"{rate:.4g} requests a second, {asked['servers']} server(s) of {_ms(service.mean_ns)} (CV {service.cv:.2f})",
        f"busy {seen.busy:.1%}   wait {_ms(seen.wait_mean_ns)}   mean {_ms(seen.mean_ns)}   p50 {_ms(seen.p50_ns)}   p99 {_ms(seen.p99_ns)}",
        f"by {'transform inversion, exact for these assumptions' if exact else 'approximation, see docs/queueing.md for its range'}",
        *(f"assumed: {text}" for text in seen.assumed),
    ]
    if error is not None:
        lines.append(f"for comparison: the published L99 formula says {_ms(reference)}, {error:+.0%}")
    if seen.busy >= 1.0:
        lines.append(f"the queue grows without end: at most {rate / seen.busy:.4g} requests a second")
    full = rate / seen.busy
    loads = [full * share / 100 for share in range(5, 96, 3)]
    found = {
        "way": "servers",
        "rate_per_s": rate,
        "servers": asked["servers"],
        "service_mean_ns": service.mean_ns,
        "service_cv": service.cv,
        "exact": exact,
        "steady": seen.busy < 1.0,
        "prediction": _plain(seen),
        "l99_reference_ns": reference,
        "l99_reference_error": error,
        "burstiness": _plain(burst),
    }
    return found, lines, {
        "heading": f"P99 of {asked['servers']} server(s) of {_ms(service.mean_ns)}, CV {service.cv:.2f}",
        "curve": _drawn(loads, lambda load: at(load).p99_ns),
        "mark": (rate, seen.p99_ns) if seen.busy < 1.0 else None,
    }  # fmt: skip


def _drawn(loads: list[float], p99: Any) -> list[tuple[float, float]]:
    """The curve as far as it can be predicted: where one load is refused, the next ones are too."""
    from sits.core.errors import ConfigError  # noqa: PLC0415

    points: list[tuple[float, float]] = []
    for load in loads:
        try:
            points.append((load, p99(load)))
        except ConfigError:
            break
    return points


def _engine(asked: dict[str, Any]) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    from sits.app.output import read_text  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415
    from sits.core.fleet import EmulatedEngine  # noqa: PLC0415
    from sits.predict.queue_sharing import predict_sharing, work_of  # noqa: PLC0415
    from sits.wire import emulation  # noqa: PLC0415

    fleet = load_fleet(read_text(asked["fleet"]), str(asked["fleet"]))
    engines = {one.name: one for one in fleet.engines if isinstance(one, EmulatedEngine)}
    if not engines or (asked["engine"] or next(iter(engines))) not in engines:
        raise click.UsageError(
            f"no emulated engine {asked['engine'] or ''!r}; there are: {', '.join(engines) or 'none'}"
        )
    name = asked["engine"] or next(iter(engines))
    made = emulation(fleet, engines[name], {})
    burst, rate = _arrivals(asked)
    prompts, outputs = [asked["prompt"]], [asked["output_tokens"]]
    if asked["trace"] is not None:
        from sits.bench.traces import read_trace  # noqa: PLC0415

        trace = read_trace(asked["trace"])
        prompts, outputs = trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    step = made.spec.step
    work = work_of(step, prompts, outputs, made.spec.max_num_seqs, made.spec.max_num_batched_tokens)
    seen = predict_sharing(rate, work)
    lines = [
        *_burst_lines(burst),
        f"{name}: {rate:.4g} requests a second, {sum(prompts) / len(prompts):.0f} prompt and {work.output_mean:.0f} output tokens on average",
        (
            f"capacity {seen.capacity_per_s:.3g}/s, load {seen.load:.0%}   in flight {seen.in_flight_mean:.1f}   "
            f"mean {_ms(seen.e2e_mean_ns)}   p99 {_ms(seen.e2e_p99_ns)}   tpot {_ms(seen.tpot_mean_ns)}"
        ),
        "by processor sharing whose speed depends on the number in flight; KV blocks assumed enough, host costs as of the step",
        *(f"assumed: {text}" for text in made.assumed),
    ]
    if asked["trace"] is None:
        lines.append(
            "assumed: all requests have these lengths, so mean and P99 are one; --trace brings lengths"
        )
    if seen.beyond:
        lines.append(
            "above 70 % of capacity this may be far too low: replay step by step (`sitsctl predict`)"
        )
    if burst is not None and not burst.poisson:
        lines.append("these arrivals are not Poisson, which this formula assumes: replay them step by step")
    steady = seen.load < 1.0
    found = {
        "way": "engine",
        "engine": name,
        "rate_per_s": rate,
        "steady": steady,
        "prediction": _plain(seen),
        "assumed": list(made.assumed),
        "burstiness": _plain(burst),
    }
    loads = [seen.capacity_per_s * share / 100 for share in range(2, 93, 3)]
    return found, lines, {
        "heading": f"P99 of {name}, end to end",
        "curve": _drawn(loads, lambda load: predict_sharing(load, work).e2e_p99_ns),
        "mark": (rate, seen.e2e_p99_ns) if steady else None,
        "trusted": 0.7 * seen.capacity_per_s,
    }  # fmt: skip


def _points(asked: dict[str, Any]) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    from sits.predict.knee import find_knee  # noqa: PLC0415
    from sits.world import stream_generator  # noqa: PLC0415

    points = _read_points(asked["points"])
    seen = find_knee(points, stream_generator(asked["seed"], "knee"), factor=asked["factor"])
    lines = [f"{len(points)} points at {len({p.load for p in points})} loads"]
    if seen.curve is not None:
        c = seen.curve
        lines.append(
            f"p99 = {_ms(c.floor_ns)} + {_ms(c.rise_ns)} / (1 - load / {c.load_max:.4g}), {seen.misfit:.1%} off on average (rms)"
        )
    if seen.knee is not None and seen.load_max is not None:
        lines.append(
            f"knee at load {seen.knee.value:.4g}, 95 % interval {seen.knee.low:.4g} .. {seen.knee.high:.4g}"
        )
        lines.append(
            f"no end of the queue from load {seen.load_max.value:.4g}, {seen.load_max.low:.4g} .. {seen.load_max.high:.4g}"
        )
    else:
        lines.append(f"no knee: {seen.refusal}")
    found = {
        "way": "points",
        "steady": not seen.refusal,
        "points": [_plain(p) for p in points],
        "found": _plain(seen),
    }
    return found, lines, _knee_chart(points, seen)


def _knee_chart(points: "list[Point]", seen: "Knee") -> dict[str, Any]:
    curve = []
    if seen.curve is not None:
        top = max(point.load for point in points)
        curve = [(top * i / 240, seen.curve.p99_ns(top * i / 240)) for i in range(241)]
    return {
        "heading": "P99 against load" + (f": no knee, {seen.refusal}" if seen.refusal else ""),
        "curve": curve,
        "points": [(point.load, point.p99_ns) for point in points],
        "band": seen.band,
        "knee": None if seen.knee is None else (seen.knee.value, seen.knee.low, seen.knee.high),
        "factor": seen.factor,
    }


def _read_points(path: Path) -> "list[Point]":
    from sits.app.number_rows import read_rows  # noqa: PLC0415
    from sits.predict.knee import Point  # noqa: PLC0415

    rows = read_rows(path, (2, 3), "load,p99_ms or load,p99_ms,requests")
    return [Point(row[0], row[1] * 1e6, int(row[2]) if len(row) == 3 else 0) for row in rows]


def _service(asked: dict[str, Any]) -> "Service":
    from sits.predict.queue_service import gamma, measured  # noqa: PLC0415

    if asked["service_times"] is None:
        return gamma(float(asked["service"]), asked["cv"])
    from sits.app.number_rows import read_rows  # noqa: PLC0415

    return measured(
        [row[0] * 1e6 for row in read_rows(asked["service_times"], (1,), "one time in ms on each line")]
    )


def _arrivals(asked: dict[str, Any]) -> "tuple[Burstiness | None, float]":
    """The burstiness of the trace, if one was given, and the rate: a trace scaled to it keeps its shape over windows of its own."""
    if asked["trace"] is None:
        if asked["rate"] is None:
            raise click.UsageError("give --rate, or --trace")
        return None, asked["rate"]
    from sits.bench.traces import read_trace  # noqa: PLC0415
    from sits.bench.windows import at_rate  # noqa: PLC0415
    from sits.predict.burstiness import burstiness  # noqa: PLC0415

    arrivals_ns = at_rate(read_trace(asked["trace"]).arrival_s, asked["rate"] or 0.0)
    found = burstiness([at / 1e9 for at in arrivals_ns])
    return found, found.rate_per_s


def _burst_lines(found: "Burstiness | None") -> list[str]:
    from sits.predict.burstiness import burstiness_text  # noqa: PLC0415

    if found is None:
        return ["no arrivals given: Poisson unless --arrival-cv says otherwise; --trace measures them", ""]
    return [burstiness_text(found), ""]


def _plain(value: Any) -> Any:
    import msgspec  # noqa: PLC0415

    return None if value is None else msgspec.to_builtins(value)


def _finite(value: Any) -> Any:
    """JSON has no infinity: null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not abs(value) < sys.float_info.max else value


def _ms(ns: float) -> str:
    if not ns < 1e300:
        return "endless"
    ms = ns / 1e6
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"
