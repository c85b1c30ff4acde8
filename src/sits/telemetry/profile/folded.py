"""Collapsed stacks: one line a stack, frames from the outermost to the innermost with `;` between, then a space and a count.

Source: Brendan Gregg's stackcollapse; the raw form of py-spy (`name (file:line)`) and perf's are the same.

Rules: labels are written as outer frames in brackets (`[model/llm_generate]`) when asked for, and read back; a `;` in a name becomes `:`.
Counts are sightings; what a count means in CPU time is `period_ns`, which the file does not say and the reader is told.

A stack deeper than `DEPTH_MAX` keeps its innermost frames.

Deliberately absent: lines of functions unless asked for: two lines of one function are one function in a flame graph.
"""

import re
from collections.abc import Iterable

from sits.core.errors import ConfigError
from sits.core.units import SECOND
from sits.telemetry.profile.ops import label
from sits.telemetry.profile.profile import Frame, Labels, Profile, Sample

COUNT_MAX = 2**53
"""Sightings of one stack; more is no count (and pprof's numbers end at 2^63 ns)."""

DEPTH_MAX = 1024

_FRAME = re.compile(r"(?P<function>.*\S) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)")


def encode(profile: Profile, *, lines: bool = False, labels: bool = False) -> str:
    """The profile's stacks, the most sampled first."""
    found: dict[str, int] = {}
    for sample in profile.samples:
        names = [_written(frame, lines=lines) for frame in sample.stack]
        if labels and sample.labels.name:
            names.insert(0, f"[{sample.labels.name}]")
        key = ";".join(names)
        found[key] = found.get(key, 0) + sample.count
    ranked = sorted(found.items(), key=lambda one: (-one[1], one[0]))
    return "".join(f"{stack} {count}\n" for stack, count in ranked)


def decode(text: str, name: str = "profile", period_ns: int = SECOND // 100) -> Profile:
    """A profile of ours, of py-spy, perf or anybody's.

    Raises:
        ConfigError: a line is no stack with a count; the line is named.

    """
    rows = text.removeprefix("\ufeff").split("\n")  # no other ends of lines: they may stand in names
    return Profile(tuple(_samples(rows, name, period_ns)), period_ns=period_ns)


def _samples(rows: Iterable[str], name: str, period_ns: int) -> Iterable[Sample]:
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        stack, space, count = row.rstrip().rpartition(" ")
        if not space or not count.isdecimal() or len(count) > 16 or not 0 < int(count) <= COUNT_MAX:
            raise ConfigError(
                "no stack with a count", field=f"{name}, line {number}", value=row[:80], hint="outer;inner 12"
            )
        names = (stack or "(no stack)").split(";")  # py-spy of a thread it could not read
        told = ""
        if len(names) > 1 and names[0].startswith("[") and names[0].endswith("]"):
            told = names.pop(0)[1:-1]
        frames = tuple(_read(one) for one in names[-DEPTH_MAX:])
        if len(names) > DEPTH_MAX:
            frames = (Frame("(deeper)"), *frames)
        labels = Labels(*told.split("/", 1)) if told else label(frames)
        yield Sample(frames, int(count) * period_ns, int(count), labels)


def _written(frame: Frame, *, lines: bool) -> str:
    name = frame.function.replace(";", ":")
    if not frame.file:
        return name
    line = f":{frame.line}" if lines and frame.line else ""
    return f"{name} ({frame.file.replace(';', ':')}{line})"


def _read(text: str) -> Frame:
    found = _FRAME.fullmatch(text)
    if found is None:
        return Frame(text)
    return Frame(found["function"], found["file"], int(found["line"] or 0))
