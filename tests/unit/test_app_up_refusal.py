"""Every part of the admin process says no in one shape, with the way out."""

from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from sits.app.board.room import BoardRoom
from sits.app.up.link import AwayError
from sits.app.up.metrics_room import MetricsRoom
from sits.app.up.refusal import refusal
from sits.core.errors import AccessError, CapacityError, RateLimitError


class NoKeeper:
    """A house whose keeper is being started again."""

    store = None

    async def ask(self, what):
        raise AwayError("the keeper is away", code="keeper_silent", hint="look again")


def test_message_type_code_and_hint_are_told_and_when_to_come_again():
    plain = refusal(AccessError("no <b>", code="nobody", hint="ask"))
    assert (plain.status_code, plain.media_type) == (403, "application/json")
    assert (
        plain.body == b'{"error":{"message":"no <b>","type":"permission_error","code":"nobody","hint":"ask"}}'
    )
    assert "retry-after" not in plain.headers
    assert refusal(RateLimitError("full", retry_after_s=1.2)).headers["retry-after"] == "2"


@pytest.mark.parametrize(("wait_s", "told"), [(None, "5"), (0.0, "5"), (0.2, "1"), (7.0, "7")])
def test_whoever_hears_that_we_cannot_now_hears_when_to_come_again(wait_s, told):
    assert refusal(CapacityError("busy", retry_after_s=wait_s)).headers["retry-after"] == told
    away = AwayError("gone") if wait_s is None else AwayError("gone", retry_after_s=wait_s)
    assert away.retry_after_s == (2.0 if wait_s is None else wait_s), "the gateway's port tells it, too"


@pytest.mark.parametrize(
    ("make", "path", "code", "hint"),
    [
        (MetricsRoom, "/metrics", "keeper_silent", "look again"),
        (BoardRoom, "/board/shift.json", "keeper_silent", "look again"),
        (BoardRoom, "/board/files/no.js", None, "board.js"),
    ],
)
def test_a_room_says_it_so(make, path, code, hint, monkeypatch):
    monkeypatch.setattr("sits.app.board.room.MinuteParts", lambda *_: SimpleNamespace())
    answer = TestClient(Starlette(routes=make(NoKeeper()).routes())).get(path)
    told = answer.json()["error"]
    assert answer.status_code >= 400
    assert set(told) == {"message", "type", "code", "hint"}
    assert told["code"] == code
    assert hint in told["hint"]
    assert answer.headers.get("retry-after") == ("2" if code else None)
