"""The board in a real browser: it fits, in both schemes it is silent, hands and keys reach everything, a stream moves its numbers."""

import json

import pytest
from test_report_browser import CHROMIUM

from board_rows import MINUTE_NS, row, stored
from board_served import house_of, in_flight, serving
from chromium_driven import driven
from sits.app.board import stream
from sits.gateway.shared import OPEN_NS, column
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import LOGS, columns_of
from sits.world import RealWorld, stream_generator

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
DRAWN = "document.documentElement.dataset.drawn && document.querySelector('#matrix table') && document.querySelector('#engines li') && document.querySelector('#burn li')"
MEASURE = """(() => {
  const wide = [], met = [], width = innerWidth;
  const inside = node => { for (let n = node; n; n = n.parentElement) if (getComputedStyle(n).overflowX !== 'visible' || n.classList.contains('hidden')) return true; };
  for (const node of document.querySelectorAll('main *')) {
    const box = node.getBoundingClientRect();
    if (box.width && (box.right > width + 0.5 || box.left < -0.5) && !inside(node) && !inside(node.parentElement)) wide.push(node.outerHTML.slice(0, 120));
  }
  for (const drawing of document.querySelectorAll('svg')) {
    const boxes = [...drawing.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width);
    boxes.forEach(([a, one], i) => boxes.slice(i + 1).forEach(([b, two]) => {
      if (Math.min(one.right, two.right) - Math.max(one.left, two.left) > 1 && Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top) > 3) met.push(a + ' | ' + b);
    }));
  }
  const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = light(getComputedStyle(document.body).backgroundColor), faint = [];
  for (const node of document.querySelectorAll('main *')) {
    const own = [...node.childNodes].some(one => one.nodeType === 3 && one.textContent.trim()), style = getComputedStyle(node);
    if (!own || !node.getBoundingClientRect().width || node.closest('button:not(.list button), .windows, svg, .hidden, option, select')) continue;
    const ink = light(style.color), contrast = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    if (contrast < 4.5) faint.push(node.outerHTML.slice(0, 90) + contrast.toFixed(1));
  }
  return {scroll: document.documentElement.scrollWidth, wide, met, faint, outside: document.querySelectorAll('[src^=http],link[href^=http]').length};
})()"""


HURRY = "(() => { const real = window.setTimeout; window.setTimeout = (work, ms) => real(work, Math.min(ms, 200)); })()"
"""Makes the page's patience short."""

SEEN = "(Object.defineProperty(document, 'hidden', {value: %s, configurable: true}), document.dispatchEvent(new Event('visibilitychange')))"


CHANGES = [
    (41 * MINUTE_NS, "info", "supervisor", "generation 2 (326e7a3a0b14) serves", {}),
    (33 * MINUTE_NS, "warning", "keeper", "breaker opened", {"engine": "a0"}),
    (33 * MINUTE_NS - 10**9, "error", "supervisor", "worker-0 (process 7) died of signal 9; the next one starts in 50 ms", {}),
    (30 * MINUTE_NS, "info", "keeper", "breaker closed", {"engine": "a0"}),
    (12 * MINUTE_NS, "error", "supervisor", "/etc/sits/fleet.yaml is refused, generation 2 (326e7a3a0b14) goes on:", {}),
    (5 * MINUTE_NS, "info", "supervisor", "<img src=x onerror=alert(1)> generation 3 serves", {}),
]  # fmt: skip


def change(now_ns, ago_ns, level, process, event, more):
    return ("r", now_ns - ago_ns, level, process, "", "", event, json.dumps({"event": event, **more}))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with driven(tmp_path_factory.mktemp("chromium")) as wire:
        yield wire


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A board with an hour of requests, one of them much slower, and its house."""
    store, now_ns, dice = (
        tmp_path_factory.mktemp("board") / "store",
        RealWorld().wall_ns(),
        stream_generator(5, "board"),
    )
    rows = [
        row(i, now_ns - int(dice.integers(8 * 10**9, 55 * MINUTE_NS)), queue_ms=float(dice.lognormal(4.5, 1)), engine=f"{'ab'[i % 2]}0", tenant=("acme", "globex")[i % 2])
        for i in range(1500)
    ]  # fmt: skip
    rows += [
        row(5000, now_ns - MINUTE_NS, queue_ms=9e3),
        row(
            5001,
            now_ns - 2 * MINUTE_NS,
            outcome="failed",
            status=502,
            how="3" * 5 + "0" * 15,
            detail="engine_timeout",
        ),
    ]
    with DuckStore(store) as made:
        stored(made, rows, closed_before=(now_ns - MINUTE_NS) // MINUTE_NS * MINUTE_NS)
        made.append("logs", columns_of(LOGS, [change(now_ns, *one) for one in CHANGES]))
    house = house_of(store)

    async def shift(_):
        return b'{"status": "none"}'

    house.ask = shift
    with serving(house) as (url, room):
        yield url, room, house


def opened(chromium, url, width=1440, scheme="light", until=DRAWN, first=""):
    page = chromium.page()
    page.tell("Page.addScriptToEvaluateOnNewDocument", source=first)
    page.size(width)
    page.scheme(scheme)
    page.open(url)
    page.until(until)
    return page


def test_what_changed_is_drawn_listed_and_read_aloud(chromium, board):
    page = opened(chromium, f"{board[0]}?window=1h")
    page.until("document.querySelectorAll('.change').length >= 4")
    assert page.run("document.querySelectorAll('#changes > .changes li').length") == 4
    assert page.run("document.querySelector('#changes summary').textContent") == "2 before"
    assert page.run("document.querySelector('#changes li').textContent").endswith(
        "<img src=x onerror=alert(1)> generation 3 serves"
    )
    assert page.run("document.querySelector('#changes li.bad span').textContent").startswith(
        "/etc/sits/fleet.yaml is refused"
    )
    told = page.run("[...document.querySelectorAll('.change title')].map(one => one.textContent).join('|')")
    assert "breaker opened: a0" in told
    page.run("document.querySelector('#chart').focus()")
    page.key("Home")
    for _ in range(60):
        if "Then: " in page.run("document.querySelector('#reading').textContent"):
            break
        page.key("ArrowRight")
    assert "Then: generation 2 (326e7a3a0b14) serves." in page.run(
        "document.querySelector('#reading').textContent"
    )
    assert page.console == []


@pytest.mark.parametrize("width", [320, 390, 1440])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_it_fits_and_is_read_easily(chromium, board, width, scheme):
    page = opened(chromium, f"{board[0]}?window=1h", width, scheme)
    assert page.run(MEASURE) == {"scroll": width, "wide": [], "met": [], "faint": [], "outside": 0}
    page.click("#slowest button")
    page.until("document.querySelector('dialog[open] .fall tbody tr')")
    assert page.run(
        "document.querySelector('dialog').scrollWidth <= document.querySelector('dialog').clientWidth"
    )
    assert page.console == []
    page.close()


@pytest.mark.parametrize("panel", ["stages", "changes"])
def test_whoever_is_inside_a_part_that_is_drawn_again_stays_there(chromium, board, panel):
    page = opened(chromium, f"{board[0]}?window=1h")
    page.until(f"document.querySelector('#{panel} summary')")
    page.run(
        f"(() => {{ const part = document.querySelector('#{panel}'); window.drawnAgain = 0; new MutationObserver(() => window.drawnAgain++).observe(part, {{childList: true}}); part.querySelector('summary').focus() }})()"
    )
    page.run(
        "document.querySelector('.windows label:nth-of-type(3) input').click()"
    )  # the focus stays where it was
    page.until("window.drawnAgain > 0")
    assert page.run(f"document.activeElement === document.querySelector('#{panel} summary')")
    assert page.console == []
    page.close()


def test_hands_and_keys_reach_everything(chromium, board):
    page = opened(chromium, f"{board[0]}?window=1h")
    page.click(".windows label:nth-of-type(1)")
    page.until("location.search.includes('window=15m')")
    page.until("document.querySelector('#l-latency').textContent.includes('by minute')")
    page.click(".windows label:nth-of-type(2)")
    page.until(DRAWN)
    seen = []
    page.run("document.body.tabIndex = -1, document.body.focus()")
    for _ in range(60):
        page.key("Tab")
        where = page.run(
            "(() => { const n = document.activeElement, s = getComputedStyle(n.matches('.windows input') ? n.nextElementSibling : n); return [n.id || n.name || n.dataset.id || n.className || n.tagName, s.outlineStyle, s.outlineWidth] })()"
        )
        if where[0] == "BODY":
            break
        seen.append(where)
    names = [name for name, _, _ in seen]
    assert [
        name for name in names if name in ("skip", "window", "model", "engine", "tenant", "chart", "id")
    ] == ["skip", "window", "model", "engine", "tenant", "chart", "id"]
    assert "req-005000" in names
    assert [one for one in seen if one[1] == "none" or one[2] == "0px"] == []
    page.run("document.querySelector('#chart').focus()")
    last = page.run("document.querySelector('#reading').textContent")
    assert page.run("document.querySelector('#reading').ariaLive") == "off"
    page.key("Home")
    page.until("document.querySelector('#reading').ariaLive === 'polite'")
    page.until(f"document.querySelector('#reading').textContent !== {json.dumps(last)}")
    page.key("Escape")
    page.until("!document.querySelector('#chart .cursor')")
    page.run("document.querySelector('#slowest button').focus()")
    page.key("Enter")
    page.until(
        "document.querySelector('dialog[open] #r-title')?.textContent.startsWith('Completed after 11.')"
    )
    page.key("Escape")
    page.until("!document.querySelector('dialog[open]')")
    page.until("document.activeElement.dataset.id === 'req-005000'")
    assert page.console == []
    page.close()


def test_search_and_filters(chromium, board):
    page = opened(chromium, f"{board[0]}?window=1h")
    page.run("document.querySelector('#id').focus()")
    page.write(f"{5001:032x}")
    page.key("Enter")
    page.until("document.querySelector('dialog[open] #r-title')?.textContent.startsWith('failed 502')")
    page.key("Escape")
    page.run(
        "document.querySelector('#id').value = 'nobody-has-this'; document.querySelector('#search').requestSubmit()"
    )
    page.until("document.querySelector('#found').textContent.includes('no request or trace begins')")
    page.until("document.querySelector('[name=tenant]').options.length === 3")
    page.run(
        "(() => { const s = document.querySelector('[name=tenant]'); s.value = 'globex'; s.dispatchEvent(new Event('change', {bubbles: true})) })()"
    )
    page.until(
        "document.querySelector('#detail').textContent.includes('Counted from single rows') && /750 (in the window|since ..:..)/.test(document.querySelector('#figures').textContent)"
    )
    assert "tenant=globex" in page.run("location.search")
    page.close()


def test_a_stream_moves_numbers(chromium, board):
    url, room, house = board
    page = opened(chromium, url)
    in_flight(house, "a0", 7, 900)
    page.until("document.querySelector('#inflight').textContent === '7'")
    in_flight(house, "a0", 1234, 5_000_000)
    page.until(
        "document.querySelector('#inflight').textContent === '1,234' && document.querySelector('#chip').textContent === 'live'"
    )
    assert "5.00" in page.run("document.querySelector('#inflight-sub').textContent")
    room._streams.end()
    in_flight(house, "a0", 8, 0)
    page.until("document.querySelector('#inflight').textContent === '8'")
    assert page.run("document.querySelector('.engines li:first-child').textContent").count("unknown") == 3
    page.close()


def test_empty_and_unreadable_stores(chromium, tmp_path):
    with serving(house_of(tmp_path / "nothing")) as (url, _):
        page = opened(chromium, url, 390, until="document.documentElement.dataset.drawn")
        assert page.run(
            "[document.querySelector('#headline').textContent, document.querySelector('#filled').hidden]"
        ) == ["No requests in this window", True]
        assert page.run("document.querySelector('#detail').textContent").startswith(
            "The store has no requests yet"
        )
        page.close()
    old = tmp_path / "old"
    with DuckStore(old) as made:
        stored(made, [row(i, RealWorld().wall_ns() - 2 * MINUTE_NS) for i in range(9)], closed_before=0)
    with serving(house_of(old)) as (url, _):
        page = opened(chromium, url, until="document.documentElement.dataset.drawn")
        assert "or what is recorded is behind" in page.run("document.querySelector('#detail').textContent")
        page.close()
    broken = tmp_path / "broken"
    with DuckStore(broken) as made:
        stored(made, [row(1, RealWorld().wall_ns() - 10**10)])
    for file in broken.rglob("requests/*/*.parquet"):
        file.write_bytes(b"no parquet")
    with serving(house_of(broken)) as (url, _):
        page = opened(chromium, url, until="document.querySelector('#trouble:not([hidden]) b')")
        assert "failed" in page.run("document.querySelector('#trouble').textContent")
        page.close()


def test_it_says_that_nobody_answers_and_goes_on_when_somebody_does(chromium, board, monkeypatch):
    monkeypatch.setattr(stream, "RETRY_MS", 50)
    _, _, house = board
    with serving(house) as (url, _):
        port = int(url.split(":")[2].split("/")[0])
        page = opened(chromium, url, first=HURRY)
    page.until("document.querySelector('#trouble:not([hidden])')?.textContent.includes('does not answer')")
    assert page.run("document.querySelector('#headline').textContent") != "Waiting for the first figures"
    with serving(house, port) as (_, again):
        page.until(
            "document.querySelector('#trouble').hidden && document.querySelector('#chip').textContent === 'live'"
        )
        assert len(again._streams.clients) == 1
        page.close()


def test_a_stream_that_is_refused_says_why_and_is_tried_again(chromium, board):
    _, _, house = board
    with serving(house) as (url, room):
        places = [room._streams.place() for _ in range(64)]
        page = opened(chromium, url, until="document.documentElement.dataset.drawn", first=HURRY)
        page.until(
            "document.querySelector('#trouble:not([hidden])')?.textContent.includes('too many browsers')"
        )
        room._streams.clients.difference_update(places)
        page.until(
            "document.querySelector('#trouble').hidden && document.querySelector('#chip').textContent === 'live'"
        )
        page.close()


def test_a_tab_that_nobody_sees_gives_its_stream_back(chromium, board):
    url, room, house = board
    page = opened(chromium, url, first=HURRY)
    before = len(room._streams.clients)
    page.run(SEEN % "true")
    while len(room._streams.clients) == before:
        continue
    page.run(SEEN % "false")
    in_flight(house, "a0", 77, 0)
    page.until("document.querySelector('#inflight').textContent === '77'")
    assert len(room._streams.clients) == before
    page.close()


@pytest.mark.parametrize("width", [320, 1440])
def test_of_a_large_fleet_it_shows_what_needs_somebody(chromium, tmp_path, width):
    house = house_of(tmp_path / "nothing", more=196)
    house.shared.row(0)[column(house.generation.slots["c150"], OPEN_NS)] = house.world.now_ns() + 10**12
    in_flight(house, "c77", 50, 0)
    names = "[...document.querySelectorAll('#engines .head > span:first-child')].map(one => one.textContent)"
    with serving(house) as (url, _):
        page = opened(chromium, url, width, until="document.querySelectorAll('#engines li').length === 24")
        assert page.run(names)[:3] == ["c150", "c77", "a0"]
        assert "200 engines, 1 down" in page.run("document.querySelector('#l-fleet').textContent")
        assert page.run(MEASURE)["scroll"] == width
        page.run("document.querySelector('#more-engines').focus()")
        page.key("Enter")
        page.until("document.querySelectorAll('#engines li').length === 200")
        assert page.run("document.activeElement.textContent") == "Show the 24 that need somebody most"
        page.run("document.querySelector('[name=model]').append(new Option('m1', 'm1'))")
        page.run(
            "(m => { m.value = 'm1'; m.dispatchEvent(new Event('change', {bubbles: true})) })(document.querySelector('[name=model]'))"
        )
        page.until("document.querySelectorAll('#engines li').length === 65")
        assert "65 engines of 200" in page.run("document.querySelector('#l-fleet').textContent")
        page.close()


def test_a_name_that_is_slow_narrows_the_page(chromium, board):
    url, _, _ = board
    page = opened(chromium, url + "?window=1h")
    page.until("document.querySelectorAll('#groups tbody tr').length === 2")
    page.click("#kinds input[value=tenant]")
    page.until("document.querySelector('#groups button[data-name=globex]')")
    page.run("document.querySelector('#groups button[data-name=globex]').focus()")
    page.key("Enter")
    page.until(
        "location.search.includes('tenant=globex') && document.querySelectorAll('#groups tbody tr').length === 1"
    )
    assert page.run("document.activeElement.name") == "tenant"
    assert page.run("document.querySelector('#groups tbody td:nth-child(2)').textContent").startswith("100")
    assert page.console == []
    page.close()
