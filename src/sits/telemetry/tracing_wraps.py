"""`sits.span` as a decorator: of functions, coroutine functions, and generators of both kinds.

Rules: the name, the documentation and the signature stay (`functools.wraps`).  A generator's span lasts from its first step to its end, and is current
only while a step runs: what its caller does between two steps is not inside of it, and generators that are closed in any order leave nothing
behind.  What is sent or thrown into a generator reaches it (PEP 342, 380 and 525).  Under `classmethod` and `staticmethod`, or over them.

Deliberately absent: the span (`telemetry.tracing`).
"""

import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any, Protocol


class Timed(Protocol):
    """What is used of a span."""

    def __enter__(self) -> Any:
        """Begin."""

    def __exit__(self, kind: Any, error: BaseException | None, stack: Any) -> None:
        """End."""

    def come(self) -> None:
        """Be current."""

    def go(self) -> None:
        """Be it no more."""


def timed_by(function: Any, make: Callable[[], Timed]) -> Any:
    """`function`, each call of which is timed by a span of its own."""
    if isinstance(function, classmethod | staticmethod):
        return type(function)(timed_by(function.__func__, make))
    asked = function if inspect.isroutine(function) or inspect.isclass(function) else _called(function)
    if inspect.isasyncgenfunction(asked):

        @functools.wraps(function)
        async def each_async(*args: Any, **named: Any) -> Any:
            inner, span = function(*args, **named), make()
            with span:
                step: Callable[[], Any] = functools.partial(anext, inner)
                while True:
                    span.come()
                    try:
                        told = await step()
                    except StopAsyncIteration:
                        return
                    span.go()
                    try:
                        sent = yield told
                    except GeneratorExit:
                        span.come()
                        await inner.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001  # whatever the caller throws is the generator's
                        step = functools.partial(inner.athrow, error)
                    else:
                        step = functools.partial(inner.asend, sent)

        return each_async
    if inspect.iscoroutinefunction(asked):

        @functools.wraps(function)
        async def awaited(*args: Any, **named: Any) -> Any:
            with make():
                return await function(*args, **named)

        return awaited
    if inspect.isgeneratorfunction(asked):

        @functools.wraps(function)
        def each(*args: Any, **named: Any) -> Any:
            return (yield from _steps(function(*args, **named), make()))

        return each

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        with make():
            return function(*args, **named)

    return called


def _called(function: Any) -> Any:
    """What runs when it is called: of a partial its function, of another object its method."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _steps(inner: Generator[Any, Any, Any], span: Timed) -> Generator[Any, Any, Any]:
    with span:
        step: Callable[[], Any] = functools.partial(next, inner)
        while True:
            span.come()
            try:
                told = step()
            except StopIteration as end:
                return end.value
            span.go()
            try:
                sent = yield told
            except GeneratorExit:
                span.come()
                inner.close()
                raise
            except BaseException as error:  # noqa: BLE001  # whatever the caller throws is the generator's
                step = functools.partial(inner.throw, error)
            else:
                step = functools.partial(inner.send, sent)
