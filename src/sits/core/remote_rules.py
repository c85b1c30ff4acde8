"""What an engine at a URL needs beyond the types of its fields: a URL that can be asked, names, headers that can be sent.

Keys are named by the variable that holds them, and never shown: whoever gets that wrong has most likely pasted the key itself.

Deliberately absent: whether anybody listens there.
"""

import ipaddress
import re
from urllib.parse import urlsplit

from sits.core import fleet as tree
from sits.core.problems import Report, join

NAME_CHARACTERS = 200
WEIGHT_LOW = 1e-6
"""The smallest weight that is not 0: what is divided by it must stay a number."""

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_VERSION = re.compile(r"[A-Za-z0-9.-]{1,64}")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_remote(engine: tree.OpenAIEngine | tree.AnthropicEngine, path: str, report: Report) -> None:
    """Report what of a server at a URL cannot be used."""
    _check_url(engine.url, join(path, "url"), report)
    check_weight(engine.weight, join(path, "weight"), report)
    if not engine.models:
        hint = "list the names it answers to, like [llama-3-8b]"
        report.add(join(path, "models"), "is empty, so nothing would be sent there", hint=hint)
    for i, model in enumerate(engine.models):
        if not model.strip() or not model.isprintable() or len(model) > NAME_CHARACTERS:
            hint = f"one line of text, at most {NAME_CHARACTERS} characters"
            inner = f"{join(path, 'models')}[{i}]"
            report.add(inner, f"{model[:40]!r} cannot be a name", value=model, hint=hint)
    if isinstance(engine, tree.AnthropicEngine):
        if not _VERSION.fullmatch(engine.version):
            hint = "a date like 2023-06-01, or a word; letters, digits, dots and dashes"
            report.add(join(path, "version"), "cannot be a header", value=engine.version, hint=hint)
    else:
        if "openai" not in engine.speaks:
            hint = "a server of Anthropic's dialect alone is of kind 'anthropic'"
            report.add(join(path, "speaks"), "leaves 'openai' out", value=list(engine.speaks), hint=hint)
        if engine.metrics:
            _check_url(engine.metrics, join(path, "metrics"), report)
    if engine.api_key_env and not _ENV.fullmatch(engine.api_key_env):
        hint = "name the variable that holds the key, like OPENAI_API_KEY; never the key itself"
        report.add(join(path, "api_key_env"), "is not the name of an environment variable", hint=hint)


def _check_url(url: str, path: str, report: Report) -> None:
    hint = "write it like 'http://127.0.0.1:8000'"
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        host = host if host.endswith("]") else host.rpartition(":")[0] or host
        usable = parts.scheme in ("http", "https") and is_host(host) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or " " in url or not url.isascii() or not url.isprintable():
        report.add(path, f"{url!r} is not an http(s) URL" if url else "no URL is given", value=url, hint=hint)
    elif parts.username is not None or parts.password is not None:
        report.add(path, "holds a user or a password", hint="name a variable in 'api_key_env' instead")
    elif parts.query or parts.fragment:
        report.add(path, f"{url!r} has a query or a fragment", value=url, hint="write it up to the path")


def check_weight(weight: float, path: str, report: Report) -> None:
    """Report a weight that is too small to divide by."""
    if 0 < weight < WEIGHT_LOW:
        hint = f"0, or at least {WEIGHT_LOW:g}"
        report.add(path, f"{weight!r} is out of range", value=weight, hint=hint)


def is_host(host: str) -> bool:
    """A name that can be looked up, an IPv4 address, or an IPv6 address in brackets."""
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed or host.rpartition(".")[2].isdigit():
        try:
            version = ipaddress.ip_address(host[1:-1] if bracketed else host).version
        except ValueError:
            return False
        return version == (6 if bracketed else 4)
    return len(host) < 254 and all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split("."))
