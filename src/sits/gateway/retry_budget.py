"""How many retries a worker may spend: each request that is answered earns `RETRY_SHARE` of one, at most `RETRY_BUDGET_MAX` are saved up.

So retries are a tenth of the traffic at most, however many engines fail: they cannot multiply the load of those that are left.

Deliberately absent: which failures are worth a retry (gateway.pipeline).
"""

from typing import Final

RETRY_SHARE: Final = 0.1
RETRY_BUDGET_MAX: Final = 10.0


class RetryBudget:
    """The budget of one worker, over all generations.  `spent`: how many retries it has spent; `full`: no more can be saved."""

    __slots__ = ("_saved", "full", "spent")

    def __init__(self) -> None:
        self.spent = 0
        self._saved = RETRY_BUDGET_MAX
        self.full = True

    def earn(self) -> None:
        """A request was answered."""
        self._saved = min(RETRY_BUDGET_MAX, self._saved + RETRY_SHARE)
        self.full = self._saved == RETRY_BUDGET_MAX

    def spend(self) -> bool:
        """Take one retry, if there is one."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        self.full = False
        self.spent += 1
        return True
