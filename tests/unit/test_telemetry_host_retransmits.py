"""The probe that counts retransmits in the kernel: against real ones where this kernel lets us, else a refusal that says why."""

import os
import select
import shutil
import socket
import subprocess
import sys

import pytest

from sits.telemetry.host.retransmits import ProbeRefusedError, Retransmits, missing, program

NETWORK_WITH_NOBODY = """
import socket, subprocess, sys
for command in ("link set lo up", "route add 192.0.2.0/24 dev lo src 127.0.0.1"):
    subprocess.run(["ip", *command.split()], check=True)
with socket.socket() as asks:
    asks.settimeout(2.5)
    try:
        asks.connect(("192.0.2.9", 4321))
    except OSError:
        pass
"""
"""In a network of its own: a SYN to a peer that is not there is sent again after a second."""


def probe():
    try:
        return Retransmits()
    except ProbeRefusedError as error:
        pytest.skip(f"not on this machine: {error}")


def test_what_is_missing_is_said_before_the_kernel_is_asked():
    assert "CAP_BPF" in missing("CapEff: 0", "aarch64")
    assert missing("CapEff: 0000000000200000", "x86_64") == "", "CAP_SYS_ADMIN will do"
    assert "CAP_PERFMON" in missing("CapEff: 0000008000000000", "x86_64"), "CAP_BPF alone will not"
    assert "riscv64" in missing("CapEff: ffffffffffffffff", "riscv64")
    assert missing("nonsense", "x86_64") == "", "then the kernel says it"


def test_the_program_is_whole_instructions_and_jumps_to_its_own_end():
    code = program(7)
    assert len(code) % 8 == 0
    assert code[-8:] == b"\x95" + bytes(7)
    at = next(i for i in range(0, len(code), 8) if code[i] == 0x15)
    jump = int.from_bytes(code[at + 2 : at + 4], "little")
    assert code[at + 8 * (jump + 1)] == 0x7A, "the first count of a peer"
    assert code[at + 8 * jump] == 0x95


def test_who_may_not_is_refused_with_what_is_needed():
    text = (
        "from sits.telemetry.host.retransmits import *\n"
        "try:\n    Retransmits()\nexcept ProbeRefusedError as error:\n    print(error)"
    )
    command = [sys.executable, "-c", text]
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("no setpriv to give up capabilities with")
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "needs the capabilities CAP_BPF and CAP_PERFMON" in done.stdout, done.stderr


def test_a_connection_without_loss_counts_nothing_of_its_peer():
    counting = probe()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            one.sendall(b"x" * 100_000)
            select.select([other], [], [], 5)
            assert server.getsockname() not in counting.total()
    counting.close()
    counting.close()


@pytest.mark.slow
def test_a_segment_that_is_sent_again_is_counted_for_its_peer():
    counting = probe()
    try:
        assert counting.since() == counting.total()
        done = subprocess.run(
            ["unshare", "--net", sys.executable, "-c", NETWORK_WITH_NOBODY],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"no network of its own here: {done.stderr[-200:]}")
        again = counting.since()
        assert again[("192.0.2.9", 4321)] >= 1
        assert ("192.0.2.9", 4321) not in counting.since()
    finally:
        counting.close()
