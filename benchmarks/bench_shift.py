"""How often a shift halts a sound arm although it is looked at all the time, and how soon it halts a bad one.

Traffic is drawn second by second (binomial), handed to `policy.shift` as batches and judged after each, as the keeper does.
Beside it the test most tools use, a z-test of the error rates at 1 %, is looked at as often.
"""

import argparse
import math
import random
import statistics
import time

from sits.core.fleet import Arm, Fleet, Objective, OpenAIEngine, Policies, Release
from sits.core.fleet_routes import Halt, Shift
from sits.core.units import SECOND
from sits.policy.shift import Plan, State, advanced, decide, observe, plan_of
from sits.policy.tally import Counts

RATE = 200
"""Requests a second of the whole service."""


def plan(alpha: float = 0.01, steps: tuple[float, ...] = (0.01, 0.05, 0.25, 1.0)) -> Plan:
    release = Release(arms=(Arm(name="stable", weight=1.0), Arm(name="canary", weight=0.0)))
    shift = Shift(arm="canary", steps=steps, hold=600 * SECOND, min_requests=500, halt=Halt(alpha=alpha))
    found = plan_of(
        Fleet(
            name="bench",
            objective=Objective(),
            policy=Policies(release=release),
            shift=shift,
            engines=(OpenAIEngine(name="e", url="http://h"),),
        )
    )
    assert found is not None
    return found


def binomial(dice: random.Random, n: int, p: float) -> int:
    """By gaps between successes: as many steps as successes."""
    if p <= 0 or not n:
        return 0
    found, at, log_q = 0, -1, math.log1p(-p)
    while True:
        at += 1 + int(math.log(1.0 - dice.random()) / log_q)
        if at >= n:
            return found
        found += 1


def batch(dice: random.Random, n: int, errors: float, slow: float, loads: float = 0.0) -> Counts:
    bad = binomial(dice, n, errors)
    tries = binomial(dice, n, 0.02)
    return Counts(
        requests=n,
        errors=bad,
        timed=n - bad,
        slow=binomial(dice, n - bad, slow),
        loads=tries,
        loads_failed=binomial(dice, tries, loads),
        buckets={},
    )


def run(
    dice: random.Random, the: Plan, ours: dict[str, float], theirs: dict[str, float], looks_s: int, limit: int
) -> tuple[str, str, int, int]:
    """`(outcome, why, seconds in the step, requests of the arm in it)` of one shift."""
    state = State()
    for _ in range(limit):
        n = RATE * looks_s
        canary = binomial(dice, n, the.steps[state.step]) if the.steps[state.step] < 1 else n
        seen = {"canary": batch(dice, canary, **ours), "stable": batch(dice, n - canary, **theirs)}
        state = observe(the, state, seen, looks_s * SECOND)
        verdict = decide(the, state)
        if verdict.outcome in ("halt", "complete"):
            counts = state.counts["canary"]
            return verdict.outcome, verdict.choice, state.held_ns // SECOND, counts.requests
        if verdict.outcome == "advance":
            state = advanced(state)
    return "unfinished", decide(the, state).choice, state.held_ns // SECOND, state.counts["canary"].requests


def fixed_look(dice: random.Random, errors: float, looks_s: int, seconds: int, share: float) -> bool:
    """Whether a z-test at 1 %, one-sided, that is looked at as often says "worse" of an arm that is not."""
    ours = theirs = ours_bad = theirs_bad = 0
    for _ in range(seconds // looks_s):
        n = binomial(dice, RATE * looks_s, share)
        m = RATE * looks_s - n
        ours, theirs = ours + n, theirs + m
        ours_bad += binomial(dice, n, errors)
        theirs_bad += binomial(dice, m, errors)
        pooled = (ours_bad + theirs_bad) / (ours + theirs)
        spread = math.sqrt(pooled * (1 - pooled) * (1 / max(1, ours) + 1 / max(1, theirs)))
        if ours_bad >= 5 and spread and (ours_bad / ours - theirs_bad / theirs) / spread > 2.326:
            return True
    return False


SOUND = {"errors": 0.005, "slow": 0.005, "loads": 0.0002}
CASES = {
    "sound": ({}, {}),
    "sound, P99 at the objective itself": ({"slow": 0.01}, {"slow": 0.01}),
    "incident hits both: errors x10, 5 % slow": ({"errors": 0.05, "slow": 0.05}, {"errors": 0.05, "slow": 0.05}),
    "errors x2": ({"errors": 0.01}, {}),
    "errors x5": ({"errors": 0.025}, {}),
    "2 % slower than the objective": ({"slow": 0.02}, {}),
    "5 % slower than the objective": ({"slow": 0.05}, {}),
    "1 % of adapter loads fail": ({"loads": 0.01}, {}),
}  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=100)
    arguments.add_argument("--looks", type=int, default=10, help="seconds between two looks")
    arguments.add_argument("--alpha", type=float, default=0.01)
    given = arguments.parse_args()
    the = plan(given.alpha)
    print(
        f"{RATE} requests/s, steps {[f'{s:.0%}' for s in the.steps]}, 10 min each, alpha {given.alpha:.0%}, a look every {given.looks} s"
    )
    for name, (ours, theirs) in CASES.items():
        dice = random.Random(name)
        begun = time.thread_time()
        done = [
            run(dice, the, SOUND | ours, SOUND | theirs, given.looks, 20_000 // given.looks)
            for _ in range(given.runs)
        ]
        halted = [one for one in done if one[0] == "halt"]
        whys = {why: sum(one[1] == why for one in done) for why in sorted({one[1] for one in done})}
        text = f"{name:42} halted {len(halted):4}/{len(done)}"
        if halted:
            delays, needs = sorted(one[2] for one in halted), sorted(one[3] for one in halted)
            text += f"  after {statistics.median(delays):5.0f} s (P90 {delays[int(len(delays) * 0.9)]:5.0f}), {statistics.median(needs):6.0f} of its requests"
        print(f"{text}  {whys}  [{(time.thread_time() - begun) / given.runs * 1e3:.0f} ms CPU a run]")
    dice = random.Random(1)
    wrong = sum(fixed_look(dice, 0.005, given.looks, 2400, 0.05) for _ in range(given.runs))
    print(
        f"{'a z-test at 1 %, looked at as often':42} halted {wrong:4}/{given.runs}  of sound arms, within 40 min at 5 %"
    )


if __name__ == "__main__":
    main()
