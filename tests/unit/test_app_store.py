"""`sitsctl store`: what it says of a store, queries as text, hours that are over."""

import json

from click.testing import CliRunner

from sits.app.cli import cli
from sits.telemetry.parts import HOUR_NS
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import SIGNALS, SPANS, columns_of
from sits.world import RealWorld


def run(*arguments):
    return CliRunner().invoke(cli, ["store", *map(str, arguments)], standalone_mode=False)


def filled(path):
    with DuckStore(path) as store:
        for flush in range(3):
            store.append("signals", columns_of(SIGNALS, [("r", flush, "s", "n", 0.5)] * 4))
            store.flush()


def test_a_store_is_told_by_table(tmp_path):
    filled(tmp_path)
    (table,) = json.loads(run("info", tmp_path, "--json").output)["tables"]
    assert (table["table"], table["rows"], table["files"], table["hours"]) == ("signals", 12, 3, 1)
    assert table["bytes"] == sum(file.stat().st_size for file in tmp_path.rglob("*.parquet"))
    assert "signals" in run("info", tmp_path).output


def test_queries_can_be_had_as_text():
    assert "otel_traces" in run("sql", "trace", "--dialect", "clickhouse").output
    assert "$trace_id" in run("sql", "trace").output
    listed = run("sql").output.splitlines()
    assert any(line.startswith("stage_quantiles") and "clickhouse" in line for line in listed)
    assert "there is no query" in str(run("sql", "no_such_thing").exception)


def test_an_hour_that_is_not_over_is_left_alone(tmp_path):
    filled(tmp_path)
    assert json.loads(run("tend", tmp_path, "--json").output) == {"merged": 0, "indexed": 0, "troubles": []}


def test_spans_are_merged_by_who_knows_what_share_of_them_is_kept(tmp_path):
    """Merged without it they would stay whole: a gateway's keeper could not thin them any more."""
    old = RealWorld(1)
    old.wall_ns = lambda: 450_000 * HOUR_NS
    with DuckStore(tmp_path / "store", world=old) as store:
        for trace in ("0" * 32, "f" * 32):
            row = {name: "" if kind == "VARCHAR" else 0 for name, kind in SPANS.items()}
            rows = [tuple((row | {"trace_id": trace, "span_id": f"{i:016x}"}).values()) for i in range(3)]
            store.append("spans", columns_of(SPANS, rows))
            store.append("signals", columns_of(SIGNALS, [("r", 1, "s", "n", 0.5)]))
            store.flush()

    def spans():
        with DuckStore(tmp_path / "store") as store:
            return [len(store.scan("trace_spans", trace_id=trace)) for trace in ("0" * 32, "f" * 32)]

    fleet = tmp_path / "fleet.yaml"
    text = "name: f\nobjective: {metric: ttft, p99: 1.2s}\nengines: [{kind: openai, name: a, url: 'http://localhost:1', models: [llama-3-8b]}]\n"
    fleet.write_text(text + "telemetry: {environment: preprod, sampling: 25%}\n")
    assert json.loads(run("tend", tmp_path / "store", "--json").output)["merged"] == 2  # of signals alone
    assert spans() == [3, 3]
    told = run("tend", tmp_path / "store", "--fleet", fleet, "--json")
    assert json.loads(told.output) == {"merged": 2, "indexed": 0, "troubles": []}
    assert spans() == [0, 3]


def test_the_store_of_the_working_directory_is_meant_when_none_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no directory 'sits-store'" in str(run("info").exception)
    filled(tmp_path / "sits-store")
    assert json.loads(run("info", "--json").output)["store"] == "sits-store"
    assert run("tend", "--json").exception is None
