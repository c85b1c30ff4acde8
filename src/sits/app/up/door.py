"""The door of the admin process: who may see its pages, and what no page from elsewhere may do with them.

```
no keys, loopback ──> everybody on this machine        no keys, any other address ──> nobody
keys ──> Authorization, x-api-key, or the cookie of a login ──> who is it ──> may it `admin` the gateway?
```
Rules:
- The keys, tokens and policies are those of the gateway (`gateway.access`).  Without policies every key may `admin`, as it may everything
  else; where the keys belong to several tenants that is refused, because each would see the others.
- A login keeps the key here and gives the browser a random name for it, HttpOnly and SameSite=Strict: a key that is withdrawn, or may no
  longer, is out at the next look.  Logins end after `LOGIN_NS` and with this process.
- Wrong keys are taken at a pace only (`app.up.guessing`), whether they come by the login's form or in a header.
- What changes something must come from a page of ours: a request whose Origin is another host is refused.  Where no key is needed the Host
  must be a loopback name, so that no web site can reach us by giving its own name our address (DNS rebinding).
- Every answer forbids scripts and styles that are not our files, frames, sniffing, and telling others where one came from.

Deliberately absent: roles within the pages; who may `admin` sees all of it.
"""

from contextlib import suppress
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from sits.app.up.generation import Generation
from sits.app.up.guessing import Guesses
from sits.app.up.refusal import refusal, waiting
from sits.core.access_names import tenants_of
from sits.core.errors import AccessError, AuthError, SitsError
from sits.core.loopback import is_loopback
from sits.core.ports import World
from sits.core.units import SECOND
from sits.gateway.access import Access

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "sits_admin"
LOGIN_NS = 12 * 3600 * SECOND
LOGINS = 1_024
FORM_BYTES = 16 * 1024
ENDED = "Your login has ended: it was 12 hours old, its key was withdrawn, or the admin process has been started again."
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Door:
    """The door; `adopt` tells it of every configuration, the first one included."""

    def __init__(self, address: str, world: World) -> None:
        self._loopback = is_loopback(address.rpartition(":")[0])
        self._world = world
        self._logins: dict[str, tuple[bytes, int]] = {}
        self._access: Access | None = None
        self._guesses = Guesses(world)

    def adopt(self, new: Generation) -> None:
        """Judge by this configuration from now on; on a running loop."""
        before, self._access = self._access, Access(new.fleet, self._world, self._access)
        self._tenants = len(tenants_of(new.fleet))
        if before is not None:
            before.close()
        self._access.start()

    def close(self) -> None:
        """Let go of what keeps signing keys fresh."""
        if self._access is not None:
            self._access.close()

    def problem(self) -> str:
        """Why nobody can get in, for whoever reads the log; empty when somebody can."""
        assert self._access is not None
        if self._access.open and not self._loopback:
            return "the fleet has no keys, so its admin pages are shown on a loopback address only"
        return ""

    def routes(self) -> list[Route]:
        """The login's own paths."""
        return [
            Route("/login", self._show_login, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/login.css", _style, methods=["GET"]),
        ]

    def guard(self, inner: "ASGIApp") -> "ASGIApp":
        """`inner`, for those who may."""

        async def guarded(scope: "Scope", receive: "Receive", send: "Send") -> None:
            request = Request(scope)
            try:
                self.check(request)
            except SitsError as error:
                await self._refusal(request, error)(scope, receive, send)
            else:
                await inner(scope, receive, send)

        return guarded

    def check(self, request: Request) -> None:
        """Do nothing if this request may pass.

        Raises:
            AuthError: nobody we know; AccessError: somebody who may not, or a page of somebody else's.
            CapacityError: a token whose issuer's keys are not at hand yet, or too many wrong keys before this one.

        """
        self._check_origin(request)
        assert self._access is not None
        if self._access.open:
            self._check_local(request)
            return
        told = [request.headers.get(name) for name in ("authorization", "x-api-key")]
        if told == [None, None]:  # a remembered key was right once: none is tried by this
            self._check_secret(None, self._remembered(request.cookies.get(COOKIE, "")))
        else:
            authorization, api_key = (None if one is None else one.encode("latin-1") for one in told)
            self._try(request, authorization, api_key)

    def _try(self, request: Request, authorization: bytes | None, secret: bytes | None) -> None:
        """`_check_secret`, no faster than keys may be tried.  Raises RateLimitError as well."""
        address = "" if request.client is None else request.client.host
        self._guesses.may_try(address)
        try:
            self._check_secret(authorization, secret)
        except AuthError as error:
            self._guesses.was_wrong(address, error)
            raise

    def _check_secret(self, authorization: bytes | None, secret: bytes | None) -> None:
        assert self._access is not None
        decision = self._access.decide(self._access.identify(authorization, secret), "admin")
        self._access.refuse(decision, "admin", "")
        if decision.outcome == "open" and self._tenants > 1:
            raise AccessError(
                f"keys of {self._tenants} tenants may all do everything, so nobody is shown what all tenants do",
                code="access_denied",
                hint="add a policy to `access.policies` that says who may `admin`",
            )

    def _check_local(self, request: Request) -> None:
        if not self._loopback:
            raise AccessError(
                self.problem(),
                code="access_denied",
                hint="add keys to the fleet, or listen on 127.0.0.1 and reach it through a tunnel (ssh -L)",
            )
        host = request.headers.get("host", "")
        if not is_loopback(urlsplit(f"//{host}").hostname or ""):
            raise AccessError(
                f"{host[:80]!r} is not a name of this machine",
                field="host",
                code="access_denied",
                hint="open http://127.0.0.1 or http://localhost with the same port",
            )

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if request.method not in SAFE and origin and urlsplit(origin).netloc != request.headers.get("host"):
            raise AccessError(
                "a page of another site asks for a change",
                field="origin",
                code="cross_origin",
                hint="use our own pages, or a key",
            )

    def _remembered(self, name: str) -> bytes | None:
        secret, until_ns = self._logins.get(name, (None, 0))
        return secret if self._world.now_ns() < until_ns else None

    async def _show_login(self, request: Request) -> Response:
        return _login_page(ENDED if request.query_params.get("ended") else "", _onward(request), 200)

    async def _login(self, request: Request) -> Response:
        """Exchange a key for a cookie."""
        onward = _onward(request)
        try:
            self._check_origin(request)
            secret = await _key_of(request)
            self._try(request, None, secret or None)
        except SitsError as error:
            hint = f" {_sentence(error.hint)}" if error.retry_after_s else ""
            return waiting(_login_page(_sentence(error.message) + hint, onward, error.status), error)
        now_ns = self._world.now_ns()
        alive = [(name, held) for name, held in self._logins.items() if held[1] > now_ns]
        self._logins = dict(alive[-(LOGINS - 1) :])
        name = "".join(f"{self._world.nonce():016x}" for _ in range(4))
        self._logins[name] = (secret, now_ns + LOGIN_NS)
        answer = RedirectResponse(onward, 303)
        answer.set_cookie(
            COOKIE,
            name,
            max_age=LOGIN_NS // SECOND,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def _logout(self, request: Request) -> Response:
        try:
            self._check_origin(request)
        except SitsError as error:
            return self._refusal(request, error)
        self._logins.pop(request.cookies.get(COOKIE, ""), None)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    def _refusal(self, request: Request, error: SitsError) -> Response:
        asks_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if asks_page and isinstance(error, AuthError):
            asked = request.url.query
            return _login_page("", request.url.path + (f"?{asked}" if asked else ""), error.status)
        return refusal(error)


def _sentence(text: str | None) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _onward(request: Request) -> str:
    """Where a login leads: a path of ours and nothing else."""
    wanted = request.query_params.get("next", "/")
    plain = wanted.startswith("/") and wanted[1:2] not in ("/", "\\") and wanted.isprintable()
    return wanted if plain else "/"


async def _key_of(request: Request) -> bytes:
    """The key in a posted form; nothing where the form is none, or longer than a key can be."""
    body = b""
    with suppress(ClientDisconnect):  # nobody is left to be told anything
        async for part in request.stream():
            body += part
            if len(body) > FORM_BYTES:
                return b""
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=4)
    except ValueError:
        return b""
    return fields.get("key", [""])[0].strip().encode()


def _login_page(problem: str, onward: str, status: int) -> Response:
    text = _file("login.html").replace("{{problem}}", escape(problem)).replace("{{next}}", quote(onward))
    return HTMLResponse(text, status)


async def _style(_: Request) -> Response:
    return Response(_file("login.css"), media_type="text/css")


@cache
def _file(name: str) -> str:
    return resources.files("sits.app.up").joinpath(name).read_text("utf-8")


def with_headers(inner: "ASGIApp") -> "ASGIApp":
    """`inner`, every answer of which has `HEADERS` where it says nothing else."""

    async def headed(scope: "Scope", receive: "Receive", send: "Send") -> None:
        async def begin(message: "Message") -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await inner(scope, receive, begin)

    return headed
