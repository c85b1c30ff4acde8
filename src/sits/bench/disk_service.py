"""What writing the KV cache away costs: one prompt by formula, and a service by simulation, for figures of a disk.

`one_prompt` sets the write of a prompt's cache beside the computation it would hide behind.  `service` runs the same requests under
each way of `sits.bench.disk_flow`, and says what the formula for a device in use at random expects of the wait.

GPUs of one engine write over links of their own, so their PCIe bandwidths add up; the disk is one.

Deliberately absent: where the figures come from.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from sits.bench.disk_flow import MODES, WAITS, Persisting, flow, slowdown, summary
from sits.bench.sweep_memory import tensor_engine, work_of
from sits.core.errors import CapacityError
from sits.core.fleet import Model
from sits.predict.derive import derive_steptime
from sits.predict.kv import kv_bytes, shape_of, token_bytes
from sits.predict.persist import Disk, felt_ns, wait_ns, write_ns
from sits.predict.steptime import step_time_us
from sits.world import stream_generator

CONTEXT = 8192
"""Longest sequence of the simulated service."""
CHUNK, TURN = 2048, 64
"""Tokens a step computes of a prompt; new tokens of a turn that is written alone."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of each way of writing, and of the device when each request's cache is one write."""

    modes: list[dict[str, Any]]
    device: dict[str, Any]
    assumed: tuple[str, ...]


def one_prompt(model: Model, gpu: str, gpus: int, tokens: int, disk: Disk, pcie: float) -> dict[str, float]:
    """Bytes and ns of one prompt of `tokens`: computing, writing all of it, writing a turn of `TURN`, and what is felt."""
    step = derive_steptime(model, gpu, gpus)
    size = kv_bytes(shape_of(model), [tokens])
    chunks = [(min(CHUNK, tokens - at), at) for at in range(0, tokens, CHUNK)]
    compute = 1000 * sum(
        step_time_us(
            step, tokens=q, seqs_emitting=int(at + q == tokens), prefill_chunks=[(q, at)], eager=True
        )
        for q, at in chunks
    )
    write = write_ns(size, disk, pcie * gpus)
    by_layer = write + (model.layers - 1) * disk.fixed_ns
    return {
        "tokens": tokens,
        "kv_bytes": size,
        "compute_ns": compute,
        "write_ns": write,
        "turn_ns": write_ns(TURN * token_bytes(shape_of(model)), disk, pcie * gpus),
        "felt_sync_ns": felt_ns("sync", compute, write),
        "felt_layerwise_ns": felt_ns("layerwise", compute, by_layer, model.layers),
    }


def service(
    model: Model,
    gpu: str,
    gpus: int,
    disk: Disk,
    pcie: float,
    *,
    gpu_memory: int,
    rate: float,
    requests: int,
    flush_tokens: int,
    buffer_bytes: int,
    seed: int,
    progress: Callable[[str, int, int], None],
) -> Service:
    """Conversation requests at `rate` a second under each way of writing."""
    spec = tensor_engine(model, gpu, gpus, gpu_memory=gpu_memory)
    work = work_of("conversation", CONTEXT, requests, seed)
    gaps = stream_generator(seed, "persist-arrivals").exponential(1e9 / rate, requests)
    arrivals = np.cumsum(gaps).astype(np.int64).tolist()
    what = Persisting(
        token_bytes=token_bytes(shape_of(model)),
        layers=model.layers,
        disk=disk,
        pcie=pcie * gpus,
        flush_tokens=flush_tokens,
        buffer_bytes=buffer_bytes,
    )
    found = []
    for index, mode in enumerate(MODES):
        progress("simulating", index, len(MODES))
        found.append(flow(mode, spec, arrivals, work.prompt.tolist(), work.output.tolist(), what))
    progress("simulating", len(MODES), len(MODES))
    rows = [
        {"mode": seen.mode, "durable_when_sent": seen.mode in WAITS, "slowdown": slowdown(seen, found[0])}
        | summary(seen)
        for seen in found
    ]
    return Service(
        modes=rows,
        device=_device(what, (work.prompt + work.output - 1).tolist(), rate),
        assumed=(
            f"step times {spec.step.source}",
            f"{spec.blocks:,} KV blocks, by formula",
            "Poisson arrivals; one disk that serves writes in order; layers of a step take equal shares of it",
        ),
    )


def _device(what: Persisting, tokens: list[int], rate: float) -> dict[str, Any]:
    """Busy share of the disk and the mean wait for it, when each request's cache is one write; no wait where it never keeps up."""
    services = [write_ns(count * what.token_bytes, what.disk, what.pcie) for count in tokens]
    busy = rate * sum(services) / len(services) / 1e9
    try:
        return {"busy": busy, "wait_ns": wait_ns(rate, services), "said": ""}
    except CapacityError as error:
        return {"busy": busy, "wait_ns": None, "said": error.message}
