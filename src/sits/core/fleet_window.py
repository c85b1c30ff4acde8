"""The section `policy.window`: requests held for company, and where.

```yaml
policy:
  window: {kind: adaptive, endpoints: [/v1/embeddings], high: 50ms, max_batch: 32, objective: 120ms}
engines:
  - {kind: openai, name: embedder, url: "http://127.0.0.1:7997", models: [bge-m3], batches: by_call}
```

Rules: a window is for engines that batch by call: what arrives in one call is one batch (embeddings, rerank, classifiers, batch
APIs, APIs, static engines).  An engine says so with `batches: by_call`; one that says `continuous` is never held for; one that does
not say is held for, and warned of (`app.warnings`).  Only `endpoints` are held, all where the window names none; naming
`/v1/embeddings` says that its engines batch it by call, but naming one that generates does not: nearly every engine
joins those with what it is generating already.

Deliberately absent: which reaction is best (docs/decisions tells why the default is), and what a window costs (`predict.window`).
"""

from typing import Literal

from sits.core.problems import Report, join, near
from sits.core.section import Section
from sits.core.units import MS, Ns

Batches = Literal["unknown", "continuous", "by_call"]

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/messages")
ENDPOINTS = (*GENERATING, "/v1/embeddings")
"""Those whose requests are work for an engine."""


class Window(Section, frozen=True, kw_only=True):
    """A batching window in front of the engines.

    `fixed` holds requests until `base` has passed or `max_batch` are waiting; `adaptive` never beyond `high`, and how
    long is its `reaction`'s affair; `none` sends at once, which is right for continuous batching.

    `free`: while a call is under way, and not at all when the engine is free.  `fill`: as long as a batch takes to fill, but
    no less than `low`, and only `low` where it would not fill by `high`.  `burst`: `base`, half as long again after each rise of
    the arrival rate and 0.7 of it after each fall, `base` again after three quiet checks; `detector` says what a rise is.
    `slack`: as long as the oldest request can still be answered within `objective`.

    `objective`: latency that 99 % of the held requests shall stay under, waiting included; 0 takes the fleet's own.
    """

    kind: Literal["none", "fixed", "adaptive"] = "none"
    reaction: Literal["free", "fill", "burst", "slack"] = "free"
    detector: Literal["cusum", "ewma"] = "cusum"
    endpoints: tuple[str, ...] = ()
    base: Ns = Ns(20 * MS)
    low: Ns = Ns(5 * MS)
    high: Ns = Ns(100 * MS)
    max_batch: int = 16
    objective: Ns = Ns(0)


WINDOW_RANGES: dict[type, dict[str, tuple[float, float]]] = {
    Window: {"max_batch": (1, 65_536), "objective": (0, float("inf"))}
}


def check_window(window: Window, path: str, report: Report) -> None:
    """Report what of a window cannot be used."""
    if window.low > window.high:
        report.add(join(path, "low"), "'low' is above 'high'", value=window.low, hint="low <= base <= high")
    elif window.kind == "adaptive" and not window.low <= window.base <= window.high:
        report.add(
            join(path, "base"),
            "'base' is outside 'low'..'high'",
            value=window.base,
            hint="low <= base <= high",
        )
    for i, endpoint in enumerate(window.endpoints):
        inner = f"{join(path, 'endpoints')}[{i}]"
        if endpoint not in ENDPOINTS:
            report.add(
                inner,
                f"there is no endpoint {endpoint[:80]!r} to hold at",
                value=endpoint,
                hint=near(endpoint, ENDPOINTS),
            )
        elif endpoint in window.endpoints[:i]:
            report.add(inner, f"{endpoint!r} is listed twice", value=endpoint, hint="list each endpoint once")


def holds(window: Window, batches: Batches, endpoint: str) -> bool:
    """Whether requests to `endpoint` of an engine that `batches` so are held.

    >>> embeddings = Window(kind="fixed", endpoints=("/v1/embeddings",))
    >>> holds(embeddings, "unknown", "/v1/embeddings"), holds(embeddings, "unknown", "/v1/completions")
    (True, False)
    >>> holds(Window(kind="fixed"), "continuous", "/v1/embeddings"), holds(Window(), "by_call", "/v1/embeddings")
    (False, False)
    """
    return (
        window.kind != "none"
        and batches != "continuous"
        and (not window.endpoints or endpoint in window.endpoints)
    )


def held_in_vain(window: Window, batches: Batches) -> tuple[str, ...]:
    """The endpoints of such an engine that are held although nobody said that it batches them by call.

    >>> held_in_vain(Window(kind="fixed", endpoints=("/v1/embeddings", "/v1/messages")), "unknown")
    ('/v1/messages',)
    >>> held_in_vain(Window(kind="fixed"), "by_call")
    ()
    """
    if batches == "by_call":
        return ()
    held = (path for path in ENDPOINTS if holds(window, batches, path))
    return tuple(path for path in held if path in GENERATING or not window.endpoints)
