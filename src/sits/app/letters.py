r"""What is written where the output cannot have every letter: a locale of C or Latin-1, a cron job, `PYTHONIOENCODING=ascii`.

```
text   bars, lines, dashes of ours -> a letter of ASCII that looks alike, as wide as it was, so tables stay tables       others -> \u00fc
JSON   every letter                -> \u00fc, which says the same
```
Rules: nothing that is printed raises for its letters, or because nobody hears it, and no letter is dropped.  What begins as a document of JSON does is one.  Where the output takes every
letter (UTF-8) nothing changes.  Called once, at the edge of the program: workers inherit it.

Where the encoding is ASCII itself click writes what it prints (not tables) in UTF-8, for it takes that for a mistake; both together are valid UTF-8.

Deliberately absent: guessing what a terminal can show beyond what its locale says.
"""

import codecs
import os
import sys
from typing import Final

HANDLER: Final = "sits-letters"
_LOOKS: Final = {
    "_": "▁",
    ".": "▂▃",
    ":": "▄▅",
    "=": "▆▇",
    "#": "█",
    "|": "▏│┃",
    "-": "─━–—−",
    "+": "┌┐└┘├┤┬┴┼",
    ">": "▸→≥",
    "<": "◂←≤",
    "~": "±≈…",
    "*": "·",
    "x": "×",
    "u": "µ",
    "'": "‘’",
    '"': "“”",
}
ALIKE: Final = {ord(letter): look for look, letters in _LOOKS.items() for letter in letters}

STRICT: Final = frozenset({"strict", "surrogateescape", "backslashreplace"})
"""How Python itself treats letters that cannot be written; another way was chosen by somebody (`PYTHONIOENCODING=ascii:replace`), and stays."""


def escaped(letter: str) -> str:
    r"""A letter as JSON writes it in ASCII.

    >>> escaped("ü"), escaped("\U0001f600")
    ('\\u00fc', '\\ud83d\\ude00')
    """
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def instead(text: str, *, alike: bool) -> str:
    r"""Letters that cannot be written, as ones that can.

    >>> instead("█ü", alike=True), instead("█ü", alike=False)
    ('#\\u00fc', '\\u2588\\u00fc')
    """
    looks = text.translate(ALIKE) if alike else text
    return "".join(letter if letter.isascii() else escaped(letter) for letter in looks)


def document(text: str) -> str:
    """A document of JSON for standard output: as it is where that is UTF-8, else in ASCII, for JSON in Latin-1 is none (RFC 8259, 8.1)."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text if codecs.lookup(encoding).name == "utf-8" else instead(text, alike=False)


def write_every_letter() -> None:
    """From now on standard output and error take any text, whatever their encoding, and also where they are closed (`>&-`)."""
    _no_gaps()
    codecs.register_error(HANDLER, _handle)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(
            stream, "reconfigure", None
        )  # a test or an embedder may have put another kind of thing there
        if reconfigure is not None and stream.errors in STRICT:
            reconfigure(errors=HANDLER)


def _no_gaps() -> None:
    """Where a standard stream is closed nobody reads it; left so, the next file or socket that is opened would become it."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "w" if fd else "r", encoding="utf-8", closefd=False))  # noqa: SIM115  (for the whole life of the process)


def _handle(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    document = error.object.lstrip()[:1] in ("{", "[")
    return instead(error.object[error.start : error.end], alike=not document), error.end
