"""Section `telemetry` of a `fleet.yaml`: how long what we saw is kept, how much of it, and where else it goes.

Rules: everything here is off the path of requests; what is not said is what the environment's profile says (`core.fleet_environment`).

Deliberately absent: what is measured (all of it, always).
"""

from sits.core.fleet_otlp import Otlp
from sits.core.fleet_profile import Profiling
from sits.core.fleet_signals import Signals
from sits.core.section import Section
from sits.core.units import Ns, Share


class Pinned(Section, frozen=True, kw_only=True):
    """Requests whose rows are all kept, whatever the share: of these tenants, models (as callers ask for them), engines, traces."""

    tenants: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()


class Telemetry(Section, frozen=True, kw_only=True):
    """What becomes of what we saw.

    `environment`: `prod`, `preprod`, or one of your own.  From its profile come, unless said here: `sampling`, the share of ordinary
    requests whose rows are kept; `traces_kept`, how long the rows of single requests stay in the store; `metrics_kept`, how long the
    figures per minute stay; `alert_within`, how soon a breach of the objective is to be told.  `profile`: whether processes are sampled.
    `signals`: what is looked at besides the engines' pages.
    """

    environment: str = "prod"
    sampling: Share | None = None
    traces_kept: Ns | None = None
    metrics_kept: Ns | None = None
    alert_within: Ns | None = None
    pinned: Pinned = Pinned()
    profile: Profiling = Profiling()
    signals: Signals = Signals()
    otlp: Otlp = Otlp()
