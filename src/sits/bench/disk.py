"""How fast this machine's disk takes writes past the page cache: direct I/O, timed one by one.

A write is one `pwrite` with O_DIRECT from an aligned buffer, and the `fdatasync` after it (unless told not to): without it
a drive may answer from its own volatile cache.  Writes go over blocks that exist already, as into a preallocated KV file, so
no metadata is made on the way; sizes come in shuffled rounds, so that a machine that drifts bends no line; the first round is
thrown away.  `depths` asks something else: how much more the device takes when several writes are outstanding.

The file has no name from the moment it is open (O_TMPFILE, or unlinked at once where that does not exist): a benchmark that is
killed leaves nothing behind.

Refused, with the reason: a directory in memory (tmpfs and its kin would measure RAM), one where O_DIRECT cannot be opened, one
without room.

Deliberately absent: io_uring, reads through the page cache, and what a *busy* disk does; the fit (`sits.predict.persist_fit`).
"""

import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sits.core.errors import ConfigError
from sits.core.units import SECOND
from sits.world import RealWorld

Progress = Callable[[str, int, int], None]

ALIGNMENT = 4096
SIZES = tuple(4**i * 65_536 for i in range(6))
"""64 KiB to 64 MiB."""
DEPTHS = (1, 2, 4, 8)
DEPTH_BYTES, DEPTH_WRITES = 1 << 20, 48
IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
WRITE, READ = "write", "read"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Times by size, in ns, of writes and of reads; bytes a second by writes outstanding; and where and how."""

    directory: str
    filesystem: str
    device: str
    synced: bool
    writes_ns: dict[int, list[int]]
    reads_ns: dict[int, list[int]]
    depths: dict[int, float]


def filesystem_of(directory: Path, mounts: str) -> tuple[str, str]:
    """Type and device of the mount a directory lies on, from the text of `/proc/self/mountinfo`.

    Raises:
        ConfigError: no mount holds it.

    """
    real = str(directory.resolve())
    best: tuple[str, str, str] | None = None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        inside = point in ("/", real) or real.startswith(point + "/")
        if inside and (best is None or len(point) >= len(best[0])):  # a later mount hides an earlier one
            kind, device = right.split()[:2]
            best = (point, kind, device)
    if best is None:
        raise ConfigError(f"no mount holds {real}", field="measure", value=real)
    return best[1], best[2]


def measure(
    directory: Path,
    world: RealWorld,
    *,
    sizes: Sequence[int] = SIZES,
    rounds: int = 12,
    sync: bool = True,
    limit_ns: int = 120 * SECOND,
    progress: Progress | None = None,
) -> Measured:
    """Time writes and reads of each of `sizes` bytes in `directory`, `rounds` times, and writes at several depths.

    Stops after `limit_ns`, with what there is by then; at least three rounds are always run.

    Raises:
        ConfigError: the directory is no place for it; says why.

    """
    if not directory.is_dir():
        raise ConfigError(
            f"no directory {str(directory)!r}",
            field="measure",
            value=str(directory),
            hint="name a directory on the disk to measure",
        )
    wrong = [size for size in sizes if size < ALIGNMENT or size % ALIGNMENT]
    if wrong or not sizes:
        raise ConfigError(
            f"sizes {wrong or 'missing'}", field="sizes", value=wrong, hint=f"multiples of {ALIGNMENT} bytes"
        )
    kind, device = filesystem_of(directory, Path("/proc/self/mountinfo").read_text())
    span = 2 * max(*sizes, DEPTH_BYTES * max(DEPTHS))
    with _direct_file(directory, kind, span) as file, _buffer(max(sizes), world) as buffer:
        for at in range(0, span, max(sizes)):
            os.pwrite(file, buffer[: min(max(sizes), span - at)], at)
        os.fdatasync(file)
        writes, reads = _rounds(file, buffer, world, sizes, rounds, sync, limit_ns, span, progress)
        depths = {depth: _at_depth(file, buffer, world, depth, sync) for depth in DEPTHS}
    return Measured(
        directory=str(directory),
        filesystem=kind,
        device=device,
        synced=sync,
        writes_ns=writes,
        reads_ns=reads,
        depths=depths,
    )


def _rounds(
    file: int,
    buffer: memoryview,
    world: RealWorld,
    sizes: Sequence[int],
    rounds: int,
    sync: bool,
    limit_ns: int,
    span: int,
    progress: Progress | None,
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    writes: dict[int, list[int]] = {size: [] for size in sizes}
    reads: dict[int, list[int]] = {size: [] for size in sizes}
    end_ns, dice = world.now_ns() + limit_ns, world.rng("disk-order")
    for number in range(rounds + 1):  # the first is thrown away
        if number > 3 and world.now_ns() > end_ns:
            break
        for size in dice.permutation(list(sizes)).tolist():
            at = int(dice.integers(0, (span - size) // ALIGNMENT + 1)) * ALIGNMENT
            start_ns = world.now_ns()
            _whole(os.pwrite(file, buffer[:size], at), size, WRITE)
            if sync:
                os.fdatasync(file)
            written_ns = world.now_ns()
            _whole(os.preadv(file, [buffer[:size]], at), size, READ)
            if number:
                writes[size].append(written_ns - start_ns)
                reads[size].append(world.now_ns() - written_ns)
        if progress is not None:
            progress("writing and reading past the page cache", number + 1, rounds + 1)
    return writes, reads


def _whole(done: int, size: int, what: str) -> None:
    if done != size:
        raise ConfigError(f"only {done} of {size} bytes at a {what}", field="measure", value=done)


def _at_depth(file: int, buffer: memoryview, world: RealWorld, depth: int, sync: bool) -> float:
    """Bytes a second of `DEPTH_WRITES` writes of 1 MiB with `depth` outstanding."""
    places = [(i % (2 * max(DEPTHS))) * DEPTH_BYTES for i in range(DEPTH_WRITES)]
    with ThreadPoolExecutor(depth) as pool:
        start_ns = world.now_ns()
        for done in pool.map(lambda at: os.pwrite(file, buffer[:DEPTH_BYTES], at), places):
            _whole(done, DEPTH_BYTES, WRITE)
        if sync:
            os.fdatasync(file)
        return DEPTH_WRITES * DEPTH_BYTES / (world.now_ns() - start_ns) * SECOND


@contextmanager
def _direct_file(directory: Path, kind: str, span: int) -> Iterator[int]:
    """A nameless file opened past the page cache, with `span` bytes of room."""
    if kind in IN_MEMORY:
        raise ConfigError(
            f"{directory} is {kind}, which lives in memory: it would measure RAM, not a disk",
            field="measure",
            value=str(directory),
            hint="name a directory on a disk",
        )
    free = os.statvfs(directory)
    if free.f_bavail * free.f_frsize < 2 * span:
        raise ConfigError(
            f"{directory} has {free.f_bavail * free.f_frsize / 1e6:,.0f} MB free",
            field="measure",
            value=str(directory),
            hint=f"{2 * span / 1e6:,.0f} MB are needed; or measure smaller sizes",
        )
    file = _open_direct(directory, kind)
    try:
        os.posix_fallocate(file, 0, span)
        yield file
    finally:
        os.close(file)


def _open_direct(directory: Path, kind: str) -> int:
    flags = os.O_RDWR | os.O_DIRECT
    try:
        return os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    path = directory / f".sits-disk-{os.getpid()}"
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        path.unlink(missing_ok=True)  # some file systems make the file and then refuse the flag
        if error.errno != errno.EINVAL:
            raise
        raise ConfigError(
            f"{directory} ({kind}) does not open files with O_DIRECT: writes would end in the page cache",
            field="measure",
            value=str(directory),
            hint="name a directory on ext4, xfs or another file system with direct I/O",
        ) from error
    path.unlink()
    return file


@contextmanager
def _buffer(size: int, world: RealWorld) -> Iterator[memoryview]:
    """Page-aligned memory full of noise, which no drive or file system can compress away."""
    with mmap.mmap(-1, max(size, DEPTH_BYTES)) as memory:
        memory.write(world.rng("disk-noise").bytes(max(size, DEPTH_BYTES)))
        view = memoryview(memory)
        try:
            yield view
        finally:
            view.release()
