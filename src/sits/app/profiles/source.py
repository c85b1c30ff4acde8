"""Profiles from files and from a store, and profiles into files: the format is told by the content when reading, by the name when writing.

Rules: `.gz` is unpacked by what it holds; a file is written whole or not at all; a format nobody knows is refused with those there are.

Deliberately absent: what is done with them.
"""

import gzip
import io
import zlib
from pathlib import Path

from sits.core.errors import ConfigError
from sits.telemetry.profile import folded, pprof
from sits.telemetry.profile.profile import Profile

FORMATS = {
    ".html": "flame graph, a page of its own",
    ".pb.gz": "pprof",
    ".pprof": "pprof",
    ".folded": "collapsed stacks",
    ".txt": "collapsed stacks",
    ".speedscope.json": "speedscope",
}


def read_profile(path: Path) -> Profile:
    """A profile in a file: pprof or collapsed stacks, packed or not.

    Raises:
        ConfigError: it is neither.

    """
    try:
        with path.open("rb") as file:
            data = plain = file.read(pprof.SIZE_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", field=str(path)) from None
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(data)) as unpacked:
                plain = unpacked.read(pprof.SIZE_MAX + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise ConfigError(f"cannot be unpacked: {error}", field=str(path)) from None
    if max(len(data), len(plain)) > pprof.SIZE_MAX:
        raise ConfigError(f"is longer than {pprof.SIZE_MAX >> 20} MiB", field=str(path))
    if not plain:
        raise ConfigError("is empty", field=str(path))
    if _is_text(plain):
        return folded.decode(plain.decode("utf-8", "replace"), str(path))
    return pprof.decode(plain, str(path))


def _is_text(data: bytes) -> bool:
    """Collapsed stacks are lines of text; a pprof file begins with a field of bytes and has zeros soon."""
    first = data[:4096]
    return bool(first) and not any(byte < 9 or 14 <= byte < 32 for byte in first)


def check_format(path: Path) -> None:
    """Refuse a name that tells no format.

    Raises:
        ConfigError: with the formats there are.

    """
    if not path.name.endswith(tuple(FORMATS)):
        known = ", ".join(f"{suffix} ({what})" for suffix, what in FORMATS.items())
        raise ConfigError(
            "the name tells no format", field="out", value=path.name, hint=f"end it with one of {known}"
        )


def write_profile(path: Path, profile: Profile, heading: str, about: str = "") -> None:
    """Write it in the format its name tells.

    Raises:
        ConfigError: the name tells none.

    """
    import msgspec  # noqa: PLC0415

    from sits.app.output import write_bytes  # noqa: PLC0415
    from sits.app.profiles.page import page_html  # noqa: PLC0415  (each format loads its own)
    from sits.telemetry.profile import speedscope  # noqa: PLC0415

    check_format(path)
    name = path.name
    if name.endswith(".html"):
        data = page_html(heading, profile, about=about).encode()
    elif name.endswith((".folded", ".txt")):
        data = folded.encode(profile, labels=True).encode()
    elif name.endswith(".speedscope.json"):
        data = msgspec.json.encode(speedscope.encode(profile))
    else:
        data = pprof.encode(profile)
    write_bytes(path, data)
