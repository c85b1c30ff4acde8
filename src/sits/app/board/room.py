"""The board's room in the admin process: its pages, its figures, and the stream that keeps them fresh.

Rules: files come from the package and are cached by the browser for as long as their name is the same.

Deliberately absent: how figures are found.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from sits.app.up.rooms import Room


class BoardRoom(Room):
    """The room."""

    name = "board"

    def routes(self) -> Sequence[Route]:
        """The page, its files, its figures."""
        return [Route("/board/", self._page)]

    async def _page(self, _: Request) -> Response:
        return HTMLResponse("<!doctype html><title>Board</title>")
