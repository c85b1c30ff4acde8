"""The files of an adapter: what they are by content, and whether they changed.

```
digest = SHA-256 over the lines "name NUL size NUL SHA-256 of the file", in the order of names
```
A *signature* (names, sizes, times, inodes) is cheap and is looked at again and again; the digest is computed when the signature is
new.  An engine may see other disks than we do: what is not here has no signature, and nothing is claimed about it.

Rules: reading is done in a thread, for adapters are hundreds of megabytes and file systems hang.  Links are followed (model
caches are made of them).

Deliberately absent: reading what the files say; that is the engine's business.
"""

import asyncio
import hashlib
import os
from pathlib import Path

CHUNK_BYTES = 4 * 2**20
FILES_MAX = 1000

Signature = tuple[tuple[str, int, int, int], ...]


class Files:
    """Digests of directories, remembered by their signatures."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Signature, str]] = {}

    async def signature(self, path: str) -> Signature | None:
        """What can be seen of the directory without reading it; None where there is none."""
        return await asyncio.to_thread(_signature, path)

    async def digest(self, path: str) -> tuple[Signature, str] | None:
        """The signature and the digest that belongs to it; None where there is no directory, or it changes while it is read."""
        before = await self.signature(path)
        if before is None:
            self._known.pop(path, None)
            return None
        known = self._known.get(path)
        if known is not None and known[0] == before:
            return known
        found = await asyncio.to_thread(_digest, path, before)
        if found is None or await self.signature(path) != before:
            return None
        self._known[path] = (before, found)
        return self._known[path]


def _signature(path: str) -> Signature | None:
    rows = []
    try:
        for folder, _, names in os.walk(path, followlinks=True):
            for name in names:
                full = Path(folder) / name
                seen = full.stat()
                rows.append((str(full.relative_to(path)), seen.st_size, seen.st_mtime_ns, seen.st_ino))
                if len(rows) > FILES_MAX:
                    return None
    except OSError:
        return None
    return tuple(sorted(rows)) or None


def _digest(path: str, signature: Signature) -> str | None:
    whole = hashlib.sha256()
    try:
        for name, size, _, _ in signature:
            one = hashlib.sha256()
            with (Path(path) / name).open("rb") as file:
                while piece := file.read(CHUNK_BYTES):
                    one.update(piece)
            whole.update(f"{name}\0{size}\0{one.hexdigest()}\n".encode())
    except OSError:
        return None
    return f"sha256:{whole.hexdigest()}"
