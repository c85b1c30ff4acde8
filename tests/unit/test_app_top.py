"""`sitsctl top`: the fold over pages, the text, the live screen under textual's pilot, and all of it against a real gateway."""

import asyncio
import importlib.util
import json
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from textual.widgets import DataTable, Input, Static

from app_processes import GatedEngine, serving, sitsctl
from sits.app.top.commands import _can_draw
from sits.app.top.frame import Past, Span
from sits.app.top.screen import Detail, Top
from sits.app.top.source import Source
from sits.app.top.text import page, scope, spark
from sits.core.units import SECOND
from sits.telemetry.prometheus_text import parse

TOLD = 'sits_engine_kv_usage{engine="b"} 0.5\nsits_engine_requests_waiting{engine="b"} 7'
HELLO = [{"role": "user", "content": "hello"}]


def metrics(n, *, late=0, failed=0, slow=0, engines=("a", "b"), healthy=1, more=""):
    """A page after `n` requests an engine, `slow` of which took over 250 ms."""
    lines = ["# TYPE sits_requests_total counter", "# TYPE sits_ttft_seconds histogram"]
    for one in engines:
        of = f'engine="{one}"'
        lines += [
            f'sits_requests_total{{outcome="completed",{of},detail=""}} {n}',
            f'sits_requests_total{{outcome="failed",{of},detail="engine_timeout"}} {failed}',
            f"sits_objective_requests_total{{{of}}} {n}",
            f"sits_objective_missed_total{{{of}}} {late}",
            f'sits_ttft_seconds_bucket{{{of},le="0.1"}} {n - slow}',
            f'sits_ttft_seconds_bucket{{{of},le="0.25"}} {n - slow}',
            f'sits_ttft_seconds_bucket{{{of},le="+Inf"}} {n}',
            f"sits_ttft_seconds_sum{{{of}}} {n * 0.05}",
            f"sits_ttft_seconds_count{{{of}}} {n}",
            f"sits_engine_healthy{{{of}}} {healthy}",
            f"sits_inflight_requests{{{of}}} 3",
        ]
    lines += ["sits_workers 2", 'sits_generation{name="abc"} 4', more]
    return parse("\n".join(lines) + "\n")


def after(*pages, window_s=60):
    past, now_ns = Past("http://g", window_s * SECOND), 0
    for one in pages:
        now_ns += 10 * SECOND
        if one is None:
            past.lose(now_ns, "no answer")
        else:
            past.add(now_ns, one)
    return past.frame(now_ns)


def test_rates_percentiles_and_the_objective_are_over_the_window():
    frame = after(
        metrics(100), metrics(200, late=1, failed=5, slow=2), metrics(300, late=4, failed=5, slow=2)
    )
    assert (frame.state, frame.window_s, frame.generation, frame.workers) == ("live", 20.0, "4 (abc)", 2)
    assert frame.req_s == pytest.approx((400 + 10) / 20)
    assert frame.missed == pytest.approx(8 / 400)
    assert frame.burns[0].rate == pytest.approx(2.0)
    assert frame.ttft == (Span(0.0, 100.0), Span(0.0, 100.0), Span(0.0, 100.0))
    assert frame.req_history == pytest.approx((21.0, 20.0))
    assert frame.missed_history == pytest.approx((0.01, 0.03))
    assert dict(frame.outcomes) == pytest.approx({"completed": 20.0, "failed engine_timeout": 0.5})
    assert [one.name for one in frame.engines] == ["a", "b"]


def test_an_engine_is_up_only_where_the_page_says_so():
    states = {}
    for healthy, more in ((1, ""), (0, ""), (0, 'sits_engine_trying{engine="a"} 1')):
        frame = after(metrics(0), metrics(1, healthy=healthy, more=more))
        one = frame.engines[0]
        states[one.state] = (one.healthy, f"a       {one.state}" in page(frame))
    assert states == {"up": (True, True), "DOWN": (False, True), "trying": (False, True)}
    unknown = after(metrics(0), parse('sits_inflight_requests{engine="z"} 1\n'))
    assert [(one.name, one.state) for one in unknown.engines] == [("z", "-")]


def test_errors_are_those_of_the_engines_and_those_that_are_told_apart():
    refused = (
        'sits_requests_total{{outcome="refused",engine="",detail="refused_full"}} {0}\nsits_errors_total {1}'
    )
    frame = after(
        metrics(0, more=refused.format(0, 0)), metrics(100, failed=5, more=refused.format(20, 30))
    )  # ten failed, five at each engine
    assert (frame.error_s, [one.error_s for one in frame.engines]) == (3.0, [0.5, 0.5])
    assert "3.00 errors/s (2.00 refused or unsent)" in page(frame)
    alone = after(metrics(0, more="sits_errors_total 0"), metrics(100, failed=5, more="sits_errors_total 10"))
    assert "1.00 errors/s  " in page(alone)
    assert "latency burn 0.0x over 10 s" in page(alone)


def test_the_last_bucket_has_no_end_and_is_not_given_one():
    frame = after(metrics(0), metrics(10, slow=5))
    assert frame.ttft[2] == Span(250.0, None)
    assert ">250" in page(frame)


def test_a_window_forgets_what_is_older():
    frame = after(metrics(0), metrics(1000), metrics(1010), metrics(1020), window_s=20)
    assert (frame.window_s, frame.req_s) == (20.0, pytest.approx(2.0))


def test_counters_that_begin_anew_are_never_a_rate():
    frame = after(metrics(1000, late=50), metrics(5))
    assert (frame.state, frame.restarted, frame.req_s, frame.missed) == ("waiting", True, 0.0, None)
    frame = after(metrics(1000, late=50), metrics(5), metrics(15))
    assert (frame.state, frame.restarted, frame.req_s) == ("live", True, pytest.approx(2.0))
    assert frame.burns[0].rate == 0.0
    assert "counters began anew" in page(frame)


def test_a_gateway_that_does_not_answer_keeps_its_last_numbers():
    frame = after(metrics(0), metrics(100), None, None)
    assert (frame.state, frame.lost_s, frame.req_s) == ("lost", 10.0, pytest.approx(20.0))
    assert "LOST for 10 s: no answer" in page(frame)
    frame = after(None)
    assert (frame.state, frame.engines) == ("lost", ())
    assert after(metrics(0), None, metrics(100)).state == "live"


def test_what_is_not_known_is_a_dash_and_not_zero():
    text = page(after(metrics(0), metrics(0)))
    assert "nothing to judge" in text
    row = next(line for line in text.splitlines() if line.startswith("a "))
    assert row.split() == ["a", "up", "3", "0", "0.0", "0", "-", "-", "-", "-", "-", "-", "-"]
    frame = after(metrics(0), metrics(1, more=TOLD))
    assert page(frame).count("50%") == 1


def test_parts_that_not_every_gateway_has_are_told_where_they_are():
    def cached(hits, misses):
        return (
            "# TYPE sits_cache_requests_total counter\n"
            f'sits_cache_requests_total{{verdict="hit"}} {hits}\n'
            f'sits_cache_requests_total{{verdict="miss"}} {misses}\n'
            "sits_cache_answers 7\nsits_ledger_reserved 4\nsits_ledger_down 1"
        )

    frame = after(metrics(0, more=cached(0, 0)), metrics(10, more=cached(3, 1)))
    assert frame.other == {"cache": "75% of 4 hit, 7 kept", "quotas": "4 reserved, LEDGER DOWN"}
    assert after(metrics(0), metrics(10)).other == {}


EVIL = r"""sits_workers 1
sits_requests_total{engine="TEXT",outcome="TEXT",detail="TEXT"} VALUE
sits_generation{name="TEXT"} 2
""".replace("TEXT", "m\x1b]0;x\x07\u202e\x9b31m\\n[/]")


def test_a_page_of_garbage_is_told_and_the_board_stays(monkeypatch):
    class Clock:
        now = 0

        def now_ns(self):
            self.now += SECOND
            return self.now

    pages = iter(
        [
            "<html>502 Bad Gateway</html>",
            "",
            "up 1",
            (
                "sits_workers NaN\nsits_connections +Inf\nsits_generation{} NaN\n"
                'sits_requests_total{outcome="x"} 1\nsits_inflight_requests{engine="a"} -Inf\n'
                'sits_ttft_seconds_bucket{engine="a",le="what"} 1\n'
            ),
            'sits_workers 1\nsits_requests_total{engine="\x1b[2J\u202e[bold]",outcome="failed"} 1e300\n',
            'sits_workers 1\nsits_requests_total{engine="\x1b[2J\u202e[bold]",outcome="failed"} 2\n',
            EVIL.replace("VALUE", "1"),
            EVIL.replace("VALUE", "3"),
        ]
    )
    monkeypatch.setattr("sits.app.top.source.fetch", lambda *_, **__: next(pages))
    source = Source("http://g", Clock(), 60 * SECOND)
    for state in ("lost", "lost", "lost", "waiting", "live", "waiting", "live", "live"):
        frame = source.look()
        text = page(frame, "o")
        assert frame.state == state, frame.trouble
        assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_two_hundred_engines_cost_what_they_are():
    names = [f"e{i:03}" for i in range(200)]
    first, second = metrics(0, engines=names), metrics(5, engines=names)
    frame = after(first, second)
    assert [one.name for one in frame.engines] == names
    assert {one.req_s for one in frame.engines} == {0.5}


def test_a_history_is_as_wide_as_asked():
    assert spark([], 3) == "   "
    assert spark([0, 0], 3) == " ▁▁"
    assert spark([1, 2, 3, 4], 2) == "▆█"


class Looks:
    """Frames as they would come from a gateway, one a look; the last one for ever."""

    def __init__(self, *frames):
        self.frames = list(frames)
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.frames.pop(0) if len(self.frames) > 1 else self.frames[0]


def text_of(app, name):
    return str(app.query_one(name, Static).render())


async def drawn(app, pilot):
    while app.frame is None:
        await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_the_screen_shows_sorts_filters_and_opens(size):
    first = after(metrics(0), metrics(100, failed=3, more=TOLD))
    closed = after(metrics(0), metrics(100), metrics(200, healthy=0, late=9))

    async def main():
        looks = Looks(first)
        app = Top(looks, 3600, "P99 TTFT 1,200 ms")
        async with app.run_test(size=size) as pilot:
            await drawn(app, pilot)
            table = app.query_one("#rows", DataTable)
            assert table.row_count == 2
            assert len(table.columns) == (13 if size[0] == 140 else 9)
            assert "objective P99 TTFT 1,200 ms  met" in text_of(app, "#slo")
            assert table.virtual_size.width <= size[0], "no column is beyond the edge"
            await pilot.press("s")
            assert [str(column.label) for column in table.columns.values()].count("P99 *") == 1
            await pilot.press("slash", "b")
            assert (table.row_count, app.query_one("#filter", Input).value) == (1, "b")
            await pilot.press("enter", "enter")
            assert isinstance(app.screen, Detail)
            told = str(app.screen.query_one(Static).render())
            assert "KV use      50.0%" in told
            assert "failed engine_timeout" in told
            await pilot.press("escape")
            await pilot.press("question_mark")
            assert "its breaker is open" in str(app.screen.query_one(Static).render())
            assert app.screen.query_one(Static).region.height <= size[1], "all of it is on the screen"
            await pilot.press("escape")
            await pilot.press("slash", "escape")
            assert table.row_count == 2
            await pilot.press("p")
            app.refresh_numbers()
            await pilot.pause()
            assert (looks.asked, app.paused) == (1, True)
            assert text_of(app, "#title").startswith("PAUSED")
            app.show(closed)
            assert "MISSED" in text_of(app, "#slo")
            assert "DOWN" in {str(table.get_row_at(i)[1]) for i in range(2)}
            app.show(after(metrics(0), metrics(1), None))
            assert app.query_one("#title").has_class("lost")
            await pilot.press("q")

    asyncio.run(main())


def test_an_answer_that_does_not_end_is_told(monkeypatch):
    never = threading.Event()
    first = after(metrics(0), metrics(100))

    class Slow:
        asked = 0

        def __call__(self):
            self.asked += 1
            if self.asked > 1:
                never.wait()
            return first

    async def main():
        app = Top(Slow(), 2.0)
        async with app.run_test(size=(80, 24)) as pilot:
            await drawn(app, pilot)
            await app.workers.wait_for_complete()
            for _ in range(3):
                app.refresh_numbers()
                await pilot.pause()
            assert "has been answering for 4 s" in text_of(app, "#title")
            assert app.query_one("#title").has_class("lost")
            never.set()
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert not app.query_one("#title").has_class("lost")

    asyncio.run(main())


@pytest.mark.parametrize(
    "keys", [["q"], ["ctrl+c"], ["slash", "a", "ctrl+c"], ["enter", "ctrl+c"]], ids="-".join
)
def test_whoever_wants_to_leave_leaves(keys):
    async def main():
        app = Top(Looks(after(metrics(0), metrics(1))), 3600)
        async with app.run_test() as pilot:
            await drawn(app, pilot)
            await pilot.press(*keys)
            assert app._exit
            assert app.return_code == 0

    asyncio.run(main())


def test_a_process_that_is_ended_gives_the_terminal_back():
    async def main():
        app = Top(Looks(after(metrics(0), metrics(1))), 3600)
        async with app.run_test() as pilot:
            await drawn(app, pilot)
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
            signal.raise_signal(signal.SIGTERM)
            while not app._exit:
                await pilot.pause()
            assert app.return_code == 143

    asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("out", "keys", "term", "draws"),
    [(True, True, "xterm", True), (True, True, "dumb", False), (False, True, "xterm", False), (True, False, "xterm", False)],
)  # fmt: skip
def test_a_live_board_is_drawn_where_that_can_be(monkeypatch, capsys, out, keys, term, draws):
    class Stream:
        def __init__(self, terminal):
            self.isatty = lambda: terminal

    monkeypatch.setenv("TERM", term)
    with monkeypatch.context() as there:
        there.setattr("sys.stdin", Stream(keys))
        there.setattr("sys.stdout", Stream(out))
        assert _can_draw() is draws
    assert ("cannot draw a live board" in capsys.readouterr().err) is (term == "dumb")


def test_the_picture_in_the_documents_is_of_this_board():
    at = Path(__file__).parents[2] / "tools" / "top_picture.py"
    spec = importlib.util.spec_from_file_location("top_picture", at)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    drawn_now = tool.words(asyncio.run(tool.picture()))
    assert tool.words(tool.OUT.read_text()) == drawn_now, "make it again: python tools/top_picture.py"
    assert {"help", "DOWN", "engine *"} < set(drawn_now)


@pytest.mark.parametrize(("judged", "few"), [(99, True), (100, False)])
def test_a_single_board_says_how_much_it_judged(judged, few):
    said = scope(after(metrics(0, engines=("a",)), metrics(judged, engines=("a",))))
    assert f"judged by {judged} answers of 10 s between two looks" in said
    assert ("too few to tell a P99" in said) is few
    assert "--interval" in said
    assert scope(after(metrics(0), None)) == scope(after(metrics(0))) == ""


def test_a_real_gateway_on_the_board_and_after_it_has_gone(tmp_path):
    fleet = """\
name: small
gateway: {{listen: "127.0.0.1:0", store: "{store}"}}
objective: {{metric: e2e, p99: 30s}}
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m]}}
"""
    with GatedEngine().serving() as engine, serving(tmp_path, fleet, url=engine.url) as up:
        up.sdk.chat.completions.create(model="m", messages=HELLO)
        command = sitsctl("top", up.file, "--interval", "10ms")
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        frame = json.loads(done.stdout)
        assert (frame["state"], frame["address"], frame["workers"]) == ("live", up.url, 1)
        assert [(one["name"], one["healthy"], one["state"]) for one in frame["engines"]] == [
            ("e0", True, "up")
        ]
        done = subprocess.run([*command, "--once"], capture_output=True, text=True, check=False, timeout=60)
        assert "objective P99 end to end 30,000 ms" in done.stdout
        assert "\njudged by 0 answers of " in done.stdout
        up.stop()
        done = subprocess.run(
            sitsctl("top", up.url, "--once"), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 1
        assert "does not answer" in done.stdout
