"""The door of the admin process, asked directly: who passes, where a login leads, and what no other site may do."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sits.app.up.door import HEADERS, Door, is_loopback, with_headers
from sits.app.up.generation import Generation
from sits.core.config import load_fleet
from sits.world import RealWorld

ENGINES = "engines: [{kind: openai, name: e, url: 'http://localhost:1', models: [m]}]\n"
TWO = "name: f\ngateway: {keys: ['a:sits-aaaa-0123456789abc', 'b:sits-bbbb-0123456789abc']}\n" + ENGINES
POLICY = """
access:
  policies:
    - permit(principal, action in Action::"use", resource);
    - permit(principal in Tenant::"a", action == Action::"admin", resource);
"""


def door_of(text, address="127.0.0.1:1"):
    fleet = load_fleet(text)
    door = Door(address, RealWorld())
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


def test_a_page_of_another_site_cannot_log_one_in():
    client = client_of(TWO + POLICY)
    headers = {"origin": "http://evil.example"}
    told = client.post("/login", data={"key": "sits-aaaa-0123456789abc"}, headers=headers)
    assert (told.status_code, "set-cookie" in told.headers) == (403, False)


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "[::1]", "localhost", "LOCALHOST.")))
    assert not any(map(is_loopback, ("0.0.0.0", "[::]", "10.0.0.1", "localhost.evil.example", "")))
