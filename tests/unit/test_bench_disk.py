"""The disk benchmark on the disk that is here, and where it refuses to measure."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sits.bench.disk import ALIGNMENT, IN_MEMORY, filesystem_of, measure
from sits.core.errors import ConfigError
from sits.world import RealWorld

SMALL = tuple(ALIGNMENT * 2**i for i in range(5))
ROOT = Path(__file__).parents[2]
MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /dev/shm rw - tmpfs shm rw
31 22 0:26 / /mnt/a\\040b rw - xfs /dev/sdb rw
32 22 0:27 / /mnt/a\\040b rw - nfs4 host:/x rw
"""


@pytest.fixture
def on_disk(tmp_path):
    """A directory on a disk that takes direct I/O."""
    try:
        measure(tmp_path, RealWorld(0), sizes=(ALIGNMENT,), rounds=1)
    except (ConfigError, OSError) as error:
        pytest.skip(f"no direct I/O where tests keep their files: {error}")
    return tmp_path


def test_every_size_is_timed_as_often_as_asked_and_nothing_is_left(on_disk):
    told = []
    seen = measure(on_disk, RealWorld(1), sizes=SMALL, rounds=4, progress=lambda *said: told.append(said[1:]))
    for times in (seen.writes_ns, seen.reads_ns):
        assert {size: len(column) for size, column in times.items()} == dict.fromkeys(SMALL, 4)
        assert all(ns > 0 for column in times.values() for ns in column)
    assert set(seen.depths) == {1, 2, 4, 8}
    assert told[-1] == (5, 5)
    assert seen.filesystem not in IN_MEMORY
    assert list(on_disk.iterdir()) == []


def test_a_limit_stops_it_with_three_rounds_at_least(on_disk):
    seen = measure(on_disk, RealWorld(1), sizes=SMALL, rounds=50, limit_ns=0)
    assert {len(column) for column in seen.writes_ns.values()} == {3}


def test_killed_in_the_middle_it_leaves_nothing(on_disk):
    code = (
        "import sys; from pathlib import Path; from sits.bench.disk import measure; from sits.world import RealWorld\n"
        "measure(Path(sys.argv[1]), RealWorld(0), sizes=(4096, 1 << 20), rounds=100000,"
        " progress=lambda *said: print(*said, flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(on_disk)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout.readline()  # it is writing
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert list(on_disk.iterdir()) == []


def test_memory_is_refused(tmp_path):
    shm = Path("/dev/shm")
    if not shm.is_dir() or filesystem_of(shm, Path("/proc/self/mountinfo").read_text())[0] not in IN_MEMORY:
        pytest.skip("no /dev/shm in memory here")
    before = set(shm.iterdir())
    with pytest.raises(ConfigError, match="lives in memory"):
        measure(shm, RealWorld(0))
    assert set(shm.iterdir()) == before


@pytest.mark.parametrize("error", ["EINVAL", "EOPNOTSUPP"])
def test_a_file_system_without_direct_io_is_refused_and_left_clean(tmp_path, monkeypatch, error):
    import errno

    real = os.open

    def refusing(path, flags, mode=0o777, **more):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(getattr(errno, error), "refused")
        if flags & os.O_DIRECT:
            os.close(real(path, os.O_CREAT | os.O_RDWR, 0o600))  # made, and then refused, as some do
            raise OSError(errno.EINVAL, "refused")
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr("sits.bench.disk.filesystem_of", lambda *_: ("zfs", "pool"))
    with pytest.raises(ConfigError, match="O_DIRECT"):
        measure(tmp_path, RealWorld(0), sizes=(ALIGNMENT,))
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [({"sizes": (1000,)}, "multiples of 4096"), ({"sizes": ()}, "sizes"), ({"sizes": (1 << 50,)}, "free")],
)
def test_what_cannot_be_measured_is_told(on_disk, change, says):
    with pytest.raises(ConfigError, match=says):
        measure(on_disk, RealWorld(0), **change)
    with pytest.raises(ConfigError, match="no directory"):
        measure(on_disk / "nowhere", RealWorld(0))


@pytest.mark.parametrize(
    ("place", "kind"), [("/etc", "ext4"), ("/dev/shm/x", "tmpfs"), ("/mnt/a b/c", "nfs4"), ("/mnt/a", "ext4")]
)
def test_the_mount_that_counts_is_the_innermost_and_the_last(place, kind):
    assert filesystem_of(Path(place), MOUNTS)[0] == kind
