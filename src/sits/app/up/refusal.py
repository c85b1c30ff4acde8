"""How the admin process says no: an error of ours as JSON, with its way out, and when to come again.

```
{"error": {"message": ..., "type": ..., "code": ..., "hint": ...}}        Retry-After: whole seconds, rounded up
```
Rules: the shape is the gateway's own (`SitsError.body`), with the hint apart; nothing of the request is said back.  Who is told that we cannot now (503)
is told when to come again: as the error says, else in `AGAIN_S`, so that scrapers and browsers do not all guess a shorter time.

Deliberately absent: OTLP's answers, which have a form of their own (`app.otlp.receiving_http`), and pages.
"""

import math
from typing import TypeVar

import msgspec
from starlette.responses import Response

from sits.core.errors import SitsError

AGAIN_S = 5.0
"""When to come again where an error does not know: places and turns become free within seconds."""

UNAVAILABLE = 503

R = TypeVar("R", bound=Response)


def refusal(error: SitsError) -> Response:
    """The answer that says what was wrong."""
    told = {"message": error.message, "type": error.kind, "code": error.code, "hint": error.hint}
    body = msgspec.json.encode({"error": told})
    return waiting(Response(body, error.status, media_type="application/json"), error)


def waiting(answer: R, error: SitsError) -> R:
    """The answer, with how long to wait where waiting helps."""
    if wait_s := error.retry_after_s or (AGAIN_S if answer.status_code == UNAVAILABLE else 0.0):
        answer.headers["retry-after"] = str(math.ceil(wait_s))
    return answer
