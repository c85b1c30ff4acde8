"""The board of a shift: what a page shows, as data, and the page itself.

`state_of` makes plain data of a fleet and the book in its store: words and figures are ready to be shown, so that the page, the
command `sitsctl shift status` and whoever reads the JSON say the same.  `page` is one HTML document without anything from elsewhere;
it asks for `shift.json` beside it each second.

Rules: every figure that is uncertain comes with its bounds; what was not seen is told as not seen, never as zero.
Deliberately absent: serving, and giving orders (the page says which command does).
"""

import datetime as dt
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from sits.app.shift.book import Book, overlaid, plan_name, read_book, share_now
from sits.core.fleet import Fleet
from sits.core.route_rules import arms_of
from sits.core.units import MS, SECOND, show_duration
from sits.policy.criteria import arm_label
from sits.policy.shift import Plan, State, decide, plan_of, share_of
from sits.policy.tally import Counts, Span, p99, share

EVENTS_SHOWN = 30

LABELS = {
    "p99": "P99 over the objective",
    "worse_errors": "fails more often than the others",
    "error_rate": "fails more often than allowed",
    "adapter_loads": "adapter loads fail",
}
WHYS = {
    "sound": "nothing speaks against it",
    "time": "the step has to last longer",
    "requests": "the arm needs more requests before the next step",
    "suspicious": "evidence is past half its bar, so no step is taken",
    "others_slow": "the other arms miss the objective too, so this arm is not blamed",
    "all_steps": "all steps were taken",
    "order": "somebody ordered it",
}
STATUS = {
    "none": "no shift",
    "running": "running",
    "complete": "complete",
    "halted": "halted",
    "rolled_back": "rolled back",
    "superseded": "ended: the file has another plan",
}


def state_of(fleet: Fleet, book: Book | None, now_wall_ns: int = 0) -> dict[str, Any]:
    """What there is to show of a fleet's shift."""
    plan, shift = plan_of(fleet), fleet.shift
    mine = book is not None and plan is not None and book.plan == plan_name(fleet)
    status = book.state.status if book is not None and mine else "none"
    found: dict[str, Any] = {
        "fleet": fleet.name,
        "status": status,
        "status_text": STATUS[status],
        "now_ms": now_wall_ns // MS,
        "arm": "",
        "headline": "No shift is planned: the file has no section 'shift'.",
        "detail": "",
        "arms": [],
        "steps": [],
        "tests": [],
        "curve": {"names": [], "points": []},
        "history": _history(book) if book is not None else [],
    }
    if shift is None:
        return found
    of = shift.route or shift.model or "all models"
    found |= {"arm": shift.arm, "of": of}
    if plan is None:
        return found | {"headline": f"{of}: {shift.arm} has the last step's share already."}
    state = book.state if book is not None and mine else State()
    started = book is not None and mine
    found |= {
        "objective_ms": plan.objective_ns / MS,
        "metric": plan.metric.upper().replace("E2E", "end to end"),
        "headline": _headline(plan, state, of, status),
        "detail": _detail(plan, state, status),
        "arms": _arms(fleet, plan, state, book if mine else None),
        "steps": _steps(plan, state, started=started),
        "tests": _tests(plan, state),
    }
    if book is not None and mine:
        found["seen_ms"] = book.seen_wall_ns // MS
        found["watched_s"] = book.watched_ns / SECOND
        found["curve"] = {"names": list(plan.tests), "bar": plan.bar, "points": book.curve}
    return found


def state(fleet: Fleet, now_wall_ns: int) -> dict[str, Any]:
    """The same, of the book in the fleet's store."""
    return state_of(fleet, read_book(Path(fleet.gateway.store)), now_wall_ns)


def board_json(fleet: Fleet, book: Book | None, now_wall_ns: int) -> bytes:
    """What there is to show, as the page asks for it."""
    return json.dumps(state_of(fleet, book, now_wall_ns), allow_nan=False).encode()


def page(told: dict[str, Any] | None = None) -> bytes:
    """The page; with `told`, of that state for good."""
    text = _template()
    if told is not None:
        # `<` is escaped, so that no name of an arm can end the element it stands in
        inside = json.dumps(told, allow_nan=False).replace("<", "\\u003c")
        text = text.replace("<!--state-->", f'<script type="application/json" id="state">{inside}</script>')
    return text.encode()


@cache
def _template() -> str:
    return resources.files("sits.app.shift").joinpath("board.html").read_text("utf-8")


def _headline(plan: Plan, state: State, of: str, status: str) -> str:
    share_text = _percent(share_now(plan, state))
    arm = plan.shift.arm
    return {
        "none": f"{of}: a shift to {arm} is planned and not started.",
        "running": f"{of}: {arm} has {share_text} of the units, step {state.step + 1} of {len(plan.steps)}.",
        "complete": f"{of}: {arm} has {share_text} of the units; the shift is complete.",
        "halted": f"{of}: halted; {arm} keeps {share_text} of the units.",
        "rolled_back": f"{of}: {arm} was taken back; nobody is sent to it any more.",
        "superseded": f"{of}: the file has another plan than the shift that ran.",
    }[status]


def _detail(plan: Plan, state: State, status: str) -> str:
    if status == "none":
        steps = ", ".join(_percent(step) for step in plan.steps)
        return f"Steps {steps}; each lasts {_lasting(plan.shift.hold)} and {plan.shift.min_requests} requests at least."
    why = LABELS.get(state.why) or WHYS.get(state.why, state.why)
    return f"Because: {why}." if status != "running" else f"Now: {why or 'nothing seen yet'}."


def _lasting(ns: int) -> str:
    """A length that somebody has set: `10 min`, `90 s`."""
    minutes, rest = divmod(ns, 60 * SECOND)
    return f"{minutes} min" if minutes and not rest else show_duration(ns)


def _arms(fleet: Fleet, plan: Plan, state: State, book: Book | None) -> list[dict[str, Any]]:
    shift = plan.shift
    now, base = arms_of(overlaid(fleet, book), shift), arms_of(fleet, shift)
    target = plan.steps[-1]
    found = []
    for arm in base:
        label = arm_label(shift.route, arm.name)
        counts = state.counts.get(label, Counts())
        alpha = shift.halt.alpha
        rest = share_of([one for one in base if one.name != shift.arm], arm.name)
        mine = arm.name == shift.arm
        part = share_of(now, arm.name)
        found.append(
            {
                "name": arm.name,
                "shifted": mine,
                "share": part,
                "share_text": _percent(part),
                "target_text": _percent(target if mine else rest * (1.0 - target)),
                "requests": counts.requests,
                "p99": _latency(p99(counts, alpha), counts.timed),
                "errors": _share(
                    share(counts.errors, counts.requests, alpha), counts.errors, counts.requests
                ),
                "loads": _loads(counts, alpha),
            }
        )
    return found


def _steps(plan: Plan, state: State, *, started: bool) -> list[dict[str, Any]]:
    requests = state.counts.get(plan.arm, Counts()).requests
    found = []
    for i, part in enumerate(plan.steps):
        place = "next" if not started or i > state.step else "now" if i == state.step else "done"
        if state.status == "complete" and place == "now":
            place = "done"
        one: dict[str, Any] = {"share_text": _percent(part), "place": place}
        if place == "now":
            one |= {
                "held_s": state.held_ns / SECOND,
                "hold_s": plan.shift.hold / SECOND,
                "requests": requests,
                "min_requests": plan.shift.min_requests,
            }
        found.append(one)
    return found


def _tests(plan: Plan, state: State) -> list[dict[str, Any]]:
    decision = decide(plan, state)
    ours = state.counts.get(plan.arm, Counts())
    seen = {
        "p99": f"{ours.slow:,} of {ours.timed:,} took longer than {show_duration(plan.objective_ns)}; more than 1 % must not",
        "worse_errors": f"{ours.errors:,} of {ours.requests:,} failed; {_others(plan, state)}",
        "error_rate": f"{ours.errors:,} of {ours.requests:,} failed; {_percent(plan.shift.halt.error_rate)} may",
        "adapter_loads": f"{ours.loads_failed:,} of {ours.loads:,} loads failed; {_percent(1 - plan.shift.halt.adapter_load_success)} may",
    }
    found = []
    for name, nats in decision.reasons["evidence"].items():
        part = nats / plan.bar
        verdict = "proven" if part >= 1 else "suspicious" if part >= 0.5 else "nothing against it"
        verdict = (
            verdict if (ours.loads if name == "adapter_loads" else ours.requests) else "nothing seen yet"
        )
        found.append(
            {
                "name": name,
                "label": LABELS[name],
                "evidence": nats,
                "bar": plan.bar,
                "part": part,
                "verdict": verdict,
                "seen": seen[name],
                "text": f"{max(0.0, part):4.0%} of what halts ({verdict}): {seen[name]}",
            }
        )
    return found


def _others(plan: Plan, state: State) -> str:
    counts = [state.counts[name] for name in plan.others if name in state.counts]
    bad, n = sum(one.errors for one in counts), sum(one.requests for one in counts)
    return f"of the others {bad:,} of {n:,}" if n else "the others were asked nothing"


def _history(book: Book) -> list[dict[str, Any]]:
    return [
        {
            "wall_ms": event.wall_ns // MS,
            "when": _when(event.wall_ns),
            "what": event.what,
            "share_text": _percent(event.share),
            "why": LABELS.get(event.why) or WHYS.get(event.why, event.why),
        }
        for event in reversed(book.history[-EVENTS_SHOWN:])
    ]


def _when(wall_ns: int) -> str:
    return dt.datetime.fromtimestamp(wall_ns / SECOND, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _latency(span: Span, n: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "n": n,
        "value_ms": _ms(span.value),
        "low_ms": _ms(span.low),
        "high_ms": _ms(span.high),
    }
    if span.value is None or span.low is None:
        return found | {"text": "not seen yet"}
    high = "?" if span.high is None else f"{span.high / MS:,.0f}"
    return found | {"text": f"{span.value / MS:,.0f} ms ({span.low / MS:,.0f} to {high})"}


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / MS


def _share(span: Span, bad: int, n: int) -> dict[str, Any]:
    found: dict[str, Any] = {"bad": bad, "n": n, "value": span.value, "low": span.low, "high": span.high}
    if span.value is None or span.low is None or span.high is None:
        return found | {"text": "not seen yet"}
    return found | {"text": f"{_percent(span.value)} ({_percent(span.low)} to {_percent(span.high)})"}


def _loads(counts: Counts, alpha: float) -> dict[str, Any]:
    """Success of adapter loads, as a share of the loads."""
    good = counts.loads - counts.loads_failed
    found = _share(share(good, counts.loads, alpha), good, counts.loads)
    return found if counts.loads else found | {"text": "none"}


def _percent(part: float) -> str:
    """A share as people read it: more digits the nearer it is to nothing or to all.

    >>> _percent(0.25), _percent(0.0153), _percent(0.0005), _percent(0.9995), _percent(1.0), _percent(0.0)
    ('25 %', '1.5 %', '0.05 %', '99.95 %', '100 %', '0 %')
    """
    edge = min(part, 1.0 - part) * 100
    digits = 0 if part in (0.0, 1.0) or edge >= 9.95 else 1 if edge >= 0.995 else 2 if edge >= 0.00995 else 3
    return f"{part * 100:.{digits}f}".rstrip("0").rstrip(".") + " %" if digits else f"{part * 100:.0f} %"
