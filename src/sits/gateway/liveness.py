"""Whether an engine is up, as all workers together know it.

```
each worker's row:  open until | reached        opened = open until - BREAKER_OPEN_NS
newest opening, newest answer  ──> up | trying | down
```
Rules: the newest evidence wins, whoever has it.
- `up`: nothing speaks against it: its breaker never opened, or some worker has had an answer since the last opening.
- `down`: its breaker is open; nothing is sent there, or nothing beside the one request that tries it.
- `trying`: the breaker's time is over and nothing has answered since.  The next request tries it; until one is answered it is not up, however
  long that takes.  So an engine that stays unreachable never looks as if it had come back.
An opening and an answer at the same moment are an opening.

An engine nobody has sent anything to is `up`: only failures are evidence, for an answer of an engine that is well is not worth writing down.
With a worker that dies goes what it knew.

Deliberately absent: choosing an engine (`gateway.places`), and breakers of one tenant and model, which close an engine to these only.
"""

from collections.abc import Iterable
from typing import Final, Literal

from sits.gateway.places import BREAKER_OPEN_NS
from sits.gateway.shared import OPEN_NS, REACHED_NS, Shared, column

State = Literal["up", "trying", "down"]
UP: Final = "up"
TRYING: Final = "trying"
DOWN: Final = "down"


def liveness(until_ns: Iterable[int], reached_ns: Iterable[int], open_for_ns: int, now_ns: int) -> State:
    """The state, from each worker's `until_ns` (when the breaker it opened ends; 0: none) and `reached_ns` (its last answer after trouble; 0: none).

    >>> liveness([1_500, 0], [0, 0], 1_000, 600), liveness([1_500, 0], [0, 0], 1_000, 9_000), liveness([1_500, 0], [0, 501], 1_000, 600)
    ('down', 'trying', 'up')
    """
    until = max(until_ns, default=0)
    if not until or until - open_for_ns < max(reached_ns, default=0):
        return UP
    return DOWN if until > now_ns else TRYING


def engine_state(shared: Shared, slot: int, now_ns: int) -> State:
    """The state of the engine in a slot of the table of all workers."""
    opens, reached = (shared.over_workers(column(slot, what)) for what in (OPEN_NS, REACHED_NS))
    return liveness(opens, reached, BREAKER_OPEN_NS, now_ns)
