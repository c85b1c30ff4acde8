"""One proof: ask the adapter and its base model the same question, and judge the answers.

The base is asked each time, and an adapter must differ from every answer ever taken for the base's.  One exception, for an engine that
mixes adapters into the answers of its base while both share a batch (vLLM 0.32 on the CPU does): a base that answers as a *registered*
adapter does is not believed, only told (`mixed`).  Where no answer of the base is known yet, it is asked again after the adapter
and must say the same.

Rules: raises `LoraError` when nothing could be learnt; what was learnt, good or bad, is returned.

Deliberately absent: listing, files, and what follows.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from sits.core.decision import Decision
from sits.core.fingerprint import Fingerprint, distance
from sits.core.fleet_adapters import RuntimeAdapter, RuntimeAdapters
from sits.engine.lora import Api, LoraError, Shown
from sits.gateway.adapters.memory import Memory
from sits.policy.adapters import judge


class LoraPort(Protocol):
    """What is needed of an engine; `engine.lora.Lora` is one."""

    name: str
    api: Api

    def watch(self, lost: Callable[[], None]) -> None:
        """Call `lost` whenever the connection to it ends that we did not end."""

    async def listed(self) -> dict[str, str]:
        """What it serves: name -> path."""

    async def load(self, name: str, path: str) -> None:
        """Load an adapter."""

    async def unload(self, name: str) -> None:
        """Unload an adapter."""

    async def show(self, model: str, adapter: str, prompt: str, tokens: int) -> Shown:
        """The answer to a probe."""

    def close(self) -> None:
        """Give up the connection."""


class Proof(msgspec.Struct, frozen=True):
    """What came of it.  `mixed`: the base model answered as an adapter does."""

    decision: Decision
    answer: Fingerprint
    base: Fingerprint
    mixed: bool


async def prove(
    lora: LoraPort, adapter: RuntimeAdapter, control: RuntimeAdapters, memory: Memory, digest: str
) -> Proof:
    """Ask and judge.

    Raises:
        LoraError: no usable answer, or a base whose answer moves.

    """
    prompt = adapter.prompt or control.probe.prompt
    tolerance = adapter.tolerance or control.probe.tolerance
    tokens = control.probe.tokens
    base = (await lora.show(adapter.model, "", prompt, tokens)).fingerprint
    shown = await lora.show(adapter.model, adapter.name, prompt, tokens)
    known = memory.bases(adapter.model, base.probe)
    if not known:
        after = (await lora.show(adapter.model, "", prompt, tokens)).fingerprint
        if (moved := distance(base, after)) > tolerance:
            raise LoraError(
                "base_unsteady", f"the base model's answer moved by {moved:.3f} nats between two probes"
            )
    mixed = any(distance(base, other) <= tolerance for other in _registered(control, memory, adapter, digest))
    decision = judge(
        shown.fingerprint,
        known if mixed else [*known, base],
        memory.expected(adapter, digest),
        tolerance,
    )
    if lora.api == "vllm" and shown.model and shown.model != adapter.name:
        decision = Decision(
            policy="adapters", outcome="names_base", reasons={**decision.reasons, "named": shown.model}
        )
    return Proof(decision, shown.fingerprint, base, mixed)


def _registered(
    control: RuntimeAdapters, memory: Memory, adapter: RuntimeAdapter, digest: str
) -> list[Fingerprint]:
    """What the adapters of this base are known to answer to the same probe."""
    found = (
        memory.expected(other, digest if other.name == adapter.name else "")
        for other in control.adapters
        if other.model == adapter.model
    )
    return [fingerprint for fingerprint in found if fingerprint is not None]


def told(decision: Decision) -> str:
    """The numbers of a judgement, for people."""
    parts = []
    if "named" in decision.reasons:
        parts.append(f"its answer is signed {decision.reasons['named']!r}")
    for key, words in (("from_base", "from its base"), ("from_expected", "from its fingerprint")):
        value = decision.reasons.get(key)
        if value:
            parts.append(f"{value:.3f} nats {words}")
    parts.append(f"tolerance {decision.reasons['tolerance']:g}")
    return ", ".join(parts)
