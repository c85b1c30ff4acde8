"""What must never stand in a log: keys, tokens, and what people wrote to a model.

Rules: the value of a field that is named as a secret goes whole (`http.request.header.authorization` is named by its last part); in any other text, what looks like a credential goes: `Bearer ...`, `sk-...` and
keys like it, `x-api-key: ...` and `"api_key": "..."` as headers and bodies write them, JSON Web Tokens, `key=...` in a URL, and the password of a URL.  What is taken out leaves `[redacted]`, so that a line still says that there was something.
It is the second fence: nobody passes a prompt or a key to a log in the first place, and a test looks.

Deliberately absent: guesses at names and numbers inside ordinary text.
"""

import re
from typing import Any

REDACTED = "[redacted]"

NAMES = frozenset(
    (
        "authorization",
        "proxy-authorization",
        "x-api-key",
        "api_key",
        "apikey",
        "api-key",
        "key",
        "token",
        "access_token",
        "password",
        "secret",
        "cookie",
        "set-cookie",
        "prompt",
        "messages",
        "content",
        "body",
        "input",
        "output",
        "completion",
    )
)
"""Fields whose value is never written."""

_LOOKS = re.compile(
    r"(?P<scheme>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}"
    r"|(?P<named>\b(?:x-api-key|(?:\w{1,24}[_-])?(?:api[_-]?key|token|secret|password|passwd)|authorization)[\"']{0,2}\s{0,2}[:=]\s{0,2}[\"']?)"
    r"(?!bearer\s|basic\s)[^\s\"',;&}]{6,}"
    r"|\b(?:(?:sk|pk|rk|hf|ghp|gho|gsk|nvapi|xoxb)[-_][A-Za-z0-9_-]{8,}|sits-[A-Za-z0-9_-]{40,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,})"
    r"|\beyJ[A-Za-z0-9_-]{6,4096}\.[A-Za-z0-9_-]{1,4096}\.[A-Za-z0-9_-]*"
    r"|(?P<asked>[?&](?:api[_-]?key|key|token|access_token|password|secret)=)[^&\s\"']+"
    r"|(?P<user>://[^/\s:@]*:)[^/\s@]+(?=@)",
    re.IGNORECASE,
)


TEXT_MAX = 16_384
"""Characters of a text that are looked at and kept; a stack is longest."""

DEPTH_MAX = 4


def without_secrets(name: str, value: Any, depth: int = 0) -> Any:
    """The value of field `name` as it may be written.

    >>> without_secrets("event", "refused Bearer abcdef0123 at http://me:pw@host/?api_key=7")
    'refused Bearer [redacted] at http://me:[redacted]@host/?api_key=[redacted]'
    """
    lower = name.lower()
    if lower in NAMES or lower.rpartition(".")[2] in NAMES:
        return REDACTED
    if isinstance(value, str):
        return _LOOKS.sub(_cut, value[:TEXT_MAX])
    if isinstance(value, dict | list | tuple) and depth >= DEPTH_MAX:
        return without_secrets("", str(value))
    if isinstance(value, dict):
        return {key: without_secrets(str(key), one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets("", one, depth + 1) for one in value]
    return value if isinstance(value, int | float | bool | None) else without_secrets("", str(value))


def text_without_secrets(text: object) -> str:
    """The same for a text that has no name."""
    return _LOOKS.sub(_cut, str(text)[:TEXT_MAX])


def _cut(found: re.Match[str]) -> str:
    return (found["scheme"] or found["named"] or found["asked"] or found["user"] or "") + REDACTED
