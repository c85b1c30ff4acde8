"""Batching windows, percentiles, Little's law: E17 to E21.

Deliberately absent: what a window should be (`sitsctl plan batch`).
"""

from sits.app.seedcheck.entry import Check, Derived, Entry, near


def _e17() -> Derived:
    from sits.predict.window import predict_window  # noqa: PLC0415

    rows = [(1420.0, 15e6, 8), (2870.0, 50e6, 32)]
    found = [predict_window(*row) for row in rows]
    shown = [
        f"{(b - 1) / rate * 1e3:.1f} ms to fill {b} at {rate:.0f}/s, window {w / 1e6:.0f} ms"
        for rate, w, b in rows
    ]
    other = predict_window(1420.0, 150e6, 8)
    return Derived(
        "both rows are decided by the batch size; the window never ends first",
        (
            *shown,
            (
                f"a window ten times as long changes the mean wait from {found[0].wait_ns_mean / 1e6:.3f} to "
                f"{other.wait_ns_mean / 1e6:.3f} ms"
            ),
        ),
        (
            Check(
                "both batches are full before their window ends", all(one.bound == "size" for one in found)
            ),
            Check(
                "the window's length makes no difference",
                near(other.wait_ns_mean, found[0].wait_ns_mean, 0.01),
            ),
        ),
    )


def _e18() -> Derived:
    from sits.predict.window import predict_window  # noqa: PLC0415

    def window_for(batch: float, rate: float) -> float:
        low, high = 0.0, 1e9
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if predict_window(rate, middle, 64).batch_mean < batch else (low, middle)
            )
        return high

    def published(was: float, now: float) -> bool:
        """Whether it sees a burst."""
        return abs(now - was) > 100

    before, after = window_for(8.0, 500.0), window_for(8.0, 1000.0)
    cycle = 1.5 * 0.7
    return Derived(
        f"twice the rate fills the same batch in {after / before:.2f} of the window",
        (
            f"batches of 8 on average: {before / 1e6:.1f} ms at 500/s, {after / 1e6:.1f} ms at 1000/s",
            f"up times 1.5, down times 0.7: {cycle:.2f} a cycle, {cycle**20:.1f} times the window after twenty",
            "|change| is as large downwards as upwards: a rule on it cannot tell a burst from its end",
        ),
        (
            Check("a rise asks for a shorter window, not for 1.5 times", near(after / before, 0.5)),
            Check("the rule drifts upwards", cycle > 1.0),
            Check("and takes a fall for a rise", published(500, 1000) == published(1000, 500)),
        ),
    )


def _e19() -> Derived:
    import numpy as np  # noqa: PLC0415

    from sits.world import stream_generator  # noqa: PLC0415

    given = np.array([8.2, 12.7, 31.4])
    means = given / np.log(20.0)  # the means of exponential stages with these P95
    stages = stream_generator(0, "seedcheck").exponential(means, (400_000, 3))
    whole = stages.sum(axis=1)
    p95 = float(np.quantile(whole, 0.95))
    over = whole >= p95
    parts = stages[over].mean(axis=0)
    return Derived(
        f"P95 of the sum is {p95:.1f} ms, not {given.sum():.1f}; means do add",
        (
            f"three independent exponential stages with P95 of {', '.join(f'{v:g}' for v in given)} ms",
            f"their means {', '.join(f'{v:.2f}' for v in means)} add to the mean of the whole, {whole.mean():.2f}",
            f"stages of the slowest 5 %, on average: {', '.join(f'{v:.1f}' for v in parts)}, which add to {whole[over].mean():.1f}",
        ),
        (
            Check("percentiles do not add", not near(p95, float(given.sum()), 0.1)),
            Check("means do", near(float(whole.mean()), float(means.sum()), 0.01)),
            Check(
                "so do means over the slow requests",
                near(float(parts.sum()), float(whole[over].mean()), 1e-9),
            ),
        ),
    )


def _e20() -> Derived:
    from math import ceil  # noqa: PLC0415

    ranks = {n: ceil(0.99 * n - 1e-9) for n in (1, 50, 99, 100, 200)}
    first = min(n for n in range(1, 1000) if ceil(0.99 * n - 1e-9) < n)
    return Derived(
        f"a span has one latency; a P99 that is not simply the largest needs {first} requests",
        (f"rank of the P99 among n: {', '.join(f'{rank} of {n}' for n, rank in ranks.items())}",),
        (
            Check("of one request it is that request", ranks[1] == 1),
            Check("below 100 it is the maximum", first == 100),
        ),
    )


def _e21() -> Derived:
    flight = (142 * 0.0863, 238 * 0.0527)
    gain, faster = 238 / 142, 0.0863 / 0.0527
    return Derived(
        f"one benefit: {flight[0]:.2f} and {flight[1]:.2f} requests in flight, a closed loop",
        (
            f"Little: 142/s x 86.3 ms = {flight[0]:.2f}; 238/s x 52.7 ms = {flight[1]:.2f}",
            f"throughput x{gain:.2f} is latency x{faster:.2f} seen from the other side",
        ),
        (
            Check("the number in flight did not change", near(flight[0], flight[1], 0.03)),
            Check("the two gains are one", near(gain, faster, 0.03)),
        ),
    )


ENTRIES = (
    Entry("E17", "a window's trade-off", "15 ms and 8 give 1420 a second, 50 ms and 32 give 2870: the window trades latency "
          "for throughput.", "sits.predict.window.predict_window", _e17),
    Entry("E18", "windows and bursts", "When the rate jumps, multiply the window by 1.5; when it falls, by 0.7.",
          "sits.predict.window.predict_window", _e18),
    Entry("E19", "adding percentiles", "P95 of 8.2, 12.7 and 31.4 ms per layer decompose the P95 of the request.",
          "a sample of the house's dice", _e19),
    Entry("E20", "P99 in a span", "The latency field of a span is the end-to-end P99.", "arithmetic", _e20),
    Entry("E21", "two benefits of NUMA binding", "86.3 to 52.7 ms, and besides 142 to 238 requests a second.", "arithmetic", _e21),
)  # fmt: skip
