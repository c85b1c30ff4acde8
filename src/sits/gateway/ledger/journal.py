"""The write-ahead file of the embedded ledger: what was granted is on the disk before it is used.

```
file   ledger-00000042.wal = frame*
frame  magic 4s | length u32 | crc32 u32 | safe u64 | payload            little endian; crc over (safe, payload)
payload  MessagePack list of records (gateway.ledger.authority)
```
Rules:
- A frame is written by one `write`; after `kill -9` the kernel still has it.  `sync` puts all frames written so far on the disk and
  is shared by everybody who waits (group commit); `safe` of a frame says how far the file was known to be on the disk then.
- A file that ends in half a frame is cut there: nobody was told of it yet.  Damage *before* what a later frame calls safe
  is something else, a disk that lies, and is an error: to go on would grant again what was granted.
- Opening writes the state into a new file with the next number, on the disk before the old one goes; so does a file that
  has grown past `COMPACT_BYTES`, and past four times what its state needs.
- One process owns the directory, by a POSIX lock, which ends with it and is not inherited by its children.

Deliberately absent: what the records mean; who waits for whom (gateway.ledger.embedded).
"""

import fcntl
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from sits.core.errors import ConfigError
from sits.gateway.ledger.authority import Record

MAGIC = b"SLJ1"
COMPACT_BYTES = 8 * 2**20
RECORDS_A_FRAME = 1000

_HEAD = struct.Struct("<4sIIQ")
_SAFE = struct.Struct("<Q")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Record]).decode


class Journal:
    """The open file of `directory`, which is made when it is not there.

    Attributes:
        written, safe: bytes written since opening, over all files, and of those the ones known to be on the disk.
        cut: bytes of a half-written end that were dropped on opening.

    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.written = self.safe = self.cut = 0
        self._begins_at = 0
        self._compact_at = COMPACT_BYTES
        self._number = 0
        self._fd = -1
        self._lock = _lock(directory / "lock")

    def read(self) -> list[Record]:
        """What the newest file holds.

        Raises:
            ConfigError: it is damaged.

        """
        files = files_of(self.directory)
        if not files:
            return []
        self._number, path = files[-1]
        data = path.read_bytes()
        records, good = parse(data, path)
        self.cut = len(data) - good
        return records

    def rewrite(self, records: Iterable[Record]) -> None:
        """Begin a new file with this state; the old ones go when it is on the disk."""
        old = [path for _, path in files_of(self.directory)]
        number = self._number + 1
        temporary = self.directory / "ledger.new"
        path = self.directory / f"ledger-{number:08d}.wal"
        fd = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            written = sum(_write(fd, frame(part, 0)) for part in _batches(records))
            os.fsync(fd)
            temporary.rename(path)
            _sync_directory(self.directory)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._number = fd, number
        self._begins_at = self.written
        self.written += written
        self.safe = self.written
        self._compact_at = self._begins_at + max(COMPACT_BYTES, 4 * written)
        for gone in old:
            gone.unlink(missing_ok=True)

    @property
    def grown(self) -> bool:
        """Whether it is time to `rewrite`."""
        return self.written >= self._compact_at

    def append(self, records: list[Record]) -> None:
        """Write one frame; the kernel has it when this returns."""
        if records:
            self.written += _write(self._fd, frame(records, self.safe - self._begins_at))

    def sync(self) -> None:
        """Put on the disk what was written before this call; may run in a thread."""
        upto = self.written
        os.fdatasync(self._fd)
        self.safe = max(self.safe, upto)

    def close(self) -> None:
        """Let go of the file and of the directory."""
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1


def frame(records: list[Record], safe: int) -> bytes:
    """The bytes of one frame."""
    payload = _encode(records)
    crc = zlib.crc32(payload, zlib.crc32(_SAFE.pack(safe)))
    return _HEAD.pack(MAGIC, len(payload), crc, safe) + payload


def parse(data: bytes, path: Path) -> tuple[list[Record], int]:
    """The records of a file, and where its good part ends.

    Raises:
        ConfigError: it is damaged before its end.

    """
    records: list[Record] = []
    at = 0
    while (found := _frame_at(data, at)) is not None:
        payload, _, at = found
        records += _decode(payload)
    if at < len(data) and _safe_after(data, at) > at:
        raise ConfigError(
            f"{path} is damaged at byte {at}, in a part that was safely written",
            field="ledger.dir",
            value=str(path),
            hint="restore it from a copy; or move the directory away, and running windows begin at zero",
        )
    return records, at


def files_of(directory: Path) -> list[tuple[int, Path]]:
    """The numbered files of a ledger, oldest first."""
    found = [(int(path.stem[7:]), path) for path in directory.glob("ledger-[0-9]*.wal")]
    return sorted(found)


def _frame_at(data: bytes, at: int) -> tuple[bytes, int, int] | None:
    """`(payload, safe, end)` of the whole frame at `at`, if there is one."""
    start = at + _HEAD.size
    if len(data) < start:
        return None
    magic, length, crc, safe = _HEAD.unpack_from(data, at)
    payload = data[start : start + length]
    if magic != MAGIC or len(payload) < length or zlib.crc32(payload, zlib.crc32(_SAFE.pack(safe))) != crc:
        return None
    return payload, safe, start + length


def _safe_after(data: bytes, at: int) -> int:
    """The largest `safe` of any frame that begins after `at`."""
    most = 0
    at = data.find(MAGIC, at + 1)
    while at >= 0:
        found = _frame_at(data, at)
        if found is not None:
            most = max(most, found[1])
        at = data.find(MAGIC, at + 1)
    return most


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    for record in records:
        batch.append(record)
        if len(batch) == RECORDS_A_FRAME:
            yield batch
            batch = []
    if batch:
        yield batch


def _write(fd: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise ConfigError(
            f"the ledger {path.parent} belongs to a running gateway",
            field="ledger.dir",
            value=str(path.parent),
            hint="stop that one, or give this one a 'dir' of its own",
        ) from error
    return fd
