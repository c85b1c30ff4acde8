"""What a fleet promises, as service level indicators: what is bad, of how much, and how much of it there may be.

A P99 under 1.2 s is the promise that one answer in a hundred may take longer: a budget of 1 %.  The gateway judges each answer by the
objective of the configuration it serves and counts both (`sits_objective_requests_total`, `sits_objective_missed_total`), so the indicator
is exact whatever the buckets of the histograms, and stays so when the objective is changed while serving.  For availability the budget is
what `objective.availability` leaves; what counts against it is `sits_errors_total`.

Deliberately absent: rules and pictures made of them.
"""

import hashlib

import msgspec

from sits.core.fleet import Fleet
from sits.core.units import show_duration
from sits.policy.burn_rate import P99_BUDGET

TIMES = {"ttft": "time to first token", "e2e": "end-to-end time"}


class Indicator(msgspec.Struct, frozen=True, kw_only=True):
    """One promise.

    Attributes:
        name: the part of metric and alert names, like `objective`; `title` the same in `CamelCase`.
        bad, all: PromQL with `{window}` for the range: a rate each, 1/s.
        of: which of the recorded series are this fleet's.
        budget: allowed share of bad ones, 0..1.
        bad_words: what a bad one is.

    """

    name: str
    title: str
    bad: str
    all: str
    of: str
    budget: float
    bad_words: str

    def ratio(self, window: str) -> str:
        """The share of bad ones in a window; nothing when there were none at all."""
        return f"{self.bad} / ({self.all})".replace("{window}", window)

    def rule(self, window: str) -> str:
        """The name of the recording rule of that share."""
        return f"sits:{self.name}:ratio_rate{window}"

    def recorded(self, window: str) -> str:
        """What it recorded."""
        return f"{self.rule(window)}{self.of}"


def job_of(fleet: Fleet) -> str:
    """The `job` under which Prometheus scrapes the gateways of a fleet."""
    return f"sits-{fleet.name}"


def selector(fleet: Fleet, *more: str) -> str:
    """Of the metrics of this fleet.

    >>> from sits.core.fleet import OpenAIEngine
    >>> selector(Fleet(name="shop", engines=()), 'outcome="completed"')
    '{job="sits-shop",outcome="completed"}'
    """
    return "{" + ",".join([f"job={quoted(job_of(fleet))}", *more]) + "}"


def quoted(text: str) -> str:
    r"""A text as PromQL writes it, in which Grafana finds no variable of its own to fill in (`$name`, `[[name]]`).

    >>> print(quoted('a "shop" for $5'), quoted("[[x]]"))
    "a \"shop\" for \x245" "\x5b[x]]"
    """
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\x24").replace("[[", "\\x5b[")
    return f'"{plain}"'


def recorded(fleet: Fleet) -> str:
    """Of what rules record, what is this fleet's."""
    return f"{{fleet={quoted(fleet.name)}}}"


def slug(name: str) -> str:
    """A name as a part of a file's name and of a board's id; one that does not fit in, with its digest, so that two fleets have never one file.

    >>> slug("shop-1"), slug("my shop")
    ('shop-1', 'my-shop-21e02318')
    """
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)[:20]
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return plain if plain == name else f"{plain[:12]}-{digest}".lstrip("-")


def indicators(fleet: Fleet) -> tuple[Indicator, Indicator]:
    """The two promises of every fleet: its P99, and its availability."""
    s, done = selector(fleet), selector(fleet, 'outcome="completed"')
    objective = fleet.objective
    return (
        Indicator(
            name="objective",
            title="Latency",
            bad=f"sum(rate(sits_objective_missed_total{s}[{{window}}]))",
            all=f"sum(rate(sits_objective_requests_total{s}[{{window}}]))",
            of=recorded(fleet),
            budget=P99_BUDGET,
            bad_words=f"answers have a {TIMES[objective.metric]} over {show_duration(objective.p99)}",
        ),
        Indicator(
            name="availability",
            title="Availability",
            bad=f"sum(rate(sits_errors_total{s}[{{window}}]))",
            all=f"(sum(rate(sits_requests_total{done}[{{window}}])) or vector(0)) + sum(rate(sits_errors_total{s}[{{window}}]))",
            of=recorded(fleet),
            budget=round(1 - objective.availability, 9),
            bad_words="requests failed, or were refused for want of capacity",
        ),
    )
