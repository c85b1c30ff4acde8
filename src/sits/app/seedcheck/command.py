"""`sitsctl seedcheck`: published claims beside what is right, each derived anew when the command runs.

Without an argument a table of all entries: whether the derivation shows what it has to, the claim, the right value.  With one or more
identifiers the whole derivation.  Exits with 1 when a derivation does not hold: then a predictor of ours is broken.

Deliberately absent: the derivations (`memory`, `queueing`, `windows`, `detectors`, `hardware`, `software`).
"""

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sits.app.seedcheck.entry import Derived, Entry

WIDTH_PIPED, WIDTH_MOST = 100, 140


def entries() -> "tuple[Entry, ...]":
    """All entries in the order of their numbers."""
    from sits.app.seedcheck import detectors, hardware, memory, queueing, software, windows  # noqa: PLC0415

    families = (memory, queueing, windows, detectors, hardware, software)
    return tuple(entry for family in families for entry in family.ENTRIES)


@click.command(short_help="Published claims that do not hold, and what is right.")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
def seedcheck(ids: tuple[str, ...], as_json: bool) -> int:
    """Derive the right value of published claims about KV memory, queues, bursts, GPUs and networks that do not hold.

    With an ID, like E7, the whole derivation of that one.
    """
    from sits.app import output  # noqa: PLC0415
    from sits.app.terminal import Progress  # noqa: PLC0415

    chosen = _chosen(ids)
    found: list[tuple[Entry, Derived]] = []
    with Progress(quiet=as_json or not sys.stderr.isatty()) as progress:
        for done, entry in enumerate(chosen):
            progress("deriving", done, len(chosen))
            found.append((entry, entry.derive()))
    failed = [entry.id for entry, derived in found if not derived.passed]
    if as_json:
        output.print_json(
            {"failed": failed, "entries": [_document(entry, derived) for entry, derived in found]}
        )
    elif ids:
        click.echo("\n\n".join(_explained(entry, derived) for entry, derived in found))
    else:
        _table(found)
    return 1 if failed else 0


def _chosen(ids: tuple[str, ...]) -> "tuple[Entry, ...]":
    known = {entry.id: entry for entry in entries()}
    wanted = [one.upper() for one in ids]
    for one in wanted:
        if one not in known:
            raise click.BadParameter(f"no entry {one!r}; there are E1 to E{len(known)}", param_hint="'ID'")
    return tuple(known[one] for one in wanted) if wanted else tuple(known.values())


def _document(entry: "Entry", derived: "Derived") -> dict[str, Any]:
    return {
        "id": entry.id,
        "title": entry.title,
        "claim": entry.claim,
        "kind": entry.kind,
        "by": entry.used,
        "right": derived.right,
        "derivation": derived.steps,
        "checks": [{"what": check.what, "ok": check.ok} for check in derived.checks],
        "passed": derived.passed,
    }


def _explained(entry: "Entry", derived: "Derived") -> str:
    source = "source" if entry.kind == "fact" else "computed with"
    lines = [
        f"{entry.id}  {entry.title}",
        f"  published   {entry.claim}",
        f"  right       {derived.right}",
        "  derivation",
        *(f"    {step}" for step in derived.steps),
        "  shown",
        *(f"    {'yes' if check.ok else 'NO '}  {check.what}" for check in derived.checks),
        f"  {source}: {entry.used}",
    ]
    return "\n".join(lines)


def _table(found: "list[tuple[Entry, Derived]]") -> None:
    from rich.console import Console  # noqa: PLC0415  # rich is heavy; only this table needs it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    width = min(WIDTH_MOST, shutil.get_terminal_size().columns) if terminal else WIDTH_PIPED
    console = Console(width=width, no_color=not terminal or bool(os.environ.get("NO_COLOR")), highlight=False)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("", "", "published", "right"):
        table.add_column(name, vertical="top")
    for entry, derived in found:
        mark = Text("pass", style="green") if derived.passed else Text("FAIL", style="bold red")
        table.add_row(entry.id, mark, Text(entry.claim, style="dim"), Text(derived.right))
    console.print(table)
    shown = sum(derived.passed for _, derived in found)
    facts = sum(entry.kind == "fact" for entry, _ in found)
    console.print(
        Text(
            f"\n{shown} of {len(found)} derivations hold; {len(found) - facts} are computed, {facts} compare with a vendor's table. "
            "pass: the claim is shown not to hold, and what is right follows. `sitsctl seedcheck E7` shows one."
        )
    )
