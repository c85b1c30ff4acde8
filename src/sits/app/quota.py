"""`sitsctl quota`: what is used of each quota, and more of one by hand.

Reads the ledger itself: the write-ahead file of an embedded one, which is as exact while its gateway runs as after it was killed, or
Redis.  In every row `limit + debt = settled + reserved + leased + free`: settled is what was taken, reserved is held by requests that
run, leased is in hand at some process, debt is what was taken above the limit.

Exit codes: 0 done; 2 there is no such quota, or it needs to be told whose balance.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sits.core.fleet import Fleet
    from sits.gateway.ledger.authority import Row
    from sits.policy.quota import Meter

COLUMNS = ("settled", "reserved", "leased", "free")
FIELDS = ("tenant", "team", "key", "model")

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)


@click.group(short_help="What is used of each quota; more of one by hand.")
def quota() -> None:
    """See what is used of a fleet's quotas, and grant more."""


@quota.command()
@click.argument("fleet", type=_file)
@click.option(
    "--all", "past", is_flag=True, help="Also windows that have just ended, and quotas no longer in FLEET."
)
@_json
def show(fleet: Path, past: bool, as_json: bool) -> int:
    """Print limit, settled, reserved, leased and free of every balance of FLEET's quotas in use."""
    from sits.app.output import print_json  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    tree = _load(fleet)
    wall_ns = RealWorld().wall_ns()
    rows = [_shown(row, wall_ns) for row in _rows(tree, wall_ns)]
    names = {one.name for one in tree.quotas}
    if not past:
        rows = [row for row in rows if row["quota"] in names and not row["over"]]
    if as_json:
        print_json(rows)
    else:
        _print(rows)
        for name in sorted(names - {row["quota"] for row in rows}):
            click.echo(f"{name}: nothing used in this window", err=True)
    return 0


@quota.command()
@click.argument("fleet", type=_file)
@click.argument("name")
@click.argument("amount", type=click.IntRange(min=1))
@click.option("--unit", type=click.Choice(["tokens", "requests"]), default="tokens", show_default=True)
@click.option(
    "--for",
    "whose",
    multiple=True,
    metavar="FIELD=NAME",
    help="Whose balance, for a quota with 'each': key=ci, tenant=acme, team=web or model=m.",
)
@click.option("--id", "gift", default="", metavar="ID", help="Granting twice under one id grants once.")
@_json
def grant(
    fleet: Path, name: str, amount: int, unit: str, whose: tuple[str, ...], gift: str, as_json: bool
) -> int:
    """Add AMOUNT to the quota NAME, in the window that runs now.

    A running gateway takes it up within a second of its next question, one that is stopped when it starts.
    """  # fmt: skip
    from sits.app.output import print_json  # noqa: PLC0415
    from sits.gateway.ledger.gifts import Gift  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    tree, world = _load(fleet), RealWorld()
    meter = _meter(tree, name, unit)
    wall_ns = world.wall_ns()
    window = meter.window(wall_ns)
    given = Gift(
        name=_checked(gift) or f"{world.nonce():016x}",
        account=_account(meter, whose),
        window=window,
        per_ns=meter.per_ns,
        limit=meter.limit,
        amount=amount,
    )
    _give(tree, given)
    row = {"id": given.name, "amount": amount, **_names(given.account), "ends": _ends(meter.per_ns, window)}
    if as_json:
        print_json(row)
    else:
        until = f" until {row['ends']}" if row["ends"] else ""
        click.echo(f"{amount:,} more {unit} for {_title(row)}{until}; id {given.name}")
    return 0


def _load(path: Path) -> "Fleet":
    from sits.app.output import read_text  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415

    return load_fleet(read_text(path), str(path))


def _rows(tree: "Fleet", wall_ns: int) -> "list[Row]":
    from sits.core.fleet_quota import EmbeddedLedger  # noqa: PLC0415
    from sits.gateway.ledger.embedded import look  # noqa: PLC0415
    from sits.gateway.ledger.service import directory_of  # noqa: PLC0415

    if isinstance(tree.ledger, EmbeddedLedger):
        return look(directory_of(tree.ledger, Path(tree.gateway.store)), wall_ns)
    return _with_redis(tree, lambda ledger: ledger.rows())


def _give(tree: "Fleet", given: Any) -> None:
    from sits.core.fleet_quota import EmbeddedLedger  # noqa: PLC0415
    from sits.gateway.ledger.gifts import leave_gift  # noqa: PLC0415
    from sits.gateway.ledger.service import directory_of  # noqa: PLC0415

    if isinstance(tree.ledger, EmbeddedLedger):
        leave_gift(directory_of(tree.ledger, Path(tree.gateway.store)), given)
    else:
        _with_redis(tree, lambda ledger: ledger.give(given))


def _with_redis(tree: "Fleet", work: Any) -> Any:
    import asyncio  # noqa: PLC0415

    from sits.core.errors import CapacityError  # noqa: PLC0415
    from sits.core.fleet_quota import RedisLedger  # noqa: PLC0415
    from sits.gateway.ledger.redis_ledger import Redis, errors  # noqa: PLC0415
    from sits.gateway.ledger.service import password_of  # noqa: PLC0415

    config = tree.ledger
    assert isinstance(config, RedisLedger)

    async def connected() -> Any:
        ledger = Redis(config, password_of(config.password_env))
        try:
            return await work(ledger)
        finally:
            await ledger.close()

    try:
        return asyncio.run(connected())
    except errors() as error:
        raise CapacityError(f"Redis at {config.url}: {error}", field="ledger.url") from error


def _meter(tree: "Fleet", name: str, unit: str) -> "Meter":
    from sits.core.problems import near  # noqa: PLC0415
    from sits.policy.quota import compile_quotas  # noqa: PLC0415

    meters = compile_quotas(tree.quotas)
    found = [meter for meter in meters if meter.quota == name]
    if not found:
        raise click.BadParameter(
            f"no quota {name!r}; {near(name, (m.quota for m in meters))}", param_hint="NAME"
        )
    by_unit = {meter.unit: meter for meter in found}
    if unit not in by_unit:
        raise click.BadParameter(f"{name!r} limits {', '.join(by_unit)} only", param_hint="'--unit'")
    return by_unit[unit]


def _account(meter: "Meter", whose: Sequence[str]) -> str:
    """The account of whom `whose` names; everything `each` splits by has to be told, or follows from the match."""
    from sits.core.caller import Caller  # noqa: PLC0415
    from sits.policy.quota import account  # noqa: PLC0415

    told = {field: getattr(meter.match, field) for field in FIELDS}
    for word in whose:
        field, equals, value = word.partition("=")
        if field not in FIELDS or not equals or not value:
            raise click.BadParameter(
                f"{word!r} is not FIELD=NAME; fields: {', '.join(FIELDS)}", param_hint="'--for'"
            )
        told[field] = value
    split = meter.each + (("tenant",) if "team" in meter.each and "tenant" not in meter.each else ())
    if missing := [field for field in split if not told[field]]:
        hint = " ".join(f"--for {field}=..." for field in missing)
        raise click.BadParameter(f"{meter.quota!r} has a balance for each; say {hint}", param_hint="'--for'")
    caller = Caller(tenant=told["tenant"], team=told["team"], key_id=told["key"])
    found = account(meter, caller, told["model"])
    if not found:
        raise click.BadParameter(f"{meter.quota!r} does not count {' '.join(whose)}", param_hint="'--for'")
    return found


def _checked(gift: str) -> str:
    if gift and not (gift.isascii() and gift.replace("-", "").isalnum() and len(gift) <= 64):
        raise click.BadParameter("at most 64 letters, digits and -", param_hint="'--id'")
    return gift


def _names(account: str) -> dict[str, Any]:
    from urllib.parse import unquote  # noqa: PLC0415

    name, unit, per, *split = account.split("|")
    whose = {field: unquote(value) for field, _, value in (part.partition("=") for part in split)}
    return {"quota": name, "unit": unit, "per": per, "of": whose}


def _shown(row: "Row", wall_ns: int) -> dict[str, Any]:
    """A row as it is printed and as JSON has it."""
    import msgspec  # noqa: PLC0415

    ends = _ends(row.per_ns, row.window)
    told = msgspec.to_builtins(row.balance)
    told["limit"] = told.pop("granted")
    over = bool(row.per_ns) and (row.window + 1) * row.per_ns <= wall_ns
    return {**_names(row.account), "window": row.window, "ends": ends, "over": over, **told}


def _ends(per_ns: int, window: int) -> str:
    import datetime as dt  # noqa: PLC0415

    if not per_ns:
        return ""
    return dt.datetime.fromtimestamp((window + 1) * per_ns // 10**9, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _title(row: dict[str, Any]) -> str:
    whose = ", ".join(f"{field} {value or '-'}" for field, value in row["of"].items())
    return row["quota"] + (f" ({whose})" if whose else "")


def _print(rows: list[dict[str, Any]]) -> None:
    """A table as wide as its content; debt and expired only where there is any."""
    from sits.core.plain_text import plain  # noqa: PLC0415

    columns = COLUMNS + tuple(name for name in ("debt", "expired") if any(row[name] for row in rows))
    head = ("quota", "limit", "per", *columns, "ends")
    lines = [
        (
            _title(row),
            f"{row['limit']:,} {row['unit']}",
            row["per"],
            *(f"{row[name]:,}" for name in columns),
            row["ends"] or "never",
        )
        for row in rows
    ]
    if not lines:
        click.echo("no quota is in use", err=True)
        return
    widths = [max(len(cell) for cell in column) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        cells = [
            cell.ljust(width) if i in (0, 2, len(head) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo(plain("  ".join(cells).rstrip()))
