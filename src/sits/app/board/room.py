"""The board's room in the admin process: its page and files, its figures as JSON, and the stream that keeps them fresh.

```
/board/            the page        /board/files/NAME   its script and style          /board/shift, /board/shift.json   the shift board
/board/api/WHAT    overview, burn, changes, requests, request, tail, matrix, groups, fleet, names: JSON         /board/events       the same, as they change
```
Rules: the store is read by two threads, one for what is drawn first and one for what takes long, each with a connection of its own, so a
question waits for the one before and never for traffic; who asks
the same within `FRESH_S` gets the same answer.  Figures of longer windows are made more rarely.

Deliberately absent: how figures are found.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sits.app.board import figures, fleetmap, requests
from sits.app.board.changes import changes
from sits.app.board.grid import STAGE_NAMES
from sits.app.board.groups import groups
from sits.app.board.store_thread import StoreThread
from sits.app.board.stream import Feed, Streaming, Streams
from sits.app.board.window import Look, look_of
from sits.app.shift import board as shift_board
from sits.app.up.door import COOKIE
from sits.app.up.generation import Generation
from sits.app.up.refusal import refusal
from sits.app.up.rooms import House, Room
from sits.core.errors import CapacityError, SitsError, UnknownError
from sits.core.units import MS, SECOND
from sits.telemetry.minute_parts import MinuteParts
from sits.telemetry.store import DuckStore

FILES = {
    "board.css": "text/css",
    "board.js": "text/javascript",
    "words.js": "text/javascript",
    "draw.js": "text/javascript",
    "panels.js": "text/javascript",
}
FRESH_S = {"15m": 1.5, "1h": 1.5, "6h": 8.0, "24h": 20.0, "custom": 60.0}
"""How long the figures of a window are good; also how often a stream has new ones."""

DEAR = frozenset({"changes", "requests", "request", "tail", "matrix", "groups"})
"""Figures of single requests, of which there may be millions."""

PULSE_S, FLEET_S, BURN_S = 1.0, 2.0, 20.0
KEPT = 128
"""Answers that are kept for who asks the same."""

_LOGOUT = re.compile(rb'<form method="post" action="/logout".*?</form>')
"""What is there only for who has signed in."""

_SCRIPT = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


class BoardRoom(Room):
    """The room."""

    name = "board"

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._readers = {dear: StoreThread() for dear in (False, True)}
        self._minutes = MinuteParts(house.store, STAGE_NAMES)
        self._streams = Streams()
        self._feeds: dict[tuple[Any, ...], Feed] = {}
        self._answers: dict[tuple[Any, ...], tuple[int, asyncio.Future[bytes]]] = {}

    def routes(self) -> Sequence[Route]:
        """The page, its files, its figures, its stream."""
        return [
            Route("/board/", self._page),
            Route("/board/files/{name}", self._file),
            Route("/board/api/{what}", self._api),
            Route("/board/events", self._events),
            Route("/board/shift", self._shift),
            Route("/board/shift.json", self._shift_state),
        ]

    async def start(self) -> None:
        """Open the store meanwhile (half a second of libraries), so that whoever looks first need not wait for it."""
        self._readers[False].warm(self.house)
        self._readers[True].start(self.house, self._minutes)

    def adopt(self, new: Generation) -> None:
        """Other objectives, other engines: nothing that was found holds."""
        self._answers.clear()

    def vitals(self) -> dict[str, dict[str, float]]:
        """Its streams, those that were refused too."""
        return self._streams.vitals()

    async def close(self) -> None:
        """End the streams, let go of the store."""
        self._streams.end()
        for reader in self._readers.values():
            reader.close()

    # -- pages -------------------------------------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        page = _asset("board.html")
        if COOKIE not in request.cookies:
            page = _LOGOUT.sub(b"", page)
        return Response(page, media_type="text/html")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return refusal(UnknownError(f"there is no file {name[:80]!r}", hint=", ".join(FILES)))
        return Response(_asset(name), media_type=FILES[name])

    async def _shift(self, _: Request) -> Response:
        page = shift_board.page()
        return Response(page, media_type="text/html", headers={"content-security-policy": _policy(page)})

    async def _shift_state(self, request: Request) -> Response:
        return await self._answered(self.house.ask("board"))

    # -- figures -----------------------------------------------------------------------------------------------

    async def _api(self, request: Request) -> Response:
        what = request.path_params["what"]
        try:
            look = look_of(request.query_params)
        except SitsError as error:
            return refusal(error)
        return await self._answered(self._made(what, look, _wanted(request)))

    async def _answered(self, making: Any) -> Response:
        try:
            return Response(await making, media_type="application/json")
        except SitsError as error:
            return refusal(error)

    async def _made(self, what: str, look: Look, wanted: tuple[str, int] = ("", 0)) -> bytes:
        """The answer, or one of a moment ago."""
        makers: dict[str, tuple[Callable[[DuckStore], Any], float]] = {
            "overview": (lambda store: self._overview(store, look), FRESH_S[look.name]),
            "burn": (lambda store: self._burn(store, look), BURN_S),
            "changes": (self._of(changes, look), FRESH_S[look.name]),
            "requests": (self._of(requests.listed, look), FRESH_S[look.name]),
            "request": (lambda store: requests.found(store, *wanted), 0.0),
            "tail": (self._of(requests.tail, look), FRESH_S[look.name]),
            "matrix": (self._of(requests.matrix, look), 5.0),
            "groups": (self._of(groups, look), FRESH_S[look.name]),
            "fleet": (lambda store: fleetmap.fleet_map(self.house, store), FLEET_S),
            "names": (self._names, 30.0),
        }
        if what not in makers:
            raise UnknownError(f"there are no figures {what[:40]!r}", field="what", hint=", ".join(makers))
        make, fresh_s = makers[what]
        key, now_ns = (what, look, wanted), self.house.world.now_ns()
        until_ns, answer = self._answers.get(key, (0, None))
        if answer is None or (now_ns >= until_ns and answer.done()):
            answer = asyncio.ensure_future(self._asked(make, what in DEAR))
            self._answers.pop(key, None)
            while len(self._answers) >= KEPT:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = (now_ns + int(fresh_s * SECOND), answer)
        return await asyncio.shield(answer)

    async def _asked(self, make: Callable[[DuckStore], Any], dear: bool) -> bytes:
        return await self._readers[dear].ask(self.house, make)

    def _of(self, make: Callable[..., Any], look: Look) -> Callable[[DuckStore], Any]:
        fleet, now_ns = self.house.generation.fleet, self.house.world.wall_ns()
        return lambda store: make(store, fleet, look, now_ns)

    def _overview(self, store: DuckStore, look: Look) -> dict[str, Any]:
        house = self.house
        found = figures.overview(store, house.generation.fleet, look, house.world.wall_ns(), self._minutes)
        fleet = house.generation.fleet
        named = {"fleet": fleet.name, "generation": house.generation.number}
        return named | {"faults": [[one.name, one.share] for one in fleet.injections]} | found

    def _burn(self, store: DuckStore, look: Look) -> dict[str, Any]:
        house = self.house
        return figures.burn(store, house.generation.fleet, look.only, house.world.wall_ns())

    def _names(self, store: DuckStore) -> dict[str, Any]:
        fleet = self.house.generation.fleet
        since_ns = self.house.world.wall_ns() - 24 * 3600 * SECOND
        told = store.scan("board_names", since_wall_ns=since_ns)
        models = {
            model
            for engine in fleet.engines
            for model in getattr(engine, "models", ()) or (getattr(engine, "model", ""),)
        }
        return {
            "models": sorted(models - {""}),
            "engines": [engine.name for engine in fleet.engines],
            "tenants": [row["name"] for row in told if row["name"]],
        }

    # -- stream ------------------------------------------------------------------------------------------------

    async def _events(self, request: Request) -> Any:
        try:
            look = look_of(request.query_params)
        except SitsError as error:
            return refusal(error)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")  # a stream nobody reads would keep its place
        if self._streams.full:
            self._streams.refused += 1
            return refusal(
                CapacityError(
                    "too many browsers look already",
                    code="too_many_streams",
                    hint="close one, or look again later",
                )
            )
        self._feeds = {key: feed for key, feed in self._feeds.items() if not feed.idle}
        feeds = [self._feed(("pulse",), lambda: _soon(fleetmap.pulse(self.house)), PULSE_S)]
        if look.live:  # first what is drawn first
            feeds.append(
                self._feed(("overview", look), lambda: self._made("overview", look), FRESH_S[look.name])
            )
            feeds.append(
                self._feed(("burn", look.only), lambda: self._made("burn", Look(only=look.only)), BURN_S)
            )
        feeds.append(self._feed(("fleet",), lambda: self._made("fleet", Look()), FLEET_S))
        return Streaming(self._streams, feeds)

    def _feed(self, key: tuple[Any, ...], make: Callable[[], Any], period_s: float) -> Feed:
        return self._feeds.setdefault(key, Feed(key[0], make, period_s))


async def _soon(told: Any) -> bytes:
    return msgspec.json.encode(told)


def _wanted(request: Request) -> tuple[str, int]:
    """Id of a request, and when it came if that is told (`at`, ms)."""
    at = request.query_params.get("at", "")
    plain = at.isascii() and at.isdigit() and len(at) <= 14
    return request.query_params.get("id", "").strip(), int(at) * MS if plain else 0


def _policy(page: bytes) -> str:
    """A content security policy for a page with its script and style inside: these and no others."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _SCRIPT.findall(page.decode()):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    script, style = " ".join(allowed["script"]), " ".join(allowed["style"])
    return f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"


@cache
def _asset(name: str) -> bytes:
    return resources.files("sits.app.board").joinpath("files", name).read_bytes()
