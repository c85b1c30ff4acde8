"""The lines a sink is given for the head of an answer, as a dict."""


def head_lines(lines):
    """By name; each line has its line end before it."""
    first, *rest = lines.split(b"\r\n")
    assert first == b""
    found = dict(line.split(b": ", 1) for line in rest)
    assert len(found) == len(rest)
    return found
