"""Having a running gateway sampled: an order in its store, then waiting for the profiles in the store.

Rules: a gateway that lives has a locked notice in its store (`app.up.notice`); without one nothing is ordered.  It obeys within a second, and
stores within a few more; a process that has not answered by then is named.

Deliberately absent: signals, and the processes' own addresses.
"""

import threading
from pathlib import Path

from sits.app.profiles.stored import profiles_in
from sits.app.up.notice import alive_in
from sits.app.up.profiling import Order, put_order
from sits.core.errors import UnknownError
from sits.core.ports import World
from sits.core.units import SECOND
from sits.telemetry.profile.kept import joined
from sits.telemetry.profile.profile import Profile

ANSWER_NS = 15 * SECOND
"""Beyond the time ordered: the keeper looks and writes once a second; the rest is for a machine that is busy."""

LOOK_S = 0.2


def sampled(store: Path, world: World, hz: int, seconds: float, process: str = "") -> Profile:
    """Profiles of all of a gateway's workers and its keeper, or of one process, as one.

    Raises:
        UnknownError: no gateway records there, or none that has the process, or it did not answer.

    """
    notices = alive_in(store)
    if not notices:
        raise UnknownError(
            f"no running gateway records to {store}",
            field="store",
            value=str(store),
            hint="`sitsctl up` starts one; --store names its store",
        )
    known = {
        name for notice in notices for name in notice.processes if name.startswith(("worker-", "keeper"))
    }
    if process and process not in known:
        raise UnknownError(
            f"there is no process {process!r}",
            field="process",
            value=process,
            hint=f"one of {', '.join(sorted(known))}",
        )
    wanted = {process} if process else known
    begun_ns, wall_ns = world.now_ns(), world.wall_ns()
    put_order(store, Order(hz, seconds))
    pause = threading.Event()
    until_ns = begun_ns + int(seconds * SECOND)
    pause.wait(seconds)
    while True:
        found = [
            one
            for one in profiles_in(store, world, since_wall_ns=wall_ns)
            if one.process in wanted and one.wall_ns >= wall_ns and one.period_ns == SECOND // hz
        ]
        lacking = wanted - {one.process for one in found}
        if not lacking:
            return joined(found)
        if world.now_ns() > until_ns + ANSWER_NS:
            raise UnknownError(
                f"{', '.join(sorted(lacking))} did not answer",
                field="process",
                hint="is the gateway overloaded? look at its output",
            )
        pause.wait(LOOK_S)
