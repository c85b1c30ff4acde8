"""`sitsctl keys` and `sitsctl access`: keys are made, and questions about who may do what are answered before they are asked.

Rules: a secret is printed once, when it is made, and never read from the command line, where others would see it, but from
standard input.  `access check` decides with the very code that serves; so does `access whoami`, which also fetches
the issuers' keys.

Deliberately absent: writing into a fleet's file.  The entry is printed, a person pastes it.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sits.core.access_names import Names
    from sits.core.caller import Caller
    from sits.core.fleet import Fleet
    from sits.core.fleet_access import Key

ALLOWED, DENIED = 0, 1

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)


@click.group(short_help="Make API keys.")
def keys() -> None:
    """Make API keys: the secret for the caller, its digest for the fleet's file."""


def _entry_options(command: Any) -> Any:
    for option in (
        _json,
        click.option(
            "--expires", default="", metavar="DAY", help="Last day it works (UTC), like 2027-01-31."
        ),
        click.option(
            "--id", "name", default="", help="What the key is called.  [default: made from the tenant]"
        ),
        click.option("--role", "roles", multiple=True, help="A role; may be given several times."),
        click.option("--team", default="", help="The team within the tenant."),
        click.option("--tenant", required=True, help="Whose key it is."),
    ):
        command = option(command)
    return command


@keys.command()
@_entry_options
def new(tenant: str, team: str, roles: tuple[str, ...], name: str, expires: str, as_json: bool) -> int:
    """Make a key.  The secret is printed here once and kept nowhere."""
    from sits.gateway.keys import made_secret  # noqa: PLC0415

    secret = made_secret()
    _print_entry(secret, _entry(secret, tenant, team, roles, name, expires), as_json, made=True)
    return ALLOWED


@keys.command("hash")
@_entry_options
def hash_(tenant: str, team: str, roles: tuple[str, ...], name: str, expires: str, as_json: bool) -> int:
    """Make the entry of a key that exists, read from standard input.

    Only for random keys of at least 128 bits: what a person can think of, others can guess from its digest.
    """
    from sits.gateway.keys import check_random  # noqa: PLC0415

    secret = _from_stdin()
    check_random(secret)
    _print_entry(secret, _entry(secret, tenant, team, roles, name, expires), as_json, made=False)
    return ALLOWED


def _entry(secret: str, tenant: str, team: str, roles: tuple[str, ...], name: str, expires: str) -> "Key":
    """The key's entry, checked as in a file."""
    from sits.core.errors import ConfigErrors  # noqa: PLC0415
    from sits.core.fleet_access import Access, Key  # noqa: PLC0415
    from sits.core.fleet_access_rules import check_key  # noqa: PLC0415
    from sits.core.problems import Report  # noqa: PLC0415
    from sits.gateway.keys import digest_of  # noqa: PLC0415

    digest = digest_of(secret)
    called = name or f"{tenant}-{digest[:6]}"
    key = Key(id=called, tenant=tenant, team=team, roles=roles, sha256=digest, expires=expires)
    report = Report()
    check_key(key, Access(), "", report)
    if report.errors:
        raise ConfigErrors(report.errors)
    return key


def _print_entry(secret: str, key: "Key", as_json: bool, *, made: bool) -> None:
    from sits.app.output import print_json  # noqa: PLC0415
    from sits.core.config import text_of  # noqa: PLC0415

    if as_json:
        print_json(({"secret": secret} if made else {}) | {"entry": key})
        return
    if made:
        click.echo(f"secret, shown only now:\n  {secret}\n")
    click.echo(f"entry of access.keys:\n  - {text_of(key, type(key))}")


@click.group(short_help="Ask who may do what.")
def access() -> None:
    """Ask a fleet's access policies."""


@access.command()
@click.argument("fleet", type=_file)
@click.option(
    "--action",
    default="infer",
    show_default=True,
    help="infer, embed, list_models, finetune, deploy or admin.",
)
@click.option("--model", default="", help="The name asked for: a model's or an adapter's.  Not for admin.")
@click.option(
    "--key", "key_id", default="", help="Ask as this key of access.keys; gives tenant, team and roles."
)
@click.option("--user", default="", metavar="ISSUER/SUBJECT", help="Ask as this user.")
@click.option("--tenant", default="", help="Ask as somebody of this tenant.")
@click.option("--team", default="", help="... of this team.")
@click.option("--role", "roles", multiple=True, help="... with this role; may be given several times.")
@click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="NAME=VALUE",
    help="... whose token says this; a list with commas.",
)
@click.option("--region", default="", help="The region asked from.")
@click.option("--endpoint", default="", help="The path asked, like /v1/chat/completions.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of access.headers.")
@_json
def check(
    fleet: Path,
    action: str,
    model: str,
    as_json: bool,
    region: str,
    endpoint: str,
    headers: tuple[str, ...],
    **who: Any,
) -> int:
    """Say whether FLEET (a fleet.yaml) allows something, and which policy says so.

    Exits with 0 when it is allowed, with 1 when it is denied.
    """  # fmt: skip
    from sits.app.output import print_json  # noqa: PLC0415
    from sits.core.access_names import ACTIONS, ENDPOINTS, names_of  # noqa: PLC0415
    from sits.policy.access import ALLOWED as LETS  # noqa: PLC0415
    from sits.policy.access import OPEN, access_policy  # noqa: PLC0415

    tree = _loaded(fleet)
    names = names_of(tree)
    _known(action, ACTIONS, "--action", "action")
    if region:
        _known(region, names.regions, "--region", "region")
    if endpoint:
        _known(endpoint, ENDPOINTS, "--endpoint", "endpoint")
    given = _pairs(headers, "--header", names.headers)
    caller = _caller(tree, names, **who)
    place = ("", "") if action == "admin" else _place(tree, names, model)
    policy = access_policy(tree)
    decision = OPEN
    if policy is not None:
        values = tuple(given.get(name) for name in names.headers)
        decision = policy.decide(caller, action, *place, region=region, endpoint=endpoint, headers=values)
    allowed = decision.outcome in LETS
    policies = list(decision.reasons.get("policies", ()))
    if as_json:
        about = {"action": action, "model": place[0], "adapter": place[1], "caller": caller}
        print_json({"allowed": allowed, "outcome": decision.outcome, "policies": policies, **about})
    else:
        what = f"{action} of {model}" if model else action
        click.echo(f"{'allowed' if allowed else 'denied'}: {what} by {_shown(caller)}")
        click.echo(f"  {_reason(decision.outcome, policies)}")
    return ALLOWED if allowed else DENIED


@access.command()
@click.argument("fleet", type=_file)
@_json
def whoami(fleet: Path, as_json: bool) -> int:
    """Say whom a key or token, read from standard input, identifies to FLEET, or why nobody.

    Exits with 0 when it is somebody's, with 1 when it is refused.
    """
    from sits.app.output import print_json  # noqa: PLC0415
    from sits.core.errors import SitsError  # noqa: PLC0415
    from sits.gateway.access import Access  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    asked = Access(_loaded(fleet), RealWorld())
    problems = asked.load()
    for problem in problems:
        click.echo(problem, err=True)
    try:
        caller = asked.identify(None, _from_stdin().encode())
    except SitsError as error:
        if as_json:
            print_json({"known": False, "status": error.status, "code": error.code, "message": error.message})
        else:
            click.echo(f"refused ({error.status} {error.code}): {error}")
        return DENIED
    if as_json:
        print_json({"known": True, "caller": caller})
    else:
        click.echo(_shown(caller))
    return ALLOWED


@access.command()
@click.argument("fleet", type=_file)
def schema(fleet: Path) -> int:
    """Print the Cedar schema of FLEET, for editors and analysers of policies."""
    from sits.core.access_names import names_of, schema_text  # noqa: PLC0415

    click.echo(schema_text(names_of(_loaded(fleet))), nl=False)
    return ALLOWED


def _loaded(path: Path) -> "Fleet":
    from sits.app.output import read_text  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415

    return load_fleet(read_text(path), str(path))


def _from_stdin() -> str:
    if sys.stdin.isatty():
        click.echo("secret, not shown, then Enter:", err=True)
        return str(click.prompt("", prompt_suffix="", hide_input=True, err=True)).strip()
    text = sys.stdin.read().strip()
    if not text:
        raise click.UsageError("nothing came on standard input; pipe the key or token in")
    return text.partition(" ")[2].strip() if text[:7].lower() == "bearer " else text


def _known(name: str, known: Any, option: str, what: str) -> None:
    from sits.core.problems import near  # noqa: PLC0415

    if name not in known:
        raise click.BadParameter(
            f"there is no {what} {name!r}; {near(name, known)}", param_hint=f"'{option}'"
        )


def _pairs(texts: tuple[str, ...], option: str, known: Any) -> dict[str, str]:
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=f"'{option}'")
        _known(name, known, option, option.strip("-"))
        found[name] = value
    return found


def _place(fleet: "Fleet", names: "Names", model: str) -> tuple[str, str]:
    """(model, adapter) of the name asked for."""
    from sits.gateway.catalog import catalog, replicas_of  # noqa: PLC0415

    served = catalog(replicas_of(fleet, [engine.name for engine in fleet.engines]))
    _known(model, [*served, *names.aliases], "--model", "model")
    return served.get(model, (model, ""))


def _caller(
    fleet: "Fleet", names: "Names", *, key_id: str, user: str, tenant: str, team: str, roles: tuple[str, ...], claims: tuple[str, ...]
) -> "Caller":  # fmt: skip
    from sits.core.access_names import is_open  # noqa: PLC0415
    from sits.core.caller import Caller, Claims  # noqa: PLC0415
    from sits.gateway.keys import key_ring  # noqa: PLC0415

    if key_id:
        if user or tenant or team or roles or claims:
            raise click.UsageError("a key says whose it is: leave the others out, or leave '--key' out")
        _known(key_id, names.keys, "--key", "key")
        return key_ring(fleet).owner(key_id)
    if user and user.partition("/")[0] not in names.issuers:
        _known(user.partition("/")[0], names.issuers, "--user", "issuer")
    if tenant:
        _known(tenant, names.tenants, "--tenant", "tenant")
    if team and names.teams:
        _known(f"{tenant}/{team}", names.teams, "--team", "team")
    for role in roles:
        _known(role, names.roles, "--role", "role")
    said = _pairs(claims, "--claim", names.claims)
    values: dict[str, str | tuple[str, ...]] = {
        name: tuple(sorted(set(value.split(",")))) if names.claims[name] == "list" else value
        for name, value in said.items()
    }
    return Caller(
        tenant=tenant or "default",
        team=team,
        key_id=user,
        kind="user" if user else "anonymous" if is_open(fleet) else "key",
        roles=tuple(sorted(set(roles))),
        claims=Claims(values),
    )


def _shown(caller: "Caller") -> str:
    who = f"{caller.kind} {caller.key_id}" if caller.key_id else {"key": "a key"}.get(caller.kind, "somebody")
    parts = [f"{who} of tenant {caller.tenant}"]
    parts += [f"team {caller.team}"] if caller.team else []
    parts += [f"roles {', '.join(caller.roles)}"] if caller.roles else []
    parts += [
        f"{name} {value if isinstance(value, str) else ', '.join(value)}"
        for name, value in caller.claims.items()
    ]
    return "; ".join(parts)


def _reason(outcome: str, policies: list[str]) -> str:
    named = ", ".join(policies)
    return {
        "open": "the fleet has no policies: whoever is known may do everything",
        "allowed": f"permitted by {named}",
        "denied_by_policy": f"forbidden by {named}",
        "denied_by_default": "no policy permits it",
        "denied_by_error": f"a policy failed while it was evaluated; it decided with {named or 'no other'}",
    }[outcome]
