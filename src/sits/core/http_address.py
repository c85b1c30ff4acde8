"""An HTTP address that somebody typed, looked at before anything is sent there.

Rules: `http` or `https`, a host, a port that is one; no user and password, which would be told to every log on the way and are no way to give a key; no
blanks or anything else that does not print.  What is refused is said again in one short line, without the password.

Deliberately absent: names (a resolver knows them), and addresses to listen on (`core.fleet_rules`).
"""

from urllib.parse import SplitResult, urlsplit

from sits.core.errors import ConfigError

SHOWN = 80
LIKE = "like http://127.0.0.1:8000"


def http_address(text: str, field: str = "url") -> SplitResult:
    """The parts of an address.

    >>> http_address("http://[::1]:8000/v1").port
    8000

    Raises:
        ConfigError: it is none; names `field`.

    """
    try:
        parts = urlsplit(text)
        bad = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        parts, bad = None, True
    if parts is not None and "@" in parts.netloc:
        shown = parts._replace(netloc=f"...@{parts.netloc.rpartition('@')[2]}").geturl()
        raise ConfigError(
            f"{shown[:SHOWN]!r} has a user and a password in it",
            field=field,
            hint="leave them out: a key is sent as a header, from the environment",
        )
    if parts is None or bad or not text.isprintable() or " " in text:
        raise ConfigError(f"{text[:SHOWN]!r} is not an HTTP URL", field=field, value=text, hint=LIKE)
    return parts
