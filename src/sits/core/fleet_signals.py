"""Section `telemetry.signals` of a `fleet.yaml`: what the gateway looks at besides its engines' metrics pages.

```yaml
telemetry:
  signals:
    every: 5s        # how often GPUs and the machine are looked at
    gpu: auto        # NVML's GPUs of this machine, where there are any; off
    host: auto       # processors, memory, pressure of this machine; off
    tcp: auto        # the kernel's view of the connections to engines, once a second; off
    exporters: {rack7: "http://gpu7:9400/metrics"}   # dcgm-exporters of other machines, by a name of yours
    retransmits: off # every segment sent again, counted in the kernel by eBPF; auto, where the process may (it takes privileges)
```
Rules: `auto` is where the machine can: one without a GPU, a driver or a `/proc` tells nothing, and nothing else happens.

Deliberately absent: what becomes of the values (table `signals`, like all others).
"""

import re
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from sits.core.problems import Report, join
from sits.core.section import Section
from sits.core.units import SECOND, Ns

When = Literal["auto", "off"]
EVERY_MIN_NS, EVERY_MAX_NS = SECOND, 3600 * SECOND
EXPORTERS_MAX = 64

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Signals(Section, frozen=True, kw_only=True):
    """What is looked at beside the engines' pages, and how often (`every`, 1 s to 1 h; `tcp` is always once a second)."""

    every: Ns = Ns(5 * SECOND)
    gpu: When = "auto"
    host: When = "auto"
    tcp: When = "auto"
    retransmits: When = "off"
    exporters: dict[str, str] = msgspec.field(default_factory=dict)


def check_signals(signals: Signals, path: str, report: Report) -> None:
    """Report a period that cannot be."""
    if not EVERY_MIN_NS <= signals.every <= EVERY_MAX_NS:
        said = f"{signals.every / SECOND:g} s is no period to look at GPUs and the machine in"
        report.add(join(path, "every"), said, value=signals.every, hint="1s to 1h")
    for name, url in signals.exporters.items():
        place = f"{path}.exporters.{name}"
        if not _NAME.fullmatch(name):
            report.add(
                place, f"{name!r} is no name", value=name, hint="letters, digits, . _ - and no more than 64"
            )
        if not _is_page(url):
            report.add(place, f"{url!r} is no page", value=url, hint="like http://gpu7:9400/metrics")
    if len(signals.exporters) > EXPORTERS_MAX:
        hint = f"{EXPORTERS_MAX} at most; a Prometheus takes more"
        report.add(join(path, "exporters"), "too many exporters", value=len(signals.exporters), hint=hint)


def _is_page(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
