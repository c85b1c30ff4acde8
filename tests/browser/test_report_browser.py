"""The page in a real browser: nothing overflows sideways, no labels collide, the console stays silent.

One Chromium opens every report in frames of a phone's and a desktop's width; a script around the frames (the
page has none) measures and leaves its result in the document, which the browser prints.
"""

import html
import json
import re
import shutil
import subprocess

import pytest

from app_pages import every_report
from sits.app.report import render_html

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (390, 961, 1440)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--enable-logging=stderr", "--window-size=1500,1200", "--virtual-time-budget=20000",
)  # fmt: skip
MEASURE = """
const found = [];
for (const frame of document.querySelectorAll('iframe')) {
  const page = frame.contentDocument, root = page.documentElement, width = frame.clientWidth;
  const wide = [], met = [];
  const inside = node => { for (let n = node; n; n = n.parentElement) if (getComputedStyle(n).overflowX !== 'visible') return true; };
  for (const node of page.querySelectorAll('main *')) {
    const box = node.getBoundingClientRect();
    if (box.width && (box.right > width + 0.5 || box.left < -0.5) && !inside(node.parentElement)) wide.push(node.outerHTML.slice(0, 120));
  }
  for (const drawing of page.querySelectorAll('svg')) {
    const boxes = [...drawing.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width);
    boxes.forEach(([a, one], i) => boxes.slice(i + 1).forEach(([b, two]) => {
      if (Math.min(one.right, two.right) - Math.max(one.left, two.left) > 1 && Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top) > 3) met.push(a + ' | ' + b);
    }));
  }
  const sizes = [...page.querySelectorAll('svg text')].map(t => parseFloat(getComputedStyle(t).fontSize) * (t.getScreenCTM()?.a ?? 1)).filter(s => s > 0);
  found.push({name: frame.dataset.name, width, scroll: root.scrollWidth, wide, met, smallest: Math.min(99, ...sizes), dark: page.defaultView.matchMedia('(prefers-color-scheme: dark)').matches, ink: getComputedStyle(page.body).color});
}
document.getElementById('result').textContent = JSON.stringify(found);
"""

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


def opened(tmp_path, pages, widths, *flags):
    """`(measurements, console lines)` of `pages` (name -> HTML) at each of `widths`."""
    frames = "".join(
        f'<iframe data-name="{html.escape(name)}" style="border:0;width:{width}px;height:900px" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
        for width in widths
    )
    around = tmp_path / "around.html"
    around.write_text(
        f'<!doctype html><meta charset="utf-8"><body>{frames}<pre id="result"></pre>'
        f"<script>addEventListener('load', () => {{{MEASURE}}})</script>",
        encoding="utf-8",
    )
    shown = subprocess.run(
        [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", around.as_uri()],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    result = re.search(r'<pre id="result">(.*?)</pre>', shown.stdout, re.DOTALL)
    assert result, shown.stderr[-2000:]
    return json.loads(html.unescape(result[1])), re.findall(r"CONSOLE.*", shown.stderr)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    pages = {name: render_html(report) for name, report in every_report().items()}
    return opened(tmp_path_factory.mktemp("browser"), pages, WIDTHS)


def test_no_page_overflows_sideways(measured):
    found, _ = measured
    assert len(found) == len(every_report()) * len(WIDTHS)
    assert {(one["name"], one["width"]): one["wide"][:3] for one in found if one["wide"]} == {}
    assert [(one["name"], one["scroll"]) for one in found if one["scroll"] > one["width"]] == []


def test_no_labels_of_a_drawing_collide(measured):
    found, _ = measured
    usual = [
        one for one in found if one["name"] in {"full", "why", "sampled", "empty", "hopeless", "tiny", "zero"}
    ]
    assert {(one["name"], one["width"]): one["met"][:5] for one in usual if one["met"]} == {}


def test_no_label_is_too_small_to_read(measured):
    found, _ = measured
    assert {(one["name"], one["width"]): one["smallest"] for one in found if one["smallest"] < 9} == {}


def test_the_console_stays_silent_and_no_script_ran(measured):
    _, console = measured
    assert console == []


def test_the_page_follows_the_colour_scheme(tmp_path):
    from app_synthetic import empty_report

    (dark,), _ = opened(
        tmp_path, {"empty": render_html(empty_report())}, (390,), "--blink-settings=preferredColorScheme=0"
    )
    assert dark["dark"]
    assert dark["ink"] == "rgb(231, 234, 238)"


def test_the_measuring_itself_sees_what_is_wrong(tmp_path):
    bad = '<!doctype html><main><div style="width:600px">x</div><svg width="99" height="20"><text y="9" font-size="6">aaaa</text><text y="9" font-size="6">bbbb</text></svg></main><script>console.error("loud")</script>'
    (one,), console = opened(tmp_path, {"bad": bad}, (390,))
    assert one["wide"]
    assert one["met"]
    assert one["scroll"] > one["width"]
    assert one["smallest"] < 9
    assert "loud" in console[0]
