"""One request explained: its record decided again, with the reasons, and its time cut into stages.

Rules: reasons are made now, by the configuration that decided then (the store keeps it); when the decisions come out
otherwise, that is said first, because then the reasons are not those of the past.  Without that configuration only the
recorded facts are shown.  What callers wrote is shown without what looks like a key, in JSON too.

Deliberately absent: rendering.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sits.core.breakpoints import NAMES
from sits.core.config import load_fleet
from sits.core.decision import Decision
from sits.core.errors import UnknownError
from sits.core.ports import World
from sits.core.recorded import Facts, Recorded, each_reserved, facts, recorded
from sits.core.units import MS
from sits.gateway.redecide import Redecider, as_recorded
from sits.telemetry.secrets import text_without_secrets
from sits.telemetry.store import DuckStore


class StageTime(msgspec.Struct, frozen=True):
    """From one seen point to the next, ms."""

    name: str
    ms: float


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a request.  `identical` is None when it could not be decided again."""

    id: str
    outcome: str
    status: int
    detail: str
    facts: tuple[tuple[str, str], ...]
    decisions: tuple[Decision, ...]
    stages: tuple[StageTime, ...]
    identical: bool | None
    verdict: str


def explain(store: Path, request_id: str, world: World) -> Card:
    """Explain a request of a store.

    Raises:
        UnknownError: nothing was recorded under this id.

    """
    with DuckStore(store, world=world) as opened:
        rows = opened.scan("decision", id=request_id)
        if not rows:
            raise UnknownError(
                f"no decision of {request_id[:64]!r} in {store}",
                field="id",
                value=request_id,
                hint="answers carry theirs as x-sits-decision-id; records reach the store within a second",
            )
        record = recorded(rows[-1]["record"])
        versions = {step.facts for step in record.routed}
        found = [facts(row["record"]) for v in versions for row in opened.scan("facts_of", version=v)]
        requests = opened.scan("request", id=request_id)
    known = {one.version: one for one in found}
    path = store / f"fleet-{record.generation}.yaml"
    decisions, identical, verdict = _again(path, record, known, world)
    return Card(
        id=record.id,
        outcome=record.outcome,
        status=record.status,
        detail=text_without_secrets(record.detail),
        facts=_facts(record),
        decisions=decisions,
        stages=_stages(requests[-1]) if requests else (),
        identical=identical,
        verdict=verdict,
    )


def _again(
    path: Path, record: Recorded, known: Mapping[int, Facts], world: World
) -> tuple[tuple[Decision, ...], bool | None, str]:
    if not path.is_file():
        return (), None, f"its configuration {record.generation} is not in the store: not decided again"
    told = Redecider(load_fleet(path.read_text(), str(path)), world).explain(record, known)
    same = told.verdict == as_recorded(record)
    text = "decided again: the same" if same else "decided again: NOT the same; the reasons above are today's"
    return told.decisions, same, f"{text} (configuration {record.generation})"


def _facts(record: Recorded) -> tuple[tuple[str, str], ...]:
    """What the record tells, where it tells something."""
    caller = "/".join(part for part in (record.tenant, record.team, record.key_id) if part)
    told = (
        ("caller", f"{caller} ({record.kind})" if record.kind else caller),
        ("asked", f"{record.asked} at {record.endpoint}"),
        ("unit", record.user or record.session),
        ("tokens", f"{record.prompt_tokens} prompt, {record.need_tokens} counted with"),
        ("route", record.route),
        ("arm", record.arm + (f" after {record.fallen} fallbacks" if record.fallen else "")),
        ("cache", record.cache),
        *(
            ("quota", f"{cost} of {name} reserved, {left} left")
            for name, _, cost, left in each_reserved(record.reserved)
        ),
        ("configuration", record.generation),
    )
    return tuple((name, text_without_secrets(value)) for name, value in told if value)


def _stages(row: Mapping[str, Any]) -> tuple[StageTime, ...]:
    seen = [(name, int(row[name])) for i, name in enumerate(NAMES) if row["exactness"][i] != "0"]
    return tuple(
        StageTime(f"{a} to {b}", (end - start) / MS) for (a, start), (b, end) in itertools.pairwise(seen)
    )
