"""Every TCP segment this machine sends again, counted in the kernel by whom it was for: an eBPF probe of 33 instructions.

It hangs on the raw tracepoint `tcp_retransmit_skb` and adds one to a counter for (address, port, family) of the peer.  TCP_INFO of sampled
connections (`telemetry.host.tcp`) needs no privilege and is the default; this sees all connections of all processes, also those that live
for less than a second, and costs nothing until a segment is lost.

It needs: Linux 5.8 or newer on x86-64 or arm64, and CAP_BPF with CAP_PERFMON (or CAP_SYS_ADMIN); neither tracefs nor a compiler, for the
instructions are below.  Where anything is missing `ProbeRefusedError` says what.  The first fields of `struct sock_common` (peer's IPv4
address at 0, its port at 12, the family at 16) are where they have been since Linux 3.13; they are read with `bpf_probe_read_kernel`,
which the kernel allows to programs under the GPL: these instructions are, besides our licence, under MIT and GPL.

Rules: at most `PEERS_MAX` peers are told apart; segments of more are lost to the count.  Peers of IPv6 are counted by port only.
The probe ends when its descriptors are closed, so also with the process.

Deliberately absent: reading anything of what is sent.
"""

import ctypes
import os
import platform
import socket
import struct
from pathlib import Path

PEERS_MAX = 1024
TRACEPOINT = b"tcp_retransmit_skb"

_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _LOOKUP, _NEXT_KEY, _LOAD, _OPEN_RAW = 0, 1, 4, 5, 17
_HASH, _RAW_TRACEPOINT = 1, 17
_SYS_ADMIN, _PERFMON, _BPF = 21, 38, 39
_LICENCE = b"Dual MIT/GPL"
_KEY, _VALUE = struct.Struct("=4s2sH"), struct.Struct("=Q")

Peer = tuple[str, int]
"""Address (empty where it is not IPv4) and port."""


class ProbeRefusedError(Exception):
    """The kernel does not let us count; the text says why, and what would be needed."""


def _op(code: int, to: int = 0, of: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, (of << 4) | to, offset, value)


def program(table: int) -> bytes:
    """The instructions; `table` is the descriptor of the hash of counters.  r10 is the frame, r1 the arguments."""
    load_table = _op(0x18, 1, 1, 0, table) + _op(0)
    return b"".join(
        (
            _op(0x79, 6, 1, 0),  # r6 = the socket, first argument of the tracepoint
            _op(0xBF, 1, 10) + _op(0x07, 1, value=-32),  # r1 = 20 bytes of the frame
            _op(0xB7, 2, value=20)
            + _op(0xBF, 3, 6)
            + _op(0x85, value=113),  # probe_read_kernel(r1, 20, socket)
            _op(0x61, 1, 10, -32) + _op(0x63, 10, 1, -8),  # key: address,
            _op(0x69, 1, 10, -20) + _op(0x6B, 10, 1, -4),  # port,
            _op(0x69, 1, 10, -16) + _op(0x6B, 10, 1, -2),  # family
            load_table + _op(0xBF, 2, 10) + _op(0x07, 2, value=-8) + _op(0x85, value=1),  # r0 = the counter
            _op(0x15, 0, offset=4),  # none yet: below
            _op(0xB7, 1, value=1) + _op(0xDB, 0, 1),  # add one, atomically
            _op(0xB7, 0) + _op(0x95),
            _op(0x7A, 10, offset=-40, value=1),  # a first one
            load_table + _op(0xBF, 2, 10) + _op(0x07, 2, value=-8),
            _op(0xBF, 3, 10) + _op(0x07, 3, value=-40) + _op(0xB7, 4) + _op(0x85, value=2),
            _op(0xB7, 0) + _op(0x95),
        )
    )


def missing(status: str, machine: str) -> str:
    r"""What a process with this `/proc/self/status` on this machine lacks, empty when nothing is known to be missing.

    >>> missing("CapEff:\t0000000000000000", "x86_64")
    'the capabilities CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN)'
    >>> missing("CapEff:\t000000c000000000", "x86_64")
    ''
    """
    if machine not in _SYSCALLS:
        return f"an x86-64 or arm64 machine (this is {machine})"
    words = next((line.split() for line in status.splitlines() if line.startswith("CapEff:")), [])
    try:
        held = int(words[1], 16)
    except (IndexError, ValueError):
        return ""
    both = (1 << _BPF) | (1 << _PERFMON)
    if held & both == both or held & (1 << _SYS_ADMIN):
        return ""
    return "the capabilities CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN)"


class Retransmits:
    """The probe, counting from now on until it is closed.

    Raises:
        ProbeRefusedError: the kernel does not let us.

    """

    def __init__(self) -> None:
        try:
            status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            status = ""
        if lacks := missing(status, platform.machine()):
            raise ProbeRefusedError(f"counting retransmits in the kernel needs {lacks}")
        self._number = _SYSCALLS[platform.machine()]
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._open: list[int] = []
        self._before: dict[Peer, int] = {}
        try:
            self._table = self._make(
                _MAP_CREATE, struct.pack("=IIIII", _HASH, _KEY.size, _VALUE.size, PEERS_MAX, 0), "a table"
            )
            self._attach()
        except ProbeRefusedError:
            self.close()
            raise

    def _attach(self) -> None:
        code = program(self._table)
        keep = [ctypes.create_string_buffer(one) for one in (code, _LICENCE, TRACEPOINT)]
        code_at, licence_at, name_at = (ctypes.addressof(one) for one in keep)
        asked = struct.pack("=IIQQIIQ", _RAW_TRACEPOINT, len(code) // 8, code_at, licence_at, 0, 0, 0)
        loaded = self._make(_LOAD, asked, "the program")
        self._make(_OPEN_RAW, struct.pack("=QI", name_at, loaded), "the tracepoint tcp_retransmit_skb")

    def _make(self, command: int, asked: bytes, what: str) -> int:
        number = self._bpf(command, asked)
        if number < 0:
            reason = os.strerror(-number)
            raise ProbeRefusedError(
                f"counting retransmits in the kernel: it refuses {what} ({reason}); needed are Linux 5.8 and bpf(2)"
                " with raw tracepoints, which containers often forbid"
            )
        self._open.append(number)
        return number

    def _bpf(self, command: int, asked: bytes) -> int:
        """The kernel's answer, or minus the error's number."""
        given = ctypes.create_string_buffer(asked + b"\0" * (128 - len(asked)), 128)
        answer = int(self._call(self._number, command, given, 128))
        return answer if answer >= 0 else -ctypes.get_errno()

    def total(self) -> dict[Peer, int]:
        """Segments sent again since the probe began, by peer."""
        found: dict[Peer, int] = {}
        key, following = ctypes.create_string_buffer(_KEY.size), ctypes.create_string_buffer(_KEY.size)
        value = ctypes.create_string_buffer(_VALUE.size)
        here = 0
        for _ in range(PEERS_MAX):
            asked = struct.pack("=I4xQQQ", self._table, here, ctypes.addressof(following), 0)
            if self._bpf(_NEXT_KEY, asked) < 0:
                break
            key.raw, here = following.raw, ctypes.addressof(key)
            asked = struct.pack("=I4xQQQ", self._table, here, ctypes.addressof(value), 0)
            if self._bpf(_LOOKUP, asked) == 0:
                address, port, family = _KEY.unpack(key.raw)
                shown = socket.inet_ntoa(address) if family == socket.AF_INET else ""
                peer = (shown, int.from_bytes(port, "big"))
                found[peer] = found.get(peer, 0) + int(_VALUE.unpack(value.raw)[0])
        return found

    def since(self) -> dict[Peer, int]:
        """Segments sent again since this was last asked, by peer; peers without any are not there."""
        now = self.total()
        grown = {peer: count - self._before.get(peer, 0) for peer, count in now.items()}
        self._before = now
        return {peer: count for peer, count in grown.items() if count > 0}

    def close(self) -> None:
        """Stop counting."""
        while self._open:
            os.close(self._open.pop())
