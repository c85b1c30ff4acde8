"""Whose fault it is.

```
SitsError
├── CallerError      the caller can fix it              400 (and 401, 403, 404, 413, 422 below)
│   ├── AuthError        401     no or wrong key
│   ├── AccessError      403     known, not allowed
│   ├── UnknownError     404     no such model, path, id
│   ├── TooLargeError    413     over a declared limit
│   ├── ContractError    422     a semantic contract's clause fails
│   └── ConfigError      (load)  a configuration that cannot be used; carries file, line, field
│       └── ConfigErrors         all such errors of one file, in the order of its lines
├── CapacityError    we are full, later may work        429 / 503, with `retry_after_s`
├── EngineError      the engine behind us failed        502
│   └── EngineTimeoutError    504
└── BugError         ours; please report                500
```

Every error says what was wrong, which field and value, and the way out (`hint`).  `body()` is the OpenAI
error shape, which every SDK of the field understands.
"""

from collections.abc import Sequence
from typing import Any


class SitsError(Exception):
    """Base of all errors this package raises on purpose."""

    status = 500
    kind = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: Any = None,
        hint: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.value = value
        self.hint = hint
        self.code = code
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def body(self) -> dict[str, Any]:
        """The error as OpenAI-shaped JSON: `{"error": {message, type, param, code}}`."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.field, "code": self.code}}


class CallerError(SitsError):
    """The request is wrong; sending it again unchanged cannot work."""

    status = 400
    kind = "invalid_request_error"


class AuthError(CallerError):
    """No key, or a key we do not know."""

    status = 401
    kind = "authentication_error"


class AccessError(CallerError):
    """The caller is known and not allowed to do this."""

    status = 403
    kind = "permission_error"


class UnknownError(CallerError):
    """No such model, path or record."""

    status = 404
    kind = "not_found_error"


class TooLargeError(CallerError):
    """Over a declared limit; refused before it was read."""

    status = 413


class ContractError(CallerError):
    """A clause of a semantic contract does not hold for this request."""

    status = 422


class ConfigError(CallerError):
    """A configuration that cannot be used.  `where` is `file:line`, `field` the dotted path."""

    def __init__(self, message: str, *, where: str = "", **more: Any) -> None:
        super().__init__(message, **more)
        self.where = where

    def __str__(self) -> str:
        head = f"{self.where}: " if self.where else ""
        path = f"{self.field}: " if self.field else ""
        return f"{head}{path}{super().__str__()}"


class ConfigErrors(ConfigError):  # noqa: N818 - plural on purpose: it holds many
    """Every problem of one file at once, so that it is mended in one go.

    `errors` has them all in file order; as text it shows the first `SHOWN`.
    """

    SHOWN = 50

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors: tuple[ConfigError, ...] = tuple(errors)
        first = self.errors[0]
        super().__init__(
            first.message,
            where=first.where,
            field=first.field,
            value=first.value,
            hint=first.hint,
            code=first.code,
        )

    def __str__(self) -> str:
        lines = [str(error) for error in self.errors[: self.SHOWN]]
        if (more := len(self.errors) - self.SHOWN) > 0:
            lines.append(f"... and {more} more")
        return "\n".join(lines)


class CapacityError(SitsError):
    """We are full or over a quota.  `retry_after_s` becomes the `Retry-After` header."""

    status = 503
    kind = "overloaded_error"


class RateLimitError(CapacityError):
    """The caller's own budget is used up."""

    status = 429
    kind = "rate_limit_error"


class EngineError(SitsError):
    """The engine behind us failed, died or answered garbage.

    `counted`: where several requests meet one failure, the same set in the error of each: against whom it has been counted.
    """

    status = 502
    kind = "engine_error"
    counted: set[object] | None = None


class EngineTimeoutError(EngineError):
    """The engine did not answer in time."""

    status = 504
    kind = "engine_timeout"


class BugError(SitsError):
    """An invariant of ours does not hold.  Please report it."""
