"""The profile page of the admin process: the flame graph of the last minutes, cut by process, layer, operation, or slow requests.

`/profile/?since=5m&process=worker-0&layer=http&op=parse&trace=...&diff=slow`; `&format=pprof` and `&format=folded` give the same as a file.

Rules: the store is read and the page made in a thread, so that the board's streams go on; what cannot be shown is said on a page that
keeps the form.  Values in the address are checked like options of the command.

Deliberately absent: starting to sample; `sitsctl profile gateway` and the fleet's file do that.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from sits.app.profiles.page import page_html, part
from sits.app.profiles.stored import compared_in, profile_in
from sits.app.up.rooms import Room
from sits.core.errors import ConfigError, SitsError
from sits.core.units import parse_duration, show_duration
from sits.telemetry.profile import folded, pprof
from sits.telemetry.profile.profile import Profile

SINCE, SINCE_MAX_NS = "5m", 24 * 3600 * 10**9
TEXT_MAX = 200

HERE = "/profile/"
PARTS = {"flame.css": "text/css", "flame.js": "text/javascript"}
"""Every answer of ours forbids scripts and styles that stand in the page."""

FILES: Mapping[str, tuple[str, Callable[[Profile], bytes]]] = {
    "pprof": ("profile.pb.gz", pprof.encode),
    "folded": ("profile.folded", lambda profile: folded.encode(profile, labels=True).encode()),
}


class ProfileRoom(Room):
    """The room."""

    name = "profile"

    def routes(self) -> Sequence[Route]:
        """The page, with and without its last slash."""
        files = [Route(f"/profile/{name}", _file(name, kind)) for name, kind in PARTS.items()]
        return [Route("/profile/", self._page), Route("/profile", self._slash), *files]

    async def _slash(self, request: Request) -> Response:
        return RedirectResponse(request.url.replace(path="/profile/"))

    async def _page(self, request: Request) -> Response:
        asked = {key: value[:TEXT_MAX] for key, value in request.query_params.items()}
        return await asyncio.to_thread(self._made, asked)

    def _made(self, asked: Mapping[str, str]) -> Response:
        controls = form(asked)
        try:
            since_ns = _since(asked.get("since") or SINCE)
            wall_ns = self.house.world.wall_ns() - since_ns
            found = profile_in(
                self.house.store, self.house.world, since_wall_ns=wall_ns, process=asked.get("process", "")
            )
            found = found.of(asked.get("layer", ""), asked.get("op", ""), asked.get("trace", ""))
            if asked.get("format") in FILES:
                name, encode = FILES[asked["format"]]
                head = {"content-disposition": f'attachment; filename="{name}"'}
                return Response(encode(found), media_type="application/octet-stream", headers=head)
            compared = None
            if asked.get("diff") == "slow":
                compared = compared_in(self.house.store, self.house.world, found, since_wall_ns=wall_ns)
        except SitsError as error:
            return HTMLResponse(
                page_html("Profile", Profile(()), about=str(error), controls=controls, linked=HERE)
            )
        heading = f"{found.process}: the last {show_duration(since_ns)}"
        return HTMLResponse(page_html(heading, found, compared=compared, controls=controls, linked=HERE))


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    def answer(_: Request) -> Response:
        return Response(part(name), media_type=kind, headers={"cache-control": "no-cache"})

    return answer


def _since(text: str) -> int:
    ns = parse_duration(text)
    if not 0 < ns <= SINCE_MAX_NS:
        raise ConfigError("a window of 1s to 24h, please", field="since", value=text)
    return int(ns)


def form(asked: Mapping[str, str]) -> str:
    """The fields that cut the profile, as they are now."""
    fields = (
        ("since", "last", asked.get("since") or SINCE, 4),
        ("process", "process", asked.get("process", ""), 9),
        ("layer", "layer", asked.get("layer", ""), 9),
        ("op", "op", asked.get("op", ""), 10),
        ("trace", "trace", asked.get("trace", ""), 16),
    )
    inputs = "".join(
        f'<label>{label} <input name="{name}" value="{escape(value)}" size="{size}"></label>'
        for name, label, value, size in fields
    )
    slow = " checked" if asked.get("diff") == "slow" else ""
    compare = f'<label><input type="checkbox" name="diff" value="slow"{slow}> slow against others</label>'
    files = '<button name="format" value="pprof">pprof</button>'
    return f'<form class="cut">{inputs}{compare}<button>Show</button>{files}</form>'
