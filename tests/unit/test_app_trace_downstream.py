"""`sitsctl logs timeouts` on stores whose failures were mended, took long, or are nobody's cause; and what of it a pipe gets."""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from otlp_cases import MS, row
from sits.app.cli import cli
from sits.app.trace.downstream import Answer, Looked, _counted, show
from sits.app.up.attempts import Attempts
from sits.core.units import SECOND
from sits.telemetry.logs import Log
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import LOGS, REQUESTS, columns_of
from sits.world import RealWorld


@pytest.fixture
def asked(tmp_path):
    """What `logs timeouts` says of rows and tries: both with seconds before now."""
    now = RealWorld().wall_ns()

    def ask(rows, tries=(), *arguments):
        lines = []
        for ago_s, model, engine, code in tries:
            log = Log(At(now - ago_s * SECOND), None, "json", process="worker-0")
            log.keep = lambda kept: lines.append(("r", *kept))
            Attempts(RealWorld(), log)("e" * 32, "f" * 32, model, engine, code, "other")
        made = [
            row(nth, {"api_recv": 1, "sent": 1 + took_ms}, wall_ns=now - ago_s * SECOND, **told)
            for nth, (ago_s, took_ms, told) in enumerate(rows)
        ]
        with DuckStore(tmp_path / "store") as store:
            store.append("requests", columns_of(REQUESTS, made))
            store.append("logs", columns_of(LOGS, lines))
        result = CliRunner().invoke(
            cli, ["logs", "timeouts", "--store", str(tmp_path / "store"), *arguments], standalone_mode=False
        )
        assert result.exception is None, result.exception
        return result.output

    return ask


class At:
    """A world whose wall clock stands."""

    def __init__(self, wall_ns):
        self._wall_ns = wall_ns

    def wall_ns(self):
        return self._wall_ns


def closed(model="m", **told):
    return {
        "outcome": "refused",
        "status": 503,
        "detail": "no_healthy_engine",
        "model": model,
        "engine": "",
        **told,
    }


def failed(engine, detail="engine_timeout", model="m"):
    return {"outcome": "failed", "status": 504, "detail": detail, "model": model, "engine": engine}


def test_a_first_try_that_was_mended_is_the_cause_of_what_the_open_breaker_refused(asked):
    said = json.loads(asked([(10, 1, closed())], [(12, "m", "flaky", "engine_unreachable")], "--json"))
    (answer,) = said["answers"]
    assert (answer["engine"], answer["cause"], answer["how"]) == ("flaky", "engine_unreachable", "mended")
    assert (answer["cause_id"], answer["cause_trace_id"]) == ("e" * 32, "f" * 32)
    assert said["counts"][0]["how"] == "mended"


@pytest.mark.parametrize(
    ("ago_s", "model", "why"),
    [(12, "other", "of another model"), (80, "m", "too long ago"), (5, "m", "after the answer")],
)
def test_a_mended_try_is_no_cause_of_what_it_cannot_have_closed(asked, ago_s, model, why):
    said = json.loads(asked([(10, 1, closed())], [(ago_s, model, "flaky", "engine_timeout")], "--json"))
    assert not said["answers"], why


def test_a_mended_try_is_not_the_failure_of_its_own_trace(asked):
    """Its caller was answered: an error elsewhere in that trace came from something else."""
    rows = [(10, 1, {"outcome": "failed", "status": 503, "detail": "over_quota", "trace_id": "f" * 32})]
    said = json.loads(asked(rows, [(12, "m", "flaky", "engine_timeout")], "--json"))
    assert not said["answers"]


def test_of_a_failure_and_a_mended_try_the_later_one_counts(asked):
    rows = [(20, 1, failed("early")), (10, 1, closed())]
    said = json.loads(asked(rows, [(12, "m", "late", "engine_timeout")], "--json"))
    assert [(one["engine"], one["how"]) for one in said["answers"]] == [
        ("early", "itself"),
        ("late", "mended"),
    ]


def test_a_request_that_timed_out_after_minutes_failed_when_it_ended(asked):
    took_ms = 290 * SECOND // MS
    rows = [(300, took_ms, failed("slow")), (12, 1, closed(model="other")), (5, 1, closed())]
    said = json.loads(asked(rows, (), "--json"))
    assert [(one["engine"], one["got"], one["how"]) for one in said["answers"]] == [
        ("slow", "504", "itself"),
        ("slow", "503", "breaker"),
    ]


def test_in_a_pipe_a_row_is_a_line_however_long_its_names(asked):
    name = "an-engine-of-a-fleet-" + "x" * 120
    said = asked([(20, 1, failed(name)), (10, 1, closed())], [(12, "m", name, "engine_unreachable")])
    rows = [line for line in said.splitlines() if name in line]
    assert len(rows) == 2
    assert any("engine closed after a retried try" in line and "engine_unreachable" in line for line in rows)
    said = asked([], (), "--all")
    assert (
        sum(f"<- {name} engine_unreachable, retried elsewhere of trace" in line for line in said.splitlines())
        == 1
    )


@pytest.mark.parametrize("width", [40, 80, 110, 120, 140, 200])
def test_on_a_screen_no_id_and_no_name_is_broken_in_two(monkeypatch, width):
    def answer(nth, **more):
        told = {
            "service": "gateway",
            "got": "ERROR: status 503",
            "engine": "llama-a",
            "cause": "engine_unreachable",
        }
        return Answer(
            wall_ns=10**18 + nth,
            trace_id=f"{nth:012x}{'0' * 20}",
            what="",
            cause_id="",
            cause_trace_id="",
            **{**told, **more},
        )

    one = tuple(answer(nth, how="mended") for nth in (1, 2, 3))
    other = tuple(answer(nth, how="trace", service="rag") for nth in (4, 5, 6))
    out = io.StringIO()
    monkeypatch.setattr("sits.app.output.console", lambda: Console(file=out, width=width, highlight=False))
    show(Looked((_counted(one), _counted(other)), (*one, *other)), every=False)
    said = out.getvalue()
    for whole in ("llama-a", "engine_unreachable", "09-09 01:46:40", *(f"{nth:012x}" for nth in range(1, 7))):
        assert whole in said
    if width >= 110:
        assert max(map(len, said.splitlines())) <= width
        assert said.splitlines()[0].split()[:3] == ["engine", "failure", "at"]
    else:
        assert said.splitlines()[0].split() == ["engine", "llama-a"]
