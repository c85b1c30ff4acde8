"""KV cache and its sizes, paging, persistence: E1 to E10.

Deliberately absent: benchmarks of disks (`sits.predict.persist` has them).
"""

import math

from sits.app.seedcheck.entry import Check, Derived, Entry, near

GIB = 2.0**30


def _e1() -> Derived:
    from sits.predict.kv import KvShape, kv_bytes  # noqa: PLC0415

    size = kv_bytes(KvShape(layers=32, kv_heads=32, head_dim=128), [2048] * 8)
    grouped = kv_bytes(KvShape(layers=32, kv_heads=8, head_dim=128), [2048] * 8)
    by_hand = 8 * 2048 * 32 * 2 * 32 * 128 * 2
    return Derived(
        f"{size / GIB:.2f} GiB = {size:,} bytes; {grouped / GIB:.2f} GiB with 8 KV heads",
        (
            f"8 sequences x 2048 tokens x 32 layers x 2 (key, value) x 32 heads x 128 x 2 bytes = {by_hand:,}",
            f"published 1.3 GB is {size / 1.3e9:.1f} times too low",
        ),
        (
            Check("the predictor and the product by hand agree", size == by_hand),
            Check("1.3 GB is not within a factor of 6 of it", size / 1.3e9 > 6),
            Check("a quarter of the KV heads takes a quarter", grouped * 4 == size),
        ),
    )


def _e2() -> Derived:
    from sits.predict.kv import KvShape, kv_bytes, token_bytes  # noqa: PLC0415

    query, kv = (token_bytes(KvShape(layers=80, kv_heads=heads)) for heads in (64, 8))
    latent = token_bytes(KvShape(layers=61, latent_dim=512 + 64))
    plain = token_bytes(KvShape(layers=61, kv_heads=128))
    small = token_bytes(KvShape(layers=80, kv_heads=8, element_bytes=1))
    shards = [token_bytes(KvShape(layers=80, kv_heads=8), tp) for tp in (1, 8, 16)]
    slide = KvShape(layers=2, kv_heads=8, window=1024, window_layers=1)
    windowed = kv_bytes(slide, [131_072]) / kv_bytes(KvShape(layers=2, kv_heads=8), [131_072])
    return Derived(
        f"KV heads, not query heads: {kv:,} bytes a token for 80 layers of 8 KV heads, not {query:,}",
        (
            f"64 query heads of which 8 keep a cache: {query / kv:.0f} times too much",
            f"latent attention keeps 576 values a layer: {latent:,} bytes a token where 128 heads would take {plain:,}",
            f"FP8 {small:,}; on each of 1, 8, 16 ranks {shards}: beyond 8 every rank keeps a whole head",
            f"one of two layers slides over 1024 tokens: {windowed:.2f} of the full cache at 128K",
        ),
        (
            Check("query heads overstate it 8 times", query == 8 * kv),
            Check("latent attention takes less than a fiftieth", latent < plain / 50),
            Check("FP8 takes half", small * 2 == kv),
            Check("16 ranks keep no less than 8 each", shards[1] == shards[2] == shards[0] // 8),
            Check("a sliding layer stops growing", 0.5 < windowed < 0.51),
        ),
    )


def _e3() -> Derived:
    from sits.predict.kv import KvShape, kv_bytes  # noqa: PLC0415

    shape = KvShape(layers=32, kv_heads=32)

    def exponent(size: "list[float]") -> float:
        return math.log2(size[1] / size[0])

    kv = exponent([kv_bytes(shape, [s]) for s in (16_384, 32_768)])
    split = exponent([kv_bytes(shape, [s], tp=8) for s in (16_384, 32_768)])
    scores = exponent([32.0 * s * s * 2 for s in (16_384, 32_768)])
    return Derived(
        f"linear: exponent {kv:.2f}, and {split:.2f} on 8 ranks",
        (f"twice the tokens, 2^{kv:.2f} the cache; an unfused score matrix alone grows with 2^{scores:.2f}",),
        (
            Check("the cache grows with exponent 1", near(kv, 1.0, 1e-9)),
            Check("tensor parallelism leaves the exponent", near(split, kv, 1e-9)),
            Check(
                "2 is the exponent of the score matrix, which fused kernels never store",
                near(scores, 2.0, 1e-9),
            ),
        ),
    )


def _e4() -> Derived:
    limit, utilization = 0.75, 0.9
    most = {weights: utilization - weights for weights in (0.05, 0.15, 0.2, 0.5)}
    never = utilization - limit
    return Derived(
        f"used blocks / pool blocks; of all memory, 75 % cannot be reached with weights above {never:.0%} of it",
        (
            "an engine reserves its pool at start, so what nvidia-smi calls used does not move",
            "most KV there can be of all memory, at 0.9 utilisation: "
            + ", ".join(f"{share:.0%} with weights of {weights:.0%}" for weights, share in most.items()),
        ),
        (
            Check("an 8B model of 16 GB on an 80-GB GPU never raises the alarm", most[0.2] < limit),
            Check(
                "a full pool is 100 % of its blocks whatever the weights",
                near(100 * most[0.5] / most[0.5], 100),
            ),
        ),
    )


def _e5() -> Derived:
    def published(alloc: float, free: float) -> float:
        return (alloc - free) / alloc

    pool, steps, denied, free = 10, 0, 0, 10
    waiting = [6, 6, 6]  # blocks three requests ask for, each held for four steps
    held: list[tuple[int, int]] = []
    while waiting or held:
        steps += 1
        free += sum(blocks for until, blocks in held if until == steps)
        held = [(until, blocks) for until, blocks in held if until != steps]
        if waiting and waiting[0] <= free:
            free -= waiting[0]
            held.append((steps + 4, waiting.pop(0)))
        elif waiting:
            denied += 1
    return Derived(
        f"share of steps in which blocks were denied: {denied / steps:.0%} in an example of three requests",
        (
            (
                f"one request alone, allocation 10 ms and release 4 ms: the formula says {published(10, 4):.1f}, alarm, "
                "though nobody waits"
            ),
            f"release slower than allocation: {published(4, 10):.1f}, negative",
            f"three requests of 6 blocks in a pool of {pool}: denied in {denied} of {steps} steps",
        ),
        (
            Check("it alarms without any contention", published(10, 4) > 0.4),
            Check("it becomes negative", published(4, 10) < 0),
            Check("the right measure sees who waits", denied > 0 and free == pool),
        ),
    )


def _e6() -> Derived:
    static, paged = 48.2 * (1 - 0.37), 19.6 * (1 - 0.08)
    needed, waste = paged / (1 - 0.37), 1 - paged / 48.2
    return Derived(
        f"the same work at 37 % waste needs {needed:.1f} GB; 48.2 GB for it is {waste:.1%} waste",
        (f"useful bytes: 48.2 x 0.63 = {static:.1f} GB, 19.6 x 0.92 = {paged:.1f} GB",),
        (
            Check("the two rows do not hold the same data", static / paged > 1.5),
            Check(
                "no single figure mends both: 28.6 GB or 62.6 %", near(needed, 28.6) and near(waste, 0.626)
            ),
        ),
    )


def _e7() -> Derived:
    from sits.predict.kv import KvShape, block_bytes  # noqa: PLC0415

    block = 16
    wasted = sum(-(-s // block) * block - s for s in range(131_073 - block, 131_073)) / block
    share, length = wasted / 131_072, wasted / 0.08
    size = block_bytes(KvShape(layers=32, kv_heads=32, head_dim=128), block_size=block)
    return Derived(
        f"{share:.4%} at 128K; 8 % would be an average of {length:.0f} tokens a sequence",
        (
            f"last block of 16, over all lengths modulo 16: {wasted} tokens on average",
            f"a block of Llama-2-7B is {size / 2**20:.0f} MiB; '16 x 128' is no size",
        ),
        (
            Check("the average is (16 - 1) / 2", wasted == (block - 1) / 2),
            Check("8 % is a thousand times too much", 0.08 / share > 1000),
            Check("block bytes follow from the model", size == 16 * 2 * 32 * 32 * 128 * 2),
        ),
    )


def _e8() -> Derived:
    from sits.app.seedcheck.machines import llama_8b_step  # noqa: PLC0415
    from sits.predict.steptime import step_time_us  # noqa: PLC0415

    step = llama_8b_step()
    batch = 48.2 / 19.6

    def speed(n: int) -> float:
        return n / step_time_us(step, tokens=n, seqs_emitting=n, decode_kv=[2000] * n)

    gain = speed(round(64 * batch)) / speed(64)
    return Derived(
        f"at most {batch:.2f} times the batch, {gain:.2f} times the throughput of an 8B model at batch 64",
        (
            f"48.2 / 19.6 = {batch:.2f} times as many sequences fit",
            (
                f"a step costs something for each of them: from 64 to {round(64 * batch)} sequences of 2000 tokens "
                f"{gain:.2f} times the tokens a second"
            ),
        ),
        (
            Check("3.2 is beyond the bound that memory alone sets", batch < 3.2),
            Check("throughput grows less than the batch", 1.0 < gain < batch),
        ),
    )


def _e9() -> Derived:
    from sits.predict.bandwidth import gigabytes, pcie  # noqa: PLC0415
    from sits.predict.kv import KvShape, kv_bytes  # noqa: PLC0415

    short, long = 18 - 12, 67 - 15
    exponent = math.log(long / short) / math.log(4)
    size = kv_bytes(KvShape(layers=32, kv_heads=32), [4096])
    speed = size / (short / 1e3) / 1e9
    return Derived(
        f"a power of {exponent:.2f} through two points; no knee at 8K was measured",
        (
            f"added: {short} ms at 4K, {long} ms at 16K; ln({long}/{short}) / ln 4 = {exponent:.2f}",
            (
                f"the whole cache at 4K is {size / GIB:.0f} GiB: in {short} ms that is {speed:.0f} GB/s, PCIe 5.0 x16 gives "
                f"{gigabytes(pcie(5)):.0f}: so it was incremental or not finished"
            ),
        ),
        (
            Check("two points leave nothing to tell a power from an exponential", near(exponent, 1.56)),
            Check("the write cannot have been the whole cache", speed > 5 * gigabytes(pcie(5))),
        ),
    )


def _e10() -> Derived:
    # Little's law on a disk: bytes in flight = throughput x latency.
    size, latency_s, device = 128 * 1024, 80e-6, 7e9
    alone = size / latency_s
    needed = device * latency_s / size
    calls = 32 * 3e-6
    write = 32 * size / device
    return Derived(
        f"{needed:.1f} writes of 128 KiB in flight fill a 7-GB/s disk of 80 us; one reaches {alone / 1e9:.1f} GB/s",
        (
            f"throughput = in flight x size / latency: {alone / 1e9:.2f} GB/s for one at a time",
            f"32 system calls at 3 us are {calls * 1e3:.2f} ms, beside {write * 1e3:.2f} ms of writing",
            "Go: O_DIRECT is in syscall and x/sys/unix, wants aligned buffers, and Write returns (int, error)",
        ),
        (
            Check(
                "one I/O at a time does not fill the device whatever is said of its size",
                alone < 0.3 * device,
            ),
            Check("the calls are a fifth of the write at most", calls < 0.2 * write),
        ),
    )


ENTRIES = (
    Entry("E1", "KV cache of a batch", "8 sequences of 2048 tokens, 32 layers of 32 heads of 128, FP16: about 1.3 GB.",
          "sits.predict.kv.kv_bytes", _e1),
    Entry("E2", "which heads count", "The cache is counted with the number of attention (query) heads.",
          "sits.predict.kv.token_bytes", _e2),
    Entry("E3", "growth with length", "Under tensor parallelism KV memory is quadratic in the sequence length.",
          "sits.predict.kv.kv_bytes", _e3),
    Entry("E4", "when the cache is full", "Alarm when KV bytes exceed 75 % of all GPU memory.", "arithmetic", _e4),
    Entry("E5", "contention", "(allocation time - release time) / allocation time above 0.4 is contention.",
          "arithmetic", _e5),
    Entry("E6", "static against paged memory", "The same load takes 48.2 GB with 37 % fragmentation, or 19.6 GB with 8 %.",
          "arithmetic", _e6),
    Entry("E7", "fragmentation of blocks", "Paged blocks of 16 lose 8 % at 128K tokens.", "sits.predict.kv.block_bytes", _e7),
    Entry("E8", "throughput from memory", "3.2 times the throughput follows from the memory saved.",
          "sits.predict.derive.derive_steptime", _e8),
    Entry("E9", "persistence and length", "Writing the cache adds 6 ms at 4K and 52 ms at 16K tokens: exponential beyond 8K.",
          "sits.predict.kv.kv_bytes, sits.predict.bandwidth.pcie", _e9),
    Entry("E10", "direct writes", "Writes of 128 KB saturate the NVMe queue; 32 system calls are the cost.",
          "arithmetic", _e10),
)  # fmt: skip
