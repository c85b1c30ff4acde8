"""What is done at an engine: load, prove, prove again, unload; each from a state to a state, whatever happens.

Rules:
- After every wait it is asked whether all is as before (`Tender.still`); if not, what was done counts for nothing.
- A 200 to a load proves nothing: then comes the list (the name, from our path), then the proof (`gateway.adapters.proof`).
- The digest is taken before, and its signature compared after: what changed in between was not proven.  An engine has one digest a
  path for as long as it runs, because it keeps KV blocks by name and path.
- To be loaded counts as a use: the desks tell a moment later of those it was loaded for, and it must not be the first to go till then.
- What speaks against an adapter (`policy.adapters.UNPROVEN`) unloads it; what speaks against the engine only delays.

Deliberately absent: when (policy.adapters), and what to tell whom (gateway.adapters.keeper).
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from sits.core.errors import BugError
from sits.core.fleet_adapters import RuntimeAdapter
from sits.engine.lora import LoraError
from sits.gateway.adapters.memory import Record
from sits.gateway.adapters.proof import Proof, prove, told
from sits.policy.adapters import (
    ABSENT,
    LEAVING,
    LOADED,
    LOADING,
    PROVING,
    READY,
    REASONS,
    UNKNOWN,
    UNLOADING,
    UNPROVEN,
    Seat,
    State,
    pause_ns,
)

if TYPE_CHECKING:
    from sits.gateway.adapters.tender import Tender

AGAIN_MAX = 3
"""Repeated proofs of something READY that may fail for the engine's sake before it is withdrawn."""

RESTARTED = "engine_restarted"

Act = Coroutine[Any, Any, None]


async def load(tender: "Tender", seat: Seat) -> None:
    """Load an adapter and prove it; counted as one attempt with one end."""
    counts, key = tender.house.counts, (seat.engine, seat.adapter)
    counts.attempted[key] += 1
    reason = await _load(tender, seat) or await _prove(tender, seat)
    seat.used_ns = tender.house.world.now_ns()
    if reason:
        counts.failed[(*key, reason)] += 1
    else:
        counts.succeeded[key] += 1


async def prove_loaded(tender: "Tender", seat: Seat) -> None:
    """Prove what the engine has, whoever loaded it."""
    await _prove(tender, seat)


async def prove_again(tender: "Tender", seat: Seat) -> None:
    """Ask once more what is READY; it stays routable meanwhile."""
    adapter, boot = tender.house.by_name[seat.adapter], tender.boot
    try:
        proof, digest = await _proven(tender, adapter)
    except LoraError as error:
        if not tender.still(seat, boot, READY):
            return
        if error.reason in UNPROVEN or error.reason in ("denied", "path_reused", "files_missing"):
            against(tender, seat, error.reason, error.detail)
        else:
            fail(tender, seat, LOADED if seat.failures + 1 >= AGAIN_MAX else READY, error)
        return
    if tender.still(seat, boot, READY):
        _succeed(tender, seat)
        _remember(tender, adapter, digest, proof)


async def unload(tender: "Tender", seat: Seat, reason: str, detail: str = "") -> None:
    """Take an adapter out of the engine.  Nothing of it may be in flight, and nobody may route to it."""
    tender.move(seat, UNLOADING, reason, detail)
    boot = tender.boot
    tender.house.changed()
    try:
        await tender.lora.unload(seat.adapter)
    except LoraError as error:
        if tender.still(seat, boot, UNLOADING):
            fail(tender, seat, UNKNOWN, error)
        return
    if tender.still(seat, boot, UNLOADING):
        tender.move(seat, ABSENT, reason, detail)
    tender.house.changed()


def against(tender: "Tender", seat: Seat, reason: str, detail: str) -> None:
    """Something speaks against what is READY: withdraw it at once; unload it when it has drained, if that may mend it."""
    fail(tender, seat, LOADED, LoraError(reason, detail))
    if reason in UNPROVEN and tender.house.by_name[seat.adapter].path:
        tender.move(seat, LEAVING, reason, detail)
    seat.lost = True
    tender.house.changed()


def fail(tender: "Tender", seat: Seat, state: State, error: LoraError) -> None:
    """Note a failure: the state it leaves the seat in, and when to try again."""
    if error.reason not in REASONS:
        raise BugError(f"unknown reason {error.reason!r}")
    house = tender.house
    seat.failures += 1
    draw = float(house.world.rng("adapters").random())
    seat.retry_ns = house.world.now_ns() + pause_ns(
        seat.failures, house.control.backoff, house.control.backoff_max, draw
    )
    if state == READY:
        seat.detail = error.detail
    else:
        tender.move(seat, state, error.reason, error.detail)
    house.changed()


def _succeed(tender: "Tender", seat: Seat) -> None:
    seat.failures = seat.retry_ns = 0
    seat.proven_ns = tender.house.world.now_ns()
    tender.move(seat, READY)
    tender.house.is_ready(seat.adapter)
    tender.house.changed()


async def _load(tender: "Tender", seat: Seat) -> str:
    """Have the engine load it; the reason why that failed, empty when it says it did."""
    adapter = tender.house.by_name[seat.adapter]
    tender.move(seat, LOADING, seat.reason, seat.detail)
    boot = tender.boot
    tender.house.changed()
    try:
        digest = await _checked_digest(tender, adapter)
        await _told_to_load(tender, adapter)
    except LoraError as error:
        if not tender.still(seat, boot, LOADING):
            return RESTARTED
        unsure = error.reason in ("engine_timeout", "engine_unreachable")
        fail(tender, seat, UNKNOWN if unsure else ABSENT, error)
        return error.reason
    if not tender.still(seat, boot, LOADING):
        return RESTARTED
    if digest:
        tender.digests[adapter.path] = digest
    tender.move(seat, LOADED, seat.reason, seat.detail)
    return ""


async def _told_to_load(tender: "Tender", adapter: RuntimeAdapter) -> None:
    try:
        await tender.lora.load(adapter.name, adapter.path)
    except LoraError as error:
        if error.reason != "already_loaded":
            raise


async def _prove(tender: "Tender", seat: Seat) -> str:
    """Make a loaded seat READY; the reason when it cannot be."""
    adapter, boot = tender.house.by_name[seat.adapter], tender.boot
    tender.move(seat, PROVING, seat.reason, seat.detail)
    tender.house.changed()
    try:
        await _check_listed(tender, adapter)
        proof, digest = await _proven(tender, adapter)
    except LoraError as error:
        if not tender.still(seat, boot, PROVING):
            return RESTARTED
        if error.reason in UNPROVEN and adapter.path:
            fail(tender, seat, LEAVING, error)
        else:
            fail(tender, seat, LOADED, error)
        return error.reason
    if not tender.still(seat, boot, PROVING):
        return RESTARTED
    _succeed(tender, seat)
    _remember(tender, adapter, digest, proof)
    return ""


async def _check_listed(tender: "Tender", adapter: RuntimeAdapter) -> None:
    names = await tender.lora.listed()
    if adapter.name not in names:
        raise LoraError("not_listed", "GET /v1/models does not have it")
    root = names[adapter.name]
    if root and adapter.path and root != adapter.path:
        raise LoraError("other_path", root)


async def _proven(tender: "Tender", adapter: RuntimeAdapter) -> tuple[Proof, str]:
    """The proof, and the digest of the files it is of.  Raises LoraError when anything does not agree."""
    house = tender.house
    digest = await _checked_digest(tender, adapter)
    proof = await prove(tender.lora, adapter, house.control, house.memory, digest)
    if proof.mixed:
        house.counts.mixed[tender.berth.engine] += 1
    if proof.decision.outcome != "proven":
        raise LoraError(proof.decision.outcome, told(proof.decision))
    where = adapter.files or adapter.path
    if digest and await house.files.signature(where) != tender.signatures.get(adapter.name):
        raise LoraError("files_changed", where)
    return proof, digest


async def _checked_digest(tender: "Tender", adapter: RuntimeAdapter) -> str:
    """The digest of what is about to be used, empty where its files cannot be seen.  Raises LoraError when it must not be."""
    where = adapter.files or adapter.path
    found = await tender.house.files.digest(where) if where else None
    if found is None:
        if adapter.files or adapter.path in tender.digests:
            raise LoraError("files_missing", where)
        return ""
    signature, digest = found
    if adapter.digest and digest != adapter.digest:
        raise LoraError("digest_mismatch", f"{digest} at {where}")
    before = tender.digests.get(adapter.path)
    if before and before != digest:
        raise LoraError("path_reused", f"{where}: was {before[:19]}..., is {digest[:19]}...")
    tender.signatures[adapter.name] = signature
    return digest


def _remember(tender: "Tender", adapter: RuntimeAdapter, digest: str, proof: Proof) -> None:
    """Record what a first proof showed; that it cannot be written down makes it no less proven."""
    try:
        _record(tender, adapter, digest, proof)
    except OSError as error:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"cannot record the proof of adapter {adapter.name!r}", "exception": error}
        )


def _record(tender: "Tender", adapter: RuntimeAdapter, digest: str, proof: Proof) -> None:
    house, memory = tender.house, tender.house.memory
    if digest:
        tender.digests.setdefault(adapter.path, digest)
    known = memory.record_of(adapter, digest)
    if known is None or (digest and not known.digest):
        record = Record(
            path=adapter.path,
            digest=digest,
            fingerprint=adapter.fingerprint or (known.fingerprint if known else str(proof.answer)),
            engine=tender.berth.engine,
            wall_ns=house.world.wall_ns(),
        )
        memory.keep(adapter, record)
    alone = not any(name not in tender.berth.models and name != adapter.name for name in tender.listed)
    if alone and not proof.mixed:
        memory.keep_base(adapter.model, proof.base, adapter.tolerance or house.control.probe.tolerance)
