"""What the disk has to be asked for: that names are on it, and that an hour is no more.

Rules: other processes work in the same directories, so what is already gone is no error, and a directory into which somebody wrote meanwhile stays for the next time.

Deliberately absent: which names, and which hours.
"""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Make a file's content, or a directory's names, outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def deleted(directory: Path) -> int:
    """Delete a directory and the files in it; how many files.

    Raises:
        OSError: it, or something in it, cannot be deleted.

    """
    gone = 0
    try:
        for file in list(directory.iterdir()):
            file.unlink(missing_ok=True)
            gone += 1
        directory.rmdir()
    except FileNotFoundError:
        return gone
    return gone
