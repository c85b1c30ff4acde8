"""The kernel's own view of a TCP connection (`TCP_INFO`), and of all connections to an engine together.

`struct tcp_info` of linux/tcp.h only ever grows at its end, so what a kernel gives is read as far as it goes: a field beyond is absent,
never 0.  Times are microseconds there.  `min_rtt` of all ones is the kernel's "not yet".

Rules: one look a second, off the path of requests; of an engine's connections at most `SAMPLED_MAX` are asked (a look costs two
microseconds).  Retransmits are counted since the look before, so they add up over workers and over time, and nothing is counted twice or
lost when a connection ends between two looks but what it did in that second.

Deliberately absent: who sends what.
"""

import socket
import statistics
import struct
from collections.abc import Iterable, Sequence

import msgspec

SAMPLED_MAX = 32
SIZE = 256
UNKNOWN = 2**32 - 1

_FIRST = struct.Struct("=8x24I")
_WHOLE = struct.Struct("=8x24I32x4x4xII8xQQQ16x8xQ")
"""`_FIRST` and `_LATER` in one go, for kernels that give all of it."""
_LATER: tuple[tuple[str, int, struct.Struct], ...] = tuple(
    (name, at, struct.Struct(form))
    for name, at, form in (
        ("unsent_bytes", 144, "=I"),
        ("min_rtt_us", 148, "=I"),
        ("delivery_bytes_per_s", 160, "=Q"),
        ("busy_us", 168, "=Q"),
        ("receiver_limited_us", 176, "=Q"),
        ("retransmitted_bytes", 208, "=Q"),
    )
)

UNITS: dict[str, str] = {
    "tcp_connections": "connections",
    "tcp_rtt_ms": "ms",
    "tcp_rtt_max_ms": "ms",
    "tcp_rttvar_ms": "ms",
    "tcp_min_rtt_ms": "ms",
    "tcp_retransmits": "segments since the sample before",
    "tcp_kernel_retransmits": "segments since the sample before",
    "tcp_lost_segments": "segments",
    "tcp_cwnd_min_segments": "segments",
    "tcp_unsent_bytes": "bytes",
    "tcp_delivery_max_bytes_per_s": "bytes/s",
}
"""Signal -> unit.  `tcp_kernel_retransmits` is the eBPF probe's, to the engine's address, whoever sent.  RTTs are medians over the connections, but for the largest; lost and unsent add up; cwnd is the smallest."""


class TcpInfo(msgspec.Struct, frozen=True):
    """One connection as the kernel sees it; None is what this kernel does not tell (yet)."""

    rtt_us: int
    rttvar_us: int
    lost: int
    retransmits: int
    """Segments sent again since the connection began."""
    cwnd: int
    unsent_bytes: int | None = None
    min_rtt_us: int | None = None
    delivery_bytes_per_s: int | None = None
    busy_us: int | None = None
    receiver_limited_us: int | None = None
    retransmitted_bytes: int | None = None


def decode(data: bytes) -> TcpInfo | None:
    """Read `struct tcp_info` as far as it goes; None when it ends before what every kernel since 2.6 gives (104 bytes)."""
    if len(data) < _FIRST.size:
        return None
    if len(data) >= _WHOLE.size:
        words = _WHOLE.unpack_from(data)
        least = words[25] if words[25] != UNKNOWN else None
        return TcpInfo(words[15], words[16], words[6], words[23], words[18], words[24], least, *words[26:])
    words = _FIRST.unpack_from(data)
    more: dict[str, int] = {}
    for name, at, form in _LATER:
        if at + form.size > len(data):
            break
        (more[name],) = form.unpack_from(data, at)
    if more.get("min_rtt_us") == UNKNOWN:
        del more["min_rtt_us"]
    return TcpInfo(words[15], words[16], words[6], words[23], words[18], **more)


def look(descriptor: int) -> TcpInfo | None:
    """Ask the kernel about an open socket; None when it is none of TCP's or is gone."""
    try:
        asked = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    except OSError:
        return None
    try:
        return decode(asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SIZE))
    except OSError:
        return None
    finally:
        asked.detach()


class Wires:
    """The connections of one worker to all engines, looked at again and again."""

    def __init__(self) -> None:
        self._before: dict[str, dict[int, int]] = {}

    def look(
        self, engine: str, connections: Iterable[tuple[int, int]], count: int
    ) -> Sequence[tuple[str, float]]:
        """Signals of the connections to `engine`: of each its identity and descriptor; `count` is how many there are."""
        before, now = self._before.get(engine, {}), {}
        found: list[TcpInfo] = []
        again = 0
        for identity, descriptor in connections:
            if len(found) >= SAMPLED_MAX:
                break
            info = look(descriptor)
            if info is None:
                continue
            found.append(info)
            now[identity] = info.retransmits
            again += max(0, info.retransmits - before.get(identity, 0))
        self._before[engine] = now
        return [("tcp_connections", float(count)), *_together(found, again)] if found else ()

    def keep(self, engines: Iterable[str]) -> None:
        """Forget all engines but these."""
        self._before = {name: self._before[name] for name in engines if name in self._before}


def _together(found: Sequence[TcpInfo], again: int) -> list[tuple[str, float]]:
    made = [
        ("tcp_rtt_ms", statistics.median_low(info.rtt_us for info in found) / 1000),
        ("tcp_rtt_max_ms", max(info.rtt_us for info in found) / 1000),
        ("tcp_rttvar_ms", statistics.median_low(info.rttvar_us for info in found) / 1000),
        ("tcp_retransmits", float(again)),
        ("tcp_lost_segments", float(sum(info.lost for info in found))),
        ("tcp_cwnd_min_segments", float(min(info.cwnd for info in found))),
    ]
    least = [info.min_rtt_us for info in found if info.min_rtt_us is not None]
    unsent = [info.unsent_bytes for info in found if info.unsent_bytes is not None]
    rates = [info.delivery_bytes_per_s for info in found if info.delivery_bytes_per_s is not None]
    made += [("tcp_min_rtt_ms", min(least) / 1000)] if least else []
    made += [("tcp_unsent_bytes", float(sum(unsent)))] if unsent else []
    made += [("tcp_delivery_max_bytes_per_s", float(max(rates)))] if rates else []
    return made
