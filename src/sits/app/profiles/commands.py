"""`sitsctl profile`: where processor time goes, of a program, of a running gateway, of a file somebody made.

Rules: a program runs in its own interpreter, with its own arguments, output and exit code; what it used is told on standard error.  A
gateway is asked by an order in its store, as a shift is, and goes on serving.  Results are files; their format is told by their name.

Exit codes: the program's own; else 0 done, 2 wrong usage, 3 nothing was sampled.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits.app.quantities import DURATION, Number, Whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sits.telemetry.profile.profile import Profile

OK, FAILED = 0, 3
HZ_MAX = 1000
"""The kernel's clock ticks 250 to 1000 times a second; faster samples do not exist."""

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_out = click.option(
    "-o",
    "--out",
    "outs",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the profile there, again and again: .html flame graph, .pb.gz pprof, .folded, .speedscope.json.",
)
_hz = click.option(
    "--hz",
    type=Whole(min=1, max=HZ_MAX),
    default=100,
    show_default=True,
    help="Samples per second of CPU time.",
)
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
_store = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("sits-store"),
    show_default=True,
    help="The store of the gateway.",
)


class _Profile(click.Group):
    """A group of which `sitsctl profile -- python x.py` is short for `sitsctl profile run -- python x.py`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            first = args[0]
            if first == "--" or first.startswith("-"):
                args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Profile, short_help="Say where processor time goes: of a program, a gateway, a file.")
def profile() -> None:
    """Say where processor time goes.

    `sitsctl profile -- python script.py` is short for `sitsctl profile run -- python script.py`.  Every command has --json.
    """  # fmt: skip


@profile.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("program", nargs=-1, required=True)
@_hz
@_out
@_json
def run(program: tuple[str, ...], hz: int, outs: tuple[Path, ...], as_json: bool) -> int:
    """Run a Python PROGRAM and sample it: `-- python script.py ...`, `-- script.py ...` or `-- -m module ...`.

    Exits as the program does.  Programs it starts are not sampled.  Spans of `sits.span` and of OpenTelemetry name
    operations and traces.  With --json the program's own output goes to standard error.
    """  # fmt: skip
    from sits.app.profiles.source import check_format, write_profile  # noqa: PLC0415
    from sits.telemetry.profile import child  # noqa: PLC0415
    from sits.telemetry.profile.ops import label  # noqa: PLC0415
    from sits.telemetry.profile.profile import from_batch  # noqa: PLC0415

    for out in outs:
        check_format(out)
    interpreter, rest = _interpreter(program)
    with tempfile.TemporaryDirectory(prefix="sits-profile-") as place:
        result = Path(place, "result.json")
        command = [*interpreter, str(child.__file__), str(result), str(hz), *rest]
        try:
            code = subprocess.run(command, check=False, stdout=2 if as_json else None).returncode  # noqa: S603  (what the user asked to run)
        except FileNotFoundError:
            raise click.UsageError(f"there is no program {interpreter[0]!r}") from None
        if not result.exists():
            click.echo(
                f"sitsctl: {program[0]} ended without a profile (killed, or it ended itself)", err=True
            )
            return code or FAILED
        import msgspec  # noqa: PLC0415

        told = msgspec.json.decode(result.read_bytes())
    made = from_batch(
        _without_launcher(told["batch"], str(child.__file__)),
        label,
        process=" ".join(rest[:2] if rest[0] == "-m" else rest[:1]),
        wall_ns=told["wall_ns"],
        duration_ns=told["duration_ns"],
        period_ns=10**9 // hz,
    )
    for out in outs:
        write_profile(out, made, made.process, "Sampled by sitsctl profile.")
    if as_json:
        from sits.app.output import print_json  # noqa: PLC0415

        print_json(_document(made, None))
    else:
        _tell(made, outs)
    if told["failures"]:
        click.echo(f"sitsctl: {told['failures']} samples could not be taken", err=True)
    return code


def _without_launcher(batch: dict[str, Any], launcher: str) -> dict[str, Any]:
    """What was sampled, without the frames that started the program; they are the outermost ones, as far as `runpy`."""
    ours = {
        number
        for number, (_, file, _) in enumerate(batch["frames"])
        if launcher.endswith(file) or file == "<frozen runpy>"
    }
    samples = []
    for *head, places in batch["samples"]:
        kept = list(places)
        while len(kept) > 1 and kept[-1] in ours:
            kept.pop()
        samples.append([*head, kept])
    return {**batch, "samples": samples}


def _interpreter(program: "Sequence[str]") -> "tuple[list[str], list[str]]":
    """The interpreter with its own options, and what it is to run."""
    first = Path(program[0]).name
    if not first.startswith(("python", "pypy")):
        return [sys.executable], _there(list(program))
    rest = list(program[1:])
    mine = [program[0]]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option = rest.pop(0)
        mine.append(option)
        if option in ("-X", "-W") and rest:
            mine.append(rest.pop(0))
        if option == "-c":
            raise click.UsageError("write the program of -c into a file: its lines are what a profile shows")
    if not rest or rest == ["-m"]:
        raise click.UsageError("name a script, or -m and a module")
    return mine, _there(rest)


def _there(rest: list[str]) -> list[str]:
    """A script has to be there, and to be Python's; of modules the interpreter knows."""
    if rest[0] != "-m" and not Path(rest[0]).exists():
        raise click.UsageError(f"there is no script {rest[0]!r}")
    return rest


@profile.command()
@click.option(
    "--seconds",
    type=Number(min=1, max=600),
    default=10.0,
    show_default=True,
    help="How long to sample.",
)
@click.option(
    "--process", default="", help="Only this process, like worker-0.  [default: workers and keeper]"
)
@_store
@_hz
@_out
@_json
def gateway(seconds: float, process: str, store: Path, hz: int, outs: tuple[Path, ...], as_json: bool) -> int:
    """Sample the running gateway that records to --store, while it serves."""
    from sits.app.output import print_json, require_store  # noqa: PLC0415
    from sits.app.profiles.live import sampled  # noqa: PLC0415
    from sits.app.profiles.source import check_format, write_profile  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    require_store(store)
    for out in outs:
        check_format(out)
    found = sampled(store, RealWorld(), hz, seconds, process)
    if not found.samples:
        click.echo(
            f"sitsctl: {found.process} used no CPU time that could be sampled in {seconds:g} s", err=True
        )
        return FAILED
    for out in outs:
        write_profile(out, found, found.process, f"From {store}.")
    if as_json:
        print_json(_document(found, None))
    else:
        _tell(found, outs, err=False)
    return OK


@profile.command()
@click.argument("files", nargs=-1, type=_file)
@_store
@click.option("--since", type=DURATION, default=None, help="Take what a gateway stored in the last 15m, 2h.")
@click.option("--process", default="", help="Only this process, like worker-0.")
@click.option("--layer", default="", help="Only samples of this layer, like http.")
@click.option("--op", default="", help="Only samples of this operation, like parse.")
@click.option("--trace", default="", help="Only samples taken for this trace.")
@click.option(
    "--diff",
    type=click.Choice(["slow"]),
    default=None,
    help="Compare the slowest 1 % of requests with the others (with --since).",
)
@_out
@_json
def show(
    files: tuple[Path, ...],
    store: Path,
    since: int | None,
    process: str,
    layer: str,
    op: str,
    trace: str,
    diff: str | None,
    outs: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Show a profile: FILES (pprof or collapsed stacks, of any tool), or what a gateway stored.

    An engine's profile and a gateway's of the same minutes are read together: name the file and --since.
    """  # fmt: skip
    import msgspec  # noqa: PLC0415

    from sits.app.profiles.source import check_format, read_profile, write_profile  # noqa: PLC0415
    from sits.telemetry.profile.profile import merged  # noqa: PLC0415

    if not files and since is None:
        raise click.UsageError("name FILES, or a window with --since")
    if diff and since is None:
        raise click.UsageError("--diff slow needs --since: which requests were slow is in the store")
    for out in outs:
        check_format(out)
    compared = None
    if since is None:
        found = merged(read_profile(file) for file in files)
        about = ""
        heading = ", ".join(file.name for file in files)
    else:
        from sits.app.output import require_store  # noqa: PLC0415
        from sits.app.profiles.stored import compared_in, profile_in  # noqa: PLC0415
        from sits.world import RealWorld  # noqa: PLC0415

        require_store(store)
        world = RealWorld()
        since_ns = world.wall_ns() - since
        others = [msgspec.structs.replace(read_profile(file), process=file.name) for file in files]
        found = profile_in(store, world, since_wall_ns=since_ns, process=process, others=others)
        about = f"From {store}."
        heading = found.process
        if diff:
            compared = compared_in(store, world, found.of(layer, op, trace), since_wall_ns=since_ns)
    found = found.of(layer, op, trace)
    cut = ", ".join(
        f"{name} {value}" for name, value in (("layer", layer), ("op", op), ("trace", trace)) if value
    )
    about += f" Only {cut}." if cut else ""
    if not found.samples:
        click.echo("sitsctl: no samples there" + (f" of {cut}" if cut else ""), err=True)
        return FAILED
    for out in outs:
        if compared is not None and out.suffix == ".html":
            from sits.app.output import write_text  # noqa: PLC0415
            from sits.app.profiles.page import page_html  # noqa: PLC0415

            write_text(
                out,
                page_html("Slow requests against the others", found, about=about, compared=compared),
            )
        else:
            write_profile(out, found, found.process or heading, about.strip())
    if as_json:
        from sits.app.output import print_json  # noqa: PLC0415

        print_json(_document(found, compared))
    else:
        _tell(found, outs, compared=compared, err=False)
    return OK


def _document(found: "Profile", compared: Any) -> dict[str, Any]:
    """What `--json` prints; times in ns, shares 0..1."""
    from sits.telemetry.profile.tree import by_operation, functions  # noqa: PLC0415

    ranked = sorted(functions(found).values(), key=lambda node: (-node.self_ns, node.frame))
    document: dict[str, Any] = {
        "process": found.process,
        "wall_ns": found.wall_ns,
        "duration_ns": found.duration_ns,
        "cpu_ns": found.ns,
        "samples": found.count,
        "elsewhere_ns": found.elsewhere_ns,
        "operations": [
            {"name": name, "cpu_ns": ns, "share": ns / found.ns, "samples": count}
            for name, ns, count in by_operation(found.samples)
        ],
        "functions": [
            {
                "function": node.frame.function,
                "file": node.frame.file,
                "self_ns": node.self_ns,
                "cpu_ns": node.ns,
                "samples": node.count,
            }
            for node in ranked
        ],
    }
    if compared is not None:
        document["differences"] = [
            {
                "function": one.frame.function,
                "file": one.frame.file,
                "slow_share": one.slow,
                "rest_share": one.rest,
                "low": one.low,
                "high": one.high,
                "slow_samples": one.slow_count,
                "rest_samples": one.rest_count,
                "told_from_chance": one.told,
            }
            for one in compared.differences
        ]
        document["why_no_differences"] = compared.why_not
    return document


def _tell(found: "Profile", outs: "Sequence[Path]", *, compared: Any = None, err: bool = True) -> None:
    """The summary in words: operations, the busiest functions, what differs."""
    from sits.app.profiles.page import margin, summary  # noqa: PLC0415
    from sits.app.report.flame import short  # noqa: PLC0415
    from sits.core.plain_text import plain_lines  # noqa: PLC0415
    from sits.telemetry.profile.tree import by_operation, functions  # noqa: PLC0415

    def say(line: str = "") -> None:
        click.echo(plain_lines(line), err=err)

    say(f"{found.process or 'profile'}: {summary(found)}")
    if not found.samples:
        return
    operations = [one for one in by_operation(found.samples) if one[0]]
    if operations:
        say("\n  share of CPU time (± 95 %)   samples  layer/op")
        for name, ns, count in operations[:12]:
            share = ns / found.ns
            say(f"  {share:7.1%} ±{100 * margin(share, found.count):4.1f} points {count:14,}  {name}")
    say("\n  in itself   with callees   function")
    ranked = sorted(functions(found).values(), key=lambda node: (-node.self_ns, node.frame))
    for node in ranked[:12]:
        say(
            f"  {node.self_ns / found.ns:9.1%} {node.ns / found.ns:14.1%}   {short(node.frame.function)}  {node.frame.file}"
        )
    if compared is not None:
        say(
            f"\n{compared.why_not}"
            if compared.why_not
            else "\n   slow   others   95 % interval of the difference, points"
        )
        for one in compared.differences[:8]:
            mark = "" if one.told else "  (cannot be told from chance)"
            say(
                f"  {one.slow:5.1%}  {one.rest:6.1%}   {100 * one.low:+.1f} to {100 * one.high:+.1f}"
                f"   {short(one.frame.function)}  {one.frame.file}{mark}"
            )
    if outs:
        say(f"\nwrote {', '.join(str(out) for out in outs)}")
