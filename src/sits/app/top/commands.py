"""`sitsctl top`: the command.

Rules: TARGET is a fleet file (then the objective is named, and the address looked up) or a
gateway's address.  `--once` and `--json` look twice, one interval apart, because rates need two looks: what they judge is that interval, and they
say so; they exit with 1 when the objective is missed or the gateway does not answer.

Deliberately absent: everything else.
"""

import os
import sys
import threading
from pathlib import Path

import click

from sits.app.quantities import DURATION, Quantity

DEFAULT = "http://127.0.0.1:8080"
KEY = "SITS_API_KEY"


@click.command(short_help="A live board of a gateway in the terminal.")
@click.argument("target", required=False)
@click.option(
    "--interval",
    type=Quantity("duration", some=True),
    default="1s",
    show_default=True,
    help="How often to look; with --once or --json: how much of the traffic is judged.",
)
@click.option(
    "--window", type=DURATION, default="60s", show_default=True, help="What rates and percentiles are over."
)
@click.option(
    "--api-key-env",
    default=None,
    metavar="NAME",
    help="Environment variable that holds a key, where the page needs one (gateway.metrics: admin), to be sent to any TARGET.  "
    "[default: SITS_API_KEY for a TARGET that is a fleet.yaml or on this machine, else none]",
)
@click.option(
    "--once", is_flag=True, help="Look twice, one --interval apart, print one board as text, and end."
)
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, and nothing else, on stdout.")
def top(
    target: str | None, interval: int, window: int, api_key_env: str | None, once: bool, as_json: bool
) -> int:
    """Watch a gateway: objective and burn, rates, P50, P95 and P99 of TTFT by engine, what is in flight, breakers, KV use.

    TARGET is a fleet.yaml or an address like http://127.0.0.1:8080 (the default).  Keys: q quit, p pause, s sort, / filter, enter an engine.

    --once and --json, and a pipe, judge the traffic of one --interval (a second unless told) and exit with 1 when the objective was missed in it, or
    nothing answers: in CI give them an interval in which some hundreds of requests are answered.
    """
    from sits.app import output  # noqa: PLC0415
    from sits.app.key_sent import key_for  # noqa: PLC0415
    from sits.app.top.source import Source  # noqa: PLC0415
    from sits.app.top.text import page, scope  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    asked = target or DEFAULT
    url, objective = _target(asked)
    key = key_for(url, api_key_env, KEY, configured=Path(asked).is_file())
    source = Source(url, RealWorld(), window, key)
    if not (once or as_json) and _can_draw():
        os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
        from sits.app.top.screen import Top  # noqa: PLC0415

        board = Top(source.look, interval / 1e9, objective)
        board.run()
        return board.return_code or 0
    frame = source.look()
    if frame.state == "waiting":
        threading.Event().wait(interval / 1e9)
        frame = source.look()
    if as_json:
        output.print_json(frame)
    else:
        click.echo(page(frame, objective) + scope(frame), nl=False)
    return 1 if frame.state == "lost" or (frame.missed or 0.0) > 0.01 else 0


def _address(asked: str) -> str:
    """The address that was typed: with or without `http://`, and with or without the page's own path."""
    from sits.core.errors import CallerError  # noqa: PLC0415
    from sits.core.http_address import http_address  # noqa: PLC0415

    bare = "://" not in asked
    if bare and ("/" in asked.rstrip("/") or asked.endswith((".yaml", ".yml"))):
        raise CallerError(
            f"there is no file {asked[:80]!r}",
            field="target",
            value=asked,
            hint=f"a fleet.yaml, or an address like {DEFAULT}",
        )
    host = f"[{asked}]" if bare and asked.count(":") > 1 and "[" not in asked else asked
    whole = f"http://{host}" if bare else asked
    parts = http_address(whole, "target")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/metrics')}"


def _can_draw() -> bool:
    """Whether a board can be drawn here: a terminal that moves its cursor, and keys that are heard."""
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        return False
    if os.environ.get("TERM") in ("dumb", "unknown"):
        click.echo(f"sitsctl: TERM={os.environ['TERM']} cannot draw a live board; this is one look", err=True)
        return False
    return True


def _target(asked: str) -> tuple[str, str]:
    """Its address, and its objective in words."""
    if not Path(asked).is_file():
        return _address(asked), ""
    from sits.app.up.generation import read  # noqa: PLC0415
    from sits.app.up.notice import notice_of  # noqa: PLC0415
    from sits.core.errors import UnknownError  # noqa: PLC0415

    fleet = read(Path(asked))
    store = Path(fleet.gateway.store)
    try:
        address = notice_of(store, Path(asked)).address
    except UnknownError:  # it may be served from another machine
        address = fleet.gateway.listen
    if fleet.gateway.metrics == "admin":
        address = fleet.admin.listen
    metric = {"ttft": "TTFT", "e2e": "end to end"}[fleet.objective.metric]
    return f"http://{address}", f"P99 {metric} {fleet.objective.p99 / 1e6:,.0f} ms"
