"""pprof: a profile as gzipped `profile.proto`, written and read.

Source: `perftools.profiles.Profile` of google/pprof (proto/profile.proto): field numbers, string table (its first text is empty), samples with
location ids from the innermost outwards, labels as pairs of texts.  Two values a sample: `samples/count` and `cpu/nanoseconds`.

Rules: what is written depends on the profile only (no time stamp in the gzip head), so equal profiles are equal bytes; process, layer, op
and trace travel as labels; what belongs to no sample (other threads, dropped) as a sample without locations of ours, named in
parentheses.  Reading takes profiles of other tools too: any value in nanoseconds is CPU time, else the first value times the period.

Deliberately absent: mappings and addresses; Python has none.  And the protobuf library, which a gateway need not load for this.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from sits.core.errors import ConfigError
from sits.telemetry.profile.profile import Frame, Labels, Profile, Sample
from sits.telemetry.protobuf_wire import bytes_field, fields_of, integer_field, signed, take, varint

SIZE_MAX = 256 * 2**20
"""Bytes of a profile once unpacked; more is no profile but a bomb."""

DEPTH_MAX = 1024
"""Frames of a stack; of a deeper one the innermost are kept."""

ELSEWHERE, DROPPED = "(threads without Python)", "(dropped: no room)"


def encode(profile: Profile) -> bytes:
    """The profile as a gzipped pprof file."""
    return gzip.compress(_Writer().write(profile), compresslevel=6, mtime=0)


class _Writer:
    """One message, with its tables."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[Frame, int] = {}

    def write(self, profile: Profile) -> bytes:
        out = bytearray()
        count, cpu = self._type("samples", "count"), self._type("cpu", "nanoseconds")
        out += bytes_field(1, count) + bytes_field(1, cpu)
        for sample in (*profile.samples, *_rest(profile)):
            out += bytes_field(2, self._sample(sample, profile.process))
        for frame, number in self._locations.items():
            function = self._functions[frame.function, frame.file]
            out += bytes_field(
                4,
                integer_field(1, number)
                + bytes_field(4, integer_field(1, function) + integer_field(2, frame.line)),
            )
        for (name, file), number in self._functions.items():
            body = (
                integer_field(1, number)
                + integer_field(2, self._text(name))
                + integer_field(3, self._text(name))
            )
            out += bytes_field(5, body + integer_field(4, self._text(file)))
        out += integer_field(9, profile.wall_ns) + integer_field(10, profile.duration_ns)
        out += bytes_field(11, cpu) + integer_field(12, profile.period_ns)
        if profile.own_ns:
            out += integer_field(13, self._text(f"taking the samples used {profile.own_ns} ns of it"))
        out += integer_field(14, self._text("cpu"))
        for text in self._texts:  # last, for only now all are known
            out += bytes_field(6, text.encode("utf-8", "replace"))
        return bytes(out)

    def _type(self, kind: str, unit: str) -> bytes:
        return integer_field(1, self._text(kind)) + integer_field(2, self._text(unit))

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _sample(self, sample: Sample, process: str) -> bytes:
        places = b"".join(varint(self._location(frame)) for frame in reversed(sample.stack))
        body = bytes_field(1, places) + bytes_field(2, varint(sample.count) + varint(sample.ns))
        labels = sample.labels
        pairs = (
            ("layer", labels.layer),
            ("op", labels.op),
            ("trace", labels.trace),
            ("process", process),
        )
        for key, value in pairs:
            if value:
                body += bytes_field(
                    3, integer_field(1, self._text(key)) + integer_field(2, self._text(value))
                )
        return body

    def _location(self, frame: Frame) -> int:
        number = self._locations.setdefault(frame, len(self._locations) + 1)
        self._functions.setdefault((frame.function, frame.file), len(self._functions) + 1)
        return number


def _rest(profile: Profile) -> Iterator[Sample]:
    for name, ns in ((ELSEWHERE, profile.elsewhere_ns), (DROPPED, profile.dropped_ns)):
        if ns:
            yield Sample((Frame(name),), ns, 0)


# -- reading -----------------------------------------------------------------------------------------------------


def decode(data: bytes, name: str = "profile") -> Profile:
    """A profile of ours or of any other tool.

    Raises:
        ConfigError: these bytes are no pprof profile; `name` is whose.

    """
    try:
        return _read(_unpacked(data))
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        zlib.error,
    ) as error:  # fields of other kinds than they have
        raise ConfigError(
            f"no pprof profile: {error}", field=name, hint="gzipped or plain profile.proto"
        ) from None


def _unpacked(data: bytes) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    unpacker = zlib.decompressobj(31)
    plain = unpacker.decompress(data, SIZE_MAX)
    if not unpacker.eof:
        raise ValueError("it is cut off, or larger than 256 MiB")
    return plain


def _read(data: bytes) -> Profile:
    fields: dict[int, list[Any]] = {}
    for field, value in fields_of(data):
        fields.setdefault(field, []).append(value)
    texts = [value.decode("utf-8", "replace") for value in fields.get(6, [b""])]
    functions = {}
    for body in fields.get(5, ()):
        one = dict(fields_of(body))
        functions[one.get(1, 0)] = (texts[one.get(2, 0)], texts[one.get(4, 0)])
    locations = {}
    for body in fields.get(4, ()):
        number, lines, address = 0, [], 0
        for field, value in fields_of(body):
            if field == 1:
                number = value
            elif field == 3:
                address = value
            elif field == 4:
                line = dict(fields_of(value))
                lines.append(Frame(*functions[line.get(1, 0)], line.get(2, 0)))
        locations[number] = lines or [Frame(hex(address))]
    units = [
        (texts[one.get(1, 0)], texts[one.get(2, 0)]) for one in map(dict, map(fields_of, fields.get(1, ())))
    ]
    period_ns = fields.get(12, [0])[-1]
    samples, process, rest = [], "", {ELSEWHERE: 0, DROPPED: 0}
    for body in fields.get(2, ()):
        sample, where = _sample(body, texts, locations, units, period_ns)
        process = process or where
        if len(sample.stack) == 1 and sample.stack[0].function in rest:
            rest[sample.stack[0].function] += sample.ns
        elif sample.ns:
            samples.append(sample)
    if not samples and not units:
        raise ValueError("it has no sample types")
    wall_ns, duration_ns = fields.get(9, [0])[-1], fields.get(10, [0])[-1]
    if min(wall_ns, duration_ns, period_ns) < 0:
        raise ValueError("it was taken before there was time, or for less than none")
    return Profile(
        tuple(samples), process, wall_ns, duration_ns, period_ns or 10**7, rest[ELSEWHERE], 0, rest[DROPPED]
    )


def _sample(
    body: bytes,
    texts: Sequence[str],
    locations: dict[int, list[Frame]],
    units: Sequence[tuple[str, str]],
    period_ns: int,
) -> tuple[Sample, str]:
    stack: list[Frame] = []
    values: list[int] = []
    labels: dict[str, str] = {}
    for field, value in fields_of(body):
        if field == 1:
            for number in _packed(value):
                stack += locations[number]
        elif field == 2:
            values += _packed(value)
        elif field == 3:
            one = dict(fields_of(value))
            labels[texts[one.get(1, 0)]] = texts[one.get(2, 0)]
    by_unit = {unit: value for (_, unit), value in zip(units, values, strict=True)}
    count = by_unit.get("count", 1)
    ns = by_unit.get("nanoseconds", count * (period_ns or 10**7))
    if count < 0 or ns < 0:
        raise ValueError("a sample has less than nothing: is this the difference of two profiles?")
    if len(stack) > DEPTH_MAX:
        stack = [*stack[:DEPTH_MAX], Frame("(deeper)")]
    trace = labels.get("trace") or labels.get("trace_id", "")
    known = Labels(labels.get("layer", ""), labels.get("op", ""), trace)
    return Sample(tuple(reversed(stack)), ns, count, known), labels.get("process", "")


def _packed(value: int | bytes) -> list[int]:
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        one, at = take(value, at)
        found.append(signed(one))
    return found
