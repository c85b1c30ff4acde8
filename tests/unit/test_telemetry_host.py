"""The machine and its TCP connections: what the kernel says, in our units; what it does not say is absent."""

import os
import socket
import struct

import pytest

from sits.telemetry.host import machine, tcp
from sits.telemetry.host.machine import Machine, read_meminfo, read_pressure, read_stat
from sits.telemetry.host.numa import local_share, local_share_of, read_list, read_numa_maps
from sits.telemetry.host.tcp import TcpInfo, Wires, decode

SECOND = 1_000_000_000


class Clock:
    """A world with only the time."""

    def __init__(self):
        self.t = SECOND

    def now_ns(self):
        return self.t


def tcp_info(size=232, **told):
    """`struct tcp_info` as a kernel would give it, each 32-bit word its own number so that a slip would show."""
    data = bytearray(struct.pack("=8B24I", *range(8), *range(1000, 1024)))
    data += struct.pack("=4Q", *range(2000, 2004)) + struct.pack("=6I", *range(3000, 3006))
    data += struct.pack("=4Q", *range(4000, 4004)) + struct.pack("=2I", 5000, 5001)
    data += struct.pack("=2Q", 6000, 6001) + struct.pack("=4I", *range(7000, 7004))
    if "min_rtt" in told:
        data[148:152] = struct.pack("=I", told["min_rtt"])
    return bytes(data[:size])


def test_the_struct_is_read_where_the_kernel_puts_its_fields():
    assert decode(tcp_info()) == TcpInfo(
        rtt_us=1015,
        rttvar_us=1016,
        lost=1006,
        cwnd=1018,
        retransmits=1023,
        unsent_bytes=3002,
        min_rtt_us=3003,
        delivery_bytes_per_s=4000,
        busy_us=4001,
        receiver_limited_us=4002,
        retransmitted_bytes=6001,
    )


@pytest.mark.parametrize(
    ("size", "absent"),
    [
        (232, set()),
        (215, {"retransmitted_bytes"}),
        (167, {"delivery_bytes_per_s", "busy_us", "receiver_limited_us", "retransmitted_bytes"}),
        (104, set(TcpInfo.__struct_fields__[5:])),
    ],
)
def test_an_older_kernel_tells_less_and_nothing_is_made_up(size, absent):
    info = decode(tcp_info(size))
    assert {name for name in TcpInfo.__struct_fields__ if getattr(info, name) is None} == absent


def test_a_struct_that_is_no_struct_and_a_min_rtt_not_known_yet():
    assert [decode(tcp_info(size)) for size in (0, 8, 103)] == [None] * 3
    assert decode(tcp_info(min_rtt=2**32 - 1)).min_rtt_us is None


@pytest.fixture
def pair():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            yield one, other


def test_a_real_connection_has_a_round_trip(pair):
    one, other = pair
    one.sendall(b"x" * 5000)
    assert other.recv(5000, socket.MSG_WAITALL) == b"x" * 5000
    seen = dict(Wires().look("e", [(1, one.fileno())], 3))
    assert seen.keys() <= tcp.UNITS.keys()
    assert seen["tcp_connections"] == 3
    assert 0 < seen["tcp_rtt_ms"] == seen["tcp_rtt_max_ms"] < 1000
    assert seen["tcp_retransmits"] == seen["tcp_lost_segments"] == 0
    assert seen["tcp_cwnd_min_segments"] >= 2
    assert one.fileno() > 0, "the descriptor stays open and ours"


def test_a_descriptor_that_is_gone_or_no_connection_tells_nothing():
    reading, writing = os.pipe()
    assert tcp.look(reading) is None
    os.close(reading)
    os.close(writing)
    assert tcp.look(writing) is None
    assert Wires().look("e", [(1, writing)], 1) == ()


def test_retransmits_are_since_the_look_before_whoever_comes_and_goes(monkeypatch):
    told = {}
    monkeypatch.setattr(tcp, "look", lambda descriptor: TcpInfo(1000, 10, 0, told[descriptor], 10))
    wires = Wires()

    def again(**connections):
        told.update({ord(name): count for name, count in connections.items()})
        rows = wires.look("e", [(ord(name), ord(name)) for name in connections], len(connections))
        return dict(rows)["tcp_retransmits"]

    assert again(a=5, b=0) == 5, "connections are ours alone: what they did before the first look is ours too"
    assert again(a=7, b=1) == 3
    assert again(b=1, c=2) == 2
    assert again(b=1, c=2) == 0
    wires.keep(())
    assert wires._before == {}


def test_no_more_than_a_bounded_number_of_connections_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(tcp, "look", lambda descriptor: asked.append(descriptor) or TcpInfo(1, 1, 0, 0, 1))
    seen = dict(Wires().look("e", [(i, i) for i in range(500)], 500))
    assert len(asked) == tcp.SAMPLED_MAX
    assert seen["tcp_connections"] == 500


def test_shares_of_the_processors_are_of_the_time_between_two_looks(tmp_path):
    (tmp_path / "pressure").mkdir()
    clock = Clock()
    looking = Machine(clock, tmp_path)

    def write(stat, stalled_us):
        (tmp_path / "stat").write_text(f"cpu  {stat}\ncpu0 9 9 9 9 9 9 9 9 0 0\n")
        (tmp_path / "pressure" / "memory").write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled_us}\nfull avg10=0.00 total=0\n"
        )

    write("100 0 100 800 0 0 0 0 0 0", 1000)
    assert looking.look() == {}
    clock.t += 2 * SECOND
    write("150 0 120 850 20 0 0 60 0 0", 501_000)
    assert looking.look() == {
        "host_cpu_busy_share": 0.65,
        "host_cpu_steal_share": 0.3,
        "host_cpu_iowait_share": 0.1,
        "host_memory_pressure_share": 0.25,
        "host_memory_stalled_share": 0,
    }
    clock.t += SECOND
    write("1 0 1 1 0 0 0 0 0 0", 5)
    assert looking.look() == {"host_memory_stalled_share": 0}, "counters that went back tell nothing"


def test_this_machine_tells_its_memory():
    clock = Clock()
    values = Machine(clock).look()
    assert values.keys() <= machine.UNITS.keys()
    assert 0 < values["host_memory_available_bytes"] <= values["host_memory_total_bytes"]


def test_texts_that_are_none_give_nothing():
    for text in (
        "",
        "cpu",
        "cpu a b c d e f g h",
        "\0" * 50,
        "some",
        "full total=",
        "MemTotal: x kB",
        "Mem 1 kB 2",
    ):
        assert read_stat(text) is None
        assert read_meminfo(text) == {}
        assert read_pressure(text) == {}
        assert read_numa_maps(text) == {}


def test_memory_by_node_counts_bytes_not_pages():
    text = (
        "7f00 default file=/lib/x.so mapped=3 N0=2 N1=1 kernelpagesize_kB=4\n"
        "7f10 default anon=1 dirty=1 N1=1 kernelpagesize_kB=2048\n7f20 default\n"
    )
    pages = read_numa_maps(text)
    assert pages == {0: 8192, 1: 4096 + 2**21}
    assert local_share(pages, {1}) == pytest.approx((4096 + 2**21) / (8192 + 4096 + 2**21))
    assert local_share(pages, {0, 1}) == 1
    assert local_share(pages, ()) is None
    assert local_share({}, {0}) is None


def test_the_share_of_a_process_needs_its_processors_and_their_nodes(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "numa_maps").write_text("7f00 default anon=4 N0=1 N1=3 kernelpagesize_kB=4\n")
    (tmp_path / "7" / "status").write_text("Name:\tx\nCpus_allowed_list:\t4-7\n")
    for node, cpus in ((0, "0-3"), (1, "4-7")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus + "\n")
    assert local_share_of(7, tmp_path, tmp_path) == 0.75
    assert local_share_of(8, tmp_path, tmp_path) is None


@pytest.mark.parametrize("text", ["", "x", "1-", "3-1", "1,,2", "0-99999999", "-1"])
def test_a_list_that_is_none_is_empty(text):
    assert read_list(text) == set()
