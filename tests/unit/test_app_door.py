"""The door of the admin process, asked directly: who passes, where a login leads, and what no other site may do."""

import asyncio
import html
import re

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sits.app.up.door import HEADERS, Door, is_loopback, with_headers
from sits.app.up.generation import Generation
from sits.app.up.guessing import ADDRESSES, Guesses
from sits.core.config import load_fleet
from sits.core.errors import AuthError, RateLimitError
from sits.world import RealWorld

ENGINES = "engines: [{kind: openai, name: e, url: 'http://localhost:1', models: [m]}]\n"
TWO = "name: f\ngateway: {keys: ['a:sits-aaaa-0123456789abc', 'b:sits-bbbb-0123456789abc']}\n" + ENGINES
POLICY = """
access:
  policies:
    - permit(principal, action in Action::"use", resource);
    - permit(principal in Tenant::"a", action == Action::"admin", resource);
"""


def door_of(text, address="127.0.0.1:1", world=None):
    fleet = load_fleet(text)
    door = Door(address, world or RealWorld())
    door.adopt(Generation(number=1, name="g", run_id="r", fleet=fleet, written=fleet, slots={}))
    page = Route("/page", lambda _: PlainTextResponse("seen"), methods=["GET", "POST"])
    page.app = door.guard(page.app)
    return with_headers(Starlette(routes=[page, *door.routes()]))


def client_of(text, **more):
    return TestClient(door_of(text, **more), base_url="http://127.0.0.1:1", follow_redirects=False)


def test_every_answer_has_the_headers():
    client = client_of("name: f\n" + ENGINES)
    for path in ("/page", "/login", "/nothing"):
        told = client.get(path).headers
        assert {name: told[name] for name in HEADERS} == HEADERS, path
    assert "unsafe" not in HEADERS["content-security-policy"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("[::1]:9", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_open_pages_answer_to_names_of_this_machine(host, status):
    assert client_of("name: f\n" + ENGINES).get("/page", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [(None, 200), ("http://127.0.0.1:1", 200), ("http://127.0.0.1:2", 403), ("null", 403)],
)
def test_changes_come_from_our_pages(origin, status):
    headers = {} if origin is None else {"origin": origin}
    assert client_of("name: f\n" + ENGINES).post("/page", headers=headers).status_code == status


def test_keys_of_several_tenants_need_a_policy():
    told = client_of(TWO).get("/page", headers={"x-api-key": "sits-aaaa-0123456789abc"})
    assert (told.status_code, "access.policies" in told.json()["error"]["hint"]) == (403, True)
    client = client_of(TWO + POLICY)
    assert client.get("/page", headers={"x-api-key": "sits-aaaa-0123456789abc"}).text == "seen"
    assert client.get("/page", headers={"x-api-key": "sits-bbbb-0123456789abc"}).status_code == 403
    assert client.post("/login", data={"key": "sits-bbbb-0123456789abc"}).status_code == 403


@pytest.mark.parametrize(
    ("onward", "leads"),
    [
        ("/board/?w=1h", "/board/?w=1h"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_our_own_pages(onward, leads):
    client = client_of(TWO + POLICY)
    told = client.post("/login", params={"next": onward}, data={"key": "sits-aaaa-0123456789abc"})
    assert (told.status_code, told.headers["location"]) == (303, leads)
    assert client.get("/page").text == "seen"
    assert client.post("/logout", headers={"origin": "http://evil.example"}).status_code == 403
    assert client.post("/logout").status_code == 303
    assert client.get("/page").status_code == 401


def test_who_signs_in_where_a_page_was_asked_for_gets_the_whole_address():
    client = client_of(TWO + POLICY)
    told = client.get("/page?window=1h&model=a%26b", headers={"accept": "text/html"})
    (action,) = re.findall(r'<form method="post" action="([^"]*)"', told.text)
    sent = client.post(html.unescape(action), data={"key": "sits-aaaa-0123456789abc"})
    assert (told.status_code, sent.headers["location"]) == (401, "/page?window=1h&model=a%26b")


def test_a_page_of_another_site_cannot_log_one_in():
    client = client_of(TWO + POLICY)
    headers = {"origin": "http://evil.example"}
    told = client.post("/login", data={"key": "sits-aaaa-0123456789abc"}, headers=headers)
    assert (told.status_code, "set-cookie" in told.headers) == (403, False)


def test_who_is_sent_to_sign_in_again_is_told_why():
    client = client_of(TWO + POLICY)
    assert "login has ended" in client.get("/login?ended=1&next=/board/").text
    assert "login has ended" not in client.get("/login?next=/board/").text


class Clock:
    """A world whose clock stands still."""

    at_ns = 10**12

    def now_ns(self):
        return self.at_ns

    wall_ns = now_ns

    def nonce(self):
        return 7


RIGHT, WRONG = "sits-aaaa-0123456789abc", "sits-aaaa-0123456789abd"


def from_(address, text=TWO + POLICY, world=None):
    return TestClient(
        door_of(text, world=world), base_url="http://127.0.0.1:1", follow_redirects=False, client=(address, 1)
    )


@pytest.mark.parametrize("how", ["form", "x-api-key", "authorization"])
def test_wrong_keys_are_taken_at_a_pace(how):
    world = Clock()
    client = from_("10.0.0.1", world=world)

    def tried(key):
        if how == "form":
            return client.post("/login", data={"key": key})
        return client.get("/page", headers={how: f"Bearer {key}" if how == "authorization" else key})

    assert [tried(WRONG).status_code for _ in range(12)] == [401] * 10 + [429] * 2
    assert tried(RIGHT).status_code == 429, "else a guesser would see that it was right"
    told = tried(RIGHT)
    assert told.headers["retry-after"] == "6"
    assert "wrong keys" in told.text
    world.at_ns += 6 * 10**9
    assert tried(RIGHT).status_code in (200, 303)


def test_who_has_signed_in_and_who_comes_from_elsewhere_does_not_wait():
    world = Clock()
    door = door_of(TWO + POLICY, world=world)
    bad, good = (
        TestClient(door, base_url="http://127.0.0.1:1", follow_redirects=False, client=(address, 1))
        for address in ("2001:db8::1", "2001:db8:0:1::1")
    )
    assert bad.post("/login", data={"key": RIGHT}).status_code == 303
    for _ in range(20):
        bad.get("/page", headers={"x-api-key": WRONG})
    assert bad.get("/page", headers={"x-api-key": WRONG}).status_code == 429
    assert bad.get("/page").text == "seen", "by the cookie"
    assert good.get("/page", headers={"x-api-key": RIGHT}).text == "seen"
    near = TestClient(door, base_url="http://127.0.0.1:1", client=("2001:db8::2", 1))
    assert near.get("/page", headers={"x-api-key": RIGHT}).status_code == 429, "the same household"


def test_many_addresses_are_slowed_down_together_and_a_new_one_least():
    guesses = Guesses(Clock())
    wrong = AuthError("unknown API key", code="invalid_api_key")
    for i in range(100):
        guesses.may_try(f"10.0.0.{i}")
        guesses.was_wrong(f"10.0.0.{i}", wrong)
    with pytest.raises(RateLimitError, match="many addresses"):
        guesses.may_try("10.0.0.1")
    guesses.may_try("10.0.1.1")
    for i in range(20_000):
        guesses.was_wrong(f"10.{i >> 8}.9.{i & 255}", wrong)
    assert len(guesses._own_ns) == ADDRESSES
    guesses._world.at_ns += 2 * 10**12
    guesses.may_try("10.0.0.1")


@pytest.mark.parametrize("key", [{}, {"authorization": "Basic eDp5"}, {"cookie": "sits_admin=nobody"}])
def test_who_tries_no_key_guesses_none(key):
    client = from_("10.0.0.1")
    assert {client.get("/page", headers=key).status_code for _ in range(30)} == {401}


def test_a_browser_that_leaves_in_the_middle_of_its_key_is_no_bug():
    async def main():
        sent = []
        scope = {
            "type": "http", "method": "POST", "path": "/login", "query_string": b"", "headers": [], "client": ("10.0.0.1", 1)
        }  # fmt: skip

        async def left():
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await door_of(TWO + POLICY)(scope, left, send)

    asyncio.run(main())


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "[::1]", "localhost", "LOCALHOST.")))
    assert not any(map(is_loopback, ("0.0.0.0", "[::]", "10.0.0.1", "localhost.evil.example", "")))
