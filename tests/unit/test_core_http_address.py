"""Addresses that somebody typed: what is none is refused before anything is sent, in one line without the password."""

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sits.app.cli import cli
from sits.app.top.commands import _address
from sits.bench.target import discover, fetch
from sits.core.errors import CallerError, ConfigError
from sits.core.http_address import http_address

NONE = (
    "",
    "x",
    "ftp://x",
    "http://",
    "http:///x",
    "http://[::1",
    "http://h:99999",
    "http://h:0",
    "http://h:x",
    "http://a b",
    "http://\x1b[2J",
    "http://a\nb",
    "http://" + "x" * 5_000 + ":x",
)
SECRET = "http://me:5ecret@h:1/v1"


@pytest.mark.parametrize("text", NONE, ids=lambda text: ascii(text)[:20])
def test_what_is_no_address_is_refused_with_its_field(text):
    with pytest.raises(ConfigError) as told:
        http_address(text, "target")
    assert told.value.field == "target"
    assert len(str(told.value)) < 250
    assert str(told.value).isprintable()


@given(st.text(max_size=60))
def test_an_address_is_parts_or_a_config_error_and_nothing_else(text):
    for typed in (text, f"http://{text}", f"https://h:{text}"):
        try:
            parts = http_address(typed)
        except ConfigError:
            continue
        assert parts.hostname
        assert parts.scheme in ("http", "https")


COMMANDS = {
    "investigate": ("investigate", "--target", SECRET),
    "investigate --metrics": ("investigate", "--target", "http://127.0.0.1:9", "--metrics", SECRET),
    "signals": ("signals", SECRET),
    "top": ("top", SECRET, "--once"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_password_in_an_address_is_refused_and_not_said_again(command):
    told = CliRunner().invoke(cli, COMMANDS[command], standalone_mode=False)
    assert isinstance(told.exception, ConfigError)
    assert "user and a password" in str(told.exception)
    assert "5ecret" not in str(told.exception) + told.output


def test_the_functions_below_refuse_it_too():
    for ask in (fetch, discover):
        with pytest.raises(ConfigError, match="is not an HTTP URL"):
            ask("http://[::1")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("gateway", "http://gateway"),
        ("gateway:80/", "http://gateway:80"),
        ("::1", "http://[::1]"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("https://h/metrics", "https://h"),
        ("http://h:1/behind/metrics/", "http://h:1/behind"),
    ],
)
def test_sitsctl_top_takes_an_address_as_people_type_it(typed, meant):
    assert _address(typed) == meant


@pytest.mark.parametrize("typed", ["fleet.yaml", "no/such", "/tmp/x.yml", "./fleet.yaml"])
def test_a_file_that_is_not_there_is_told_as_one(typed):
    with pytest.raises(CallerError, match="there is no file"):
        _address(typed)
