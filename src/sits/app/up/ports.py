"""The port of a gateway: one listening socket a worker and address, sharing the port (SO_REUSEPORT).

The kernel deals connections out among the sockets by the hash of their ends.  Sharing would also let a second gateway of the same user
take half of our connections without a word, so a first look, without sharing, tells whether the port is free; and a port that one process
listens on is not shared at all, so that two which start at the same moment do not both get it.

Deliberately absent: accepting.
"""

import os
import socket
from typing import Any

from sits.core.errors import ConfigError
from sits.gateway.server import BACKLOG, address_of

Listeners = list[tuple[socket.socket, ...]]


def listening(
    listen: str, workers: int, *, ours: bool = False, field: str = "gateway.listen"
) -> tuple[str, Listeners]:
    """The address as it became (port 0 is a free one), and the sockets of each worker, which listen.

    `ours`: workers of this gateway listen there already, so that it is not free.  `field`: who says the address, for the error.

    Raises:
        ConfigError: the address cannot be had.

    """
    host, port = address_of(listen)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ends = [(family, address) for family, _, _, _, address in dict.fromkeys(found)]
        for family, address in ends if not ours else ():
            _bound(family, address, share=False).close()
        sockets: list[list[socket.socket]] = []
        for _ in range(workers):
            mine = []
            for family, address in ends:
                one = _bound(family, (address[0], port, *address[2:]), share=ours or workers > 1)
                port = port or one.getsockname()[1]
                one.listen(BACKLOG)
                mine.append(one)
            sockets.append(mine)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {listen}: {os.strerror(error.errno) if error.errno else error}",
            field=field,
            value=listen,
            hint="choose a free port, or stop what uses it",
        ) from error
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port}", [tuple(mine) for mine in sockets]


def _bound(family: int, address: tuple[Any, ...], *, share: bool) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.setblocking(False)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one
