"""Stores that were written before `requests` had traces and weights: every command that reads one works, with what there is."""

import duckdb
import pytest
from click.testing import CliRunner

from otlp_cases import request_id, row, whole
from sits.app.cli import cli
from sits.core.config import digest, dump_fleet, load_fleet
from sits.core.recorded import Recorded, encode
from sits.core.units import SECOND
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import DECISIONS, REQUESTS, columns_of
from sits.world import RealWorld

LATER = ("prompt_hash", "abstraction_layer", "trace_id", "parent_id", "weight")
FLEET = "name: t\nengines:\n  - {kind: openai, name: a, url: 'http://a', models: [llama]}\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store whose files of `requests` lack the columns that came later."""
    path, now, fleet = (
        tmp_path_factory.mktemp("older") / "store",
        RealWorld().wall_ns(),
        load_fleet(FLEET, "f.yaml"),
    )
    name = digest(fleet)[:12]
    common = {"run_id": f"t-1-{name}", "wall_ns": now - SECOND}
    rows = [row(i, whole(1), **common) for i in range(40)]
    rows.append(row(40, whole(1), **common, outcome="failed", status=504, detail="engine_timeout"))
    record = Recorded(generation=name, id=request_id(0), asked="llama", outcome="completed", status=200)
    path.mkdir()
    with DuckStore(path) as opened:
        opened.append("requests", columns_of(REQUESTS, rows))
        opened.append(
            "decisions", columns_of(DECISIONS, [(f"t-1-{name}", request_id(0), now, encode(record))])
        )
    (path / f"fleet-{name}.yaml").write_text(dump_fleet(fleet))
    files = list(path.glob("requests/*/*.parquet"))
    assert files
    for file in files:
        new = file.with_name("new")
        older = f"SELECT * EXCLUDE ({', '.join(LATER)}) FROM '{file}'"
        duckdb.sql(f"COPY ({older}) TO '{new}' (FORMAT parquet)")
        new.rename(file)
        assert "trace_id" not in duckdb.read_parquet(str(file)).columns
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trace", request_id(3)), request_id(3)),
        (("explain", request_id(0)), request_id(0)),
        (("logs",), ""),
        (("logs", "timeouts"), "engine_timeout"),
        (("why",), "P99"),
        (("replay", "--quiet"), "1 decisions come out as they were"),
    ],
    ids=["trace", "explain", "logs", "timeouts", "why", "replay"],
)
def test_each_command_works_with_what_an_older_store_has(store, arguments, says):
    result = CliRunner().invoke(cli, [*arguments, "--store", str(store)], standalone_mode=False)
    assert result.exception is None, result.exception
    assert says in result.output


def test_its_rows_stand_for_one_request_each(store):
    result = CliRunner().invoke(cli, ["store", "info", str(store)], standalone_mode=False)
    assert result.exception is None
    with DuckStore(store) as opened:
        assert [(one["model"], one["n"]) for one in opened.scan("load_by_model")] == [("llama", 41)]
        (found,) = opened.scan("trace", trace_id=request_id(3))
        assert found["id"] == request_id(3)
