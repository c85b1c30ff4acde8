"""`sitsctl predict`: what the callers of an engine will see, for requests given by arrival, prompt and output tokens.

With `--model` the engine is one that `sitsctl calibrate` has fitted; with `--profile` a GPU whose layer tables are known, and whose limits
must then be told, for nothing is guessed.

Deliberately absent: any computing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits.app.quantities import DURATION, Number, Whole

if TYPE_CHECKING:
    from sits.bench.predictions import Predicted, Quantiles

_text = click.Path(exists=True, dir_okay=False, path_type=Path)

PROFILE_ONLY = (
    "--layers, --metrics, --engine-log, --set, --overhead, --overhead-prefill and --async-scheduling are of a --profile; "
    "a model has its own: give limits to `sitsctl calibrate`"
)


@click.command(name="predict", short_help="Predict TTFT, TPOT and E2E of given requests.")
@click.option(
    "--model", type=click.Path(path_type=Path), default=None, help="A model that `sitsctl calibrate` made."
)
@click.option(
    "--profile", type=click.Path(path_type=Path), default=None, metavar="PATH",
    help="Layer tables of a GPU: what their names have in common, before __dense and its sisters.",
)  # fmt: skip
@click.option(
    "--layers",
    type=Whole(min=1),
    default=None,
    help="Layers of the profile's model (num_hidden_layers).",
)
@click.option(
    "--metrics", type=_text, default=None, help="A page of the profile's engine's /metrics: its limits."
)
@click.option("--engine-log", type=_text, default=None, help="Its log from its start on: the same.")
@click.option(
    "--set", "given", multiple=True, metavar="NAME=N",
    help="A limit of the profile's engine by hand (blocks, block_size, max_num_seqs, max_num_batched_tokens).",
)  # fmt: skip
@click.option(
    "--overhead",
    type=DURATION,
    default=0,
    help="Host time of a step that a profile does not hold, like 300us.",
)
@click.option(
    "--overhead-prefill", type=DURATION, default=None,
    help="Host time that a step with prefill needs on top.  [default: 25 ms assumed where scheduling is asynchronous]",
)  # fmt: skip
@click.option(
    "--async-scheduling",
    is_flag=True,
    help="The profile's engine schedules a step while the one before runs.",
)
@click.option(
    "--requests", required=True, type=click.Path(path_type=Path),
    help="JSONL or CSV, plain or gzipped: arrival, prompt and output tokens of each request.",
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
@click.option("--users", type=Whole(min=1), default=None, help="Callers of a closed loop.")
@click.option(
    "--think",
    type=DURATION,
    default=0,
    help="How long each thinks between answer and next request, like 500ms.",
)
@click.option(
    "--prefix-hits", type=Number(0, 1), default=None,
    help="Share of requests whose prompt is in the prefix cache, where the file tells no cached_tokens.  [default: as calibrated under such a load]",
)  # fmt: skip
@click.option(
    "--level",
    type=Number(0.01, 100),
    default=1.0,
    show_default=True,
    help="Speed of the machine; 1.1 is 10 % slower.",
)
@click.option("--passes", type=Whole(2, 200), default=None, help="Simulated passes.  [default: 4 to 16]")
@click.option("--seed", type=Whole(min=0), default=0, show_default=True)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Also write the distributions as a page.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def predict(
    model: Path | None, profile: Path | None, layers: int | None, metrics: Path | None, engine_log: Path | None,
    given: tuple[str, ...], overhead: int, overhead_prefill: int | None, async_scheduling: bool,
    requests: Path, runs: tuple[str, ...], loop: str, users: int | None, think: int, prefix_hits: float | None,
    level: float, passes: int | None, seed: int, html: Path | None, as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Predict time to first token, time per output token and end-to-end time of the requests in a file.

    A request is a line with an arrival (arrival_s, arrival, sent, due, timestamp: seconds), prompt_tokens, output_tokens and, where
    known, cached_tokens, id and run.  Measured times in the file are never looked at.
    """  # fmt: skip
    from sits.app.output import prepare, print_json, write_text  # noqa: PLC0415
    from sits.app.predict_page import page_html  # noqa: PLC0415
    from sits.bench.asked import read_asked  # noqa: PLC0415
    from sits.bench.predictions import Wanted, document  # noqa: PLC0415

    _check_wish(model, profile, loop, users, think)
    if model is not None and (
        layers or metrics or engine_log or given or overhead or overhead_prefill or async_scheduling
    ):
        raise click.UsageError(PROFILE_ONLY)
    prepare(html.absolute().parent if html else None)
    asked = _chosen(read_asked(requests, arrivals=users is None), runs)
    if profile is not None:
        about, predictions = _by_profile(
            profile,
            layers,
            (metrics, engine_log, given),
            (overhead, overhead_prefill),
            async_scheduling,
            asked,
        )
    else:
        wanted = Wanted(
            loop=loop,
            users=users or 0,
            think_ms=think / 1e6,
            passes=passes or 0,
            seed=seed,
            prefix_hits=prefix_hits,
            level=level,
        )
        about, predictions = _by_model(model, asked, wanted, quiet)
    if html is not None:
        write_text(html, page_html(f"Predicted for {requests.name}", _about(about), predictions))
    if as_json:
        print_json(document(about, predictions))
    else:
        click.echo("\n".join(_lines(about, predictions)))
    if html is not None:
        click.echo(f"page: {html.absolute()}", err=as_json)
    return 0


def _check_wish(model: Path | None, profile: Path | None, loop: str, users: int | None, think: int) -> None:
    if (model is None) == (profile is None):
        raise click.UsageError(
            "say which engine: --model model.json (from `sitsctl calibrate`) or --profile PATH, one of both"
        )
    if profile is not None and users is not None:
        raise click.UsageError("a profile is asked about open arrivals; for a closed loop calibrate a model")
    if think and users is None:
        raise click.UsageError("--think is of a closed loop; it needs --users N")
    if loop == "closed" and users is None:
        raise click.UsageError("a closed loop needs --users N")
    if loop == "open" and users is not None:
        raise click.UsageError("--users makes a closed loop; leave out --loop open")


def _by_model(
    path: Path | None, asked: Sequence[Any], wanted: Any, quiet: bool
) -> "tuple[dict[str, Any], list[Predicted]]":
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.bench.models import read_model  # noqa: PLC0415
    from sits.bench.predictions import engine_of, predict  # noqa: PLC0415

    fitted = read_model(path or Path())
    with Progress(quiet=quiet) as progress:
        return engine_of(fitted), [predict(fitted, one, wanted, progress) for one in asked]


def _by_profile(
    path: Path, layers: int | None, told: "tuple[Path | None, Path | None, tuple[str, ...]]", host: tuple[int, int | None], async_scheduling: bool, asked: Sequence[Any]
) -> "tuple[dict[str, Any], list[Predicted]]":  # fmt: skip
    from sits.app.calibrate import facts_of  # noqa: PLC0415
    from sits.bench.profile_predictions import described, predict_profiled, profiled_engine  # noqa: PLC0415

    if layers is None:
        raise click.UsageError("no table says how many layers the model has: --layers N (num_hidden_layers)")
    facts = facts_of(*told)
    profile, spec = profiled_engine(
        path,
        layers,
        facts,
        overhead_us=host[0] / 1e3,
        prefill_us=None if host[1] is None else host[1] / 1e3,
        async_scheduling=async_scheduling,
    )
    return described(profile, spec, facts), [
        predict_profiled(spec, facts, one, host_told=host[1] is not None) for one in asked
    ]


def _chosen(asked: Sequence[Any], runs: tuple[str, ...]) -> list[Any]:
    from sits.core.errors import ConfigError  # noqa: PLC0415

    known = [one.run for one in asked]
    missing = [name for name in runs if name not in known]
    if missing:
        raise ConfigError(
            f"no run {missing[0]!r}", field="run", value=missing[0], hint=f"runs: {', '.join(known)}"
        )
    return [one for one in asked if not runs or one.run in runs]


def _lines(about: dict[str, Any], predictions: "Sequence[Predicted]") -> list[str]:
    from sits.bench.predictions import DEFINITIONS  # noqa: PLC0415

    lines = _about(about)
    for one in predictions:
        lines += ["", *_run_lines(one)]
    return [*lines, "", *(f"{name}: {text}" for name, text in DEFINITIONS.items())]


def _about(about: dict[str, Any]) -> list[str]:
    return [f"engine: {about['profile']}"] if "profile" in about else _calibrated(about)


def _calibrated(about: dict[str, Any]) -> list[str]:
    on, held = about["fitted_on"], about["held_out"]
    lines = [f"engine: {on['source']}, {on['requests']:,} requests, {on['steps']:,} steps"]
    if held:
        parts = [
            f"{metric[:-3].upper()} P50 {row['p50']:.0%}, P99 {row['p99']:.0%}"
            for metric, row in held["median"].items()
        ]
        lines.append(f"error on runs left out of the fit, median: {'; '.join(parts)}")
    return lines


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _cell(found: "Quantiles", figure: str) -> str:
    value = _ms(getattr(found, figure))
    return f"{value} ({_ms(found.low[figure])} to {_ms(found.high[figure])})" if found.low else value


def _run_lines(one: "Predicted") -> list[str]:
    loop = "arrivals as given" if one.loop is None else f"closed loop of {one.loop.users} users"
    head = f"{one.run + ': ' if one.run else ''}{len(one.asked):,} requests, {loop}"
    lines = [
        f"{head}; {one.requests_per_s:.2f} requests/s, {one.output_tokens_per_s:,.0f} output tokens/s over {one.span_s:,.1f} s",
        f"  {'ms':<9}" + "".join(f"{figure:>28}" for figure in ("mean", "p50", "p90", "p99")),
    ]
    for metric, found in one.quantiles.items():
        cells = [_cell(found, figure) for figure in ("mean", "p50", "p90", "p99")]
        lines.append(f"  {metric[:-3].upper():<9}" + "".join(f"{cell:>28}" for cell in cells))
    batch = "" if one.largest_batch is None else f"largest batch {one.largest_batch}, "
    pool = "" if one.kv_used_most is None else f"KV pool used up to {one.kv_used_most:.0%}, "
    lines.append(f"  {batch}{pool}{one.preemptions:.0f} preemptions")
    if one.arrivals is not None:
        lines.append(f"  arrivals: CV {one.arrivals.cv:.2f}, {one.arrivals.verdict}: {one.arrivals.reason}")
        lines += [
            f"    IDC({row.window_s:g} s) {row.idc:.2f}, Poisson {row.poisson_low:.2f} to {row.poisson_high:.2f}"
            for row in one.arrivals.idc
        ]
    lines += [f"  warning: {text}" for text in one.warnings]
    return lines + [f"  assumed: {text}" for text in one.assumed]
