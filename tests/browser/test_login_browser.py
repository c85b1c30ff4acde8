"""The login of the admin process in a real browser: a browser's own headers pass, the page and its style are allowed, the keyboard is enough."""

import pytest
from starlette.responses import HTMLResponse
from starlette.routing import Route
from test_report_browser import CHROMIUM

from board_served import listening
from chromium_driven import driven
from sits.app.up.door import Door
from sits.app.up.generation import Generation
from sits.core.config import load_fleet
from sits.world import RealWorld

FLEET = "name: f\ngateway: {keys: ['sits-aaaa-0123456789abc']}\nengines: [{kind: openai, name: e, url: 'http://localhost:1', models: [m]}]\n"

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


def test_a_key_is_typed_and_the_page_opens(tmp_path):
    fleet = load_fleet(FLEET)
    door = Door("127.0.0.1:1", RealWorld())
    door.adopt(Generation(number=1, name="g", run_id="r", fleet=fleet, written=fleet, slots={}))

    async def page(_):
        return HTMLResponse("<!doctype html><title>seen</title><link rel=icon href='data:,'>")

    inside = Route("/page", page)
    inside.app = door.guard(inside.app)
    with listening([inside, *door.routes()]) as url, driven(tmp_path) as wire:
        browser = wire.page()
        browser.size(390)
        browser.tell("Page.navigate", url=f"{url}/page?window=24h&model=a%20b")
        browser.reached(
            "document.querySelector('#key') === document.activeElement && document.readyState === 'complete'"
        )
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.run("getComputedStyle(document.querySelector('main')).maxWidth") == "400px"
        browser.write("sits-wrong")
        browser.key("Enter")
        browser.reached("document.querySelector('#problem')?.textContent === 'Unknown API key.'")
        browser.run("document.querySelector('#key').focus()")
        browser.write("sits-aaaa-0123456789abc")
        browser.key("Enter")
        browser.reached("document.title === 'seen'")
        assert browser.run("location.search") == "?window=24h&model=a%20b"
        assert [line for line in browser.console if "401" not in line] == []
