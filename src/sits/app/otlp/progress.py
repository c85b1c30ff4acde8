"""How far an export has come, on disk: what was sent is not sent again, what was not is, whenever the process ends.

Two files in the store: `otlp-export.json` holds the tail's cursor before the look that is being sent; `otlp-export.sent` the ids of that look's
requests that have been sent, one a line, added batch by batch.  After a restart the same look is taken again and those ids are passed over, so
what may go out twice is the one batch whose end was not seen.  A cursor of another receiver is not ours: its place is in the file's key.

Deliberately absent: what a batch is.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class Progress:
    """Of one export from the store in `path` to `where`.  `cursor` is None before anything was sent there."""

    def __init__(self, path: Path, where: str) -> None:
        self._cursor_file = path / "otlp-export.json"
        self._sent_file = path / "otlp-export.sent"
        self._where = where
        self.cursor: Mapping[str, Any] | None = None
        self.sent: set[str] = set()
        told = self._read()
        if told is not None:
            self.cursor = told
            self.sent = self._read_sent()

    def _read(self) -> Mapping[str, Any] | None:
        try:
            told = json.loads(self._cursor_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        known = isinstance(told, dict) and told.get("to") == self._where
        return told["cursor"] if known and isinstance(told.get("cursor"), dict) else None

    def _read_sent(self) -> set[str]:
        try:
            return set(self._sent_file.read_text().split())
        except (FileNotFoundError, ValueError):
            return set()

    def sending(self, ids: Iterable[str]) -> None:
        """A batch is over, sent or given up: these requests are done."""
        ids = list(ids)
        self.sent.update(ids)
        with self._sent_file.open("a") as file:
            file.write("".join(f"{one}\n" for one in ids))

    def looked(self, cursor: Mapping[str, Any]) -> None:
        """All of a look is done, and the next begins at `cursor`."""
        temporary = self._cursor_file.with_suffix(".tmp")
        self._cursor_file.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w") as file:
            json.dump({"to": self._where, "cursor": dict(cursor)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._cursor_file)
        self.cursor = dict(cursor)
        self.sent.clear()
        self._sent_file.unlink(missing_ok=True)
