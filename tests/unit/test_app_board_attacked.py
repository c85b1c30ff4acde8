"""The board under odd questions: an answer in our words, never a trace, a script, a file of somebody else's, or an answer that is kept."""

import asyncio
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from board_rows import row, stored
from board_served import house_of, serving
from sits.app.board.store_thread import WAITING_MAX, StoreThread
from sits.core.errors import BugError, CapacityError
from sits.telemetry.duck import StoreError
from sits.telemetry.store import DuckStore
from sits.world import RealWorld

EVIL = "</script><script>alert(1)</script>\"'\n\0\u2028"
DAY_MS = 24 * 3600 * 1000


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    store, now_ns = tmp_path_factory.mktemp("attacked") / "store", RealWorld().wall_ns()
    with DuckStore(store) as made:
        odd = {"tenant": EVIL, "detail": EVIL * 200}
        stored(made, [row(1, now_ns - 10**9, **odd), row(2, now_ns - 10**9, model=EVIL, engine="x" * 70_000)])
    with serving(house_of(store)) as (url, _):
        yield url, now_ns // 10**6


def asked(url, method="GET"):
    """Status, headers, body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


@pytest.mark.parametrize(
    ("since", "until", "status"),
    [
        ("{now}", "{now}", 400),
        ("{now}", "{old}", 400),
        ("0", "{now}", 400),
        ("NaN", "{now}", 400),
        ("1e12", "{now}", 400),
        ("-1", "{now}", 400),
        ("٣", "{now}", 400),
        ("99999999999999999999", "{now}", 400),
        ("{later}", "{latest}", 200),
        ("99000000000000", "99000000060000", 200),
        ("0", "60000", 200),
    ],
)
@pytest.mark.parametrize("what", ["overview", "tail", "matrix", "requests", "burn"])
def test_windows_that_are_none(board, what, since, until, status):
    url, now = board
    times = {"now": now, "old": now - DAY_MS, "later": now + DAY_MS, "latest": now + 2 * DAY_MS}
    found, headers, body = asked(
        f"{url}api/{what}?window=custom&since={urllib.request.quote(since.format(**times))}&until={until.format(**times)}"
    )
    assert (found, headers["content-type"], headers["cache-control"]) == (
        status,
        "application/json",
        "no-store",
    )
    told = json.loads(body)
    assert ("error" in told) is (status == 400)


@pytest.mark.parametrize(
    "query",
    ["engine=" + "x" * 30_000, "model=%00%ff", "tenant=%27%3B--", "window=15m&window=nope", "engine=../.."],
)
def test_odd_filters_find_nothing_or_are_refused(board, query):
    status, _, body = asked(f"{board[0]}api/overview?{query}")
    assert status in (200, 400)
    assert json.loads(body)


@pytest.mark.parametrize(
    "wanted", ["%25%25%25%25", "____", "'''';", "%00%00%00%00", "\u202e" * 8, "x" * 128, "x" * 129]
)
def test_odd_ids_find_nobody(board, wanted):
    status, _, body = asked(f"{board[0]}api/request?id={urllib.request.quote(wanted, safe='%')}")
    assert status in (400, 404)
    assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "..%2froom.py",
        "%2e%2e/room.py",
        "../../room.py",
        "board.html",
        "%2fetc%2fpasswd",
        "",
        "board.js%00",
        "%5c..%5croom.py",
    ],
)
def test_files_are_those_of_the_list(board, path):
    status, _, body = asked(f"{board[0]}files/{path}")
    assert status == 404
    assert b"import" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["", "api/overview", "files/board.js", "events"])
def test_pages_are_only_read(board, path, method):
    assert asked(board[0] + path, method)[0] == 405


def test_heads_have_no_body(board):
    for path in ("", "api/overview", "files/board.js", "events"):
        status, headers, body = asked(board[0] + path, "HEAD")
        assert (status, body, headers["cache-control"]) == (200, b"", "no-store")


def test_what_rows_say_is_data_and_names_of_any_length_are_answered(board):
    for what in ("overview", "requests", "names", "tail", "matrix"):
        status, headers, body = asked(f"{board[0]}api/{what}")
        assert (status, headers["content-type"], headers["x-content-type-options"]) == (
            200,
            "application/json",
            "nosniff",
        )
        json.loads(body)
    status, _, body = asked(f"{board[0]}api/request?id=req-000001")
    assert json.loads(body)["tenant"] == EVIL


def test_many_ask_at_once_and_all_are_answered(board):
    asks = [f"{board[0]}api/overview?engine=e{i % 40}&window={w}" for i in range(12) for w in ("15m", "24h")]
    with ThreadPoolExecutor(16) as threads:
        assert {status for status, _, _ in threads.map(asked, asks)} == {200}


async def _asked(house, *makers):
    reader = StoreThread()
    told = list(await asyncio.gather(*(reader.ask(house, make) for make in makers), return_exceptions=True))
    reader.close()
    return told


def test_what_nobody_foresaw_is_told_as_an_error_and_said_once(tmp_path):
    said = []
    house = house_of(tmp_path / "store")
    house.say = said.append

    def odd(_):
        raise KeyError("p99")

    def gone(_):
        raise PermissionError(13, "Permission denied")

    told = asyncio.run(_asked(house, odd, odd, gone))
    assert [type(one) for one in told] == [BugError, BugError, StoreError]
    assert "Permission denied" in str(told[2])
    assert len(said) == 2
    assert "KeyError: 'p99' (test_app_board_attacked.py:" in said[0]


def test_so_many_questions_may_wait(tmp_path):
    told = asyncio.run(_asked(house_of(tmp_path / "store"), *[lambda _: 1] * (WAITING_MAX + 2)))
    assert [type(one) for one in told] == [bytes] * WAITING_MAX + [CapacityError] * 2
