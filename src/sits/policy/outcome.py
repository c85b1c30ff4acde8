"""Which finished requests went wrong: what alerts count, and what sampling keeps.

- `failed`: always; an engine or we were at fault.
- `refused` with a status of 500 or more: always; there was no room, or an engine said so.  With 429: unless it was the caller's own quota that
  was used up (`quota_...`), for a caller who tries again and again would look like an outage.  With any other status: a mistake of the caller's.
- `cancelled`: no; who left knows why.

Deliberately absent: slowness, which is the objective's.
"""

from typing import Final

QUOTA: Final = "quota_"
TOO_MANY: Final = 429
SERVER_ERROR: Final = 500


def is_error(outcome: str, status: int, detail: str) -> bool:
    """Whether rows of this kind are errors whatever their times; cancelled ones depend on those.

    >>> is_error("refused", 503, "refused_full"), is_error("refused", 429, "quota_exceeded"), is_error("completed", 200, "")
    (True, False, False)
    """
    if outcome == "refused":
        return status >= SERVER_ERROR or (status == TOO_MANY and not detail.startswith(QUOTA))
    return outcome == "failed"
