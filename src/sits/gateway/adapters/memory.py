"""What was recorded about adapters when they were first proven: digest and fingerprint; and what their base models answer.

Rules: the configuration's own digest and fingerprint beat what is recorded.  A record holds for one path and one digest: another
version of an adapter is proven anew and recorded anew.  Of a base model every answer that was ever taken for its own is kept (a few):
an adapter must differ from all of them.  The file is replaced whole, never written into.

Deliberately absent: weights, and any judgement (`policy.adapters.judge`).
"""

import os
from pathlib import Path

import msgspec

from sits.core.errors import ConfigError
from sits.core.fingerprint import Fingerprint, distance, read_fingerprint
from sits.core.fleet_adapters import RuntimeAdapter

BASES_MAX = 4


class Record(msgspec.Struct, kw_only=True):
    """One adapter as it was first proven, where, and when (wall clock)."""

    path: str
    digest: str
    fingerprint: str
    engine: str
    wall_ns: int


class _Kept(msgspec.Struct):
    adapters: dict[str, Record] = {}
    bases: dict[str, list[str]] = {}


class Memory:
    """The records, in a file when one is given.

    Raises:
        ConfigError: the file is there and cannot be read.

    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._kept = _Kept()
        if path is None or not path.exists():
            return
        try:
            self._kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"{path}: {error}", hint="delete it: adapters are then proven and recorded anew"
            ) from error

    def record_of(self, adapter: RuntimeAdapter, digest: str) -> Record | None:
        """What is recorded of this version of the adapter; `digest` is empty where its files cannot be seen."""
        found = self._kept.adapters.get(adapter.name)
        if found is None or found.path != adapter.path:
            return None
        return None if digest and found.digest and digest != found.digest else found

    def expected(self, adapter: RuntimeAdapter, digest: str) -> Fingerprint | None:
        """The fingerprint its answer must match; None when there is none yet."""
        if adapter.fingerprint:
            return read_fingerprint(adapter.fingerprint)
        found = self.record_of(adapter, digest)
        return read_fingerprint(found.fingerprint) if found is not None else None

    def bases(self, model: str, probe: str) -> list[Fingerprint]:
        """What the base model answers to this probe."""
        known = (read_fingerprint(text) for text in self._kept.bases.get(model, ()))
        return [base for base in known if base.probe == probe]

    def keep(self, adapter: RuntimeAdapter, record: Record) -> None:
        """Record a first proof."""
        self._kept.adapters[adapter.name] = record
        self._write()

    def keep_base(self, model: str, base: Fingerprint, tolerance: float) -> None:
        """Record an answer of the base model, unless one like it is known."""
        like = self.bases(model, base.probe)
        if len(like) < BASES_MAX and all(distance(base, known) > tolerance for known in like):
            self._kept.bases.setdefault(model, []).append(str(base))
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        written.write_bytes(msgspec.json.format(msgspec.json.encode(self._kept)))
        written.replace(self._path)
