"""SITS: time every LLM request at 17 breakpoints, name the cause of a slow tail, prove the fix.

Importing `sits` does no work: no file is opened, no library loaded, and what is named below is loaded when it is first used.  Rooms are
imported by name (`sits.predict.kv`, `sits.gateway.pipeline`); `ARCHITECTURE.md` is the map.  For services of your own, which want their spans in the
traces of the gateway: `sits.span`, `sits.inject`, `sits.extract`, `sits.configure`, `sits.flush`, `sits.SpanMiddleware` (docs/spans.md).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sits.telemetry.tracing import Context, configure, current, extract, flush, inject, span
    from sits.telemetry.tracing_asgi import SpanMiddleware

__version__ = "0.1.0"

__all__ = [
    "Context",
    "SpanMiddleware",
    "__version__",
    "configure",
    "current",
    "extract",
    "flush",
    "inject",
    "span",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sits' has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # only who uses spans loads what they need

    where = "tracing_asgi" if name == "SpanMiddleware" else "tracing"
    found = globals()[name] = getattr(importlib.import_module(f"sits.telemetry.{where}"), name)
    return found
