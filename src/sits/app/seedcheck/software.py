"""Flags, versions, a logged glitch, and a claim without its conditions: E33 to E38.

Deliberately absent: looking anything up on a network; what a vendor says is a table here, with its source.
"""

from sits.app.seedcheck.entry import Check, Derived, Entry, near

NCCL_WITHOUT_IB = ("sockets over IP (TCP)",)
"""What NCCL has left between nodes when NCCL_IB_DISABLE=1, from its environment variables' manual."""

TORCH_NAMES = {"NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
"""Environment variables PyTorch renamed (2.2)."""

VLLM_0_6_3_POST1 = {"torch": "2.4.0", "torchvision": "0.19"}
"""Exact requirements in the metadata of that wheel."""

GRAPH_INSTANTIATE_FLAGS = ("AUTO_FREE_ON_LAUNCH", "UPLOAD", "DEVICE_LAUNCH", "USE_NODE_PRIORITY")
"""`CUDA_GRAPH_INSTANTIATE_FLAG_*` of the CUDA driver's manual."""


def _e33() -> Derived:
    from sits.predict.bandwidth import Gbps  # noqa: PLC0415
    from sits.predict.collective import rdma, ring_ns, tcp  # noqa: PLC0415

    fast, slow = (ring_ns(16, 2**20, way(Gbps(400.0))) / 1e3 for way in (rdma, tcp))
    return Derived(
        f"it turns RDMA off: 1 MiB among 16 nodes {slow:.0f} us by sockets for {fast:.0f}; and the other variable is now "
        f"{TORCH_NAMES['NCCL_ASYNC_ERROR_HANDLING']}",
        (f"left between nodes: {NCCL_WITHOUT_IB[0]}; times from assumed links, see sits.predict.collective",),
        (
            Check("PCIe is no way between nodes", not any("PCIe" in way for way in NCCL_WITHOUT_IB)),
            Check("sockets are several times slower", slow > 2 * fast),
        ),
    )


def _e34() -> Derived:
    parts_ms = {"context": (124, 320)}
    weights_s = 16.06e9 / 2e9
    graphs_s = 20.0
    share = parts_ms["context"][1] / 1e3 / (weights_s + graphs_s)
    return Derived(
        "machine code for the target, lazy module loading and kept caches avoid compiling at start",
        (
            (
                f"16 GB of weights from a 2-GB/s disk take {weights_s:.0f} s and capturing graphs some {graphs_s:.0f} s: what is saved here, "
                f"0.12 to 0.32 s, is {share:.0%} of it at most"
            ),
        ),
        (Check("it is worth no first place among the fixes of a slow start", share < 0.02),),
    )


def _e35() -> Derived:
    base = 12.4 / (1 - 0.008)
    second, third = 7.2 / (1 - 0.421), 11.9 / (1 + 0.012)
    late = [2307 - at for at in (2301.7, 2304.1)]
    return Derived(
        f"11.9 is {11.9 / base - 1:+.1%} of {base:.1f} GB/s; the glitch is {late[0]:.1f} and {late[1]:.1f} ms from the spike",
        (f"the base is {base:.2f} by the first row, {second:.2f} by the second, {third:.2f} by the third",),
        (
            Check("the rows do not share one base", not near(third, base, 0.02)),
            Check("+1.2 % is a loss", 11.9 / base < 1),
            Check("neither time is within 0.8 ms", min(late) > 0.8),
        ),
    )


def _e36() -> Derived:
    def parts(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.partition("+")[0].split("."))

    asked, needed = parts("2.3.0+cu121"), parts(VLLM_0_6_3_POST1["torch"])
    return Derived(
        f"torch=={VLLM_0_6_3_POST1['torch']}, torchvision=={VLLM_0_6_3_POST1['torchvision']}",
        (
            f"the wheel requires exactly {'.'.join(map(str, needed))}, asked for was {'.'.join(map(str, asked))}: no installer finds both",
        ),
        (Check("the two exclude each other", asked != needed),),
    )


def _e37() -> Derived:
    return Derived(
        "no such flag; one compute type a product; no backward pass in inference",
        (
            f"flags there are: {', '.join(GRAPH_INSTANTIATE_FLAGS)}",
            "accumulating in FP16 and computing in TF32 are two values of one parameter of cuBLAS",
        ),
        (Check("no flag adjusts nodes", not any("ADJUST" in flag for flag in GRAPH_INSTANTIATE_FLAGS)),),
    )


def _e38() -> Derived:
    from sits.predict.queue import predict_queue  # noqa: PLC0415
    from sits.predict.queue_service import constant, two_kinds  # noqa: PLC0415

    pooled = two_kinds(20e6, 200e6, 0.1)
    change = {}
    for busy in (0.2, 0.4, 0.6, 0.8):
        rate = busy / pooled.mean_ns * 1e9
        together = predict_queue(rate, pooled)
        # One server split in two: short and long requests apart, each on the part of the speed that its work asks for.
        short, long = 0.9 * 20 / 38, 0.1 * 200 / 38
        apart = (
            predict_queue(0.9 * rate, constant(20e6 / short)),
            predict_queue(0.1 * rate, constant(200e6 / long)),
        )
        change[busy] = (
            (0.9 * apart[0].mean_ns + 0.1 * apart[1].mean_ns) / together.mean_ns - 1,
            (max(one.p99_ns for one in apart) / together.p99_ns - 1),
        )
    return Derived(
        "a hypothesis: without load and baseline the number says nothing",
        (
            "one queue of short and long requests split into a short and a long one on parts of the same machine, mean and worst P99: "
            + ", ".join(f"{busy:.0%} busy {mean:+.0%} and {p99:+.0%}" for busy, (mean, p99) in change.items()),
        ),
        (
            Check("the same grouping helps the mean at one load and harms it at another",
                  min(m for m, _ in change.values()) < 0 < max(m for m, _ in change.values())),
            Check("the size of the effect moves by more than 20 points with the load",
                  max(m for m, _ in change.values()) - min(m for m, _ in change.values()) > 0.2),
        ),
    )  # fmt: skip


ENTRIES = (
    Entry("E33", "NCCL without InfiniBand", "NCCL_IB_DISABLE=1 forces the PCIe path; set NCCL_ASYNC_ERROR_HANDLING.",
          "NCCL and PyTorch manuals; sits.predict.collective", _e33, "fact"),
    Entry("E34", "compiling at start", "Compilation when a CUDA context is made cannot be avoided.",
          "CUDA manual; arithmetic", _e34, "fact"),
    Entry("E35", "a PCIe glitch", "12.4 (-0.8 %), 7.2 (-42.1 %), 11.9 GB/s (+1.2 %), within 0.8 ms of the spike at 2307 ms.",
          "arithmetic", _e35),
    Entry("E36", "versions", "Install vllm 0.6.3.post1 with torch 2.3.0+cu121.", "metadata of the wheel on PyPI", _e36, "fact"),
    Entry("E37", "flags of CUDA graphs", "Use AUTO_ADJUST_NODE_PARAMS, FP16 accumulation with TF32 compute, and backward kernels.",
          "CUDA driver and cuBLAS manuals", _e37, "fact"),
    Entry("E38", "elastic groups", "Grouping requests by token length lowers P99 by 37 %.", "sits.predict.queue.predict_queue", _e38),
)  # fmt: skip
