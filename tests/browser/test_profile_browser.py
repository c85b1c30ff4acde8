"""The page of a profile in a real browser: it fits and is read in both schemes, and hands and keys zoom, search and go back."""

import pytest
from test_board_browser import MEASURE
from test_report_browser import CHROMIUM

from chromium_driven import driven
from profile_programs import PROFILE, slow_and_others
from sits.app.profiles.page import page_html
from sits.telemetry.profile.compare import compare
from sits.telemetry.profile.profile import merged

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
LEGIBLE = """(() => {
  const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const rows = [...document.querySelectorAll('svg.flame .n')], faint = [], kinds = 'L-http L-gateway L-scheduler L-device L-model L-telemetry L-loop L-app L-none same more1 more2 more3 more4 more5 less1 less2 less3 less4 less5 hit'.split(' ');
  for (const kind of kinds) {
    rows[0].setAttribute('class', 'n ' + kind);
    const ink = light(getComputedStyle(rows[0].querySelector('text')).fill), fill = light(getComputedStyle(rows[0].querySelector('rect')).fill);
    const contrast = (Math.max(ink, fill) + 0.05) / (Math.min(ink, fill) + 0.05);
    if (contrast < 4.5) faint.push(kind + ' ' + contrast.toFixed(2));
  }
  return faint;
})()"""
NAME = "document.querySelector('.now').textContent.split('  ')[0].split('\\n')[0]"
WIDTHS = "Object.fromEntries([...document.querySelectorAll('svg.flame > .n')].filter(n => n.style.display !== 'none').map(n => [n.getAttribute('aria-label').split(/[ ,]/)[0], Math.round(parseFloat(n.getAttribute('width')))]))"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with driven(tmp_path_factory.mktemp("chromium")) as wire:
        yield wire


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    place = tmp_path_factory.mktemp("pages")
    compared = compare(slow_and_others(), lambda trace: trace[0] == "s")
    (place / "plain.html").write_text(page_html("worker-0", merged([PROFILE]), about="Of a test."))
    (place / "diff.html").write_text(page_html("Slow", slow_and_others(), compared=compared))
    return place


def opened(chromium, path, width=1440, scheme="light"):
    page = chromium.page()
    page.size(width)
    page.scheme(scheme)
    page.open(path.as_uri())
    return page


@pytest.mark.parametrize("name", ["plain.html", "diff.html"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_it_fits_and_is_read_easily(chromium, pages, name, width, scheme):
    page = opened(chromium, pages / name, width, scheme)
    found = page.run(MEASURE)
    assert (found["scroll"], found["wide"], found["faint"], found["outside"]) == (width, [], [], 0)
    assert page.run(LEGIBLE) == []
    assert page.console == []
    page.close()


def test_a_hand_zooms_and_escape_shows_all_again(chromium, pages):
    page = opened(chromium, pages / "plain.html")
    whole = page.run(WIDTHS)
    assert (whole["handle"], whole["parse"]) == (86, 57)
    page.click("svg.flame > .n[aria-label^='parse']")
    page.until("!document.querySelector('.bar .out').disabled")
    zoomed = page.run(WIDTHS)
    assert (zoomed["parse"], zoomed["loads"]) == (100, 75)
    page.key("Escape")
    assert page.run(WIDTHS) == whole
    page.click("svg.flame > .n[aria-label^='parse']")
    page.click(".bar .out")
    assert page.run(WIDTHS) == whole
    assert page.console == []
    page.close()


def test_keys_walk_and_zoom(chromium, pages):
    page = opened(chromium, pages / "plain.html")
    page.run("document.querySelector('svg.flame > .n').focus()")
    for key, name in (("ArrowDown", "handle"), ("ArrowDown", "parse"), ("ArrowUp", "handle"), ("ArrowDown", "parse"), ("ArrowDown", "loads"), ("ArrowUp", "parse")):  # fmt: skip
        page.key(key)
        assert page.run(NAME) == name
    page.key("Enter")
    assert page.run(WIDTHS)["loads"] == 75
    page.key("Home")
    assert page.run(WIDTHS)["parse"] == 57
    assert page.console == []
    page.close()


def test_search_finds_and_says_how_much_and_a_layer_dims_the_others(chromium, pages):
    page = opened(chromium, pages / "plain.html")
    page.run("document.body.focus()")
    page.key("/")
    assert page.run("document.activeElement.type") == "search"
    page.write("LOADS")
    page.until("document.querySelector('.found').textContent.includes('42.9 % of CPU time')")
    assert page.run("[...document.querySelectorAll('.hit')].length") == 1
    page.key("Escape")
    assert page.run(
        "[document.querySelector('.bar input').value, document.querySelectorAll('.hit').length]"
    ) == ["", 0]
    page.click(".chip[data-layer='model']")
    assert page.run("document.querySelectorAll('.dim').length") > 0
    assert page.console == []
    page.close()
