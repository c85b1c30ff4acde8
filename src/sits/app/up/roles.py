"""What a child does from its first line to its last: make a loop, work in it, and say so when the fleet cannot be served.

Rules: the worker's imports are made before the fork, those of the keeper and the admin process after it, because only they may be large.

Deliberately absent: everything else.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Coroutine
from typing import Any

import msgspec
import uvloop

from sits.app.up.generation import Generation
from sits.app.up.link import frames
from sits.app.up.pauses import collect_rarely
from sits.app.up.worker import Post, Worker
from sits.core.errors import SitsError
from sits.core.ports import World
from sits.gateway.shared import Shared
from sits.telemetry.logs import Log, bridge

NICE = 5
"""Requests come before records, where both want one core."""

ADMIN_NICE = 10
"""And records before those who look at them."""


def serve(
    index: int,
    listeners: tuple[socket.socket, ...],
    keeper: socket.socket,
    supervisor: socket.socket,
    shared: Shared,
    first: Generation,
    world: World,
    say: Log,
) -> None:
    """Be a worker."""
    post = Post(index, listeners, keeper, supervisor, shared)
    mine = say.of(f"worker-{index}")
    bridge(mine)
    _run(Worker(post, world, mine).run(first), supervisor)


def keep(
    workers: tuple[socket.socket, ...],
    admin: socket.socket,
    supervisor: socket.socket,
    shared: Shared,
    first: Generation,
    world: World,
    say: Log,
) -> None:
    """Be the keeper."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the last to go: the supervisor says when
    os.nice(NICE)
    from sits.app.up.keeper import Desk, Keeper  # noqa: PLC0415  # numpy and duckdb

    mine = say.of("keeper")
    bridge(mine)
    collect_rarely()  # rows that come by the thousand make no cycles: a fifth of its time was looking for some
    desk = Desk(workers, admin, supervisor, shared)
    _run(Keeper(desk, world, os.getpid(), mine).run(first), supervisor)


def administer(
    listeners: tuple[socket.socket, ...],
    keeper: socket.socket,
    supervisor: socket.socket,
    shared: Shared,
    addresses: tuple[str, str],
    first: Generation,
    world: World,
    say: Log,
) -> None:
    """Be the admin process."""
    os.nice(ADMIN_NICE)
    from sits.app.up.admin import Admin, Post  # noqa: PLC0415  # a web server, and all that looks into the store

    post = Post(listeners, keeper, supervisor, shared, *addresses)
    mine = say.of("admin")
    bridge(mine)
    _run(Admin(post, world, mine).run(first), supervisor)


def _run(work: Coroutine[Any, Any, None], supervisor: socket.socket) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)
    except SitsError as error:
        told = ("cannot", 0, (error.message, error.field, _plain(error.value), error.hint))
        for frame in frames(msgspec.msgpack.encode(told)):
            supervisor.send(frame)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else repr(value)
