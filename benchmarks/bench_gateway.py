"""What a gateway costs, ours and the field's, in one run on one pinned core.

    python benchmarks/bench_gateway.py [--only sits,nginx] [--seconds 3] [--repeats 3] [--phases sat,credit] [--json FILE]

The gateway has one core, the load generator (which is the engine, too) another.  The figure is the gateway's CPU time
(`/proc/PID/task/*/schedstat`, all its processes) over a window divided by what was served in it: it depends little on
how busy the rest of the machine is, and hardly on the load generator.  Every gateway is started new for every
repeat, in reversed order every other time; figures are medians with their range.
"""

import argparse
import json
import sys
from pathlib import Path

from gateway.load import Load
from gateway.measure import PHASES, QUICK, measure
from gateway.peers import BY_NAME, CACHE, PEERS, install
from gateway.table import quick_table


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="gateways, by name: " + ", ".join(BY_NAME))
    parser.add_argument("--phases", help="phases, by name: " + ", ".join(PHASES))
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measured window")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hostile", type=int, default=50_000, help="requests of the hostile phase")
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--dir", type=Path, default=CACHE, help="where peers and the load generator are kept")
    args = parser.parse_args()
    peers = [BY_NAME[name] for name in args.only.split(",")] if args.only else list(PEERS)
    phases = tuple(args.phases.split(",")) if args.phases else QUICK
    homes = {peer.name: install(peer, args.dir) for peer in peers}
    rows = []
    with Load(args.dir) as load:
        for repeat in range(args.repeats):
            for peer in peers if repeat % 2 == 0 else reversed(peers):
                rows.append(measure(peer, homes[peer.name], load, phases, args.seconds, hostile=args.hostile))
                rows[-1]["repeat"] = repeat
    print(quick_table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
