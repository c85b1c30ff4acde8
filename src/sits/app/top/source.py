"""Where the board gets its numbers: the gateway's metrics page.

Rules: a look blocks (call it in a thread), and never raises for what a gateway may do: no answer, an answer that is no page;
that is what the frame tells.

Deliberately absent: folding (`frame`).
"""

from sits.app.top.frame import Frame, Past
from sits.bench.target import fetch
from sits.core.errors import SitsError
from sits.core.ports import World
from sits.telemetry.prometheus_text import parse

TIMEOUT_S = 2.0


class Source:
    """One gateway, or the admin process of one that shows its page there only: then a key may be needed."""

    def __init__(self, url: str, world: World, window_ns: int, api_key: str = "") -> None:
        self._url = url.rstrip("/")
        self._world = world
        self._api_key = api_key
        self.past = Past(self._url, window_ns)

    def look(self) -> Frame:
        """Ask once, and say what is to be shown."""
        try:
            page = parse(fetch(f"{self._url}/metrics", api_key=self._api_key, timeout_s=TIMEOUT_S))
        except SitsError as error:
            self.past.lose(self._world.now_ns(), str(error))
        else:
            if page.total("sits_workers") is None and page.total("sits_requests_total") is None:
                self.past.lose(self._world.now_ns(), f"{self._url}/metrics is no page of a gateway")
            else:
                self.past.add(self._world.now_ns(), page)
        return self.past.frame(self._world.now_ns())
