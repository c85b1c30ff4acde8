"""Queues, P99 and knees: E11 to E16.

Deliberately absent: the predictors themselves (`sits.predict.queue`, `knee`, `burstiness`).
"""

import itertools
import math

from sits.app.seedcheck.entry import Check, Derived, Entry, near

POINTS = ((4.0, 124.0), (8.0, 286.0), (16.0, 753.0))
"""Queue depth and P99 in ms, as published."""


def _e11() -> Derived:
    from sits.predict.queue import predict_queue  # noqa: PLC0415
    from sits.predict.queue_reference import l99_reference_error, l99_reference_ns  # noqa: PLC0415
    from sits.predict.queue_service import gamma, two_kinds  # noqa: PLC0415

    kinds = two_kinds(20e6, 200e6, 0.1)
    errors = [l99_reference_error(rho / kinds.mean_ns * 1e9, kinds) for rho in (0.5, 0.8, 0.95)]
    plain = predict_queue(16.0, gamma(50e6, 1.0))
    formula, known = l99_reference_ns(16.0, 50e6, 1.0), math.log(100) / 4 * 1e9
    extra = formula - plain.mean_ns
    return Derived(
        f"M/M/1 at 0.8: {plain.p99_ns / 1e6:.0f} ms = ln(100) / (mu - lam); the formula says {formula / 1e6:.0f} ms",
        (
            "its second term is the mean wait; its first, 1 / (mu - lam), already contains one: counted twice, mean plus mean",
            f"formula minus mean sojourn = {extra / 1e6:.0f} ms = the mean wait, {plain.wait_mean_ns / 1e6:.0f} ms, once more",
            "error on services of 20 ms, one in ten of 200 ms, at 0.5, 0.8, 0.95 busy: "
            + ", ".join(f"{error:+.0%}" for error in errors),
        ),
        (
            Check("transform inversion gives the known P99 of M/M/1", near(plain.p99_ns, known, 1e-3)),
            Check("the excess over the mean is one mean wait", near(extra, plain.wait_mean_ns, 1e-3)),
            Check("the formula is 60 to 80 % too low", all(-0.8 < error < -0.6 for error in errors)),
        ),
    )


def _e12() -> Derived:
    from sits.predict.queue import predict_queue  # noqa: PLC0415
    from sits.predict.queue_service import gamma  # noqa: PLC0415

    waits = [predict_queue(rate, gamma(50e6, cv)).wait_mean_ns for cv in (1.2, 2.7) for rate in (8.0, 16.0)]
    grown = waits[3] / waits[1]
    return Derived(
        f"CV is a property of the requests; 1.2 -> 2.7 would multiply every wait by {grown:.1f}",
        (
            f"(1 + 2.7^2) / (1 + 1.2^2) = {(1 + 2.7**2) / (1 + 1.2**2):.2f}, the same at half and at 80 % load",
            "a service that slows down as the queue grows is a state-dependent server, not M/G/1",
        ),
        (
            Check("the predictor shows that factor", near(grown, (1 + 2.7**2) / (1 + 1.2**2), 0.01)),
            Check("at every load alike", near(waits[2] / waits[0], grown, 0.01)),
        ),
    )


def _e13() -> Derived:
    first, second = ((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(POINTS))
    mistake = (POINTS[2][1] - POINTS[1][1]) / 4
    return Derived(
        f"{first:.1f} and {second:.1f} ms for each place in the queue",
        (
            f"(286 - 124) / 4 = {first:.1f}; (753 - 286) / 8 = {second:.1f}; 467 / 4 = {mistake:.2f} is where 117 comes from",
        ),
        (
            Check("40 is right", near(first, 40, 0.02)),
            Check(
                "117 is not, it divides by the step before", not near(second, 117, 0.4) and near(mistake, 117)
            ),
        ),
    )


def _e14() -> Derived:
    import numpy as np  # noqa: PLC0415

    from sits.predict.knee import Point, find_knee  # noqa: PLC0415
    from sits.world import stream_generator  # noqa: PLC0415

    q, p = (np.array(column) for column in zip(*POINTS, strict=True))
    slopes = np.diff(np.log(p)) / np.diff(np.log(q))
    parabola = np.polyfit(q, p, 2)
    left = float(np.abs(np.polyval(parabola, q) - p).max())
    found = find_knee([Point(a, b * 1e6) for a, b in POINTS], stream_generator(0, "knee"))
    return Derived(
        f"refused: {found.refusal}",
        (
            f"log-log slopes {slopes[0]:.2f} and {slopes[1]:.2f}; a square has 2",
            (
                f"{parabola[0]:.2f} Q^2 + {parabola[1]:.1f} Q + {parabola[2]:.1f} passes through all three, as some parabola does "
                "through any three points: nothing is left to test it with"
            ),
        ),
        (
            Check("neither slope is near 2", bool((slopes < 1.5).all())),
            Check("a parabola fits exactly", left < 1e-6),
            Check("no knee is given for three loads", bool(found.refusal) and found.knee is None),
        ),
    )


def _e15() -> Derived:
    import numpy as np  # noqa: PLC0415

    from sits.bench.arrivals import OnOff  # noqa: PLC0415
    from sits.predict.burstiness import burstiness  # noqa: PLC0415
    from sits.world import stream_generator  # noqa: PLC0415

    rate = 16 / 0.753
    needed = 16_384 / 0.753
    seen = burstiness(np.cumsum(OnOff().gaps_s(stream_generator(1, "seedcheck"), 9_000)))
    return Derived(
        f"16 in the system at 0.753 s is {rate:.0f} requests a second; arrivals like Azure's code trace: {seen.verdict}",
        (
            f"Little: L = lam W; 16,384 at once with that latency would be {needed:,.0f} requests a second",
            f"traffic fitted to a published trace has CV {seen.cv:.1f} and IDC(60 s) {seen.idc_at(60.0):.0f}; Poisson has 1 and 1",
        ),
        (
            Check("16K at once and a queue of 16 are not the same queue", needed / rate == 1024),
            Check("the burstiness report refuses Poisson", not seen.poisson and seen.idc_at(60.0) > 20),
        ),
    )


def _e16() -> Derived:
    from sits.app.seedcheck.machines import llama_8b_step  # noqa: PLC0415
    from sits.predict.steptime import step_time_us  # noqa: PLC0415

    step = llama_8b_step()

    def took(n: int) -> float:
        return step_time_us(step, tokens=n, seqs_emitting=n, decode_kv=[2000] * n)

    power = [math.log2(took(2 * n) / took(n)) for n in (8, 32, 64)]
    attention = [took(n) - step_time_us(step, tokens=n, seqs_emitting=n) for n in (32, 64)]
    return Derived(
        f"affine: twice the sequences, 2^{power[0]:.2f} .. 2^{power[2]:.2f} the step time",
        (
            f"an 8B model on an A100, 2000 tokens each: {', '.join(f'{took(n) / 1e3:.1f} ms at {n}' for n in (8, 32, 64, 128))}",
            f"attention alone, 32 -> 64 sequences: {attention[1] / attention[0]:.2f} times",
        ),
        (
            Check("no doubling costs more than double", max(power) < 1.0),
            Check("attention is linear in the tokens it reads", 1.8 < attention[1] / attention[0] < 2.05),
        ),
    )


ENTRIES = (
    Entry("E11", "P99 of a queue", "L99 = 1/(mu - lam) + (C^2 + 1)/2 * lam/(mu (mu - lam)) is the P99 of an M/G/1 queue.",
          "sits.predict.queue.predict_queue, sits.predict.queue_reference", _e11),
    Entry("E12", "variability and depth", "Beyond a queue depth of 8 the service CV jumps from 1.2 to 2.7.",
          "sits.predict.queue.predict_queue", _e12),
    Entry("E13", "growth per place", "P99 grows by 18, 40 and 117 ms for each further place in the queue.", "arithmetic", _e13),
    Entry("E14", "the knee at 8", "P99 is quadratic in the queue depth beyond 8, so 8 is the knee.",
          "sits.predict.knee.find_knee", _e14),
    Entry("E15", "concurrency and Poisson", "16K concurrent requests with depths up to 16; arrivals are Poisson.",
          "sits.predict.burstiness.burstiness", _e15),
    Entry("E16", "contention of the GPU", "Contention of the multiprocessors grows with the square of the batch.",
          "sits.predict.steptime.step_time_us", _e16),
)  # fmt: skip
