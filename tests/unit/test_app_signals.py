"""`sitsctl signals` and `sitsctl gpu`, run as people run them."""

import http.server
import json
import re
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from sits.app.cli import cli
from sits.app.signals.shown import link_lines, table, value_text
from sits.app.signals.told import told_by
from sits.core.engine_names import FAMILIES, SIGNALS, TITLES, names_of
from sits.core.errors import CallerError
from sits.gateway.metrics import page
from sits.telemetry.gpu.dcgm import FIELDS
from sits.telemetry.gpu.report import UNITS
from sits.telemetry.host.machine import UNITS as MACHINE
from sits.telemetry.host.tcp import UNITS as TCP
from sits.telemetry.slots import read_slots

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "tests" / "data" / "engines"
TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-3\nGPU1\tNV4\t X \t4-7\n"
SLOTS = json.dumps(
    [
        {
            "id": 0,
            "n_ctx": 1024,
            "is_processing": True,
            "n_prompt_tokens": 232,
            "next_token": [{"n_decoded": 15}],
        },
        {
            "id": 1,
            "n_ctx": 1024,
            "is_processing": True,
            "n_prompt_tokens": 482,
            "next_token": {"n_decoded": 29},
        },
        {
            "id": 2,
            "n_ctx": 1024,
            "is_processing": False,
            "n_prompt_tokens": 407,
            "next_token": [{"n_decoded": 9}],
        },
        {"id": 3, "n_ctx": 1024, "is_processing": False},
    ]
)


def run(*arguments, text=None):
    return CliRunner().invoke(cli, list(arguments), input=text, standalone_mode=False)


def test_a_recorded_vllm_page_is_told_with_units_origin_and_what_it_lacks():
    said = json.loads(run("signals", str(PAGES / "vllm_metrics_load.txt"), "--json").output)
    rows = {row["signal"]: row for row in said["signals"]}
    assert (said["family"], said["release"]) == ("vllm", ">=0.11")
    assert rows["requests_waiting_capacity"]["value"] == 16
    assert rows["kv_usage"]["unit"] == "share"
    assert rows["ttft_seconds"]["metric"] == "vllm:time_to_first_token_seconds"
    assert rows["ttft_seconds"]["count"] == 19
    assert rows["ttft_seconds"]["p99"]["low"] == 2.5
    assert "adapters_running" in {row["signal"] for row in said["lacks"]}
    assert "draft_acceptance" in said["never_told"], "only releases before 0.9 had it"
    assert "vllm:iteration_tokens_total" in said["not_read"]


def test_for_people_every_value_has_a_unit():
    shown = run("signals", str(PAGES / "llama_metrics_load.txt")).output
    assert shown.startswith("llama.cpp\n")
    assert re.search(r"requests_running +2 requests +llamacpp:requests_processing", shown)
    assert "llamacpp:n_tokens_max" in shown
    assert "each scrape resets it" in shown


@pytest.mark.parametrize("name", sorted(path.name for path in PAGES.glob("*.txt")))
def test_every_recorded_page_is_told(name):
    result = run("signals", str(PAGES / name))
    assert result.return_value == 0
    assert result.exception is None


def test_slots_of_llama_count_work_in_busy_slots_only():
    said = told_by(SLOTS)
    assert {row["signal"]: row["value"] for row in said["signals"]} == {
        "requests_running": 2,
        "slots_total": 4,
        "slots_context_tokens": 4096,
        "slots_prompt_tokens": 714,
        "slots_output_tokens": 44,
    }
    idle = read_slots('[{"id":0,"is_processing":false}]')
    assert idle == {"requests_running": 0, "slots_total": 1}, "what no slot tells is absent"
    for bad in ("[", '["is_processing"]', '{"is_processing":1}', "[" * 10_000):
        with pytest.raises(CallerError):
            read_slots(bad)


def test_a_topology_from_standard_input_is_shown_as_a_matrix():
    shown = run("signals", "-", text=TOPOLOGY).output
    assert "        GPU0  GPU1\n  GPU0  -     NV4\n  GPU1  NV4   -\n" in shown
    said = json.loads(run("signals", "-", "--json", text=TOPOLOGY).output)
    assert said["links"] == [{"a": "GPU0", "b": "GPU1", "kind": "NV4", "bytes_per_s": None}]


def test_a_dmon_without_its_line_of_ids_is_no_metrics_page():
    said = told_by("#Entity GRACT\nGPU 0 0.5\n")
    assert said["devices"][0]["signals"] == [
        {"signal": "gpu_engine_active_share", "value": 0.5, "unit": "share"}
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("go_goroutines 7\n", "no engine or exporter known here"),
        ("hello there\n", "no output of a GPU tool"),
        ("", "no output of a GPU tool"),
    ],
)
def test_what_is_nobodys_is_refused(text, says):
    result = run("signals", "-", text=text)
    assert isinstance(result.exception, CallerError)
    assert says in str(result.exception)


def test_a_file_that_is_not_there_is_said():
    result = run("signals", "no/such/file")
    assert isinstance(result.exception, CallerError)
    assert "No such file" in str(result.exception)


@pytest.fixture
def server():
    """A server whose `/metrics` is JSON and whose `/prometheus/metrics` is a page, as trtllm-serve has them."""
    pages = {
        "/metrics": '[{"cpuMemUsage": 1}]',
        "/prometheus/metrics": 'trtllm_num_requests_running{model_name="m"} 4\n',
        "/slots": SLOTS,
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = pages.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_server_is_asked_where_engines_have_their_metrics(server):
    said = json.loads(run("signals", server + "/v1", "--json").output)
    assert (said["family"], said["page"]) == ("trtllm", f"{server}/prometheus/metrics")
    assert json.loads(run("signals", server + "/slots", "--json").output)["kind"] == "llama.cpp /slots"


def test_gpus_are_told_or_that_there_are_none():
    result = run("gpu", "--json")
    said = json.loads(result.output)
    assert said["kind"] == "NVML"
    assert (result.return_value == 0) == bool(said["devices"])
    if not said["devices"]:
        assert result.return_value == 3
        assert said["reason"].startswith("NVML: ")
        assert run("gpu").output.startswith("no device: NVML: ")


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.0, "bytes", "0 bytes"),
        (80 * 2**30, "bytes", "80 GiB"),
        (2.5e10, "bytes/s", "25 GB/s"),
        (0.5, "bytes/s", "0.5 bytes/s"),
        (1.0, "share", "100 %"),
        (1234567.0, "tokens", "1,234,567 tokens"),
        (1e300, "tokens", "1e+300 tokens"),
        (61.0, "°C", "61 °C"),
    ],
)
def test_a_value_is_shown_with_its_unit(value, unit, shown):
    assert value_text(value, unit) == shown


def test_a_table_of_nothing_is_nothing():
    assert list(table([])) == []
    assert list(link_lines(["GPU0"], [])) == []


def generated():
    """The tables of the document, made of the tables of the code."""
    yield "| signal | unit | kind | meaning | " + " | ".join(TITLES[family] for family in FAMILIES) + " |"
    yield "|" + " --- |" * (4 + len(FAMILIES))
    for signal in SIGNALS:
        cells = []
        for family in FAMILIES:
            names = dict.fromkeys(
                f"`{row.name}`" + (f" ({row.versions})" if row.versions else "")
                for row in names_of(signal.name, family)
            )
            cells.append("<br>".join(name.replace("|", "") for name in names))
        yield f"| `{signal.name}` | {signal.unit} | {signal.kind} | {signal.meaning} | {' | '.join(cells)} |"
    yield ""
    yield "| signal | unit | DCGM field | in `dcgmi dmon` | exporter |"
    yield "|" + " --- |" * 5
    fields = {field.name: field for field in FIELDS}
    for name, unit in UNITS.items():
        field = fields.get(name)
        told = f"{field.number} | {field.tag} | `{field.exported}`" if field else " | | "
        yield f"| `{name}` | {unit} | {told} |"
    yield ""
    yield "| signal | unit |"
    yield "|" + " --- |" * 2
    for name, unit in (MACHINE | TCP).items():
        yield f"| `{name}` | {unit} |"


def test_the_document_holds_the_tables_of_the_code():
    path = ROOT / "docs" / "signals.md"
    text = path.read_text(encoding="utf-8")
    begin, end = "<!-- tables: begin -->\n", "<!-- tables: end -->"
    before, after = text.split(begin)[0], text.split(end)[1]
    made = "\n".join(generated())
    assert text == f"{before}{begin}{made}\n{end}{after}", (
        "the tables have changed: put the generated ones in"
    )


@pytest.mark.parametrize(
    "source", ["http://[::1", "http://", "https:///metrics", "http://h:99999", "http://h:0"]
)
def test_an_address_that_is_none_is_wrong_usage_and_nobody_is_asked(source):
    error = run("signals", source, "--json").exception
    assert isinstance(error, CallerError)
    assert "is not an HTTP URL" in str(error)


def test_a_closed_standard_input_is_told(monkeypatch):
    import sys

    from sits.app.signals.commands import _from_file

    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CallerError, match="standard input is closed"):
        _from_file("-")


PAGE = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="m"} 3\n'


def test_a_page_with_a_mark_at_its_start_and_other_ends_of_lines_is_the_same_page():
    assert told_by("\ufeff" + PAGE) == told_by(PAGE)
    assert told_by(PAGE.replace("\n", "\r\n")) == told_by(PAGE)


def test_a_page_that_cannot_be_read_is_said_to_be_one():
    with pytest.raises(CallerError, match="a metrics page that cannot be read"):
        told_by(PAGE.replace(" 3", " 3,5"))


def test_a_server_whose_answer_never_ends_is_left():
    from sits.bench.target import fetch
    from sits.core.errors import EngineError

    left = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            while not left.wait(0.01):
                self.wfile.write(b"x")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with pytest.raises(EngineError, match="has not ended its answer"):
            fetch(f"http://127.0.0.1:{server.server_port}/metrics", timeout_s=0.1)
    finally:
        left.set()
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_gateways_own_page_is_told_and_where_the_right_one_is():
    with pytest.raises(CallerError, match="metrics page of a SITS gateway") as told:
        told_by(page({"sits_workers": {"": 1}}).decode())
    assert "`url` in the fleet.yaml" in told.value.hint
