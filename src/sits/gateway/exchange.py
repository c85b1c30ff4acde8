"""An Exchange: one request on its way through the gateway, and the three seams around it.

`Sink` is where the answer goes (a socket, a simulated client, a list in a test), `Recorder` where the finished row
goes, `Cpu` what the gateway's own work costs.  A live gateway simply burns its CPU and has none; a simulated one charges a
virtual core.

Rules: an Exchange ends in exactly one outcome, set once: `completed`, `failed`, `cancelled` or `refused`.
Deliberately absent: behaviour.  What happens to an Exchange is the list in `gateway.pipeline`.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, Final, Protocol

from sits.core.decision import Decision
from sits.core.errors import SitsError
from sits.core.replica import Replica
from sits.core.request import Request, Usage
from sits.core.timeline import Timeline
from sits.gateway.cached import Lookup
from sits.gateway.holding import Seat
from sits.gateway.standing import NOBODY, Standing
from sits.policy.release import Assignment, Target

OUTCOMES: Final = ("completed", "failed", "cancelled", "refused")
"""How a request can end.  `refused`: never worked on, by us or by the engine (4xx, 429, limits)."""

NO_HEADERS: Final[Mapping[bytes, bytes]] = {}

NOT_ASKED: Final = (-1, -1, 0)
"""What admission saw of an exchange that did not come so far."""

CLIENT_LEFT: Final = 499
"""Status recorded for a request whose client left; nobody receives it."""

UNKNOWN_OUTPUT_TOKENS: Final = 256
"""What a request without an output limit is counted as, tokens; an accounting guess, not a limit."""


class Sink(Protocol):
    """Where one answer goes.  Calls come in this order: (`in_pieces`,) `start`, `write`..., then `finish` or `abort`.

    `write` and `finish` return None, or what to await before going on (back-pressure): most pieces need no waiting, and
    a coroutine for each would cost more than the piece.
    """

    def in_pieces(self) -> None:
        """What is written is to be sent as it comes, though it is no stream of events: it is too large to be held."""

    def start(self, status: int, content_type: bytes, lines: bytes = b"") -> None:
        """Begin the answer; nothing needs to be sent yet.  `lines` are more of its head, each with the line end before it."""

    def write(self, data: bytes) -> Awaitable[None] | None:
        """Hand over a piece; there is room for more when what it returned is over."""

    def finish(self) -> Awaitable[None] | None:
        """The answer is complete."""

    def abort(self) -> None:
        """The answer cannot be completed, and the client must be able to see that."""


class Recorder(Protocol):
    """Takes the row of a finished request; must not block."""

    def record(self, row: tuple[Any, ...]) -> object:
        """Keep one row of the table `requests`, as `telemetry.recorder` has it; what this returns is nobody's business."""


class Cpu(Protocol):
    """The gateway's own CPU."""

    async def spend(self, ns: int) -> None:
        """Occupy the core for `ns`; returns when the work is done."""


class NoRecorder:
    """Keeps nothing."""

    def record(self, row: tuple[Any, ...]) -> None:
        """Drop the row."""


class Exchange:
    """One request, what was decided about it, and how it went.

    `standing`: who asks for what, and what of the answer does not depend on when; `answered`: the client has all of the answer;
    `taken`: where it counts as in flight; `tried`: replicas that failed it;
    `routed_on`, `admitted_on`: what the policies saw, for the decision record (as in `core.recorded`: one `Routed` a choice).
    `session`, `hint`: what the caller says of its session, and wishes for a version; `target`: what its assignment makes of it, or the `fallen`th fallback instead;
    `lookup`: its business with the cache; `reserved`: quotas may hold a reservation for it; `seat`: that with a window.
    """

    standing: Standing = NOBODY
    injected: Decision | None = None
    session: str = ""
    hint: str = ""
    arm: str = ""
    assignment: Assignment | None = None
    target: Target | None = None
    fallen: int = 0
    fell_back: Decision | None = None
    lookup: Lookup | None = None
    reserved: bool = False
    need_tokens: int = 0
    routed_on: tuple[Any, ...] = ()
    admitted_on: tuple[int, int, int] = NOT_ASKED
    seat: Seat | None = None
    replica: Replica | None = None
    taken: Replica | None = None
    taken_adapter: str = ""
    tried: tuple[str, ...] = ()
    started: bool = False
    answered: bool = False
    streaming: bool = False
    content_type: bytes = b""
    outcome: str = ""
    status: int = 0
    detail: str = ""
    output_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    stall_ns: int = 0

    def __init__(
        self,
        request: Request,
        timeline: Timeline,
        sink: Sink,
        headers: Mapping[bytes, bytes],
        problem: SitsError | None,
        model: str,
        tenant: str,
        prompt_tokens: int = 0,
    ) -> None:
        self.request = request
        self.timeline = timeline
        self.sink = sink
        self.headers = headers
        self.problem = problem
        self.model = model
        self.tenant = tenant
        self.prompt_tokens = prompt_tokens

    def end(self, outcome: str, status: int, detail: str = "") -> None:
        """Set the outcome; the first one stands."""
        if not self.outcome:
            self.outcome, self.status, self.detail = outcome, status, detail

    def spent(self, tokens: int, usage: Usage | None) -> None:
        """Keep what the answer took: the engine's own counts, or the counted tokens when it did not tell."""
        self.output_tokens = tokens
        if usage is not None:
            self.prompt_tokens = usage.input or self.prompt_tokens
            self.output_tokens = usage.output
            self.cached_tokens = usage.cached
