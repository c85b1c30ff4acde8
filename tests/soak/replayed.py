"""A million decisions of a real gateway, recorded, and made again: each must come out the same, bit for bit.

    replayed.py [--count 1000000]          ends with 1 when one is decided otherwise, or fewer were recorded

Good requests, streams and clients that mean harm take turns, so that the records have all ends a request can have.
"""

import argparse
import json
import subprocess
import sys
import urllib.request

from soaking import SITSCTL, WORLD, say, serving, since_s

TURNS = (
    ("sat", {"seconds": 20}),
    ("flood", {"seconds": 2, "chunks": 8}),
    ("hostile", {"count": 5000, "seconds": 600}),
)


def stored(port: int) -> int:
    """Requests of which a record is in the store: all that ended, without those that could not be kept."""
    ended = dropped = 0.0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        for line in page.read().decode().splitlines():
            name, _, value = line.rpartition(" ")
            ended += float(value) if name.startswith("sits_requests_total{") else 0.0
            dropped += float(value) if name.startswith("sits_rows_dropped_total") else 0.0
    return int(ended - dropped)


def main() -> int:
    """Soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    args = parser.parse_args()
    with serving(1) as (running, load):
        known = turn = 0
        while known < args.count:
            phase, values = TURNS[turn % len(TURNS)]
            turn += 1
            load.ask(phase, port=running.port, conns=32, **values)
            load.ask("wait", seconds=2)
            known = stored(running.port)
            say(f"{known:>9,} of {args.count:,} decisions recorded ({phase})")
        running.end()
        began_ns = WORLD.now_ns()
        line = [SITSCTL, "replay", "--since", "24h", "--store", str(running.scratch / "store"), "--json"]
        told = subprocess.run(line, stdout=subprocess.PIPE, check=False).stdout
        found = json.loads(told)
    say(
        f"{found['identical']:,} of {found['records']:,} decisions came out as they were, {found['unknown']} of an unknown configuration,"
        f" in {since_s(began_ns):.0f} s"
    )
    for name in found["different"]:
        say(f"decided otherwise: {name}")
    whole = found["identical"] == found["records"] >= args.count and not found["unknown"]
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
