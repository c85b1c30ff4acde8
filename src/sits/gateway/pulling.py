"""How the answer of an engine that does not push is passed on: asked for, chunk by chunk.

Not among the compiled modules: an `await` inside a `finally` raises there what an earlier call of the same coroutine failed with
(mypyc 2.4 reuses the memory of a coroutine and not all of it is emptied).

Deliberately absent: what happens to a chunk (gateway.relay).
"""

from collections.abc import AsyncIterator, Awaitable, Callable

from sits.core.request import Chunk


async def pull(stream: AsyncIterator[Chunk], give: Callable[[Chunk], Awaitable[None] | None]) -> None:
    """What an engine's `push` does, for those that have none."""
    try:
        async for chunk in stream:
            waiting = give(chunk)
            if waiting is not None:
                await waiting
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
