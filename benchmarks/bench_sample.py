"""What thinning costs a row: packed rows of a busy gateway, at 100 % and at 10 %, beside making columns of them.

Minima over rounds on one core; every figure is us a row of those that came.
"""

import sys
import time

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, SENT
from sits.core.timeline import Timeline
from sits.core.units import MS
from sits.policy.sample import Keep, Sampler
from sits.telemetry.packing import pack
from sits.telemetry.recorder import row_of
from sits.telemetry.rows import request_columns
from sits.telemetry.thinning import Thinning
from sits.world import RealWorld

ROWS, CHUNK, ROUNDS = 40_000, 160, 7


def packed(world):
    """Two seconds of a gateway at 20,000 requests a second, as its workers send them."""
    rng, rows = world.rng("bench"), []
    for _ in range(ROWS):
        timeline = Timeline()
        ttft_ns = int(rng.lognormal(19, 0.4))
        for point, ns in ((API_RECV, 1), (FIRST_TOKEN, ttft_ns), (SENT, ttft_ns + 300 * MS)):
            timeline.mark(point, ns)
        labels = dict.fromkeys(
            ("adapter", "arm", "detail", "prompt_hash", "abstraction_layer", "trace_id", "parent_id"), ""
        )
        numbers = dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens", "preemptions"), 100)
        rows.append(row_of(timeline, id=rng.bytes(16).hex(), tenant="t", model=f"m{rng.integers(4)}", engine=f"e{rng.integers(4)}", outcome="completed", status=200, **labels, **numbers))  # fmt: skip
    return [("run", pack(rows[i : i + CHUNK])) for i in range(0, ROWS, CHUNK)]


def least_us(act):
    """The fastest round, us a row."""
    took = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        act()
        took.append(time.perf_counter_ns() - start)
    return min(took) / ROWS / 1e3


def main():
    """Print the figures; 1 when deciding costs more than four tenths of making the columns (a ratio within one run)."""
    world = RealWorld(0)
    batches = packed(world)
    plain = least_us(lambda: request_columns(batches, world))
    thinning = Thinning(Sampler(Keep(share=0.1)), world)
    parts = [part for _, part in batches]
    deciding = least_us(lambda: thinning.sampler.decide(thinning._batch(parts), world.now_ns()))
    tenth = least_us(lambda: thinning.requests(batches))
    kept = sum(thinning.kept) / (sum(thinning.kept) + thinning.thinned)
    print(f"columns of all rows                 {plain:.2f} us a row")
    print(f"deciding which rows are kept        {deciding:.2f} us a row")
    print(f"deciding, thinning to {kept:.1%}, columns  {tenth:.2f} us a row")
    return int(deciding > 0.4 * plain)


if __name__ == "__main__":
    sys.exit(main())
