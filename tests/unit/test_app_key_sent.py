"""A key goes to this machine, to the address of a fleet file, or where somebody said so; nowhere else."""

import http.server
import threading

import pytest
from click.testing import CliRunner

from sits.app.cli import cli
from sits.app.key_sent import key_for
from sits.bench.target import fetch
from sits.core.errors import AuthError, CallerError

HERE = (
    "http://127.0.0.1:8080",
    "http://localhost:1",
    "https://LOCALHOST./x",
    "http://[::1]:8080/v1",
    "127.0.0.9",
)
AWAY = (
    "http://gateway:8080",
    "https://10.0.0.9",
    "http://0.0.0.0:8080",
    "http://127.0.0.1@evil.example/",
    "http://127.0.0.1.evil.example",
    "http://localhost.evil.example",
    "http://2130706433/",
    "http://evil.example/?http://127.0.0.1",
    "http://evil.example#@127.0.0.1",
    "http://[::ffff:10.0.0.9]/",
    "http://[broken",
    "",
)


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("USUAL", "k-usual")
    monkeypatch.setenv("MINE", "k-mine")
    monkeypatch.delenv("NOT_SET", raising=False)


@pytest.mark.parametrize("url", [*HERE[:-1], *AWAY])
def test_the_usual_key_stays_on_this_machine_unless_a_file_names_the_address(keys, url):
    assert key_for(url, None, "USUAL") == ("k-usual" if url in HERE else "")
    assert key_for(url, None, "USUAL", configured=True) == "k-usual"
    assert key_for(url, "MINE", "USUAL") == "k-mine"
    assert key_for(url, "", "USUAL", configured=True) == ""
    assert key_for(url, None, "NOT_SET") == ""


def test_a_variable_that_is_named_and_holds_nothing_is_told(keys):
    with pytest.raises(CallerError, match="NOT_SET holds no key"):
        key_for("http://127.0.0.1", "NOT_SET", "USUAL")


class Asks(http.server.BaseHTTPRequestHandler):
    """Wants a key, and remembers what it was shown."""

    def do_GET(self):
        self.server.shown.append(self.headers.get("authorization"))
        self.send_response(401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Asks) as served:
        served.shown = []
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


COMMANDS = {
    "top": (("top", "URL", "--once"), "SITS_API_KEY"),
    "investigate": (("investigate", "--target", "URL", "-q"), "OPENAI_API_KEY"),
    "signals": (("signals", "URL/metrics"), ""),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("named", [False, True], ids=["usual", "named"])
def test_each_command_that_takes_an_address_holds_to_it(keys, monkeypatch, server, command, named):
    """To the server itself the address is that of this machine; what counts as such is made narrower instead."""
    monkeypatch.setattr("sits.app.key_sent.is_loopback", lambda _: False)
    words, usual = COMMANDS[command]
    if usual:
        monkeypatch.setenv(usual, "k-usual")
    url = f"http://127.0.0.1:{server.server_port}"
    told = CliRunner().invoke(
        cli, [*(word.replace("URL", url) for word in words), *["--api-key-env", "MINE"] * named]
    )
    assert set(server.shown) == ({"Bearer k-mine"} if named else {None})
    if command == "top":
        assert ("does not take the key" if named else "no key was sent") in told.output
    assert "k-" not in told.output


def test_a_refusal_says_whether_a_key_was_sent(server):
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    with pytest.raises(AuthError, match="no key was sent; give the API key"):
        fetch(url)
    with pytest.raises(AuthError, match="does not take the key that was sent"):
        fetch(url, api_key="k")
