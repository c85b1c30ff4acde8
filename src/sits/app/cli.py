"""The command `sitsctl`.

Rules: results go to standard output, progress and diagnostics to standard error; `--json` prints one JSON
document on standard output and nothing else there.  An error of ours is one clear line without a traceback.
Each command imports what it needs when it runs: `sitsctl --help` loads nothing but click.

Exit codes: 0 done and, where an objective was judged, met · 1 done, but the objective is missed or not proven
met · 2 wrong usage or a configuration that cannot be used · 3 the work could not be done (nothing answers there,
a bug of ours) · 130 interrupted.

Deliberately absent: any computing.  A command reads arguments, calls one function of a lower floor, and prints.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from sits import __version__
from sits.app.access import access, keys
from sits.app.adapters import adapters
from sits.app.alerts.commands import alerts
from sits.app.calibrate import calibrate
from sits.app.check import check
from sits.app.importing.command import importing
from sits.app.letters import write_every_letter
from sits.app.live import reload, up
from sits.app.otlp.commands import otel
from sits.app.plan import plan
from sits.app.predict_cmd import predict
from sits.app.profiles.commands import profile
from sits.app.quantities import DURATION, Number, Whole
from sits.app.quota import quota
from sits.app.replay import explain, replay
from sits.app.seedcheck.command import seedcheck
from sits.app.shift.commands import shift
from sits.app.signals.commands import gpu, signals
from sits.app.storing.commands import store
from sits.app.top.commands import top
from sits.app.trace.commands import logs, trace
from sits.app.up.files import raise_file_limit
from sits.app.whose_store import show
from sits.bench.leaving import ends_when_told

OK, MISSED, USAGE, FAILED, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141

EPILOG = (
    "Exit codes: 0 done, objective met; 1 done, objective missed or not proven; "
    "2 wrong usage or configuration; 3 could not be done; 130 interrupted."
)


class _Commands(click.Group):
    """A group that names the nearest command when the one asked for does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            import difflib  # noqa: PLC0415  # only a mistyped command needs it

            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.5)
            known = ", ".join(self.list_commands(ctx))
            way = f"did you mean {near[0]!r}?" if near else f"commands: {known}"
            ctx.fail(f"no command {name!r}; {way}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order they are written here: the main ones first."""
        return list(self.commands)


@click.group(
    cls=_Commands,
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", message="sitsctl %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> int:
    """Find out why P99 left the objective of your LLM service, and prove the fix before you roll it out."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return OK


_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
_quiet = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@cli.command(short_help="Replay an incident, name its causes, and prove the fix.")
@click.argument("scenario", required=False, type=_file)
@click.option(
    "--seed",
    type=Whole(min=0),
    default=None,
    help="Seed of all randomness.  [default: the scenario's]",
)
@click.option(
    "--repetitions",
    type=Whole(min=1),
    default=None,
    help="Paired repetitions behind every interval.  [default: the scenario's]",
)
@click.option("--jobs", type=Whole(min=1), default=None, help="Processes to use.  [default: all CPUs]")
@click.option(
    "--trace",
    type=_file,
    default=None,
    help="Replay this trace (Azure, Mooncake or BurstGPT format) instead of generated arrivals.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Where report and configurations go.",
)
@_json
@_quiet
def reproduce(
    scenario: Path | None,
    seed: int | None,
    repetitions: int | None,
    jobs: int | None,
    trace: Path | None,
    out: Path,
    as_json: bool,
    quiet: bool,
) -> int:
    """Replay an incident on an emulated fleet, name its causes, and prove the fix.

    SCENARIO is a scenario file; without it, the built-in 2300-ms incident runs.  Needs no GPU, no network and
    no service.  Same seed, same bytes.  Exits with 1 when the fixed configuration is not proven to meet the
    objective.
    """  # fmt: skip
    from sits.app import output  # noqa: PLC0415
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.bench.reproduce import reproduce as run  # noqa: PLC0415

    output.prepare(out)
    with Progress(quiet=quiet) as progress:
        report = run(
            scenario,
            seed=seed,
            repetitions=repetitions,
            jobs=jobs or _cpus(),
            trace=trace,
            progress=lambda done, total, what: progress(f"simulating {what}", done, total),
        )
    output.show(report, as_json=as_json, written=output.write_report(report, out))
    return OK if output.proven(report) else MISSED


cli.add_command(up)
cli.add_command(reload)


@cli.command(short_help="Say why the recorded requests were slow.")
@click.option(
    "--since",
    type=DURATION,
    default="15m",
    show_default=True,
    help="How far back to look, like 90s, 15m, 2h.",
)
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("sits-store"),
    show_default=True,
    help="The store that `sitsctl up` wrote.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Also write the report as one HTML page.",
)
@_json
def why(since: int, store: Path, html: Path | None, as_json: bool) -> int:
    """Say why the measured requests were slow: stages, tail, findings.

    Reads what `sitsctl up` recorded.  Exits with 1 when the objective was missed or is not proven met.
    """  # fmt: skip
    from sits.app import output  # noqa: PLC0415
    from sits.app.profiles.section import with_cpu  # noqa: PLC0415
    from sits.bench.why import why as explain  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    output.require_store(store)
    output.prepare(html.parent if html else None)
    world = RealWorld()
    begin_wall_ns = world.wall_ns() - since
    report = with_cpu(explain(store, since, world), store, world, since_wall_ns=begin_wall_ns, newest=True)
    output.show(report, as_json=as_json, written=output.write_page(report, html) if html else None)
    return OK if output.proven(report) else MISSED


@cli.command(short_help="Load a running engine and say where its time goes.")
@click.option(
    "--target", required=True, metavar="URL", help="An OpenAI-compatible engine, like http://127.0.0.1:8000."
)
@click.option("--model", default="", help="Model to ask for.  [default: the first the engine lists]")
@click.option(
    "--duration",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Baseline and loaded phase together.",
)
@click.option(
    "--rate",
    type=Number(min=0, min_open=True),
    default=None,
    help="Requests per second of the loaded phase.  [default: sized by a warm-up]",
)
@click.option(
    "--metrics",
    "metrics_url",
    default="",
    metavar="URL",
    help="Prometheus page of the engine.  [default: TARGET/metrics]",
)
@click.option(
    "--api-key-env",
    default=None,
    metavar="NAME",
    help="Environment variable that holds the key, to be sent to any TARGET.  [default: OPENAI_API_KEY for a TARGET on this machine, else none]",
)
@click.option("--seed", type=Whole(min=0), default=0, show_default=True, help="Seed of the workload.")
@click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Write report.html and report.json there.",
)
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="The store of the gateway at TARGET, for the profiles it takes meanwhile.",
)
@_json
@_quiet
def investigate(
    target: str,
    model: str,
    duration: int,
    rate: float | None,
    metrics_url: str,
    api_key_env: str | None,
    seed: int,
    out: Path | None,
    store: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Load a running engine for a short while and say where its time goes.

    Sends a bounded open-loop workload, reads the engine's own metrics before and after, and reports what is
    explained and what is not.  Exits with 1 when the objective was missed or is not proven met.
    """  # fmt: skip
    from sits.app import output  # noqa: PLC0415
    from sits.app.key_sent import key_for  # noqa: PLC0415
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.bench.investigate import investigate as look  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    output.prepare(out)
    if store is not None:
        output.require_store(store)
    world = RealWorld(seed)
    begin_wall_ns = world.wall_ns()
    with Progress(quiet=quiet) as progress:
        report = look(
            target,
            world=world,
            model=model,
            api_key=key_for(target, api_key_env, "OPENAI_API_KEY"),
            metrics_url=metrics_url,
            duration_ns=duration,
            loaded_rate=rate or 0.0,
            progress=progress,
        )
    if store is not None:
        from sits.app.profiles.section import with_cpu  # noqa: PLC0415

        report = with_cpu(report, store, world, since_wall_ns=begin_wall_ns)
    output.show(report, as_json=as_json, written=output.write_report(report, out) if out else None)
    return OK if output.proven(report) else MISSED


cli.add_command(check)
cli.add_command(explain)
cli.add_command(trace)
cli.add_command(logs)
cli.add_command(top)
cli.add_command(replay)
cli.add_command(signals)
cli.add_command(gpu)
cli.add_command(store)
cli.add_command(otel)
cli.add_command(plan)
cli.add_command(seedcheck)
cli.add_command(calibrate)
cli.add_command(predict)
cli.add_command(keys)
cli.add_command(access)
cli.add_command(adapters)
cli.add_command(quota)
cli.add_command(shift)
cli.add_command(profile)
cli.add_command(alerts)
cli.add_command(importing)


@cli.command(short_help="Print the version.")
@_json
def version(as_json: bool) -> int:
    """Print the version."""
    if as_json:
        from sits.app import output  # noqa: PLC0415

        output.print_json({"sitsctl": __version__, "python": sys.version.split()[0]})
    else:
        click.echo(f"sitsctl {__version__}")
    return OK


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: run the command of `argv` and exit with its code."""
    write_every_letter()
    raise_file_limit()  # a month of a store is 720 indexes, each an open file
    with ends_when_told():
        code = run_command(lambda: cli.main(args=argv, prog_name="sitsctl", standalone_mode=False))
    sys.exit(code)


def run_command(command: Callable[[], Any]) -> int:
    """The exit code of `command`; whatever goes wrong is told in one line on standard error."""
    try:
        result = command()
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return show(error)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except SystemExit as stop:
        # click leaves this way for shell completion (0), and for a reader like `| head` that has gone (1); above 128 a signal said so
        return stop.code if isinstance(stop.code, int) and stop.code != 1 else BROKEN_PIPE
    except BrokenPipeError:
        # The reader went while the last lines were flushed; Python would complain once more on closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001  # the edge of the program: ours are told, all others raised again
        return _told(error)
    return result if isinstance(result, int) else OK


def _told(error: Exception) -> int:
    """Print an error of ours or of the machine in one line; raise anything else."""
    from sits.core.errors import BugError, CallerError, ConfigErrors, SitsError  # noqa: PLC0415
    from sits.core.plain_text import plain_lines  # noqa: PLC0415

    if isinstance(error, ConfigErrors):
        for one in error.errors:
            click.echo(f"sitsctl: {plain_lines(str(one))}", err=True)
        return USAGE
    if isinstance(error, SitsError):
        please = "; this is a bug of sitsctl, please report it" if isinstance(error, BugError) else ""
        click.echo(f"sitsctl: {plain_lines(str(error))}{please}", err=True)
        return USAGE if isinstance(error, CallerError) else FAILED
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"sitsctl: {plain_lines(f'{where}{error.strerror or error}')}", err=True)
        return FAILED
    raise error


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main()
