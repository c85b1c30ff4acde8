"""How the admin process says no: an error of ours as JSON, with its way out, and when to come again where that is known.

```
{"error": {"message": ..., "type": ..., "code": ..., "hint": ...}}        Retry-After: whole seconds, rounded up
```
Rules: the shape is the gateway's own (`SitsError.body`), with the hint apart; nothing of the request is said back.

Deliberately absent: OTLP's answers, which have a form of their own (`app.otlp.receiving_http`), and pages.
"""

import math
from typing import TypeVar

import msgspec
from starlette.responses import Response

from sits.core.errors import SitsError

R = TypeVar("R", bound=Response)


def refusal(error: SitsError) -> Response:
    """The answer that says what was wrong."""
    told = {"message": error.message, "type": error.kind, "code": error.code, "hint": error.hint}
    body = msgspec.json.encode({"error": told})
    return waiting(Response(body, error.status, media_type="application/json"), error)


def waiting(answer: R, error: SitsError) -> R:
    """The answer, with how long to wait where that is known."""
    if error.retry_after_s:
        answer.headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return answer
