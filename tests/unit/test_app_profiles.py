"""Profiles for people: the command, the page, the flame graph, and the desk that keeps what processes give."""

import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from app_synthetic import why_report
from profile_programs import PROFILE, SPIN, pprof_class, slow_and_others
from sits.app.cli import cli, run_command
from sits.app.profiles.flame import flame
from sits.app.profiles.page import page_html
from sits.app.profiles.section import cpu_of, with_cpu
from sits.app.profiles.source import read_profile
from sits.app.report import render_html, report_json
from sits.app.up.profiling import Desk, Order, Part, Profiler, put_order, take_order
from sits.core.config import load_fleet
from sits.core.errors import ConfigError, ConfigErrors, SitsError
from sits.core.report import Report
from sits.telemetry.profile import folded, pprof
from sits.telemetry.profile.compare import compare
from sits.telemetry.profile.kept import joined, profile_of, row_of
from sits.telemetry.profile.profile import Frame, Profile, Sample
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import PROFILES, REQUESTS, columns_of
from sits.world import RealWorld

SECOND = 10**9


def pprof_of(values, places, location):
    """One sample with these values and locations, of which the file has the one of this number."""
    made = pprof_class()(string_table=["", "samples", "count", "cpu", "nanoseconds", "f"])
    for kind, unit in ((1, 2), (3, 4)):
        made.sample_type.add(type=kind, unit=unit)
    made.sample.add(location_id=places, value=[one - 2**64 if one >= 2**63 else one for one in values])
    made.location.add(id=location).line.add(function_id=1)
    made.function.add(id=1, name=5)
    return made.SerializeToString()


def command(*arguments):
    return CliRunner().invoke(cli, ["profile", *map(str, arguments)], standalone_mode=False)


# -- the command -------------------------------------------------------------------------------------------------


def test_a_program_is_run_and_its_profile_written_in_every_format(tmp_path, capfd):
    (tmp_path / "spin.py").write_text(SPIN)
    outs = [tmp_path / name for name in ("a.pb.gz", "a.folded", "a.speedscope.json", "a.html")]
    options = [word for out in outs for word in ("-o", str(out))]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        code = run_command(
            lambda: cli.main(
                ["profile", *options, "--", "python", "spin.py", "--own", "1"], standalone_mode=False
            )
        )
    told = capfd.readouterr()
    assert code == 0
    assert told.out == "__main__ ['--own', '1']\n"
    assert "s of CPU time" in told.err
    profile = read_profile(outs[0])
    assert profile.count == read_profile(outs[1]).count == sum(sample.count for sample in profile.samples)
    roots = {sample.stack[0].function for sample in profile.samples if sample.stack[0].file == "spin.py"}
    assert roots == {"<module>"}  # nothing of what started the program
    assert sum(json.loads(outs[2].read_text())["profiles"][0]["weights"]) == profile.ns
    assert "compressing" in outs[3].read_text()


def test_the_programs_exit_code_is_ours(tmp_path, capfd):
    (tmp_path / "fails.py").write_text("raise SystemExit(5)")
    assert (
        run_command(lambda: cli.main(["profile", "--", str(tmp_path / "fails.py")], standalone_mode=False))
        == 5
    )
    capfd.readouterr()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--", "python"], "name a script"),
        (["--", "python", "-c", "1"], "write the program of -c into a file"),
        (["-o", "x.svg", "--", "x.py"], "tells no format"),
        (["--", "nowhere.py"], "there is no script 'nowhere.py'"),
        (["run", "--json", "--", "python", "-u", "nowhere.py"], "there is no script 'nowhere.py'"),
        (["--hz", "5000", "--", "x.py"], "1000"),
        (["show"], "name FILES"),
        (["show", "--diff", "slow", __file__], "--diff slow needs --since"),
        (["show", __file__], "no stack with a count"),
        (["gateway", "--store", "/nowhere/at/all"], "no directory"),
    ],
)
def test_wrong_usage_is_told(arguments, says):
    error = command(*arguments).exception
    assert says in getattr(error, "message", "") + str(error)


def test_a_file_is_shown_and_cut(tmp_path):
    (tmp_path / "x.pb.gz").write_bytes(pprof.encode(PROFILE))
    shown = json.loads(command("show", tmp_path / "x.pb.gz", "--layer", "http", "--json").output)
    assert (shown["cpu_ns"], shown["samples"]) == (40_000_000, 4)
    assert shown["operations"] == [{"name": "http/parse", "cpu_ns": 40_000_000, "share": 1.0, "samples": 4}]
    assert [one["function"] for one in shown["functions"] if one["self_ns"]] == ["loads", "parse"]
    assert "no samples" in command("show", tmp_path / "x.pb.gz", "--op", "none").output


HOSTILE = {
    "empty": (b"", "is empty"),
    "packed nothing": (gzip.compress(b""), "is empty"),
    "cut": (gzip.compress(b"a;b 1\n" * 1000)[:-9], "cannot be unpacked"),
    "not packed": (b"\x1f\x8b\x08nonsense", "cannot be unpacked"),
    "no count": (b"a;b 1\na;b\n", "line 2"),
    "zero": (b"a;b 0\n", "no stack with a count"),
    "less than none": (b"a;b -3\n", "no stack with a count"),
    "with a comma": (b"a;b 1,5\n", "no stack with a count"),
    "endless digits": (b"a;b " + b"9" * 9000, "no stack with a count"),
    "zeros": (bytes(4096), "no pprof profile"),
    "an image": (b"\x89PNG\r\n\x1a\n\x00\x00", "no pprof profile"),
    "a field beyond the end": (b"\x08\x00\x0a\xff\xff\xff\x7f", "beyond the end"),
    "a number without end": (b"\x08" + b"\xff" * 40, "no end"),
    "a location nobody knows": (pprof_of([1, 1], [10], 99), "no pprof profile"),
    "a difference of two": (pprof_of([1, 2**64 - 5], [1], 1), "less than nothing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_no_profile_is_refused_with_its_name_and_why(name, tmp_path):
    data, said = HOSTILE[name]
    (tmp_path / "hostile").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_profile(tmp_path / "hostile")
    assert said in str(caught.value)
    assert "hostile" in str(caught.value)


def test_files_are_read_to_their_limit_and_no_further(tmp_path, monkeypatch):
    monkeypatch.setattr(pprof, "SIZE_MAX", 1 << 20)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(1 << 24)))
    for path in (tmp_path / "bomb.gz", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="longer than 1 MiB"):
            read_profile(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_profile(tmp_path)


def test_odd_lines_are_read_as_they_are_meant(tmp_path):
    file = tmp_path / "odd.folded"
    file.write_bytes("\ufeffmain;a\x85b\u2028c;ü😀 3\r\n\r\nmain 2\r\n".encode())
    profile = read_profile(file)
    assert [(tuple(f.function for f in s.stack), s.count) for s in profile.samples] == [
        (("main", "a\x85b\u2028c", "ü😀"), 3),
        (("main",), 2),
    ]


def test_stacks_without_end_keep_what_is_innermost(tmp_path):
    (tmp_path / "deep.folded").write_text(";".join(f"f{n}" for n in range(50_000)) + " 5\n")
    deep = read_profile(tmp_path / "deep.folded")
    (sample,) = deep.samples
    assert (sample.stack[0].function, sample.stack[-1].function, len(sample.stack)) == (
        "(deeper)",
        "f49999",
        1025,
    )
    (again,) = pprof.decode(pprof_of([1, 10**7], [1] * 5000, 1)).samples
    assert (again.stack[0].function, len(again.stack)) == ("(deeper)", 1025)
    assert flame(deep).shown == 2  # its callers are one row at the top


def test_every_command_tells_json_and_nothing_else_on_stdout(tmp_path, capfd):
    (tmp_path / "spin.py").write_text(SPIN)
    (tmp_path / "idle.py").write_text("print('idle')")
    for name, code in (("spin.py", 0), ("idle.py", 0)):
        arguments = ["profile", "run", "--json", "--", str(tmp_path / name)]
        assert run_command(lambda told=arguments: cli.main(told, standalone_mode=False)) == code
        told = capfd.readouterr()
        assert set(json.loads(told.out)) >= {"cpu_ns", "samples", "operations", "functions"}
        assert ("__main__" if name == "spin.py" else "idle") in told.err  # the program's own output


@pytest.mark.parametrize(
    "order",
    [
        b'{"hz": 0, "seconds": 1}',
        b'{"hz": -5, "seconds": 1}',
        b'{"hz": 10000000000, "seconds": 1}',
        b'{"hz": 100, "seconds": -1}',
        b'{"hz": 100}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"",
    ],
)
def test_an_order_that_cannot_be_is_none_and_the_keeper_lives(order, tmp_path):
    (tmp_path / "profile-order.json").write_bytes(order)
    desk = Desk(Clock(), tmp_path, lambda *_: pytest.fail("told"), lambda _: None, lambda _: None)
    desk.look()
    assert not list(tmp_path.iterdir())
    (tmp_path / "profile-order.json").mkdir()
    desk.look()


# -- what is drawn -----------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Attributes of all elements, texts, and whether every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def nodes_of(svg):
    return [attrs for tag, attrs in Elements(svg).found if tag == "svg" and attrs.get("role") == "treeitem"]


def test_widths_are_shares_and_children_lie_within_their_callers():
    drawn = flame(PROFILE)
    nodes = nodes_of(drawn.svg)
    by_name = {one["aria-label"].split()[0]: one for one in nodes}
    assert drawn.shown == len(nodes)
    width = {name: float(one["width"].rstrip("%")) for name, one in by_name.items()}
    assert width["handle"] == pytest.approx(100 * 60 / 70, abs=1e-3)
    assert width["parse"] == pytest.approx(100 * 40 / 70, abs=1e-3)
    assert width["loads"] == pytest.approx(100 * 30 / 70, abs=1e-3)
    spans = [
        (int(one["aria-level"]), float(one["x"].rstrip("%")), float(one["width"].rstrip("%")))
        for one in nodes
    ]
    for level, start, wide in spans:
        inside = [
            one
            for one in spans
            if one[0] == level - 1 and one[1] <= start + 1e-3 and start + wide <= one[1] + one[2] + 1e-3
        ]
        assert level == 1 or len(inside) == 1
    assert [one["tabindex"] for one in nodes] == ["0"] + ["-1"] * (len(nodes) - 1)


def test_a_page_is_well_formed_fetches_nothing_and_escapes_names():
    bad = Profile((Sample((Frame("<script>alert(1)</script>", 'x".py'), Frame("b")), SECOND, 100),))
    page = page_html("<b>", bad, about="<i>")
    parsed = Elements(page)
    assert parsed.open == []
    assert [tag for tag, _ in parsed.found].count("script") == 1
    assert not re.search(r"(?:src|href)=|url\(|@import|https?://", page)
    assert "<b>" not in page.replace("<b>100%</b>", "")


def test_a_linked_page_has_no_style_and_no_script_of_its_own():
    page = page_html("x", PROFILE, linked="/profile/")
    assert "<style" not in page
    assert "style=" not in page
    assert '<script src="/profile/flame.js"></script>' in page


def test_a_comparison_says_what_differs_and_colours_only_that():
    profile = slow_and_others()
    compared = compare(profile, lambda trace: trace[0] == "s")
    page = page_html("x", profile, compared=compared)
    assert "lock has 80% of the slow requests&#x27; CPU time and 30% of the others&#x27;" in page
    kinds = {
        one["aria-label"].split()[0].rstrip(","): one["class"]
        for one in nodes_of(flame(profile, compared=compared).svg)
    }
    assert kinds["lock"] == "n more5"
    assert kinds["work"] == "n less5"
    assert kinds["main" if "main" in kinds else "all"] == "n same"


def test_too_few_slow_requests_are_said_to_be_too_few():
    profile = slow_and_others()
    compared = compare(profile, lambda trace: trace in ("s1", "s2"))
    page = page_html("x", profile, compared=compared)
    assert "Cannot tell yet: 2 slow requests were sampled (20 samples)" in page
    assert "What differs" not in page


# -- the store ---------------------------------------------------------------------------------------------------


def test_a_profile_is_a_row_and_comes_back():
    row = dict(zip(list(PROFILES)[1:], row_of(PROFILE), strict=True))
    assert (row["samples"], row["cpu_ns"]) == (PROFILE.count, PROFILE.ns + PROFILE.elsewhere_ns)
    assert profile_of(row) == PROFILE


def test_profiles_of_one_time_are_joined_below_their_processes():
    engine = msgspec.structs.replace(PROFILE, process="engine", wall_ns=PROFILE.wall_ns + SECOND)
    late = msgspec.structs.replace(PROFILE, process="late", wall_ns=PROFILE.end_wall_ns)
    unknown = msgspec.structs.replace(PROFILE, process="file", wall_ns=0)
    both = joined([PROFILE], [engine, late, unknown])
    assert {sample.stack[0].function for sample in both.samples} == {"worker-0", "engine", "file"}
    assert both.ns == 3 * PROFILE.ns


@pytest.fixture
def store(tmp_path):
    """A store with a profile of a minute ago, and requests of which those of the profile's slow traces took longest."""
    world = RealWorld()
    wall_ns = world.wall_ns() - 60 * SECOND
    profile = msgspec.structs.replace(
        slow_and_others(), process="worker-0", wall_ns=wall_ns, duration_ns=SECOND
    )
    rows = []
    for trace in [f"s{n}" for n in range(40)] + [f"r{n}" for n in range(3960)]:
        took = 2 * SECOND if trace[0] == "s" else SECOND // 10
        values = dict.fromkeys(REQUESTS, 0) | {
            name: "" for name, kind in REQUESTS.items() if kind == "VARCHAR"
        }
        values |= {"id": trace, "outcome": "completed", "exactness": "1" * 20, "wall_ns": wall_ns}
        values |= {"api_recv": 1, "sent": 1 + took, "weight": 1.0}
        rows.append([values[name] for name in REQUESTS])
    path = tmp_path / "store"
    with DuckStore(path, world=world) as opened:
        opened.append("requests", columns_of(REQUESTS, rows))
        opened.append("profiles", columns_of(PROFILES, [("run", *row_of(profile))]))
    return path


def test_slow_requests_of_a_store_are_compared_with_the_others(store, tmp_path):
    out = tmp_path / "diff.html"
    ran = command("show", "--store", store, "--since", "5m", "--diff", "slow", "--json", "-o", out)
    shown = json.loads(ran.output)
    lock = next(one for one in shown["differences"] if one["function"] == "lock")
    assert (lock["slow_share"], lock["rest_share"], lock["slow_samples"]) == (
        pytest.approx(0.8),
        pytest.approx(0.3),
        320,
    )
    assert lock["told_from_chance"]
    assert "Slow requests against the others" in out.read_text()


def test_a_report_has_a_section_of_processor_time_where_its_window_was_sampled_and_else_none(store, tmp_path):
    world = RealWorld()
    since_ns = world.wall_ns() - 300 * SECOND
    report = with_cpu(why_report(), store, world, since_wall_ns=since_ns)
    differs = {one.name: one.differs for one in report.cpu.functions}
    assert (differs["lock"].slow, differs["lock"].slow_samples) == (pytest.approx(0.8), 320)
    assert differs["lock"].told
    assert (report.cpu.samples, report.cpu.requests, report.cpu.slow_requests) == (2400, 240, 40)
    assert sum(node.samples for node in report.cpu.nodes if node.depth == 1) == 2400
    assert {(one.name, one.share.value, one.samples) for one in report.cpu.operations} == {
        ("http/x", 1.0, 2400)
    }
    page = render_html(report)
    assert page.count('class="flame"') == 2
    assert "2,400 samples of worker-0, 100 a second of CPU time" in page
    assert 'id="cpu-slow"' in page
    back = msgspec.json.decode(report_json(report), type=Report)
    assert render_html(back) == render_html(msgspec.json.decode(report_json(back), type=Report))
    assert [node.function for node in back.cpu.nodes] == [node.function for node in report.cpu.nodes]
    for none in (
        with_cpu(why_report(), store, world, since_wall_ns=world.wall_ns()),
        with_cpu(why_report(), store, world, since_wall_ns=since_ns, newest=True),  # profiles of another run
    ):
        assert none == why_report()
        assert b'"cpu":' not in report_json(none)
        assert "cpu" not in re.findall(r'id="([^"]*)"', render_html(none))


def test_a_spoilt_profile_is_a_doubt_of_a_report_and_not_its_end(store):
    world = RealWorld()
    spoilt = [("run", world.wall_ns(), SECOND, "keeper", 10**7, 1, 10**7, 0, b"\x1f\x8bnonsense")]
    with DuckStore(store, world=world) as opened:
        opened.append("profiles", columns_of(PROFILES, spoilt))
    report = with_cpu(why_report(), store, world, since_wall_ns=world.wall_ns() - 300 * SECOND)
    assert report.cpu is msgspec.UNSET
    assert "cannot be read: profile of keeper" in report.notes[-1].text


def test_too_few_slow_requests_leave_the_difference_out_of_a_report_and_say_so():
    cpu = cpu_of(slow_and_others(), {"s1": True, "r1": False})
    page = render_html(msgspec.structs.replace(why_report(), cpu=cpu))
    assert "Slow requests are not compared with the others: 1 slow request was sampled (10 samples)" in page
    assert page.count('class="flame"') == 1
    assert 'id="cpu-slow"' not in page


def test_why_and_investigate_read_the_profiles_of_the_store_they_are_told(store, tmp_path, monkeypatch):
    import sits.bench.investigate
    import sits.bench.why

    monkeypatch.setattr(
        sits.bench.why, "why", lambda *_: msgspec.structs.replace(why_report(), before=digested("run"))
    )
    monkeypatch.setattr(sits.bench.investigate, "investigate", lambda *_, **__: why_report())
    invoke = CliRunner().invoke
    shown = invoke(cli, ["why", "--store", str(store), "--json"], standalone_mode=False)
    assert json.loads(shown.stdout)["cpu"]["samples"] == 2400
    target = ["investigate", "--target", "http://x", "-q", "--json"]
    assert "cpu" not in json.loads(invoke(cli, target, standalone_mode=False).stdout)
    late = invoke(cli, [*target, "--store", str(store)], standalone_mode=False)
    assert "cpu" not in json.loads(late.stdout)  # the profiles there are from before


def digested(digest):
    return msgspec.structs.replace(why_report().before, config_digest=digest)


def test_an_engines_file_is_shown_beside_a_gateways_minutes(store, tmp_path):
    (tmp_path / "engine.folded").write_text(folded.encode(PROFILE))
    shown = json.loads(
        command("show", tmp_path / "engine.folded", "--store", store, "--since", "5m", "--json").output
    )
    assert {"worker-0", "engine.folded"} <= {one["function"] for one in shown["functions"]}


def test_the_room_makes_pages_and_files_and_says_what_is_wrong(store):
    from sits.app.profiles.room import ProfileRoom

    class House:
        pass

    house = House()
    house.store, house.world = store, RealWorld()
    room = ProfileRoom(house)
    page = room._made({"since": "5m", "layer": "http", "diff": "slow"}).body.decode()
    assert "worker-0: the last 300 s" in page
    assert "What differs" in page
    assert 'name="layer" value="http"' in page
    data = room._made({"since": "5m", "format": "pprof"})
    assert pprof.decode(data.body).count == slow_and_others().count
    assert data.headers["content-disposition"] == 'attachment; filename="profile.pb.gz"'
    assert "not a unit" in room._made({"since": "1x"}).body.decode()
    assert "1s to 24h" in room._made({"since": "9d"}).body.decode()
    assert "no profiles of &lt;x&gt;" in room._made({"process": "<x>"}).body.decode()
    assert {route.path for route in room.routes()} == {
        "/profile",
        "/profile/",
        "/profile/flame.css",
        "/profile/flame.js",
    }


# -- processes ---------------------------------------------------------------------------------------------------


class Clock:
    """A world whose time moves when told."""

    def __init__(self):
        self.ns = 10**18

    def now_ns(self):
        return self.ns

    wall_ns = now_ns


BATCH = {
    "frames": [["leaf", "a.py", 1], ["serve", "/x/sits/app/up/roles.py", 9], ["main", "m.py", 1]],
    "samples": [[10**7, 1, "t1", "", [0, 1, 2]]],
    "elsewhere_ns": 0,
    "own_ns": 5,
    "dropped_ns": 0,
}


def part(clock, **more):
    return msgspec.to_builtins(Part(clock.ns - SECOND // 10, SECOND // 10, 10**7, BATCH, **more))


def test_the_desk_closes_a_profile_with_its_window_its_order_or_its_silence(tmp_path):
    clock, rows, told = Clock(), [], []
    desk = Desk(clock, tmp_path, lambda *what: told.append(what), rows.append, told.append)
    for _ in range(100):
        clock.ns += SECOND // 10
        desk.hear("worker-0", part(clock))
    assert len(rows) == 1
    names = list(PROFILES)[1:]
    row = dict(zip(names, rows[0], strict=True))
    assert (row["process"], row["samples"], row["duration_ns"]) == ("worker-0", 100, 10 * SECOND)
    (sample,) = profile_of(row).samples
    assert sample.stack == (Frame("leaf", "a.py", 1),)  # not what is above every process of ours
    desk.hear("worker-1", part(clock, last=True))
    assert len(rows) == 2
    desk.hear("worker-0", part(clock))
    clock.ns += 25 * SECOND
    desk.look()
    assert len(rows) == 3
    desk.hear("worker-0", part(clock, last=True, trouble="no such timer"))
    assert told == ["worker-0 cannot be sampled: no such timer"]


def test_an_order_is_taken_once_and_told_to_all(tmp_path):
    clock, told = Clock(), []
    desk = Desk(clock, tmp_path, lambda *what: told.append(what), lambda _: None, lambda _: None)
    put_order(tmp_path, Order(50, 2.0))
    desk.look()
    desk.look()
    desk.close()
    assert told == [("profile", {"hz": 50, "seconds": 2.0})]
    (tmp_path / "profile-order.json").write_text("nonsense")
    assert take_order(tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_an_order_comes_before_the_configuration_and_ends(tmp_path):
    from sits.core.fleet_profile import Profiling

    clock, parts = Clock(), []
    profiler = Profiler(clock, parts.append)
    profiler.tick()
    assert parts == []
    profiler.adopt(Profiling(hz=100))
    profiler.order({"hz": 50, "seconds": 3})
    assert [(one.period_ns, one.last) for one in parts] == [(10**7, True)]
    profiler.adopt(Profiling(hz=0))
    clock.ns += 2 * SECOND
    profiler.tick()
    assert (parts[-1].period_ns, parts[-1].last) == (2 * 10**7, False)
    clock.ns += 2 * SECOND
    profiler.tick()
    assert parts[-1].last
    count = len(parts)
    profiler.tick()
    profiler.close()
    assert len(parts) == count  # the configuration says: not


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("{hz: 5000}", "5000 is no rate"),
        ("{hz: 100, window: 1ms}", "no window of a profile"),
        ("{push: 'pyroscope:4040'}", "is no address"),
        ("{push: 'http://u:p@host'}", "is no address"),
        ("{labels: {'a b': x}}", "cannot be a label"),
        ("{labels: {a: 'x,y'}}", "cannot be a label"),
        ("{name: 'a b'}", "cannot be a name"),
        ("{rate: 5}", "unknown key 'rate'"),
    ],
)
def test_a_section_that_cannot_be_is_refused_at_its_place(tmp_path, section, says):
    file = tmp_path / "fleet.yaml"
    engine = "engines: [{kind: openai, name: e, url: 'http://127.0.0.1:1', models: [m]}]"
    file.write_text(f"name: x\n{engine}\ntelemetry: {{profile: {section}}}\n")
    with pytest.raises((ConfigErrors, SitsError), match=re.escape(says)) as caught:
        load_fleet(file.read_text(), str(file))
    assert "telemetry.profile" in str(caught.value)


def test_columns_of_profiles_keep_bytes_as_they_are():
    made = columns_of(PROFILES, [("run", *row_of(PROFILE))])
    assert made["profile"].dtype == np.dtype(object)
    assert pprof.decode(made["profile"][0]).count == PROFILE.count
