"""`sitsctl shift`: start a shift, see how far it has come, halt it, take it back.

The gateway that serves the file carries it out; a command leaves an order in its store and waits until it was obeyed.

Exit codes: 0 as wanted; 1 the shift was halted or taken back (of `status`), or the order refused; 2 nothing serves the file.
"""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sits.app.shift.book import Book, Verb
    from sits.core.fleet import Fleet

DONE, NOT = 0, 1
WAIT_S, LOOK_S = 10.0, 0.05

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)


@click.group(short_help="Shift traffic to an arm step by step: start, status, halt, rollback.")
def shift() -> None:
    """Shift traffic to an arm step by step, with a test that halts it when the arm is not sound."""


@shift.command()
@click.argument("fleet", type=_file)
def start(fleet: Path) -> int:
    """Start the shift that FLEET (a fleet.yaml) plans."""
    return _order(fleet, "start")


@shift.command()
@click.argument("fleet", type=_file)
def halt(fleet: Path) -> int:
    """Stop where it is: the arm keeps the share it has."""
    return _order(fleet, "halt")


@shift.command()
@click.argument("fleet", type=_file)
def rollback(fleet: Path) -> int:
    """Take the arm's share back: everybody is answered as before the shift."""
    return _order(fleet, "rollback")


@shift.command()
@click.argument("fleet", type=_file)
@_json
def status(fleet: Path, as_json: bool) -> int:
    """Say how far the shift of FLEET has come, and what was seen."""
    from sits.app.output import print_json  # noqa: PLC0415
    from sits.app.shift.board import state_of  # noqa: PLC0415
    from sits.app.shift.book import read_book  # noqa: PLC0415

    tree = _tree(fleet)
    book = read_book(Path(tree.gateway.store))
    told = state_of(tree, book)
    if as_json:
        print_json(told)
    else:
        _print(told)
    return NOT if told["status"] in ("halted", "rolled_back") else DONE


def _tree(path: Path) -> "Fleet":
    from sits.app.output import read_text  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415

    return load_fleet(read_text(path), str(path))


def _order(path: Path, verb: "Verb") -> int:
    from sits.app.shift.book import Order, read_book, read_order, write  # noqa: PLC0415
    from sits.app.up.notice import notice_of  # noqa: PLC0415
    from sits.core.errors import BugError  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    store = Path(_tree(path).gateway.store)
    notice_of(store, path)
    last, book = read_order(store), read_book(store)
    number = 1 + max(last.number if last else 0, book.obeyed if book else 0)
    write(store, Order(number=number, verb=verb, wall_ns=RealWorld().wall_ns()))
    pause = threading.Event()
    for _ in range(round(WAIT_S / LOOK_S)):
        book = read_book(store)
        if book is not None and book.obeyed >= number:
            return _answered(book, verb)
        pause.wait(LOOK_S)
    raise BugError(f"the gateway did not obey within {WAIT_S:.0f} s")


def _answered(book: "Book", verb: str) -> int:
    last = book.history[-1]
    click.echo(f"{last.what}: {last.why}; the arm's share is {last.share:.4g}")
    return NOT if last.what == f"{verb} refused" else DONE


def _print(told: dict[str, Any]) -> None:
    click.echo(told["headline"])
    for arm in told["arms"]:
        click.echo(
            f"  {arm['name']:<24} share {arm['share_text']:>6}   {arm['requests']:>8} requests   "
            f"P99 {arm['p99']['text']}   errors {arm['errors']['text']}   loads {arm['loads']['text']}"
        )
    for test in told["tests"]:
        click.echo(f"  {test['label']:<44} {test['text']}")
    for event in told["history"]:
        click.echo(f"  {event['when']}  {event['what']}, share {event['share_text']}: {event['why']}")
