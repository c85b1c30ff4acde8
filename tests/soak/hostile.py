"""Clients that mean harm, a million of them: random models, paths, keys and bytes, half heads and bodies, leaving at every point, never
reading.  A gateway must answer the good ones among them, and its memory must stay where it was after the first quarter.

    hostile.py [--count 1000000] [--workers 1]         ends with 1 when a process drifts by more than 5 %
"""

import argparse
import statistics
import sys
from pathlib import Path

from soaking import CHAT, WORLD, say, serving, since_s

SLICES, WARM, LAST = 20, slice(5, 10), slice(-5, None)
"""Memory is looked at after each twentieth: the median of the last five (one of each path), against that of five after the first quarter."""
DRIFT_MAX = 0.05
NEVER_READ = 99
"""The load's word for clients that never read, beside good ones."""
PATHS = (CHAT, CHAT, CHAT, "/v1/completions", "/v1/messages")
"""One a slice; good requests are only good for the first."""


def names(pids: object) -> dict[int, str]:
    """What each process is: the supervisor is the first, then its children in the order they were started."""
    return {pid: Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()[-60:] for pid in pids}


def main() -> int:
    """Soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    failed = good = served = 0
    seen: list[dict[int, float]] = []
    with serving(args.workers) as (running, load):
        # What is bounded is filled to its bound first: here the buffers of streams that nobody reads.
        load.ask("hostile", port=running.port, kind=NEVER_READ, count=6400, seconds=600, conns=2)
        for part in range(SLICES):
            path, began_ns = PATHS[part % len(PATHS)], WORLD.now_ns()
            load.ask("set", path=path)
            got = load.ask("hostile", port=running.port, count=args.count // SLICES, seconds=3600, conns=32)
            load.ask("wait", seconds=1)
            seen.append(rss := running.rss())
            served += got["served"]
            if path == CHAT:
                good, failed = good + got["good"], failed + got["good_failed"]
            per_s = got["served"] / since_s(began_ns)
            shown = " ".join(f"{pid}:{mb:.1f}" for pid, mb in rss.items())
            say(
                f"{served:>9,} of {args.count:,}  {per_s:,.0f}/s  {path:20}  statuses {got['statuses']} dropped {got['dropped']}  RSS MB {shown}"
            )
        what = names(rss)
    if any(rss.keys() != seen[0].keys() for rss in seen):
        say("a process ended and was started again")
        return 1
    drifts = [said(pid, [rss[pid] for rss in seen], what[pid]) for pid in what]
    say(f"{good:,} good requests, {failed} of them failed")
    return 0 if max(drifts) <= DRIFT_MAX and not failed else 1


def said(pid: int, mb: list[float], what: str) -> float:
    """Say how far a process' memory drifted; the share."""
    warm, end = statistics.median(mb[WARM]), statistics.median(mb[LAST])
    say(f"{pid} {what}: {warm:.1f} MB after warm-up, {end:.1f} MB at the end, {end / warm - 1:+.1%}")
    return end / warm - 1


if __name__ == "__main__":
    sys.exit(main())
