"""Section `telemetry` of a `fleet.yaml`: how long what we saw is kept, and where else it goes.

Rules: everything here is off the path of requests; what is not said is what a single gateway on its own disk wants.

Deliberately absent: what is measured (all of it, always).
"""

from sits.core.section import Section
from sits.core.units import Ns


class Telemetry(Section, frozen=True, kw_only=True):
    """What becomes of what we saw.

    `traces_kept`: how long the rows of single requests stay in the store.
    """

    traces_kept: Ns = Ns(7 * 24 * 3600 * 1_000_000_000)
