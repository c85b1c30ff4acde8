"""Section `telemetry.signals` of a `fleet.yaml`: what the gateway looks at besides its engines' metrics pages.

```yaml
telemetry:
  signals:
    every: 5s        # how often GPUs and the machine are looked at
    gpu: auto        # NVML's GPUs of this machine, where there are any; off
    host: auto       # processors, memory, pressure of this machine; off
    tcp: auto        # the kernel's view of the connections to engines, once a second; off
    retransmits: off # every segment sent again, counted in the kernel by eBPF; auto, where the process may (it takes privileges)
```
Rules: `auto` is where the machine can: one without a GPU, a driver or a `/proc` tells nothing, and nothing else happens.

Deliberately absent: what becomes of the values (table `signals`, like all others).
"""

from typing import Literal

from sits.core.problems import Report, join
from sits.core.section import Section
from sits.core.units import SECOND, Ns

When = Literal["auto", "off"]
EVERY_MIN_NS, EVERY_MAX_NS = SECOND, 3600 * SECOND


class Signals(Section, frozen=True, kw_only=True):
    """What is looked at beside the engines' pages, and how often (`every`, 1 s to 1 h; `tcp` is always once a second)."""

    every: Ns = Ns(5 * SECOND)
    gpu: When = "auto"
    host: When = "auto"
    tcp: When = "auto"
    retransmits: When = "off"


def check_signals(signals: Signals, path: str, report: Report) -> None:
    """Report a period that cannot be."""
    if not EVERY_MIN_NS <= signals.every <= EVERY_MAX_NS:
        said = f"{signals.every / SECOND:g} s is no period to look at GPUs and the machine in"
        report.add(join(path, "every"), said, value=signals.every, hint="1s to 1h")
