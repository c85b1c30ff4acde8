"""llama.cpp's `/slots`: one JSON object a slot of the batch, and what they say together.

Since `--slots` is off the metrics page's business, it tells what that page does not: how much context each slot holds.  A slot that has
never run has no token counts; one that is idle keeps its context for the next request with the same beginning, so only busy slots are
counted as work.  `n_prompt_tokens` is the prompt, `next_token[0].n_decoded` what was generated.

Deliberately absent: sampling parameters, and prompts (older servers show them).
"""

from typing import Any

import msgspec

from sits.core.errors import CallerError

SLOTS_MAX = 65_536

UNITS: dict[str, str] = {
    "requests_running": "requests",
    "slots_total": "slots",
    "slots_context_tokens": "tokens",
    "slots_prompt_tokens": "tokens",
    "slots_output_tokens": "tokens",
}


def looks_like_slots(text: str) -> bool:
    """Whether this is worth reading as `/slots`."""
    return text.lstrip()[:1] == "[" and '"is_processing"' in text[:20_000]


def read_slots(text: str) -> dict[str, float]:
    """Values by signal name; token counts are of busy slots only, and absent when no busy slot tells them.

    Raises:
        CallerError: it is no list of slots.

    """
    try:
        slots = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CallerError(f"this is no JSON: {error}", hint="the page is at /slots, with --slots") from None
    if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots[:SLOTS_MAX]):
        raise CallerError("this JSON is no list of slots", hint="the page is at /slots, with --slots")
    slots = slots[:SLOTS_MAX]
    busy = [slot for slot in slots if slot.get("is_processing") is True]
    found = {"requests_running": float(len(busy)), "slots_total": float(len(slots))}
    for name, values in (
        ("slots_context_tokens", [slot.get("n_ctx") for slot in slots]),
        ("slots_prompt_tokens", [slot.get("n_prompt_tokens") for slot in busy]),
        ("slots_output_tokens", [_decoded(slot.get("next_token")) for slot in busy]),
    ):
        told = [value for value in values if type(value) is int and 0 <= value < 2**53]
        if told:
            found[name] = float(sum(told))
    return found


def _decoded(token: Any) -> Any:
    """A list of one in newer servers, the object itself in older ones."""
    first = token[0] if isinstance(token, list) and token else token
    return first.get("n_decoded") if isinstance(first, dict) else None
