"""The embedded ledger: one gateway's balances, rebuilt from a write-ahead file, lent to its own processes.

Rules: an answer that grants is told when its record is on the disk; everybody who waits shares one sync (group commit),
which runs in a thread.  Reports and returns need no sync: their senders repeat totals.  A disk that fails makes the ledger
answer `LeaseDown`; with the next question it reads its file anew and begins another one, so that memory never knows
more than the disk.  Gifts (`sitsctl quota grant`) lie in `grants/` as one file each until they are written down.

Without a directory nothing is written: for simulations and tests.

Deliberately absent: sockets.  Whoever carries the bytes calls `answer`.
"""

import asyncio
import contextlib
import errno
from pathlib import Path

from sits.core.ports import World
from sits.core.units import SECOND
from sits.gateway.ledger.authority import Accounts, Row
from sits.gateway.ledger.gifts import take_gifts
from sits.gateway.ledger.journal import Journal, files_of, parse
from sits.gateway.ledger.messages import Answer, LeaseAsk, LeaseDown

TIDY_NS = SECOND
"""How often gifts are looked for and ended windows dropped, at most."""


class Embedded:
    """The authority of one gateway.

    Args:
        world: its wall clock dates leases.
        ttl_ns: how long a lease holds.
        directory: where the write-ahead file is; None = nowhere.
        sync: grants are synced to the disk.

    Raises:
        ConfigError: another process owns the directory, or the file is damaged.

    """

    def __init__(self, world: World, ttl_ns: int, directory: Path | None, *, sync: bool = True) -> None:
        self._world = world
        self._ttl_ns = ttl_ns
        self._sync = sync
        self._accounts = Accounts(ttl_ns)
        self._journal = Journal(directory) if directory is not None else None
        self._granted_at = 0
        self._syncing: asyncio.Future[None] | None = None
        self._tidied_ns = 0
        self._broken = False
        self._life = 0
        if self._journal is not None:
            self._recover(self._journal)

    async def answer(self, ask: LeaseAsk) -> Answer:
        """Settle, lend, and answer when it is safe to."""
        try:
            await self._mend()
            wall_ns = self._world.wall_ns()
            self._tidy(wall_ns)
            grant, grew = self._accounts.answer(ask, wall_ns)
            await self._write(grew)
        except OSError as error:
            self._broken = True
            return LeaseDown(ask.sent_ns, f"the ledger cannot write: {error.strerror or error}")
        return grant

    async def release(self, holder: str) -> None:
        """Take back what a dead process held; while the disk fails, the end of its leases does that."""
        self._accounts.release(holder, self._world.wall_ns())
        try:
            await self._write(grew=False)
        except OSError:
            self._broken = True

    async def close(self) -> None:
        """Put everything on the disk and let go of it."""
        if self._journal is not None:
            if not self._broken:
                await self._write(grew=True)
            self._journal.close()

    def rows(self) -> list[Row]:
        """Every balance, for people."""
        return self._accounts.rows(self._world.wall_ns())

    async def _mend(self) -> None:
        if self._syncing is not None and self._broken:
            await asyncio.wait([self._syncing])
        if self._broken and self._journal is not None:
            self._recover(self._journal)

    def _recover(self, journal: Journal) -> None:
        self._accounts = Accounts(self._ttl_ns)
        self._accounts.load(journal.read())
        journal.rewrite(self._accounts.dump())
        self._broken = False
        self._life += 1

    def _tidy(self, wall_ns: int) -> None:
        if wall_ns - self._tidied_ns < TIDY_NS:
            return
        self._tidied_ns = wall_ns
        self._accounts.sweep(wall_ns)
        if self._journal is not None:
            self._take_gifts(self._journal)
            if self._journal.grown and self._syncing is None:
                self._accounts.drain()
                self._journal.rewrite(self._accounts.dump())

    def _take_gifts(self, journal: Journal) -> None:
        for path, gift in take_gifts(journal.directory):
            self._accounts.give(gift.account, gift.window, gift.per_ns, gift.limit, gift.name, gift.amount)
            journal.append(self._accounts.drain())
            journal.sync()
            path.unlink(missing_ok=True)

    async def _write(self, grew: bool) -> None:
        records = self._accounts.drain()
        journal = self._journal
        if journal is None:
            return
        journal.append(records)
        if grew:
            self._granted_at = journal.written
        if not self._sync:
            return
        target, life = self._granted_at, self._life
        while journal.safe < target:
            syncing = self._syncing
            if (
                syncing is None or syncing.done()
            ):  # done, and not yet told: to wait for it again would wait for nothing
                syncing = self._syncing = asyncio.get_running_loop().run_in_executor(None, journal.sync)
                syncing.add_done_callback(self._synced)
            await asyncio.shield(syncing)
            if life != self._life:
                raise OSError(errno.EIO, "the file was begun anew")

    def _synced(self, done: "asyncio.Future[None]") -> None:
        if self._syncing is done:
            self._syncing = None


def look(directory: Path, wall_ns: int) -> list[Row]:
    """The balances in a directory, as far as they are written, whether a gateway works on them or not.

    Raises:
        ConfigError: the file is damaged.

    """
    while files := files_of(directory):
        path = files[-1][1]
        with contextlib.suppress(FileNotFoundError):  # another one has just taken its place
            accounts = Accounts(ttl_ns=0)
            accounts.load(parse(path.read_bytes(), path)[0])
            return accounts.rows(wall_ns)
    return []
