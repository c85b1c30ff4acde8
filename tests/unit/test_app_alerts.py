"""What monitoring gets from a fleet: rules that fire in time and else are quiet, configurations their servers take, dashboards Grafana takes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from hypothesis import given
from hypothesis import strategies as st

from sits.app import cli
from sits.app.alerts.delays import SCRAPES, delays
from sits.app.alerts.grafana import dashboards_of
from sits.app.alerts.measure import Delay, Load, Measured, Probe, breach, table
from sits.app.alerts.objectives import indicators, slug
from sits.app.alerts.proofs import TROUBLE, _breach, _long_breach, proofs_of
from sits.app.alerts.rules import FAST_BURN, alerts_of, rules_of, threshold
from sits.app.alerts.servers import alertmanager_of, prometheus_of
from sits.app.alerts.stack import ALERTMANAGER, PROMETHEUS, Stack
from sits.core.config import dump_fleet, load_fleet
from sits.core.errors import ConfigError
from sits.core.units import SECOND
from sits.gateway.metrics import FAMILIES
from sits.world import RealWorld

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not here"
)
needs_servers = pytest.mark.skipif(
    not (shutil.which(PROMETHEUS[0]) and any(map(shutil.which, ALERTMANAGER))),
    reason="prometheus or alertmanager (Debian: prometheus, prometheus-alertmanager) is not here",
)


def fleet(
    more="", telemetry="{environment: preprod}", name="shop", listen="127.0.0.1:8080", store="sits-store"
):
    return load_fleet(
        f"""
name: {name}
gateway: {{listen: "{listen}", store: "{store}"}}
telemetry: {telemetry}
{more}
engines: [{{kind: openai, name: a, url: "https://engine:8000", models: [m], batches: by_call}}]
"""
    )


EVERYTHING = """
quotas: [{name: q, tokens: 1000, per: 1h}]
policy: {cache: {kind: exact}, window: {kind: adaptive, endpoints: [/v1/embeddings]}}
runtime_adapters: {engines: [{engine: a, slots: 4}], adapters: [{name: ad, model: m, path: /lora/ad}]}
admin: {listen: "127.0.0.1:8081"}
"""
TELLING = "{environment: preprod, profile: {hz: 100, push: 'http://pyroscope:4040'}, otlp: {export: {endpoint: 'http://otel:4318'}}}"


def whole(**more):
    """A fleet with every part that is watched."""
    return fleet(EVERYTHING, TELLING, **more)


@given(st.integers(15, 7200))
def test_the_lengths_keep_the_promise_at_the_worst(within_s):
    found = delays(within_s * SECOND)
    assert found.worst_s(0.144, 0.144) <= within_s
    assert found.window_s >= SCRAPES * found.step_s
    assert found.window_s % found.step_s == 0
    assert found.worst_s(0.144) <= found.worst_s(0.144, 0.5) <= found.worst_s(0.144, 0.1)


def test_a_budget_too_large_to_burn_fast_enough_can_still_be_told():
    half = fleet("objective: {availability: 50%}")
    assert threshold(indicators(half)[1], FAST_BURN) == 0.75


def promtool(tmp_path, *arguments):
    return subprocess.run(["promtool", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)


@needs_promtool
def test_rules_are_valid_and_do_what_their_own_tests_say(tmp_path):
    tree = whole()
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(rules_of(tree)))
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(proofs_of(tree, "r.yaml")))
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(prometheus_of(tree, ["h:1"], ["h:2"], "r.yaml")))
    assert "SUCCESS" in promtool(tmp_path, "check", "config", "p.yaml").stdout
    done = promtool(tmp_path, "test", "rules", "t.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("availability", ["50%", "90%", "96.5%", "97.7%", "99.9999%"])
def test_breaches_are_told_whatever_the_availability_that_was_promised(tmp_path, availability):
    tree = fleet(f"objective: {{availability: {availability}}}")
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(rules_of(tree)))
    stories = [_breach(tree, delays(300 * SECOND)), _long_breach(tree)]
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(proofs_of(tree, "r.yaml") | {"tests": stories}))
    done = promtool(tmp_path, "test", "rules", "t.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize(
    ("was", "now"),
    [("> 0.144 and on ()", "> 1 and on ()"), ("> 0.144 and on ()", ">= 0 and on ()"), ("'15s'", "10m")],
)
def test_the_tests_of_the_rules_find_rules_that_do_not_work(tmp_path, was, now):
    tree = fleet()
    rules = rules_of(tree)
    text = yaml.safe_dump(rules | {"groups": rules["groups"][:1]}, width=10**6)
    assert was.strip("'") in text
    text = (
        text.replace("for: 15s", "for: 10m")
        if now == "10m"
        else text.replace(was, now).replace("* 225 >= 5", "* 225 >= 0")
    )
    (tmp_path / "r.yaml").write_text(text)
    proofs = proofs_of(tree, "r.yaml") | {"tests": [_breach(tree, delays(300 * SECOND))]}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(proofs))
    assert promtool(tmp_path, "test", "rules", "t.yaml").returncode == 1


def test_every_alert_is_proven_and_says_what_to_do():
    tree = whole()
    alerts = alerts_of(tree)
    told = str(proofs_of(tree, "r.yaml"))
    assert {alert.name for alert in alerts if not alert.slo} == set(TROUBLE)
    assert all(f'alertname="{alert.name}"' in told for alert in alerts)
    assert all(alert.next and alert.summary for alert in alerts)
    assert {alert.severity for alert in alerts} == {"page", "ticket"}
    assert not any("quota" in alert.name.lower() for alert in alerts_of(fleet()))


def expressions(tree):
    rules = [rule["expr"] for group in rules_of(tree)["groups"] for rule in group["rules"]]
    return rules, [
        target["expr"]
        for board in dashboards_of(tree).values()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


def test_every_metric_that_is_named_is_one_the_gateway_has():
    tree = whole()
    rules, panels = expressions(tree)
    for expr in (*rules, *panels):
        for name in re.findall(r"\bsits_[a-z0-9_]+", expr):
            assert re.sub("_(bucket|sum|count)$", "", name) in FAMILIES or name in FAMILIES, (name, expr)
    recorded = {rule.get("record") for group in rules_of(tree)["groups"] for rule in group["rules"]}
    for expr in (*rules, *panels):
        assert set(re.findall(r"\bsits:[a-z0-9_:]+", expr)) <= recorded, expr
    assert any("sits_cache" in expr for expr in panels)
    assert not any("sits_cache" in expr for expr in expressions(fleet())[1])


FAILING = re.compile(
    "fail|refus|drop|lost|late|expired|withdrawn|mixed|apart|evicted|removed|outages|down|without_room|over_use|retries|bad"
)
"""Words in the names and texts of metrics that tell of something that goes wrong here."""


def test_whatever_counts_something_that_goes_wrong_is_on_a_board():
    rules, panels = expressions(whole())
    seen = " ".join((*rules, *panels))
    bad = {
        name for name, (kind, text) in FAMILIES.items() if kind == "counter" and FAILING.search(name + text)
    }
    assert len(bad) > 20
    assert {name for name in bad if name not in seen} == set()
    shown = " ".join(panels)
    results = {"sits_profiles_pushed_total", "sits_otlp_spans_total", "sits_board_streams_total"}
    assert all(name in shown for name in {*bad, *results} - {"sits_errors_total"})


def test_a_command_says_where_it_is_run_and_takes_any_path():
    told = {alert.name: alert.next for alert in alerts_of(fleet(store="my store/{{x"))}
    assert told["SitsLatencyFastBurn"] == (
        "sitsctl why --since 15m --store 'my store/{{ \"{{\" }}x' "
        "(on the gateway's machine, in the directory where `sitsctl up` was started)"
    )
    for alert in alerts_of(whole(store="/var/lib/sits")):
        assert "where `sitsctl up` was started" not in alert.next
        assert "--store" not in alert.next or "--store /var/lib/sits (on the gateway's machine)" in alert.next


def test_two_fleets_have_neither_a_file_nor_a_board_in_common():
    names = [
        "checkout-europe-west-1",
        "checkout-europe-west-2",
        "a b",
        "a-b",
        "A-b",
        "\u65e5\u672c",
        "\u65e5\u6708",
    ]
    assert len({slug(name) for name in names}) == len(names)
    boards = {board["uid"] for name in names for board in dashboards_of(fleet(name=f"'{name}'")).values()}
    assert len(boards) == 2 * len(names)
    assert all(re.fullmatch("[a-zA-Z0-9-]{1,40}", uid) for uid in boards)


@needs_servers
def test_alertmanager_takes_its_configuration(tmp_path):
    (tmp_path / "a.yml").write_text(yaml.safe_dump(alertmanager_of(fleet(), ["http://h/x"])))
    done = subprocess.run(
        ["amtool", "check-config", "a.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "1 receivers" in done.stdout) == (0, True), done.stdout + done.stderr


def test_engines_are_scraped_where_their_metrics_are_and_a_free_port_is_told():
    jobs = prometheus_of(fleet(), [], ["h:2"], "r.yaml")["scrape_configs"]
    assert [job["static_configs"][0]["targets"] for job in jobs] == [["127.0.0.1:8080"], ["engine:8000"]]
    assert (jobs[1]["scheme"], jobs[1]["metrics_path"]) == ("https", "/metrics")
    with pytest.raises(ConfigError, match="free port"):
        prometheus_of(fleet(listen="127.0.0.1:0"), [], [], "r.yaml")


GUARDED = """
name: f
gateway: {%smetrics: admin}
admin: {listen: "127.0.0.1:8081"}
engines: [{kind: openai, name: e, url: "http://engine:8000", models: [m]}]
"""


def test_pages_that_the_admin_process_shows_are_scraped_there_with_a_key():
    made = prometheus_of(fleet(listen="0.0.0.0:1"), [], [], "r.yaml")["scrape_configs"][0]
    assert "authorization" not in made
    told = load_fleet(GUARDED % "keys: ['acme:sits-one-0123456789abcdef'], ")
    made = prometheus_of(told, [], [], "r.yaml")["scrape_configs"][0]
    assert made["static_configs"][0]["targets"] == ["127.0.0.1:8081"]
    assert made["authorization"] == {"type": "Bearer", "credentials_file": "sits-admin.key"}
    assert (
        "authorization" not in prometheus_of(load_fleet(GUARDED % ""), [], [], "r.yaml")["scrape_configs"][0]
    )


def lacking(ours, theirs, path=""):
    """What of our JSON Grafana's types do not know."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key not in theirs:
                yield f"{path}.{key}"
            else:
                yield from lacking(value, theirs[key], f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from lacking(mine, other, f"{path}[{i}]")
    elif ours != theirs:
        yield f"{path}: {ours!r} is {theirs!r}"


@pytest.mark.parametrize("more", ["", EVERYTHING])
def test_dashboards_are_what_grafanas_types_say_and_panels_do_not_overlap(more):
    register_default_plugins()
    for board in dashboards_of(fleet(more)).values():
        read = Dashboard.from_json(json.loads(json.dumps(board)))
        again = json.loads(JSONEncoder(sort_keys=True).encode(read))
        assert list(lacking(board, again)) == []
        assert len(board["uid"]) <= 40
        cells = [
            (x, y)
            for panel in board["panels"]
            for at in [panel["gridPos"]]
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(cells) == len(set(cells))
        assert max(x for x, _ in cells) < 24
        assert all(panel["description"] for panel in board["panels"] if panel["type"] != "row")


@needs_servers
def test_a_breach_reaches_the_webhook_through_the_real_servers_and_every_expression_is_answered(tmp_path):
    world, said = RealWorld(0), []
    probe = Probe(tmp_path, fleet(telemetry="{alert_within: 15s}"), said.append)
    with (
        Stack(tmp_path, probe.fleet, [probe.address], world) as stack,
        probe,
        Load(probe.address, probe.fleet, world) as load,
    ):
        delay = breach(stack, probe, load, world, "breach")
        rules = [rule for group in stack.get("/api/v1/rules")["groups"] for rule in group["rules"]]
        assert {(rule["health"], rule.get("lastError")) for rule in rules} <= {
            ("ok", None),
            ("unknown", None),
        }
        assert sum(rule["health"] == "ok" for rule in rules) > 20
        _, panels = expressions(probe.fleet)
        empty = [expr for expr in panels if not stack.query(expr.replace("$__rate_interval", "10s"))]
    seldom = (
        "restarts",
        "outcome!=",
        ":ratio_rate30",
        ":ratio_rate6h",
        ":ratio_rate2h",
        ":ratio_rate1d",
        ":ratio_rate3d",
    )
    assert [expr for expr in empty if not any(word in expr for word in seldom)] == []
    assert delay.bad_answer_s <= delay.scraped_s <= delay.pending_s <= delay.webhook_s
    assert delay.webhook_s <= 15
    told = [one for one in stack.webhook.told if one.name == "SitsLatencyFastBurn"]
    assert (told[0].labels["environment"], told[0].labels["fleet"]) == ("prod", "shop")


@needs_servers
@pytest.mark.parametrize("begun", ["prometheus.yml", "gateway.log"])
def test_a_measurement_that_is_told_to_end_leaves_no_process_and_no_folder(tmp_path, begun):
    file, temporary = tmp_path / "fleet.yaml", tmp_path / "temporary"
    file.write_text(dump_fleet(fleet(telemetry="{alert_within: 15s}")))
    temporary.mkdir()
    line = [sys.executable, "-m", "sits.app.cli", "alerts", "measure", str(file)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, start_new_session=True) as process:
        pause = threading.Event()
        for _ in range(600):
            if list(temporary.glob(f"*/{begun}")) or process.poll() is not None:
                break
            pause.wait(0.05)
        (folder,) = temporary.iterdir()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not folder.exists()
    assert members(process.pid) == []


def members(session):
    """The processes of a session that are left."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            after = stat.read_text().rpartition(")")[2].split()
            found += [stat.parent.name] if int(after[3]) == session and after[0] != "Z" else []
    return found


def test_what_was_measured_is_told_with_its_promise():
    one = Delay(bad_answer_s=1.5, scraped_s=4.0, pending_s=7.0, firing_s=None, webhook_s=46.0)
    found = Measured(environment="prod", share=1.0, within_s=45, scrape_s=5, window_s=20, delays=(one,))
    assert "not seen" in table(found)
    assert table(found).endswith("longest 46.0 s: the promise is NOT kept\n")


def sitsctl_alerts(capsys, *argv):
    with pytest.raises(SystemExit) as stop:
        cli.main(["alerts", *map(str, argv)])
    return stop.value.code, capsys.readouterr().out


def test_the_commands_write_what_belongs_together(tmp_path, capsys):
    file, out = tmp_path / "fleet.yaml", tmp_path / "out"
    file.write_text(dump_fleet(fleet(name="'my shop/1'")))
    for argv in (
        ("rules",),
        ("prometheus", "--target", "h:1"),
        ("alertmanager", "--webhook", "http://h/"),
        ("grafana",),
    ):
        code, told = sitsctl_alerts(capsys, argv[0], file, "-o", out, *argv[1:])
        assert code == 0
        assert all((tmp_path / line).is_file() for line in told.splitlines())
    assert sorted(path.name for path in out.iterdir()) == [
        "alertmanager.yml",
        "prometheus.yml",
        "sits-my-shop-1-b9743112-gateway.json",
        "sits-my-shop-1-b9743112-rules-test.yaml",
        "sits-my-shop-1-b9743112-rules.yaml",
        "sits-my-shop-1-b9743112-service.json",
    ]
    prometheus = yaml.safe_load((out / "prometheus.yml").read_text())
    assert prometheus["rule_files"] == ["sits-my-shop-1-b9743112-rules.yaml"]
    assert "= 287 s at the worst" in (out / "sits-my-shop-1-b9743112-rules.yaml").read_text().splitlines()[0]


def test_rules_go_to_the_screen_and_as_json_with_their_delays(tmp_path, capsys):
    file = tmp_path / "fleet.yaml"
    file.write_text(dump_fleet(fleet(telemetry="{environment: prod}")))
    code, told = sitsctl_alerts(capsys, "rules", file)
    assert (code, yaml.safe_load(told)) == (0, rules_of(fleet(telemetry="{environment: prod}")))
    found = json.loads(sitsctl_alerts(capsys, "rules", "--json", file)[1])["delays"]
    assert (found["within_s"], found["worst_s"], found["worst_all_bad_s"]) == (45, 42.0, 24.9)


def test_a_machine_without_the_servers_is_told_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "fleet.yaml"
    file.write_text(dump_fleet(fleet()))
    with pytest.raises(SystemExit) as stop:
        cli.main(["alerts", "measure", "-q", str(file)])
    assert stop.value.code == 2
    assert (
        "there is no prometheus on this machine (install it (Debian: apt-get install prometheus))"
        in capsys.readouterr().err
    )
