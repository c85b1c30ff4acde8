"""A Decision: what a policy chose, the outcome label, and the numbers behind it.

`outcome` is a metric label: few values, stable words.  `reasons` holds the numbers that led there, so a
decision can be explained and re-decided.  Deliberately absent: timestamps (the caller holds the clock).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

_NO_REASONS: Mapping[str, Any] = {}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one policy for one request.

    Attributes:
        policy: which policy spoke, e.g. `admit`, `route`, `window`, `release`.
        outcome: stable label, e.g. `admitted`, `refused_queue_full`, `chosen`, `hold`, `flush`.
        choice: the chosen thing when there is one (replica id, arm, ...).
        reasons: the numbers behind it.

    """

    policy: str
    outcome: str
    choice: str = ""
    reasons: Mapping[str, Any] = _NO_REASONS
