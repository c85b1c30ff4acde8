"""`sitsctl calibrate`: a model of an engine, fitted to a recording of it, with the error it had on runs left out.

Deliberately absent: recording.  docs/calibrate.md says what a recording holds and how to make one.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits.app.quantities import Number, Whole

if TYPE_CHECKING:
    from sits.predict.engine_facts import EngineFacts
    from sits.predict.fit_limits import Limit
    from sits.predict.fit_model import FittedEngine

_text = click.Path(exists=True, dir_okay=False, path_type=Path)
LIMIT_NAMES = ("blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")


@click.command(short_help="Fit a model of an engine to a recording of it.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the model goes, like model.json.",
)
@click.option(
    "--run", "runs", multiple=True, metavar="NAME", help="Fit to this run only; repeat it.  [default: all]"
)
@click.option(
    "--metrics",
    type=_text,
    default=None,
    help="A page of the engine's /metrics: its own word about its limits.",
)
@click.option("--engine-log", type=_text, default=None, help="The engine's log from its start on: the same.")
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME=N",
    help=f"A limit by hand ({', '.join(LIMIT_NAMES)}); repeat it.",
)
@click.option(
    "--half-life",
    type=Number(min=0),
    default=0.5,
    show_default=True,
    help="Age at which a run counts half, as a share of the recording's span; 0 counts all alike.",
)
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Leave out runs in turn and predict them: the error.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Also write the fit as a page.",
)
@click.option("--seed", type=Whole(min=0), default=0, show_default=True)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def calibrate(
    folder: Path, out: Path, runs: tuple[str, ...], metrics: Path | None, engine_log: Path | None, given: tuple[str, ...],
    half_life: float, check: bool, html: Path | None, seed: int, as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Fit a model of an engine to the recording in DIR and write it to a file for `sitsctl predict`.

    DIR holds runs.jsonl, requests.jsonl[.gz], steps.csv[.gz] (or vLLM's engine.log with its iteration lines) and, where there is
    one, scrapes.csv[.gz].  Says what the engine's limits are and how that is known, what it assumed, and how far predictions
    of runs left out were off.
    """  # fmt: skip
    import functools  # noqa: PLC0415

    from sits.app.calibrate_page import page_html  # noqa: PLC0415
    from sits.app.output import prepare, print_json, write_text  # noqa: PLC0415
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.bench.accuracy import checked  # noqa: PLC0415
    from sits.bench.calibrating import calibrate as fit  # noqa: PLC0415
    from sits.bench.calibrating import steps_of  # noqa: PLC0415
    from sits.bench.recording import read_recording  # noqa: PLC0415

    prepare(out.absolute().parent)
    prepare(html.absolute().parent if html else None)
    limits, caching = limits_of(facts_of(metrics, engine_log, given))
    recording = _chosen(read_recording(folder), runs)
    with Progress(quiet=quiet) as progress:
        fitted = functools.partial(fit, given=limits, prefix_caching=caching, half_life=half_life, seed=seed)
        model = checked(recording, seed=seed, progress=progress, fit=fitted) if check else fitted(recording)
    write_text(out, model.encode().decode())
    if html is not None:
        write_text(
            html,
            page_html(
                model,
                [steps_of(run, model.limits) for run in recording.runs],
                [line.strip() for line in _law_lines(model)],
            ),
        )
        click.echo(f"page: {html.absolute()}", err=True)
    if as_json:
        print_json({"model": str(out), **_summary(model)})
    else:
        click.echo("\n".join(_lines(model)))
        click.echo(f"\nmodel: {out.absolute()}")
    return 0


def _chosen(recording: Any, names: tuple[str, ...]) -> Any:
    if not names:
        return recording
    from sits.core.errors import ConfigError  # noqa: PLC0415

    known = [run.name for run in recording.runs]
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"no run {missing[0]!r}", field="run", value=missing[0], hint=f"runs: {', '.join(known)}"
        )
    return recording.only(set(names))


def facts_of(metrics: Path | None, engine_log: Path | None, given: tuple[str, ...]) -> "EngineFacts":
    """The engine's own word, and what is given by hand as `name=number`, which goes first."""
    from sits.bench.lines import text_of  # noqa: PLC0415
    from sits.core.errors import ConfigError  # noqa: PLC0415
    from sits.predict.engine_facts import read_facts  # noqa: PLC0415

    texts = {
        name: text_of(path) for name, path in (("metrics", metrics), ("log", engine_log)) if path is not None
    }
    for name, text in texts.items():
        alone = read_facts(log=text) if name == "log" else read_facts(metrics=text)
        if all(getattr(alone, limit) is None for limit in LIMIT_NAMES):
            path = metrics if name == "metrics" else engine_log
            raise ConfigError(
                f"{path} tells no limit of its engine",
                field=name,
                value=str(path),
                hint="give a page with vllm:cache_config_info, or a log that holds the engine's start",
            )
    return read_facts(log=texts.get("log"), metrics=texts.get("metrics"), given=_given(given))


def limits_of(facts: "EngineFacts") -> "tuple[dict[str, Limit], bool | None]":
    """Limits the engine or somebody told, and whether there is a prefix cache; None: nobody said."""
    from sits.predict.fit_limits import Limit  # noqa: PLC0415

    told = {name: getattr(facts, name) for name in LIMIT_NAMES}
    found = {
        name: Limit(value=fact.value, source=fact.source, sure=True)
        for name, fact in told.items()
        if fact is not None
    }
    caching = facts.prefix_caching
    said = caching is not None and not caching.source.startswith("assumption")
    return found, bool(caching.value) if said and caching is not None else None


def _given(pairs: tuple[str, ...]) -> dict[str, int]:
    from sits.core.errors import ConfigError  # noqa: PLC0415

    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in LIMIT_NAMES:
            import difflib  # noqa: PLC0415

            near = difflib.get_close_matches(name, LIMIT_NAMES, 1)
            way = f"did you mean {near[0]}?" if near else f"one of {', '.join(LIMIT_NAMES)}"
            raise ConfigError(f"--set {pair}: no limit {name!r}", field=name, value=pair, hint=way)
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(
                f"--set {pair}: {value!r} is no whole number above zero",
                field=name,
                value=value,
                hint=f"{name}=128",
            )
        found[name] = int(value)
    return found


def _summary(model: "FittedEngine") -> dict[str, Any]:
    import msgspec  # noqa: PLC0415

    law = model.steps
    coefficients = ("base_ms", "mixed_ms", "prompt_token_ms", "chunk_ms", "decode_ms", "kv_token_ms", "prompt_kv_ms", "pause_ms", "pause_decode_ms", "pause_mixed_ms")  # fmt: skip
    return {
        "fitted_on": msgspec.to_builtins(model.fitted_on),
        "limits": msgspec.to_builtins(model.limits),
        "steps": {name: getattr(law, name) for name in coefficients}
        | {"median_error": law.median_error, "levels": law.levels, "level_spread": law.level_spread()},
        "front": {"serial_ms": model.front.serial_ms},
        "prefix_hits": msgspec.to_builtins(model.prefix),
        "assumed": list(model.assumed),
        "held_out": msgspec.to_builtins(model.held_out),
    }


def _lines(model: "FittedEngine") -> list[str]:
    on = model.fitted_on
    lines = [
        f"{on.source}: {len(on.runs)} runs, {on.requests:,} requests ({on.failed} failed left out), {on.steps:,} engine steps in {on.span_s:,.0f} s",
        "",
        "limits of the engine",
    ]
    for name in LIMIT_NAMES:
        limit = getattr(model.limits, name)
        lines.append(f"  {name:<24}{limit.value:>8}  {limit.source}")
    return [*lines, "", *_law_lines(model), *_held_out_lines(model)]


def _law_lines(model: "FittedEngine") -> list[str]:
    law, front = model.steps, model.front
    lines = [
        f"a step takes, in ms (median error of one step {law.median_error:.0%}, each run at its own level)",
        f"  {law.base_ms:.2f} + {law.decode_ms:.3f} a decode + {law.kv_token_ms * 1e3:.2f} a thousand KV tokens",
        f"  and with prompts + {law.mixed_ms:.2f} + {law.prompt_token_ms:.4f} a prompt token + {law.chunk_ms:.2f} a prompt",
        f"  + {law.prompt_kv_ms * 1e6:.1f} a thousand prompt tokens for each thousand tokens in front of them",
        f"  then pauses {law.pause_ms:.2f} + {law.pause_decode_ms:.3f} a request + {law.pause_mixed_ms:.2f} with prompts",
        f"level of the machine, run by run (1 = the model): {_levels(law.levels)}; spread {law.level_spread():.0%}",
        f"the front end takes a request every {front.serial_ms:.1f} ms at most",
    ]
    if model.prefix.tokens:
        lines.append(f"prefix cache: {model.prefix.tokens:.0%} of the prompt tokens were found there")
    return lines + [f"assumed: {text}" for text in model.assumed]


def _levels(levels: dict[str, float]) -> str:
    low, high = min(levels, key=lambda name: levels[name]), max(levels, key=lambda name: levels[name])
    return f"{levels[low]:.2f} ({low}) to {levels[high]:.2f} ({high})"


def _held_out_lines(model: "FittedEngine") -> list[str]:
    held = model.held_out
    if held is None:
        return ["", "error on runs left out: not looked at (one run only, or --no-check)"]
    lines = [
        "",
        f"error on runs left out ({held.runs} runs; median and 90th percentile of |predicted / measured - 1|)",
    ]
    lines.append(f"  {'':<10}" + "".join(f"{figure:>14}" for figure in ("mean", "p50", "p90", "p99")))
    for metric, row in held.median.items():
        cells = "".join(f"{row[figure]:>6.0%} {held.p90[metric][figure]:>6.0%} " for figure in row)
        lines.append(f"  {metric:<10}{cells}")
    lines.append(
        f"  {held.covered:.0%} of the measured figures lay in the range of the passes (90 % meant); ranges are widened for that: "
        + ", ".join(f"{metric[:-3].upper()} by {math.expm1(by):.0%}" for metric, by in held.beyond.items())
    )
    return lines
