"""The gateway's metrics page in the admin process, behind its door: for fleets that show it nowhere else, and for whoever is here already.

Rules: it is the keeper's page, the same as the gateway's port shows (`gateway.metrics: open`).

Deliberately absent: making it.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sits.app.up.refusal import refusal
from sits.app.up.rooms import Room
from sits.core.errors import SitsError

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class MetricsRoom(Room):
    """The room."""

    name = "metrics"

    def routes(self) -> Sequence[Route]:
        """One page."""
        return [Route("/metrics", self._page)]

    async def _page(self, _: Request) -> Response:
        try:
            return Response(await self.house.ask("page"), headers={"content-type": PROMETHEUS})
        except SitsError as error:
            return refusal(error)
