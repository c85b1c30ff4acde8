"""`sitsctl predict`: what the callers of an engine will see, for requests given by arrival, prompt and output tokens.

With `--model` the engine is one that `sitsctl calibrate` has fitted; with `--profile` a GPU whose layer tables are known, and whose limits
must then be told, for nothing is guessed.

Deliberately absent: any computing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sits.bench.predictions import Predicted

_text = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Time(click.ParamType):
    """A duration with its unit, in ns."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        from sits.core.errors import ConfigError  # noqa: PLC0415
        from sits.core.units import parse_duration  # noqa: PLC0415

        try:
            return parse_duration(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


@click.command(name="predict", short_help="Predict TTFT, TPOT and E2E of given requests.")
@click.option(
    "--model", type=click.Path(path_type=Path), default=None, help="A model that `sitsctl calibrate` made."
)
@click.option(
    "--requests", required=True, type=click.Path(path_type=Path),
    help="JSONL, plain or gzipped: arrival, prompt and output tokens of each request.",
)  # fmt: skip
@click.option(
    "--run",
    "runs",
    multiple=True,
    metavar="NAME",
    help="Of a file of several runs, this one only; repeat it.",
)
@click.option(
    "--loop", type=click.Choice(["auto", "open", "closed"]), default="auto", show_default=True,
    help="open: arrivals as given. closed: --users callers wait for their answers. auto: closed where the arrivals show it.",
)  # fmt: skip
@click.option("--users", type=click.IntRange(min=1), default=None, help="Callers of a closed loop.")
@click.option(
    "--think",
    type=_Time(),
    default=0,
    help="How long each thinks between answer and next request, like 500ms.",
)
@click.option(
    "--prefix-hits", type=click.FloatRange(0, 1), default=None,
    help="Share of requests whose prompt is in the prefix cache, where the file tells no cached_tokens.  [default: as calibrated]",
)  # fmt: skip
@click.option(
    "--level",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Speed of the machine; 1.1 is 10 % slower.",
)
@click.option(
    "--passes", type=click.IntRange(2, 200), default=16, show_default=True, help="Simulated passes."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def predict(
    model: Path | None, requests: Path, runs: tuple[str, ...], loop: str, users: int | None, think: int, prefix_hits: float | None,
    level: float, passes: int, seed: int, as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Predict time to first token, time per output token and end-to-end time of the requests in a file.

    A request is a line with an arrival (arrival_s, sent, due, timestamp: seconds), prompt_tokens, output_tokens and, where known,
    cached_tokens, id and run.  Measured times in the file are never looked at.
    """  # fmt: skip
    from sits.app.output import print_json  # noqa: PLC0415
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.bench.asked import read_asked  # noqa: PLC0415
    from sits.bench.models import read_model  # noqa: PLC0415
    from sits.bench.predictions import Wanted, document  # noqa: PLC0415
    from sits.bench.predictions import predict as foresee  # noqa: PLC0415

    if model is None:
        raise click.UsageError("say which engine: --model model.json (from `sitsctl calibrate`)")
    if loop == "closed" and users is None:
        raise click.UsageError("a closed loop needs --users N")
    if loop == "open" and users is not None:
        raise click.UsageError("--users makes a closed loop; leave out --loop open")
    fitted = read_model(model)
    asked = _chosen(read_asked(requests, arrivals=users is None), runs)
    wanted = Wanted(
        loop=loop,
        users=users or 0,
        think_ms=think / 1e6,
        passes=passes,
        seed=seed,
        prefix_hits=prefix_hits,
        level=level,
    )
    with Progress(quiet=quiet) as progress:
        predictions = [foresee(fitted, one, wanted, progress) for one in asked]
    if as_json:
        print_json(document(fitted, predictions))
    else:
        click.echo("\n".join(_lines(fitted, predictions)))
    return 0


def _chosen(asked: Sequence[Any], runs: tuple[str, ...]) -> list[Any]:
    from sits.core.errors import ConfigError  # noqa: PLC0415

    known = [one.run for one in asked]
    missing = [name for name in runs if name not in known]
    if missing:
        raise ConfigError(
            f"no run {missing[0]!r}", field="run", value=missing[0], hint=f"runs: {', '.join(known)}"
        )
    return [one for one in asked if not runs or one.run in runs]


def _lines(fitted: Any, predictions: "Sequence[Predicted]") -> list[str]:
    from sits.bench.predictions import DEFINITIONS  # noqa: PLC0415

    lines = [
        f"engine: {fitted.fitted_on.source}, {fitted.fitted_on.requests:,} requests, {fitted.fitted_on.steps:,} steps"
    ]
    if fitted.held_out is not None:
        held = fitted.held_out.median
        parts = [
            f"{metric[:-3].upper()} P50 {row['p50']:.0%}, P99 {row['p99']:.0%}"
            for metric, row in held.items()
        ]
        lines.append(f"error on runs left out of the fit, median: {'; '.join(parts)}")
    for one in predictions:
        lines += ["", *_run_lines(one)]
    return [*lines, "", *(f"{name}: {text}" for name, text in DEFINITIONS.items())]


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _run_lines(one: "Predicted") -> list[str]:
    loop = "arrivals as given" if one.loop is None else f"closed loop of {one.loop.users} users"
    head = f"{one.run + ': ' if one.run else ''}{len(one.asked):,} requests, {loop}"
    lines = [
        f"{head}; {one.requests_per_s:.2f} requests/s, {one.output_tokens_per_s:,.0f} output tokens/s over {one.span_s:,.1f} s",
        f"  {'ms':<9}" + "".join(f"{figure:>28}" for figure in ("mean", "p50", "p90", "p99")),
    ]
    for metric, found in one.quantiles.items():
        cells = [
            f"{_ms(getattr(found, f))} ({_ms(found.low[f])} to {_ms(found.high[f])})"
            for f in ("mean", "p50", "p90", "p99")
        ]
        lines.append(f"  {metric[:-3].upper():<9}" + "".join(f"{cell:>28}" for cell in cells))
    lines.append(
        f"  largest batch {one.largest_batch}, KV pool used up to {one.kv_used_most:.0%}, {one.preemptions:.0f} preemptions"
    )
    if one.arrivals is not None:
        lines.append(f"  arrivals: CV {one.arrivals.cv:.2f}, {one.arrivals.verdict}: {one.arrivals.reason}")
        lines += [
            f"    IDC({row.window_s:g} s) {row.idc:.2f}, Poisson {row.poisson_low:.2f} to {row.poisson_high:.2f}"
            for row in one.arrivals.idc
        ]
    lines += [f"  warning: {text}" for text in one.warnings]
    return lines + [f"  assumed: {text}" for text in one.assumed]
