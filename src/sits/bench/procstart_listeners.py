"""Who listens on TCP here: inode and port of every listening socket of this network namespace.

Asked over netlink (sock_diag, `man 7 sock_diag`), which gives listeners alone and takes microseconds; `/proc/net/tcp` has every
connection that ever waited too, and takes tens of milliseconds on a busy machine.  It is read only where there is no netlink.

Deliberately absent: who owns a socket; a process's open files tell.
"""

import socket
import struct
from pathlib import Path

NETLINK_SOCK_DIAG, BY_FAMILY, REQUEST_DUMP, DONE, ERROR = 4, 20, 0x301, 3, 2
LISTEN_ONLY = 1 << 10
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI48x")
_PORT, _INODE = struct.Struct("!H"), struct.Struct("=I")
PORT_AT, INODE_AT = 4, 68


def listening() -> dict[str, int]:
    """Port by inode."""
    try:
        return by_netlink()
    except OSError:
        return by_proc()


def by_netlink() -> dict[str, int]:
    """Ask the kernel for both families.

    Raises:
        OSError: no netlink, or not for this.

    """
    found: dict[str, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as asked:
            asked.settimeout(2.0)
            body = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, LISTEN_ONLY)
            asked.send(_HEADER.pack(_HEADER.size + len(body), BY_FAMILY, REQUEST_DUMP, 1, 0) + body)
            while _taken(asked.recv(1 << 18), found):
                continue
    return found


def _taken(answer: bytes, found: dict[str, int]) -> bool:
    """Take the listeners of one datagram; whether more are to come."""
    at = 0
    while at + _HEADER.size <= len(answer):
        length, kind, _, _, _ = _HEADER.unpack_from(answer, at)
        if kind == DONE or length < _HEADER.size:
            return False
        if kind == ERROR:
            code = -struct.unpack_from("=i", answer, at + _HEADER.size)[0]
            raise OSError(code, "sock_diag refused")
        body = at + _HEADER.size
        inode = _INODE.unpack_from(answer, body + INODE_AT)[0]
        found[str(inode)] = _PORT.unpack_from(answer, body + PORT_AT)[0]
        at += -(-length // 4) * 4
    return True


def by_proc(proc: Path = Path("/proc")) -> dict[str, int]:
    """Read the tables of text."""
    found = {}
    for name in ("tcp", "tcp6"):
        path = proc / "net" / name
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            parts = line.split()
            if parts[3] == "0A":
                found[parts[9]] = int(parts[1].rpartition(":")[2], 16)
    return found
