"""Where the board gets its numbers: the gateway's metrics page, and what engines told, from the store beside it.

Rules: a look blocks (call it in a thread), and never raises for what a gateway may do: no answer, an answer that is no page;
that is what the frame tells.  The store is only followed where there is one; without it KV use and waiting requests are not known.

Deliberately absent: folding (`frame`).
"""

from pathlib import Path

from sits.app.top.frame import Frame, Past, Told
from sits.bench.target import fetch
from sits.core.errors import SitsError
from sits.core.ports import World
from sits.telemetry.prometheus_text import parse

TIMEOUT_S = 2.0
STALE_NS = 10_000_000_000
_SIGNALS = {"kv_usage": "kv_use", "requests_waiting": "waiting"}


class Source:
    """One gateway."""

    def __init__(self, url: str, world: World, window_ns: int, *, store: Path | None = None) -> None:
        self._url = url.rstrip("/")
        self._world = world
        self.past = Past(self._url, window_ns)
        self._told: dict[str, tuple[int, Told]] = {}
        self._tail = None
        if store is not None and store.is_dir():
            from sits.telemetry.tail import Tail  # noqa: PLC0415  # duckdb, only where there is a store

            self._tail = Tail(store, "signals", world=world)

    def look(self) -> Frame:
        """Ask once, and say what is to be shown."""
        try:
            page = parse(fetch(f"{self._url}/metrics", timeout_s=TIMEOUT_S))
        except SitsError as error:
            self.past.lose(self._world.now_ns(), str(error))
        else:
            if page.total("sits_workers") is None and page.total("sits_requests_total") is None:
                self.past.lose(self._world.now_ns(), f"{self._url}/metrics is no page of a gateway")
            else:
                self.past.add(self._world.now_ns(), page)
        now_ns = self._world.now_ns()
        return self.past.frame(now_ns, self._engines(now_ns))

    def _engines(self, now_ns: int) -> dict[str, Told]:
        if self._tail is None:
            return {}
        try:
            new = self._tail.look()
        except SitsError as error:
            self.past.lose(now_ns, str(error))
            return {}
        for t_ns, source, name, value in zip(
            new["t_ns"].tolist(),
            new["source"].tolist(),
            new["name"].tolist(),
            new["value"].tolist(),
            strict=True,
        ):
            if name in _SIGNALS:
                old = self._told.get(source, (0, Told()))[1]
                known = {"kv_use": old.kv_use, "waiting": old.waiting} | {_SIGNALS[name]: float(value)}
                self._told[source] = (t_ns, Told(**known))
        return {name: told for name, (t_ns, told) in self._told.items() if now_ns - t_ns <= STALE_NS}
