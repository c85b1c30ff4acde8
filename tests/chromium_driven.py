"""A headless Chromium that is driven: opened on an address, clicked, typed into, measured, photographed.

It is told over a pipe (the DevTools protocol, one JSON message and a NUL), so there is no port and no library.  What is waited for is a condition
in the page, which Chromium itself looks at before each frame; the test's own time-out ends what never comes.
"""

import base64
import json
import os
import subprocess
from contextlib import contextmanager

from test_report_browser import CHROMIUM

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
KEYS = {
    "Tab": 9,
    "Escape": 27,
    "Enter": 13,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowDown": 40,
    "/": 191,
    "ArrowRight": 39,
    "End": 35,
    "Home": 36,
}
UNTIL = "new Promise(done => { const look = () => { let is; try { is = %s } catch (e) { is = false } is ? done(is) : setTimeout(look, 20) }; look() })"


class Page:
    """One page; `console` is what it wrote there as warnings or errors, and its uncaught exceptions."""

    def __init__(self, wire, session):
        self._wire, self._session = wire, session
        self.console = []

    def tell(self, method, **parameters):
        """Send a command; its result."""
        return self._wire.tell(method, parameters, self)

    def hear(self, method, told):
        """An event of this page."""
        if method == "Runtime.exceptionThrown":
            self.console.append(told["exceptionDetails"]["exception"].get("description", str(told)))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("warning", "error"):
            self.console.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("warning", "error"):
            self.console.append(str([one.get("value") for one in told["args"]]))

    def run(self, script):
        """The value of an expression; promises are awaited."""
        found = self.tell("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition):
        """Wait for a condition of the page; its value."""
        return self.run(UNTIL % condition)

    def reached(self, condition):
        """Wait for a condition of a page that is only coming: what is asked of the one that goes gets no answer."""
        while not self.run(f"(() => {{ try {{ return {condition} }} catch (e) {{ return false }} }})()"):
            continue

    def open(self, url):
        """Go there."""
        self.tell("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    def size(self, width, height=900, scale=1):
        """Be a screen of so many pixels."""
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def scheme(self, scheme):
        """Prefer `dark` or `light`."""
        self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def key(self, name, modifiers=0):
        """Press a key."""
        told = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name], "modifiers": modifiers}
        text = {"text": "\r" if name == "Enter" else name} if name in ("Enter", "/") else {}
        self.tell("Input.dispatchKeyEvent", type="keyDown", **told, **text)
        self.tell("Input.dispatchKeyEvent", type="keyUp", **told)

    def write(self, text):
        """Type into what has the focus."""
        self.tell("Input.insertText", text=text)

    def click(self, selector):
        """Click in the middle of an element, as a hand does."""
        self.until(f"document.querySelector({json.dumps(selector)})")
        x, y = self.run(
            f"(() => {{ const n = document.querySelector({json.dumps(selector)}); n.scrollIntoView({{block: 'center'}}); "
            "const b = n.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.tell("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def close(self):
        """Leave it."""
        self.tell("Page.close")

    def picture(self, path, *, whole=True):
        """A PNG of the page, whole or what is in view."""
        told = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))


class Wire:
    """The pipe."""

    def __init__(self, reads, writes):
        self._reads, self._writes = reads, writes
        self._number, self._rest, self._pages = 0, b"", {}

    def tell(self, method, parameters, page=None):
        self._number += 1
        told = {"id": self._number, "method": method, "params": parameters}
        if page is not None:
            told["sessionId"] = page._session
        os.write(self._writes, json.dumps(told).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, (method, message)
                return message["result"]
            if (of := self._pages.get(message.get("sessionId"))) is not None:
                of.hear(message.get("method"), message.get("params"))

    def _next(self):
        while b"\0" not in self._rest:
            part = os.read(self._reads, 1 << 20)
            assert part, "Chromium ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def page(self):
        """Another page."""
        target = self.tell("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.tell("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.tell(f"{domain}.enable")
        return page


@contextmanager
def driven(tmp_path):
    """A Chromium, until the end; `page()` makes pages."""
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()

    def child():
        a, b = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(a, 3)
        os.dup2(b, 4)

    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}"],
        preexec_fn=child, close_fds=False,  # noqa: PLW1509  (nothing but dup2)
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Wire(ours_in, ours_out)
    finally:
        process.kill()
        process.wait()
        os.close(ours_in)
        os.close(ours_out)
