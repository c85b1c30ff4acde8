"""What a batching window costs where nothing is gained: before engines of which nobody said that they batch by call.

An engine that batches continuously takes a request into its next step whether or not others come with it, so all a
window does to it is add its own wait.  How much that is depends on the rate, which a configuration does not know: it is told at
three.

Rules: one line for all engines of a kind; nothing is told where `batches` or `endpoints` say that calls are batches.

Deliberately absent: whether a window is well chosen where it is right (`sitsctl plan batch`).
"""

from sits.core.fleet import EmulatedEngine, Fleet, batches_of
from sits.core.fleet_window import held_in_vain
from sits.policy.window import has_length, window_ns
from sits.predict.window import predict_window

RATES_PER_S = (1.0, 10.0, 100.0)
NAMES_MOST = 4


def window_warnings(fleet: Fleet) -> list[str]:
    """One line for each group of engines that are held for in vain."""
    window = fleet.policy.window
    groups: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for engine in fleet.engines:
        endpoints = held_in_vain(window, batches_of(engine))
        if endpoints:
            groups.setdefault((endpoints, isinstance(engine, EmulatedEngine)), []).append(engine.name)
    return [_told(fleet, names, *group) for group, names in groups.items()]


def _told(fleet: Fleet, names: list[str], endpoints: tuple[str, ...], emulated: bool) -> str:
    shown = ", ".join(repr(name) for name in names[:NAMES_MOST])
    more = f" and {len(names) - NAMES_MOST} more" if len(names) > NAMES_MOST else ""
    engines = f"engine{'s' if len(names) > 1 else ''} {shown}{more}"
    which = f"batch{'' if len(names) > 1 else 'es'} continuously"
    if not emulated:
        which = "may well batch continuously, for nobody says `batches: by_call`"
    waits = ", ".join(f"{_wait_ms(fleet, rate):.0f} ms" for rate in RATES_PER_S)
    rates = ", ".join(f"{rate:g}" for rate in RATES_PER_S)
    way = "name the endpoints that batch by call (policy.window.endpoints: [/v1/embeddings])"
    if not emulated:
        way += ", or say of each engine whether it does (`batches: by_call` or `batches: continuous`)"
    return (
        f"policy.window holds {', '.join(endpoints)} before {engines}, which {which}: there a window gains nothing, and "
        f"answers come {waits} later on average at {rates} requests a second and engine; {way}"
    )


def _wait_ms(fleet: Fleet, rate_per_s: float) -> float:
    """The mean wait in the window; one that follows the engine lasts as long as it may, for one is nearly always under way."""
    window = fleet.policy.window
    length = window_ns(window, rate_per_s) if has_length(window) else window.high
    return predict_window(rate_per_s, length, window.max_batch).wait_ns_mean / 1e6
