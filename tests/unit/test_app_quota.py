"""`sitsctl quota` on a ledger that runs, one that was left, and a real Redis."""

import asyncio
import json

import pytest

from redis_server import a_redis
from sits.app import cli
from sits.core.config import load_fleet
from sits.gateway.ledger.messages import LeaseAsk
from sits.gateway.ledger.service import open_authority
from sits.policy.lease import AskLine
from sits.world import RealWorld

FLEET = """
name: f
gateway: {store: here}
access: {tenants: [{name: acme, teams: [web]}, {name: beta}]}
quotas:
  - {name: day, match: {tenant: acme}, tokens: 2_000_000, requests: 10, per: 1d}
  - {name: each, each: [key], tokens: 60000, per: 1h}
  - {name: teams, each: [team], tokens: 500, per: total}
engines: [{kind: openai, name: e, url: "http://127.0.0.1:8000", models: [m]}]
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run the command line beside a fleet.yaml: `(exit code, stdout, stderr)`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(FLEET)

    def call(*argv):
        with pytest.raises(SystemExit) as stop:
            cli.main(["quota", *map(str, argv)])
        return stop.value.code, *capsys.readouterr()

    return call


def lines(day):
    window = RealWorld().wall_ns() // day
    hour = day // 24
    return (
        AskLine("day|tokens|1d", window, day, 2_000_000, 1, 1, 0, 1234, 0, 500, 700, 700),
        AskLine("each|tokens|1h|key=corp%2Fann", window * 24 + 23, hour, 60_000, 2, 1, 0, 61_000, 0, 0, 0, 0),
        AskLine("gone|tokens|total", 0, 0, 5, 4, 1, 0, 1, 0, 0, 0, 0),
    )


DAY = 86_400 * 10**9


async def use(path, *, then=None):
    """A gateway works on the ledger; `then` happens meanwhile."""
    fleet = load_fleet(path.read_text())
    ledger = open_authority(fleet.ledger, RealWorld(), path.parent / "here")
    await ledger.answer(LeaseAsk("gw", 1, lines(DAY)))
    if then is not None:
        await asyncio.to_thread(then)
        await ledger.answer(LeaseAsk("gw", 2, ()))
    await ledger.close()


def test_a_table_of_what_is_used_while_the_gateway_runs(run, tmp_path):
    seen = {}
    asyncio.run(use(tmp_path / "fleet.yaml", then=lambda: seen.update(table=run("show", "fleet.yaml"))))
    code, out, err = seen["table"]
    head, day, each = out.splitlines()
    assert code == 0
    assert head.split() == ["quota", "limit", "per", "settled", "reserved", "leased", "free", "debt", "ends"]
    assert day.split()[:9] == ["day", "2,000,000", "tokens", "1d", "1,234", "500", "200", "1,998,066", "0"]
    assert day.endswith("00:00:00Z")
    assert each.startswith("each (key corp/ann)")
    assert each.split()[-4:-2] == ["0", "1,000"]
    assert "teams: nothing used in this window" in err
    assert run("show", "fleet.yaml")[1] == out, "and after it ended"


def test_json_balances_in_every_row(run, tmp_path):
    asyncio.run(use(tmp_path / "fleet.yaml"))
    _, out, _ = run("show", "fleet.yaml", "--json", "--all")
    rows = json.loads(out)
    assert [(row["quota"], row["over"]) for row in rows] == [
        ("day", False),
        ("each", False),
        ("gone", False),
    ]
    for row in rows:
        assert row["limit"] + row["debt"] == row["settled"] + row["reserved"] + row["leased"] + row["free"]
    assert rows[1]["of"] == {"key": "corp/ann"}


def test_nothing_is_used_where_nothing_was_asked(run):
    code, out, err = run("show", "fleet.yaml")
    assert (code, out) == (0, "")
    assert "no quota is in use" in err
    assert json.loads(run("show", "fleet.yaml", "--json")[1]) == []


def test_a_grant_reaches_a_running_gateway_once(run, tmp_path):
    def grant():
        code, out, _ = run("grant", "fleet.yaml", "day", 5000, "--id", "ticket-7", "--json")
        assert code == 0
        told = json.loads(out)
        assert (told["id"], told["quota"], told["amount"]) == ("ticket-7", "day", 5000)

    fleet = tmp_path / "fleet.yaml"
    grant()  # before anything was used
    asyncio.run(use(fleet, then=grant))
    asyncio.run(use(fleet))
    rows = json.loads(run("show", "fleet.yaml", "--json")[1])
    assert rows[0]["limit"] == 2_005_000
    assert list((tmp_path / "here/ledger/grants").iterdir()) == []


def test_a_grant_for_one_of_many(run, tmp_path):
    code, out, _ = run("grant", "fleet.yaml", "each", 100, "--for", "key=corp/ann")
    assert code == 0
    assert out.startswith("100 more tokens for each (key corp/ann) until ")
    code, out, _ = run("grant", "fleet.yaml", "teams", 100, "--for", "team=web", "--for", "tenant=acme")
    assert "teams (team acme/web); id" in out
    asyncio.run(use(tmp_path / "fleet.yaml"))
    rows = json.loads(run("show", "fleet.yaml", "--json")[1])
    assert {row["quota"]: row["limit"] for row in rows} == {"day": 2_000_000, "each": 60_100, "teams": 600}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("dya", 1), "did you mean 'day'?"),
        (("day", 0), "0 is not in the range"),
        (("each", 1, "--unit", "requests"), "'each' limits tokens only"),
        (("each", 1), "say --for key=..."),
        (("teams", 1, "--for", "team=web"), "say --for tenant=..."),
        (("each", 1, "--for", "kye=a"), "is not FIELD=NAME"),
        (("day", 1, "--for", "tenant=beta"), "does not count tenant=beta"),
        (("day", 1, "--id", "../x"), "letters, digits"),
    ],
)
def test_a_grant_that_cannot_be_is_told(run, tmp_path, argv, says):
    code, out, err = run("grant", "fleet.yaml", *argv)
    assert (code, out) == (2, "")
    assert says in err
    assert not (tmp_path / "here").exists()


def test_a_damaged_ledger_is_told_in_one_line(run, tmp_path):
    asyncio.run(use(tmp_path / "fleet.yaml"))
    (path,) = (tmp_path / "here/ledger").glob("*.wal")
    first = path.read_bytes()
    asyncio.run(use(tmp_path / "fleet.yaml", then=lambda: None))
    (path,) = (tmp_path / "here/ledger").glob("*.wal")
    from sits.gateway.ledger.journal import frame

    path.write_bytes(b"\0" + first[1:] + frame([], len(first)))
    code, _, err = run("show", "fleet.yaml")
    assert code == 2
    assert err.count("\n") == 1
    assert "damaged at byte 0" in err


def test_show_and_grant_on_redis(run, tmp_path):
    server = a_redis()
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET + f"ledger: {{kind: redis, url: '{server.url}'}}\n")
    try:
        asyncio.run(use(fleet))
        for _ in range(2):
            assert run("grant", "fleet.yaml", "day", 70, "--id", "once")[0] == 0
        rows = json.loads(run("show", "fleet.yaml", "--json")[1])
        assert (rows[0]["limit"], rows[0]["settled"], rows[0]["reserved"]) == (2_000_070, 1234, 500)
        server.stop()
        code, out, err = run("show", "fleet.yaml")
        assert (code, out) == (3, "")
        assert f"Redis at {server.url}" in err
        server.begin()
    finally:
        server.close()
