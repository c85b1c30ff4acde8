"""The sections `quotas` and `ledger` of a `fleet.yaml`: who may use how much, and where that is counted.

```yaml
quotas:
  - {name: acme-day, match: {tenant: acme}, tokens: 2000000, per: 1d}
  - {name: acme-key-minute, parent: acme-day, each: [key], tokens: 60000, requests: 600, per: 1m}
ledger: {kind: embedded}
```
Rules: a request is charged to every quota whose `match` fits it (an empty field fits all), and all of them must have room.
`each` splits a quota into one balance for each value of the fields it names.  `parent` narrows: what the child leaves open in
`match` is the parent's, so whatever a child is charged, its parent is charged too.  Windows are aligned to the wall clock
in UTC: `1h` begins with the hour, `1d` at midnight, `total` never ends.

Deliberately absent: prices (a weight turns tokens into units of a quota, money is a report's business), and calendar months.
"""

from typing import Literal

from sits.core.errors import ConfigError
from sits.core.section import Section
from sits.core.units import SECOND, Ns, parse_duration

Field = Literal["tenant", "team", "key", "model"]
FIELDS: tuple[Field, ...] = ("tenant", "team", "key", "model")
"""What a quota can match and split by, in the order accounts are named."""

TOTAL = "total"
MILLI = 1000
"""Weights are kept as whole thousandths: what is counted stays exact."""


class QuotaMatch(Section, frozen=True, kw_only=True):
    """Whom a quota counts; an empty field counts everybody.  `model` is the name the caller asks for."""

    tenant: str = ""
    team: str = ""
    key: str = ""
    model: str = ""


class QuotaWeights(Section, frozen=True, kw_only=True):
    """What one token counts; `cached` are the input tokens the engine had in its cache."""

    input: float = 1.0
    output: float = 1.0
    cached: float = 1.0


class Quota(Section, frozen=True, kw_only=True):
    """One limit: at most `tokens` and at most `requests` in each window of `per`; 0 = not limited."""

    name: str
    match: QuotaMatch = QuotaMatch()
    each: tuple[Field, ...] = ()
    parent: str = ""
    tokens: int = 0
    requests: int = 0
    per: str = "1m"
    weights: QuotaWeights = QuotaWeights()


Outage = Literal["refuse", "spend_lease", "open"]
"""What a gateway does while its ledger does not answer: refuse what its valid leases do not cover; also spend leases that
have run out, which others may have been given meanwhile; or let everything through and report it later, as debt."""


class EmbeddedLedger(Section, tag_field="kind", tag="embedded", frozen=True, kw_only=True):
    """One gateway counts for itself, in a write-ahead file in `dir` (empty: `ledger` inside the gateway's store).

    `sync`: a grant is on the disk before it is used, so it survives a power cut; without, it survives only `kill -9`.
    `lease` is how long a silent worker keeps what it was lent, `report` how often workers report, `wait` how long a request
    waits for a lease.
    """

    dir: str = ""
    sync: bool = True
    lease: Ns = Ns(10 * SECOND)
    report: Ns = Ns(SECOND // 10)
    wait: Ns = Ns(SECOND // 4)
    on_outage: Outage = "refuse"


class RedisLedger(Section, tag_field="kind", tag="redis", frozen=True, kw_only=True):
    """Many gateways count together in one Redis or Valkey at `url`; `password_env` names the variable with its password.

    Keys begin with `prefix`.  Exactness is Redis's own: what it forgets (a failover, a power cut without
    `appendfsync always`) is granted again.
    """

    url: str
    password_env: str = ""
    prefix: str = "sits"
    lease: Ns = Ns(10 * SECOND)
    report: Ns = Ns(SECOND // 10)
    wait: Ns = Ns(SECOND // 4)
    on_outage: Outage = "refuse"


Ledger = EmbeddedLedger | RedisLedger


def period_ns(text: str) -> int:
    """Nanoseconds of a window; 0 for `total`.

    >>> period_ns("1m"), period_ns("total")
    (60000000000, 0)

    Raises:
        ConfigError: not a duration of whole seconds.

    """
    if text == TOTAL:
        return 0
    period = parse_duration(text)
    if period < SECOND or period % SECOND:
        raise ConfigError(f"{text!r} is not whole seconds", value=text, hint="like 1m, 1h, 1d, 30d, or total")
    return period


def milli(weight: float) -> int:
    """A weight in whole thousandths.

    >>> milli(0.1)
    100
    """
    return round(weight * MILLI)


def inherited(quota: Quota, by_name: dict[str, Quota]) -> QuotaMatch:
    """The match of `quota`, what it leaves open taken from its parents."""
    found, seen = quota.match, {quota.name}
    while quota.parent in by_name and quota.parent not in seen:
        quota = by_name[quota.parent]
        seen.add(quota.name)
        found = QuotaMatch(
            **{name: getattr(found, name) or getattr(quota.match, name) for name in found.__struct_fields__}
        )
    return found
