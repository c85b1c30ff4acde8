"""The notice a running gateway keeps in its store: who it is, which file it serves, what became of the last reload.

Rules: the file is locked (flock) as long as the gateway lives, so a notice that can be locked is that of a dead one, whatever it says and
whoever has its process number now.  It is written in place, so a reader may see half of it and looks again.

Deliberately absent: telling a gateway anything; that is what signals are for.
"""

import fcntl
import os
from pathlib import Path

import msgspec

from sits.core.errors import UnknownError


class Notice(msgspec.Struct, frozen=True):
    """What it says.  `reloads` counts by result, `problems` are those of the last file that was refused."""

    pid: int
    file: str
    address: str
    generation: int
    name: str
    reloads: dict[str, int]
    problems: tuple[str, ...] = ()


class Board:
    """Where a gateway puts its notice up; `close` without `take_down` is for children."""

    def __init__(self, store: Path, port: str) -> None:
        self.path = store / f"gateway-{port}.json"
        self._file = self.path.open("a+b")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def put(self, notice: Notice) -> None:
        """Replace it."""
        text = msgspec.json.format(msgspec.json.encode(notice), indent=1) + b"\n"
        os.ftruncate(self._file.fileno(), 0)
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        """Hold it no longer."""
        self._file.close()

    def take_down(self) -> None:
        """It is over."""
        self.path.unlink(missing_ok=True)
        self.close()


def notice_of(store: Path, file: Path) -> Notice:
    """The notice of the gateway that serves `file` and records to `store`.

    Raises:
        UnknownError: there is none alive.

    """
    wanted = str(file.resolve())
    for path in sorted(store.glob("gateway-*.json")):
        found = _alive(path)
        if found is not None and found.file == wanted:
            return found
    raise UnknownError(
        f"no gateway serves {file} and records to {store}",
        field="fleet",
        value=str(file),
        hint="`sitsctl up` starts one; name the same file",
    )


def _alive(path: Path) -> Notice | None:
    with path.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = opened.read()
        else:
            return None
    try:
        return msgspec.json.decode(text, type=Notice)
    except msgspec.DecodeError:
        return None
