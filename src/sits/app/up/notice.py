"""The notice a running gateway keeps in its store: who it is, which file it serves, what became of the last reload.

Rules: beside it lies a file that is locked (flock) as long as the gateway lives, so a notice whose lock can be had is that of a dead one,
whatever it says and whoever has its process number now.  It is replaced as a whole, so a reader sees the old one or the new one.

Deliberately absent: telling a gateway anything; that is what signals are for.
"""

import fcntl
from pathlib import Path

import msgspec

from sits.core.errors import UnknownError


class Notice(msgspec.Struct, frozen=True):
    """What it says.

    Attributes:
        pid: of the supervisor, who takes signals; processes: of the others, by name.
        reloads: counts by result; problems: of the last file that was refused.

    """

    pid: int
    processes: dict[str, int]
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
        self._lock = self.path.with_suffix(".lock").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def put(self, notice: Notice) -> None:
        """Replace it."""
        new = self.path.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(notice), indent=1) + b"\n")
        new.rename(self.path)

    def close(self) -> None:
        """Hold it no longer."""
        self._lock.close()

    def take_down(self) -> None:
        """It is over."""
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)
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


def alive_in(store: Path) -> list[Notice]:
    """The notices of all gateways that record to `store` and live."""
    return [notice for notice in map(_alive, sorted(store.glob("gateway-*.json"))) if notice is not None]


def _alive(path: Path) -> Notice | None:
    try:
        with path.with_suffix(".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return msgspec.json.decode(path.read_bytes(), type=Notice)
    except FileNotFoundError:  # it has just ended
        return None
    return None
