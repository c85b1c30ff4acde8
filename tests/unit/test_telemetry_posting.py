"""One POST to servers of every kind: it always comes back, says why, follows nobody and tells no key."""

import pytest

from scripted_sockets import drips, hangs, says, scripted
from sits.telemetry.posting import RETRY_AFTER_MAX_S, after_s, post

HEADERS = {"authorization": "Bearer s3cr3ts3cr3t", "content-type": "application/json"}


def posted(scheme, script, timeout_s=0.2):
    with scripted(script) as (port, came):
        answer = post(f"{scheme}://127.0.0.1:{port}/v1/traces", b"{}", HEADERS, timeout_s)
        return answer, len(came)


@pytest.mark.parametrize(
    ("scheme", "script"),
    [
        ("http", hangs),
        ("http", drips(b"HTTP/1.1 200 OK\r\nx-filler: ")),
        ("http", drips(b"HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\n")),
        ("http", drips(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfff\r\n")),
        ("http", drips(b"")),
        ("https", hangs),
        ("https", drips(b"\x16\x03\x03\x40\x00")),
    ],
    ids=["hangs", "header", "body", "chunk", "status line", "handshake hangs", "handshake"],
)
def test_a_server_that_never_ends_costs_its_time_and_no_more(scheme, script):
    answer, came = posted(scheme, script)
    assert (answer.status, answer.retry_after_s, came) == (0, 0.0, 1)
    assert "no whole answer within 0.2 s" in answer.text or "timed out" in answer.text


def test_a_redirect_is_told_and_not_followed():
    with scripted(says("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")) as (elsewhere, came_elsewhere):
        location = f"http://127.0.0.1:{elsewhere}/v1/traces?api_key=abcdefg"
        answer, came = posted(
            "http", says(f"HTTP/1.1 301 Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"), 20
        )
        assert (answer.status, came, len(came_elsewhere)) == (301, 1, 0)
    assert f"points to http://127.0.0.1:{elsewhere}/v1/traces" in answer.text
    assert "not followed" in answer.text
    assert "abcdefg" not in answer.text


def test_what_a_server_says_is_plain_and_holds_no_key():
    said = "no:\x1b[2J\n Bearer s3cr3ts3cr3t"
    answer, _ = posted("http", says(f"HTTP/1.1 400 Bad\r\ncontent-length: {len(said)}\r\n\r\n{said}"), 20)
    assert answer.text == r"no:\x1b[2J\n Bearer [redacted]"


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://127.0.0.1:9/x", {"authorization": "Bearer s3cr3t\nx: y"}),
        ("http://127.0.0.1:9/x", {"authorization": "Bearer s3cr3t\u20ac"}),
        ("http://127.0.0.1:port/x", {}),
        ("http://127.0.0.1:9/x y", {}),
        ("http://[::1/x", {}),
        ("nonsense", {}),
        ("localhost:4318/v1/traces", {}),
        ("unix:///run/collector", {}),
        ("http:///v1/traces", {}),
    ],
)
def test_what_cannot_be_sent_is_an_answer_without_the_key(url, headers):
    answer = post(url, b"", headers, 5)
    assert answer.status == 0
    assert answer.text
    assert "s3cr3t" not in answer.text


def test_a_password_in_an_address_is_not_sent_as_a_name_of_a_host():
    with scripted(says("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")) as (port, _):
        assert post(f"http://me:pw@127.0.0.1:{port}/v1/traces", b"", {}, 20) == (200, 0.0, "{}")


def test_a_busy_server_says_for_how_long_in_seconds_or_until_when():
    answer, _ = posted("http", says("HTTP/1.1 503 Busy\r\nretry-after: 17\r\ncontent-length: 0\r\n\r\n"), 20)
    assert (answer.status, answer.retry_after_s) == (503, 17.0)
    dates = "date: Tue, 01 Dec 2026 00:00:00 GMT\r\nretry-after: Tue, 01 Dec 2026 00:02:00 GMT"
    answer, _ = posted("http", says(f"HTTP/1.1 429 Slow\r\n{dates}\r\ncontent-length: 0\r\n\r\n"), 20)
    assert (answer.status, answer.retry_after_s) == (429, 120.0)


@pytest.mark.parametrize(
    "told", ["", "-1", "1e9", "\u0663", "never", "Tue, 99 Dec 2026 00:02:00 GMT", "\x00" * 99]
)
def test_a_wait_that_is_none_is_none(told):
    assert after_s(told, "Tue, 01 Dec 2026 00:00:00 GMT") == 0


def test_a_wait_is_bounded():
    assert after_s("9" * 400, None) == RETRY_AFTER_MAX_S
    assert after_s("Tue, 01 Dec 2099 00:00:00 GMT", "Tue, 01 Dec 2026 00:00:00 GMT") == RETRY_AFTER_MAX_S
    assert after_s("Tue, 01 Dec 1999 00:00:00 GMT", "Tue, 01 Dec 2026 00:00:00 GMT") == 0
