"""What a gateway costs, ours and the field's, in one run on one pinned core.

    python benchmarks/bench_gateway.py                       ours, the quick phases
    python benchmarks/bench_gateway.py --all --full          the field, every phase, and what each does when things go wrong
    python benchmarks/bench_gateway.py --only sits,nginx --phases sat,credit --seconds 2 --repeats 1

The gateway has one core, the load generator (which is the engine, too) another.  The figure is the gateway's CPU time
(`/proc/PID/task/*/schedstat`, all its processes) over a window divided by what was served in it: it depends little on
how busy the rest of the machine is, and hardly on the load generator.  Every gateway is started new for every
repeat, in reversed order every other time; figures are medians with their range.  Ours is first shown to have its
features on: each is made to act.
"""

import argparse
import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

from gateway.behave import CASES, behave
from gateway.figures import OURS
from gateway.load import Load
from gateway.measure import PHASES, QUICK, measure
from gateway.peers import BY_NAME, CACHE, PEERS, Peer, install, version
from gateway.proof import prove
from gateway.table import load_run, machine, page, terminal, write_page


def main() -> int:
    """Measure and print."""
    args = _arguments()
    run = load_run(args.render) if args.render else _run(args)
    print(terminal(run["rows"]))
    for name, failure in run["failures"]:
        print(f"failed: {name}: {failure}")
    if off := [name for name, acted in run["proof"].items() if not acted]:
        print("did not act in ours: " + ", ".join(off))
    if args.page:
        write_page(args.page, page(run, {case.name: case.what for case in CASES}))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="sits,sits-source", help="gateways, by name: " + ", ".join(BY_NAME))
    parser.add_argument("--all", action="store_true", help="all of them; those absent are installed")
    parser.add_argument("--phases", default=",".join(QUICK), help="phases, by name: " + ", ".join(PHASES))
    parser.add_argument("--full", action="store_true", help="all phases, and the behaviours")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measured window")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hostile", type=int, default=50_000, help="requests of the hostile phase")
    parser.add_argument("--hostile-first", type=int, default=0, help="as many for ours in the first repeat")
    parser.add_argument("--json", type=Path, help="where the run goes")
    parser.add_argument("--page", type=Path, help="write the generated part of this page")
    parser.add_argument("--render", type=Path, help="print a run that was kept by --json, measure nothing")
    parser.add_argument("--dir", type=Path, default=CACHE, help="where peers and the load generator are kept")
    return parser.parse_args()


def _run(args: argparse.Namespace) -> dict:
    peers = list(PEERS) if args.all else [BY_NAME[name] for name in args.only.split(",")]
    phases = PHASES if args.full else tuple(args.phases.split(","))
    homes = {peer.name: install(peer, args.dir) for peer in peers}
    run: dict = {
        "taken": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine(),
        "seconds": args.seconds,
        "versions": {peer.name: version(peer) for peer in peers},
        "rows": [],
        "failures": [],
        "proof": prove(peers[0], homes[peers[0].name]) if peers[0].name == OURS else {},
        "behaviours": {},
    }
    _costs(args, run, peers, homes, phases)
    if args.full:
        for peer in [peer for peer in peers if not peer.variant]:
            run["behaviours"][peer.name] = behave(peer, homes[peer.name], {case.name for case in CASES})
            _keep(args, run)
    return run


def _costs(
    args: argparse.Namespace, run: dict, peers: list[Peer], homes: dict[str, Path], phases: tuple[str, ...]
) -> None:
    for repeat in range(args.repeats):
        for peer in peers if repeat % 2 == 0 else reversed(peers):
            first = repeat == 0 and peer.name == OURS
            hostile = (first and args.hostile_first) or args.hostile
            try:
                with Load(args.dir) as load:
                    row = measure(peer, homes[peer.name], load, phases, args.seconds, hostile=hostile)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                run["failures"].append((peer.name, str(error)))
                continue
            run["rows"].append({**row, "repeat": repeat})
            _keep(args, run)


def _keep(args: argparse.Namespace, run: dict) -> None:
    if args.json:
        args.json.write_text(json.dumps(run, indent=1))


if __name__ == "__main__":
    sys.exit(main())
