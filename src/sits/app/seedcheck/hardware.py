"""GPU counters, topology, network units, knees over nodes: E27 to E32.

Deliberately absent: reading any of these counters.
"""

import math

from sits.app.seedcheck.entry import Check, Derived, Entry, near

DCGM = {
    203: "GPU utilisation", 252: "frame buffer used", 1001: "graphics engine active", 1002: "SM active", 1003: "SM occupancy",
    1005: "DRAM active", 1009: "PCIe sent", 1010: "PCIe received", 1011: "NVLink sent", 1012: "NVLink received",
}  # fmt: skip
"""Field numbers of the Data Center GPU Manager, from its field identifiers."""

SMI_DISPLAY = (
    "MEMORY", "UTILIZATION", "ECC", "TEMPERATURE", "POWER", "CLOCK", "COMPUTE", "PIDS", "PERFORMANCE", "SUPPORTED_CLOCKS",
    "PAGE_RETIREMENT", "ACCOUNTING", "ENCODER_STATS", "FBC_STATS", "ROW_REMAPPER", "RESET_STATUS", "GSP_FIRMWARE_VERSION",
)  # fmt: skip
"""What `nvidia-smi -q -d` takes, from its manual."""

DEVICE_FLAGS = {
    "cudaDeviceScheduleAuto", "cudaDeviceScheduleSpin", "cudaDeviceScheduleYield", "cudaDeviceScheduleBlockingSync",
    "cudaDeviceMapHost", "cudaDeviceLmemResizeToMax",
}  # fmt: skip
"""What `cudaSetDeviceFlags` takes, from the runtime's manual: scheduling of the host, mapping, local memory."""


def _e27() -> Derived:
    claimed = {1001: "GPU utilisation", 1002: "frame buffer used", 1003: "NVLink received"}
    right = {name: number for number, name in DCGM.items() if name in claimed.values()}
    return Derived(
        ", ".join(f"{name} {number}" for name, number in right.items()),
        (
            *(f"{number} is {DCGM[number]}, not {name}" for number, name in claimed.items()),
            "10xx are profiling counters: shares of 0..1, multiplexed, N/A in the first samples; 10 ms is below their refresh",
        ),
        (
            Check(
                "none of the three numbers is what it is said to be",
                all(DCGM[n] != name for n, name in claimed.items()),
            ),
            Check("each of the three has another number", set(right.values()).isdisjoint(claimed)),
        ),
    )


def _e28() -> Derived:
    started_ms = 20.0
    most = 1000 / started_ms
    return Derived(
        f"through NVML in one process; nvidia-smi started each time reaches {most:.0f} samples a second at best",
        (f"a process that starts in {started_ms:.0f} ms or more, for snapshots of 1 ms 1000 are needed",),
        (Check("twenty times too slow", 1000 / most >= 20),),
    )


def _e29() -> Derived:
    return Derived(
        "`nvidia-smi topo -m` (column NUMA Affinity), or numa_node of the PCI device under /sys",
        (f"-d takes {', '.join(SMI_DISPLAY)}",),
        (Check("there is no topology among what -d takes", "TOPOLOGY" not in SMI_DISPLAY),),
    )


def _e30() -> Derived:
    flag = "cudaDeviceScheduleBlockingSync"
    return Derived(
        "cudaDeviceEnablePeerAccess(peer, 0), after cudaDeviceCanAccessPeer",
        (
            f"{flag} is one of the flags that say how the CPU waits for the GPU: {', '.join(sorted(DEVICE_FLAGS))}",
        ),
        (
            Check("the flag is one of scheduling", flag in DEVICE_FLAGS and "Schedule" in flag),
            Check("no such flag concerns peers", not any("Peer" in one for one in DEVICE_FLAGS)),
        ),
    )


def _e31() -> Derived:
    from sits.predict.bandwidth import GBps, Gbps, gigabytes, pcie  # noqa: PLC0415
    from sits.predict.collective import rdma, ring_ns, step_calls  # noqa: PLC0415

    def published(payload_mb: float, bandwidth: float) -> float:
        return payload_mb * 1024 / min(bandwidth, 28)

    card = Gbps(400.0)
    two, eight = (ring_ns(n, 2**20, rdma(card)) / 1e3 for n in (2, 8))
    empty = ring_ns(8, 0, rdma(card)) / 1e3
    calls, size = step_calls(80, 8192, 64)
    try:
        gigabytes(card)  # type: ignore[arg-type]  # the mistake itself, which mypy would refuse
        mixed = True
    except TypeError:
        mixed = False
    return Derived(
        f"1 MiB over 400 Gb/s: {two:.0f} us among 2, {eight:.0f} among 8, of which start-up {empty:.0f}",
        (
            (
                f"400 Gb/s are {gigabytes(card.bytes()):.0f} GB/s, an eighth; taken as GB/s and cut at 28 it says {published(1, 400):.0f} us "
                "for any number of nodes"
            ),
            f"28 GB/s is PCIe 4.0 x16 ({gigabytes(pcie(4)):.0f}); 5.0 reaches {gigabytes(pcie(5)):.0f}",
            (
                f"1024 for decimal megabytes is {1024 / 1000 - 1:.1%} off; inference has no gradients but {calls} all-reduces of {size:,} "
                "bytes in a step of an 80-layer model"
            ),
        ),
        (
            Check("the formula is blind to the number of nodes, an all-reduce is not", eight > 1.3 * two),
            Check("and has no start-up, which an empty message still costs", published(0, 400) == 0 < empty),
            Check("bits for bytes are refused here", not mixed and GBps(50.0) == card.bytes()),
            Check("28 belongs to generation 4", gigabytes(pcie(4)) == 28 < gigabytes(pcie(5))),
        ),
    )


def _e32() -> Derived:
    from sits.predict.usl import fit_scaling  # noqa: PLC0415
    from sits.world import stream_generator  # noqa: PLC0415

    total = 1465 / 1520 - 1
    each = (1465 / 8) / (1520 / 4) - 1
    found = fit_scaling([4, 8], [1520, 1465], stream_generator(0, "seedcheck"))
    return Derived(
        f"refused: {found.refusal}",
        (
            f"1520 to 1465 is {total:+.1%} in all, and {each:+.1%} for each node when they double; -36.7 % is neither",
            "its own rule, a loss of more than 40 %, is not met by -36.7 %",
        ),
        (
            Check(
                "the published loss follows from neither",
                not near(total, -0.367, 0.1) and not near(each, -0.367, 0.1),
            ),
            Check("nor does it pass its own limit", math.fabs(-0.367) < 0.40),
            Check("two node counts give no knee", bool(found.refusal) and found.peak is None),
        ),
    )


ENTRIES = (
    Entry("E27", "DCGM counters", "dcgmi fields 1001, 1002, 1003 are GPU utilisation, used memory and NVLink receive, every 10 ms.",
          "DCGM field identifiers (NVIDIA)", _e27, "fact"),
    Entry("E28", "millisecond snapshots", "nvidia-smi -q -d MEMORY gives snapshots by the millisecond.",
          "start of a process, 20 ms or more", _e28, "fact"),
    Entry("E29", "where the NUMA node is", "nvidia-smi -q -d topology prints the NUMA node.", "manual of nvidia-smi", _e29, "fact"),
    Entry("E30", "peer access", "cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) turns on NVLink between GPUs.",
          "CUDA runtime manual", _e30, "fact"),
    Entry("E31", "all-reduce over RDMA", "Latency is payload_mb x 1024 / min(bandwidth_gbps, 28) us; PCIe 5.0 x16 gives 28 GB/s.",
          "sits.predict.bandwidth, sits.predict.collective", _e31),
    Entry("E32", "knee over nodes", "The knee is the first loss over 40 %: 1520 and then 1465 requests a second, -36.7 %.",
          "sits.predict.usl.fit_scaling", _e32),
)  # fmt: skip
