"""`sitsctl` as a person and a script meet it: streams, exit codes, one-line errors, files left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import sits.bench.investigate
import sits.bench.reproduce
import sits.bench.why
from app_synthetic import fleet, synthetic_report, why_report
from sits import __version__
from sits.app import cli, serve
from sits.core.config import dump_fleet, load_fleet
from sits.core.errors import BugError, ConfigError, ConfigErrors, EngineError, UnknownError
from sits.core.report import Report

HELP = Path(__file__).parents[1] / "data" / "app_help.txt"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run the command line in an empty folder: `(exit code, stdout, stderr)`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*argv):
        with pytest.raises(SystemExit) as stop:
            cli.main([str(one) for one in argv])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


@pytest.fixture
def called(monkeypatch):
    """Stand-ins for the work below the commands: each keeps its arguments and gives a ready report."""
    seen = {}

    def reproduce(path=None, **options):
        seen.update(options, path=path)
        options["progress"](1, 2, "as_is")
        return seen.get("report", synthetic_report())

    def investigate(target, **options):
        seen.update(options, target=target)
        options["progress"]("warm-up")
        return msgspec.structs.replace(why_report(), kind="investigate")

    def why(store, since_ns, world):
        seen.update(store=store, since_ns=since_ns, world=world)
        return why_report()

    monkeypatch.setattr(sits.bench.reproduce, "reproduce", reproduce)
    monkeypatch.setattr(sits.bench.investigate, "investigate", investigate)
    monkeypatch.setattr(sits.bench.why, "why", why)
    monkeypatch.setattr(
        serve, "up", lambda path, say, workers: (seen.update(path=path, workers=workers), say("listening"))
    )
    return seen


def test_help_is_what_was_agreed(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert out == HELP.read_text()
    assert run() == (0, out, "")
    assert run("-h")[1] == out


@pytest.mark.parametrize("command", list(cli.cli.commands))
def test_every_command_explains_itself(run, command):
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: sitsctl {command}")
    inner = {
        "plan": "kv",
        "keys": "new",
        "access": "check",
        "adapters": "status",
        "quota": "show",
        "shift": "status",
        "import": "litellm",
        "alerts": "rules",
        "logs": "timeouts",
        "otel": "collector",
        "profile": "show",
        "store": "info",
    }
    if command in inner:  # a group: its commands have it
        assert "--json" in run(command, inner[command], "--help")[1]
    elif command not in ("up", "reload"):
        assert "--json" in out


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("reprodcue",), "did you mean 'reproduce'?"),
        (("investigat",), "did you mean 'investigate'?"),
        (
            ("xyzzy",),
            "commands: reproduce, up, reload, why, investigate, check, explain, trace, logs, top, replay, signals, gpu, store, otel, plan, seedcheck, calibrate, predict, keys, access, adapters, quota, shift, profile, alerts, import, version",
        ),
        (("reproduce", "--seeed", "3"), "--seed"),
        (("reproduce", "--seed", "-1"), "-1"),
        (("reproduce", "--repetitions", "0"), "x>=1"),
        (("reproduce", "no-such.yaml"), "no-such.yaml"),
        (("investigate",), "--target"),
        (("why", "--since", "15"), "'15' has no unit"),
        (("why", "--since", "15 parsecs"), "parsecs"),
        (("why", "--store", "nowhere"), "`sitsctl up` writes one"),
        (("check", "no-such.yaml"), "no-such.yaml"),
        (("check",), "FLEET"),
        (("investigate", "--target", "x", "--rate", "0"), "--rate"),
    ],
)
def test_wrong_usage_is_told_with_a_way_out(run, argv, hint):
    code, out, err = run(*argv)
    assert code == 2
    assert out == ""
    assert hint in err
    assert "Traceback" not in err


def test_version(run):
    assert run("version") == (0, f"sitsctl {__version__}\n", "")
    assert run("--version") == (0, f"sitsctl {__version__}\n", "")
    assert json.loads(run("version", "--json")[1])["sitsctl"] == __version__


def test_reproduce_writes_four_files_and_ends_with_where_the_page_lies(run, called, tmp_path):
    code, out, err = run("reproduce", "-o", "there/deep")
    assert code == 0
    assert out.endswith(f"\n\nreport: {tmp_path}/there/deep/report.html\n")
    assert "2,312 ms" in out
    assert "\x1b" not in out
    assert "simulating as_is 1/2" in err
    where = tmp_path / "there" / "deep"
    assert sorted(path.name for path in where.iterdir()) == ["fleet.after.yaml", "fleet.before.yaml", "report.html", "report.json"]  # fmt: skip
    assert load_fleet((where / "fleet.after.yaml").read_text()) == fleet(fixed=True)
    assert msgspec.json.decode((where / "report.json").read_bytes(), type=Report).kind == "reproduce"
    assert (where / "report.html").read_text().startswith("<!doctype html>")


def test_reproduce_hands_its_options_down(run, called, tmp_path):
    (tmp_path / "s.yaml").touch()
    (tmp_path / "t.csv").touch()
    run("reproduce", "s.yaml", "--seed", "7", "--repetitions", "3", "--jobs", "2", "--trace", "t.csv", "-q")
    assert (called["path"], called["trace"]) == (Path("s.yaml"), Path("t.csv"))
    assert (called["seed"], called["repetitions"], called["jobs"]) == (7, 3, 2)
    run("reproduce")
    assert (called["path"], called["seed"], called["repetitions"], called["trace"]) == (
        None,
        None,
        None,
        None,
    )
    assert called["jobs"] >= 1


def test_json_is_alone_on_stdout(run, called, tmp_path):
    for argv in (("reproduce",), ("investigate", "--target", "http://x"), ("why", "--store", ".")):
        _, out, _ = run(*argv, "--json")
        assert out.count("\n") == 1
        msgspec.json.decode(out, type=Report)
    assert run("reproduce", "--json")[2].endswith(f"report: {tmp_path}/out/report.html\n")


@pytest.mark.parametrize(
    "argv",
    [
        ("reproduce", "-o", "file/out"),
        ("investigate", "--target", "http://x", "-o", "file/out"),
        ("why", "--store", ".", "--html", "file/why.html"),
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_the_work(run, called, tmp_path, argv):
    (tmp_path / "file").touch()
    called.pop("seed", None)
    code, out, err = run(*argv)
    assert (code, out) == (3, "")
    assert err.startswith("sitsctl: file")
    assert "simulating" not in err
    assert not {"seed", "target", "since_ns"} & set(called)


def test_work_that_fails_leaves_no_directory_behind(run, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise EngineError("nothing answers")

    monkeypatch.setattr(sits.bench.investigate, "investigate", fail)
    assert run("investigate", "--target", "http://x", "-o", "new/out")[0] == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_made_is_told_before_the_work(run, called, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    code, _, err = run("reproduce", "-o", "locked/new/out")
    assert (code, err) == (3, "sitsctl: locked/new/out: Permission denied\n")
    assert "seed" not in called


def test_quiet_leaves_stderr_empty(run, called):
    assert run("reproduce", "-q")[2] == ""
    assert run("investigate", "--target", "http://x", "-q")[2] == ""


def test_a_missed_objective_is_exit_code_one(run, called):
    called["report"] = synthetic_report(verified=False)
    assert run("reproduce")[0] == 1
    assert run("why", "--store", ".")[0] == 1
    assert run("investigate", "--target", "http://x")[0] == 1


def test_why_reads_the_store_and_writes_a_page_where_asked(run, called, tmp_path):
    code, out, _ = run("why", "--since", "2h", "--store", tmp_path, "--html", "pages/why.html")
    assert code == 1
    assert called["since_ns"] == 2 * 3600 * 10**9
    assert called["store"] == tmp_path
    assert out.endswith(f"report: {tmp_path}/pages/why.html\n")
    assert (tmp_path / "pages" / "why.html").exists()
    run("why", "--store", tmp_path)
    assert called["since_ns"] == 15 * 60 * 10**9


def test_investigate_reads_its_key_from_the_environment(run, called, monkeypatch, tmp_path):
    monkeypatch.setenv("MY_KEY", "k-123")
    code, out, err = run("investigate", "--target", "http://x", "--api-key-env", "MY_KEY", "--duration", "30s", "--rate", "4", "-o", "o")  # fmt: skip
    assert code == 1
    assert (called["target"], called["api_key"], called["duration_ns"], called["loaded_rate"]) == ("http://x", "k-123", 30 * 10**9, 4.0)  # fmt: skip
    assert "k-123" not in out + err
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["report.html", "report.json"]
    assert "warm-up" in err


def test_up_serves_the_file(run, called, tmp_path):
    (tmp_path / "f.yaml").touch()
    assert run("up", "f.yaml", "--log-format", "text") == (0, "", "listening\n")
    assert (called["path"], called["workers"]) == (Path("f.yaml"), None)
    assert run("up", "-q", "f.yaml", "--workers", "3") == (0, "", "")
    assert called["workers"] == 3


def test_check_says_good_or_every_problem(run, tmp_path):
    (tmp_path / "good.yaml").write_text(dump_fleet(fleet(fixed=True)))
    code, out, err = run("check", "good.yaml")
    assert (code, err) == (0, "")
    assert out.startswith("good.yaml: good; 4 engines, configuration ")
    assert "environment prod: rows of all requests, kept 30d" in out
    assert json.loads(run("check", "--json", "good.yaml")[1])["ok"] is True
    (tmp_path / "bad.yaml").write_text("name: x\nengine: 3\nengines: [{kind: emulatd}]\n")
    code, out, err = run("check", "bad.yaml")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "bad.yaml:2: engine: unknown key 'engine' (did you mean 'engines'?)",
        "bad.yaml:3: engines[0].kind: 'emulatd' is not a kind (did you mean 'emulated'?)",
    ]
    code, out, err = run("check", "--json", "bad.yaml")
    assert (code, err) == (2, "")
    problems = json.loads(out)["problems"]
    assert [one["field"] for one in problems] == ["engine", "engines[0].kind"]
    assert problems[0]["where"] == "bad.yaml:2"


def test_check_warns_of_what_works_and_is_most_likely_not_meant(run, tmp_path):
    engine = "{kind: openai, name: e, url: 'http://h', models: [m]}"
    routes = "[{name: all}, {name: never, match: {model: m}}]"
    (tmp_path / "odd.yaml").write_text(f"name: x\nroutes: {routes}\nengines: [{engine}]\n")
    code, out, err = run("check", "odd.yaml")
    assert code == 0
    assert out.startswith("odd.yaml: good")
    assert (
        err
        == "odd.yaml: warning: routes[1] 'never' never gets a request: routes[0] 'all' takes all of them first\n"
    )
    assert json.loads(run("check", "--json", "odd.yaml")[1])["warnings"] == [
        err.partition("warning: ")[2].strip()
    ]


def test_check_and_so_whoever_deploys_hears_of_faults_put_in_on_purpose(run, tmp_path):
    engine = "{kind: openai, name: e, url: 'http://h', models: [m]}"
    faults = "[{name: slow, share: 12.5%, delay: 2500ms}, {name: dead, delay: 20ms, abort: 503}]"
    (tmp_path / "chaos.yaml").write_text(f"name: x\ninjections: {faults}\nengines: [{engine}]\n")
    code, _, err = run("check", "chaos.yaml")
    assert code == 0
    assert err.splitlines() == [
        "chaos.yaml: warning: injections[1] 'dead' never fires: injections[0] 'slow' takes all its requests first, whatever its share; put the narrower one first",
        "chaos.yaml: warning: injections[0] 'slow' puts a fault into 12.5% of the matching requests, on purpose: a wait of 2.5 s",
        "chaos.yaml: warning: injections[1] 'dead' puts a fault into 100% of the matching requests, on purpose: a wait of 20 ms and then status 503",
    ]


def test_check_of_something_that_is_no_text(run, tmp_path):
    (tmp_path / "bad.yaml").write_bytes(b"name: \xff\xfe")
    code, _, err = run("check", "bad.yaml")
    assert code == 2
    assert err == "bad.yaml: byte 6 is not UTF-8 (save the file as UTF-8 text)\n"
    assert json.loads(run("check", "--json", "bad.yaml")[1])["ok"] is False


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConfigError("no engines", where="f.yaml:3", field="engines", hint="add one"), 2, "sitsctl: f.yaml:3: engines: no engines (add one)\n"),
        (ConfigErrors([ConfigError("a"), ConfigError("b")]), 2, "sitsctl: a\nsitsctl: b\n"),
        (UnknownError("nothing was recorded", hint="look further back"), 2, "sitsctl: nothing was recorded (look further back)\n"),
        (EngineError("nothing answers at http://x", hint="is it up?"), 3, "sitsctl: nothing answers at http://x (is it up?)\n"),
        (BugError("stages do not add up"), 3, "sitsctl: stages do not add up; this is a bug of sitsctl, please report it\n"),
        (PermissionError(13, "Permission denied", "out/report.json"), 3, "sitsctl: out/report.json: Permission denied\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
    ],
)  # fmt: skip
def test_errors_are_one_clear_line(run, called, monkeypatch, error, code, told):
    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr(sits.bench.reproduce, "reproduce", fail)
    assert run("reproduce", "-q") == (code, "", told)


def test_what_is_not_ours_is_not_hidden(monkeypatch, called):
    def fail(*_args, **_options):
        raise ZeroDivisionError

    monkeypatch.setattr(sits.bench.reproduce, "reproduce", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["reproduce", "-q"])


def test_a_figure_that_is_no_number_leaves_no_page(run, called, tmp_path):
    called["report"] = synthetic_report(objective_ms=float("nan"))
    code, out, err = run("reproduce", "-q")
    assert (code, out) == (3, "")
    assert "report.objective_ms is nan" in err
    assert not (tmp_path / "out" / "report.html").exists()


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    shown = subprocess.run(
        [sys.executable, "-c", "from sits.app.cli import main; main(['reproduce','--help'])"],
        stdout=_closed_pipe(), stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert shown.returncode == 141
    assert b"Traceback" not in shown.stderr
    assert b"Exception ignored" not in shown.stderr


def _closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from sits.app.cli import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "heavy = {'numpy', 'numba', 'scipy', 'duckdb', 'rich', 'jinja2', 'msgspec', 'uvloop', 'yaml', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stderr == "[]\n"


def test_who_gives_a_fleets_file_to_a_command_that_reads_a_store_is_told_where_that_is(run, tmp_path):
    text = "name: f\ngateway: {store: my store}\nengines: [{kind: openai, name: a, url: 'http://h:1', models: [m]}]\n"
    (tmp_path / "f.yaml").write_text(text)
    for command in (["why"], ["trace", "abcd"], ["replay"]):
        code, out, err = run(*command, "f.yaml")
        assert (code, out) == (2, "")
        assert err.endswith(
            f"It reads a store, not a fleet's file: sitsctl {command[0]} --store 'my store'\n"
        )
    for given in ("nowhere.yaml", "f.yaml\x1b[31m", "."):
        assert run("why", given)[2].endswith("sitsctl why --store DIRECTORY\n")
    assert "It reads" not in run("reload", "f.yaml", "more")[2]
