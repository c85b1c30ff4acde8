"""A thread that reads the store for the board, with a connection of its own.

```
ask(make) ─> waits for its turn, at most `WAITING_MAX` do ─> make(store) ─> JSON
```
Rules: nobody on the loop waits for the database.  What nobody foresaw is an error of ours to who asked, told once in the log, and the thread goes on.

Deliberately absent: what is asked.
"""

import asyncio
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec

from sits.app.board import figures
from sits.app.up.rooms import House
from sits.core.errors import BugError, CapacityError, SitsError
from sits.telemetry.duck import StoreError
from sits.telemetry.minute_parts import MinuteParts
from sits.telemetry.store import DuckStore

STORE_HINT = (
    "see that the directory is there and may be read; what is recorded meanwhile is not lost by a look"
)
WAITING_MAX = 64
"""Questions that wait for one thread; each may take seconds."""

THREADS = 2
"""Of DuckDB: the process is niced, traffic comes first."""


class StoreThread:
    """One such thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "board")
        self._store: DuckStore | None = None
        self._waiting = 0
        self._told = ""

    async def ask(self, house: House, make: Callable[[DuckStore], Any]) -> bytes:
        """What `make` makes of the store, as JSON.

        Raises:
            CapacityError: too many wait already.  StoreError: the store cannot be read.

        """

        def work() -> bytes:
            try:
                return msgspec.json.encode(make(self._opened(house)))
            except SitsError:
                raise
            except Exception as error:  # a stream goes on after a bug, and who looks is told
                raise self._odd(house, error) from error

        if self._waiting >= WAITING_MAX:
            raise CapacityError(
                f"{self._waiting} questions wait for the store already",
                code="too_many_questions",
                hint="ask again in some seconds, or for a shorter window",
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    def _odd(self, house: House, error: Exception) -> SitsError:
        """What nobody foresaw, as an error; told once, not at each look."""
        told = f"{type(error).__name__}: {error}"
        if told != self._told:
            self._told = told
            where = traceback.extract_tb(error.__traceback__)[-1]
            house.say(f"board: {told} ({where.filename.rpartition('/')[2]}:{where.lineno})")
        if isinstance(error, OSError):
            return StoreError(f"{house.store} cannot be read: {error.strerror or error}", hint=STORE_HINT)
        return BugError(f"these figures could not be made: {told}", code="bug", hint="report it, please")

    def warm(self, house: House) -> None:
        """Open the store and ask it something, in the thread; what goes wrong is told to who asks next."""
        self._thread.submit(
            lambda: self._opened(house).scan("board_newest_minute", since_wall_ns=house.world.wall_ns())
        )

    def start(self, house: House, minutes: MinuteParts) -> None:
        """Begin to `keep`."""
        self._thread.submit(self.keep, house, minutes)

    def keep(self, house: House, minutes: MinuteParts) -> None:
        """Read the minutes of a day in the thread, a file at a time: who looks meanwhile waits for one."""
        if minutes.keep_one(house.world.wall_ns() - figures.KEPT_NS):
            with suppress(RuntimeError):  # closed meanwhile
                self._thread.submit(self.keep, house, minutes)

    def _opened(self, house: House) -> DuckStore:
        if self._store is None:
            self._store = DuckStore(house.store, world=house.world, threads=THREADS)
        return self._store

    def close(self) -> None:
        """Ask no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
