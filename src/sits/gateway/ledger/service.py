"""The ledger as a service of the process that keeps: questions of workers in, answers out, as bytes.

Opens what the configuration names when there are quotas: the write-ahead file in the store, or Redis.  A question is never left without an
answer: what goes wrong is a `LeaseDown` that says so.  A worker that died gives back what it held at once, by its number.

Rules: a new configuration takes effect with the next question.  Limits come with the questions themselves; another `ledger`
section closes the old authority and opens the new one, which learns from the holders what they hold.

Deliberately absent: sockets.
"""

import asyncio
import os
from pathlib import Path
from typing import Protocol

from sits.core.errors import ConfigError, SitsError
from sits.core.fleet import Fleet
from sits.core.fleet_quota import EmbeddedLedger, Ledger
from sits.core.ports import World
from sits.gateway.ledger.authority import Row
from sits.gateway.ledger.embedded import Embedded
from sits.gateway.ledger.messages import Answer, LeaseAsk, LeaseDown, decode_ask, encode
from sits.gateway.ledger.redis_ledger import Redis

FOLDER = "ledger"
"""Where the embedded ledger is in a store, unless it is told otherwise."""


class Authority(Protocol):
    """Who lends: a file of this gateway, or a Redis of many."""

    async def answer(self, ask: LeaseAsk) -> Answer:
        """Settle what was reported, lend what is wanted.  Never raises for trouble of its own: that is a `LeaseDown`."""

    async def release(self, holder: str) -> None:
        """Take back what a holder has that is known to be dead."""

    async def close(self) -> None:
        """Write what is to be written."""


def directory_of(ledger: EmbeddedLedger, store: Path) -> Path:
    """The directory of an embedded ledger; a relative `dir` is in the working directory, as the store is."""
    return Path(ledger.dir) if ledger.dir else store / FOLDER


def open_authority(ledger: Ledger, world: World, store: Path) -> Authority:
    """The authority a configuration names.

    Raises:
        ConfigError: it cannot be opened: another gateway has it, it is damaged, or redis-py or a password is missing.

    """
    if isinstance(ledger, EmbeddedLedger):
        directory = directory_of(ledger, store)
        try:
            return Embedded(world, ledger.lease, directory, sync=ledger.sync)
        except OSError as error:
            raise ConfigError(
                f"cannot use {error.filename or directory}: {error.strerror}",
                field="ledger.dir",
                value=str(directory),
                hint="name a directory that can be written",
            ) from error
    return Redis(ledger, password_of(ledger.password_env))


def password_of(name: str) -> str:
    """The password in the environment variable `name`; empty when none is named.

    Raises:
        ConfigError: the variable is not set.

    """
    if not name:
        return ""
    password = os.environ.get(name, "")
    if not password:
        raise ConfigError(
            f"the environment variable {name} is not set",
            field="ledger.password_env",
            value=name,
            hint="export it, or leave password_env out",
        )
    return password


class LedgerService:
    """The ledger of one gateway.

    Raises:
        ConfigError: there are quotas, and their ledger cannot be opened.

    """

    def __init__(self, fleet: Fleet, world: World, store: Path) -> None:
        self._world = world
        self._store = store
        self._wanted: Ledger = fleet.ledger
        self._open: Ledger | None = None
        self._authority: Authority | None = None
        self._holders: dict[int, str] = {}
        self._opening = asyncio.Lock()
        self._questions = self._down = 0
        if fleet.quotas:
            self._authority, self._open = open_authority(fleet.ledger, world, store), fleet.ledger

    async def answer(self, worker: int, body: bytes) -> bytes:
        """The answer to a worker's question."""
        ask = decode_ask(body)
        self._questions += 1
        self._holders[worker] = ask.holder
        try:
            authority = await self._current()
            told = await authority.answer(ask)
        except SitsError as error:
            told = LeaseDown(ask.sent_ns, str(error))
        self._down += isinstance(told, LeaseDown)
        return encode(told)

    def swap(self, fleet: Fleet) -> None:
        """Go by a new configuration."""
        self._wanted = fleet.ledger

    async def lost(self, worker: int) -> None:
        """A worker died: what it held goes back."""
        holder = self._holders.pop(worker, None)
        if holder is not None and self._authority is not None:
            await self._authority.release(holder)

    async def close(self) -> None:
        """Write what is to be written and let go."""
        authority, self._authority = self._authority, None
        if authority is not None:
            await authority.close()

    def rows(self) -> list[Row]:
        """The balances of an embedded ledger, for people."""
        return self._authority.rows() if isinstance(self._authority, Embedded) else []

    def vitals(self) -> dict[str, dict[str, float]]:
        """What is counted here."""
        return {
            "sits_ledger_questions_total": {"": self._questions},
            "sits_ledger_down_total": {"": self._down},
        }

    async def _current(self) -> Authority:
        async with self._opening:
            if self._authority is not None and self._open == self._wanted:
                return self._authority
            wanted = self._wanted
            if self._open is not None and _same_place(self._open, wanted):
                await self.close()
            opened = open_authority(wanted, self._world, self._store)
            await self.close()
            self._authority, self._open = opened, wanted
            return opened


def _same_place(old: Ledger, new: Ledger) -> bool:
    """Whether the old one must be closed before the new one can be opened."""
    return isinstance(old, EmbeddedLedger) and isinstance(new, EmbeddedLedger) and old.dir == new.dir
