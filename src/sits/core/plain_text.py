r"""Texts that others made up (models, paths, headers, what engines answered), as they may stand on a terminal and in a line.

A newline would forge a line, an escape sequence moves the cursor or recolours, and marks of direction (U+202E) make text read as what it is not.

Rules: whatever does not print becomes its escape (`\x1b`, `\u202e`), so one still sees that it was there; what prints stays.

Deliberately absent: secrets (`telemetry.secrets`).
"""


def plain(text: str) -> str:
    r"""The text on one line, without anything that does not print.

    >>> plain("a\x1b[2J\nb\u202ec"), plain("größe = 7")
    ('a\\x1b[2J\\nb\\u202ec', 'größe = 7')
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def plain_lines(text: str) -> str:
    r"""The same for a text of several lines, as a stack is; tabs stay too.

    >>> plain_lines("a\n\tb\x07")
    'a\n\tb\\x07'
    """
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in text.split("\n"))


def plain_json(line: str) -> str:
    r"""A JSON document that prints as it is and says the same: what does not print stands only in its strings, where it may be escaped.

    >>> plain_json('{"a":"x\u202ey"}')
    '{"a":"x\\u202ey"}'
    """
    if line.isprintable():
        return line
    return "".join(
        letter if letter.isprintable() or letter in "\n\t\r" else _escaped(letter) for letter in line
    )


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
