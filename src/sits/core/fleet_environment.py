"""Environments of a `fleet.yaml`: what `telemetry.environment` stands for.

```yaml
telemetry: {environment: preprod}                       # a profile
telemetry: {environment: preprod, sampling: 25%}        # a profile, but for one value
telemetry: {environment: load-test, sampling: 1%, traces_kept: 1d, metrics_kept: 7d, alert_within: 10min}
```

| profile   | rows of single requests | kept for | figures per minute kept for | somebody is told within |
|-----------|-------------------------|----------|-----------------------------|-------------------------|
| `prod`    | 100 %                   | 30 d     | 90 d                        | 45 s                    |
| `preprod` | 10 %                    | 7 d      | 7 d                         | 5 min                   |

Rules: what the file says itself goes before the profile; an environment of another name has no profile and says all of it, so that
`preprd` is an error and not a second production.  At any share all that went wrong and all that was slow is kept (`policy.sample`).

Deliberately absent: what the values do; retention is the store's, the rules of alerts are `app.alerts`.
"""

import re
from collections.abc import Collection

import msgspec

from sits.core.fleet_telemetry import Telemetry
from sits.core.problems import Report, join, near
from sits.core.units import SECOND, Ns, Share

HOUR, DAY = 3600 * SECOND, 86_400 * SECOND
NAME_MAX = 63
_TRACE = re.compile("[0-9a-f]{32}")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What holds in an environment.

    Attributes:
        name: as the file says it.
        sampling: share of the rows of ordinary requests that are kept, 0..1.
        traces_kept: how long rows of single requests stay in the store, ns.
        metrics_kept: how long the figures per minute stay, ns.
        alert_within: how long after the first bad request somebody is to be told, ns.

    """

    name: str
    sampling: Share
    traces_kept: Ns
    metrics_kept: Ns
    alert_within: Ns


PROFILES = {
    "prod": Profile(
        name="prod",
        sampling=Share(1.0),
        traces_kept=Ns(30 * DAY),
        metrics_kept=Ns(90 * DAY),
        alert_within=Ns(45 * SECOND),
    ),
    "preprod": Profile(
        name="preprod",
        sampling=Share(0.1),
        traces_kept=Ns(7 * DAY),
        metrics_kept=Ns(7 * DAY),
        alert_within=Ns(300 * SECOND),
    ),
}

VALUES = ("sampling", "traces_kept", "metrics_kept", "alert_within")
"""What a file may say itself, and an environment without a profile must."""

LEAST: dict[str, int] = {"traces_kept": HOUR, "metrics_kept": HOUR, "alert_within": 15 * SECOND}
"""The store forgets by the hour.  An alert needs two scrapes a few seconds apart, an evaluation, and a message."""


def profile_of(telemetry: Telemetry) -> Profile:
    """What holds, once the file was checked."""
    base = PROFILES.get(telemetry.environment, PROFILES["prod"])
    said = {name: getattr(telemetry, name) for name in VALUES if getattr(telemetry, name) is not None}
    return msgspec.structs.replace(base, name=telemetry.environment, **said)


def check_environment(telemetry: Telemetry, engines: Collection[str], path: str, report: Report) -> None:
    """Report an environment that has no profile and does not say everything, values that cannot be, and pins of what is not there."""
    name, at = telemetry.environment, join(path, "environment")
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum() or len(name) > NAME_MAX:
        hint = f"letters, digits, - and _, at most {NAME_MAX}"
        report.add(at, f"{name[:NAME_MAX]!r} cannot be an environment", value=name, hint=hint)
    elif name not in PROFILES:
        lacking = [value for value in VALUES if getattr(telemetry, value) is None]
        if lacking:
            hint = f"{near(name, PROFILES)}; one of your own also says {', '.join(lacking)}"
            report.add(at, f"there is no profile {name!r}", value=name, hint=hint)
    for value, least in LEAST.items():
        said = getattr(telemetry, value)
        if said is not None and said < least:
            inner, hint = join(path, value), f"at least {least // SECOND} s"
            report.add(inner, f"{said / SECOND:g} s is too short", value=said, hint=hint)
    for i, engine in enumerate(telemetry.pinned.engines):
        if engine not in engines:
            inner = f"{join(path, 'pinned.engines')}[{i}]"
            report.add(inner, f"there is no engine {engine!r}", value=engine, hint=near(engine, engines))
    for i, trace in enumerate(telemetry.pinned.traces):
        if not _TRACE.fullmatch(trace):
            inner = f"{join(path, 'pinned.traces')}[{i}]"
            report.add(inner, f"{trace[:40]!r} is no trace id", value=trace, hint="32 hex digits, lower case")


def values(profile: Profile) -> dict[str, str]:
    """The values as a file would say them, with their units.

    >>> values(PROFILES["preprod"])["sampling"], values(PROFILES["preprod"])["traces_kept"]
    ('10%', '7d')
    """
    share = f"{profile.sampling * 100:.12g}%"
    times = {name: _time(getattr(profile, name)) for name in VALUES[1:]}
    return {"name": profile.name, "sampling": share, **times}


def _time(ns: int) -> str:
    for unit, size in (("d", DAY), ("h", HOUR), ("min", 60 * SECOND), ("s", SECOND)):
        if ns % size == 0:
            return f"{ns // size}{unit}"
    return f"{ns / SECOND:g}s"
