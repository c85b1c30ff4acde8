"""Writing the KV cache away while an engine serves: synchronous, behind it, and layer by layer, on one event model.

The engine model takes its steps; each makes KV of so many tokens, which go over PCIe to one disk that serves writes in order.  Tokens
of the same step are one write (a write for each layer when layer by layer); a step whose tokens are fewer than
`flush_tokens` leaves them to the next, as a cache that persists whole blocks does.  What differs is who waits:

    none          nothing is written
    sync          the step ends, then the write runs, then the next step and the step's tokens go out
    layerwise     each layer's write starts when the layer is computed; the next step and the tokens wait for the last one
    behind        the write starts when the step ends, nobody waits, unless the staging buffer is full
    layer-behind  the same, each layer when computed

The first three, and the last two, promise the same: with `sync` and `layerwise` a token that went out is on the disk; with the others
it will be, `lag` later.  A step begins only when the buffer has room for the most it may write, or is empty.

Recomputed tokens (after a preemption) were written before and are not written again.  Layers of a step take equal shares of it.

Deliberately absent: reading back, several disks, and faults in the middle of a write.
"""

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError
from sits.core.units import SECOND
from sits.predict.persist import PCIE_4_X16, Disk, write_ns
from sits.sim.model import EngineModel
from sits.sim.spec import EngineSpec

Ints = NDArray[np.int64]
MODES = ("none", "sync", "layerwise", "behind", "layer-behind")
WAITS = {"sync", "layerwise"}
BY_LAYER = {"layerwise", "layer-behind"}


TIME_MOST_NS = 2**62


class Persisting(msgspec.Struct, frozen=True, kw_only=True):
    """What is written: bytes a token, in how many layers, to which disk, with how much room to stage it."""

    token_bytes: int
    layers: int
    disk: Disk
    pcie: float = PCIE_4_X16
    flush_tokens: int = 256
    buffer_bytes: int = 4 * 2**30


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """One mode on one work.  Times in ns.

    Attributes:
        ttft_ns, e2e_ns: of each request, in the order given; to the moment its token goes out.
        end_ns: when the last token goes out.
        held_ns: time steps waited for writes or for room to stage.
        lag_ns: of each write, from the end of its step to the disk; zero-length when nothing was written.
        written_bytes, writes: in all; `device_busy`, the share of the run the disk was writing.
        staged_bytes: most that was waiting or being written at a time.

    """

    mode: str
    ttft_ns: Ints
    e2e_ns: Ints
    end_ns: int
    held_ns: int
    lag_ns: Ints
    written_bytes: int
    writes: int
    device_busy: float
    staged_bytes: int


class _Device:
    """The disk: writes in order, and what of them is not done yet."""

    def __init__(self, what: Persisting) -> None:
        self.what = what
        self.free_ns = 0
        self.busy_ns = 0.0
        self.pending: deque[tuple[int, int]] = deque()
        self.staged = self.staged_most = self.written = self.writes = 0

    def put(self, size: int, ready_ns: int) -> int:
        """Queue a write that may start at `ready_ns`; when it is done."""
        took = round(write_ns(size, self.what.disk, self.what.pcie))
        self.free_ns = max(self.free_ns, ready_ns) + took
        self.busy_ns += took
        self.pending.append((self.free_ns, size))
        self.staged += size
        self.staged_most = max(self.staged_most, self.staged)
        self.written += size
        self.writes += 1
        return self.free_ns

    def settle(self, now_ns: int) -> None:
        """Forget writes that are done."""
        while self.pending and self.pending[0][0] <= now_ns:
            self.staged -= self.pending.popleft()[1]

    def room_at(self, size: int, now_ns: int) -> int:
        """When `size` more bytes fit into the staging buffer; at the latest when it is empty."""
        self.settle(now_ns)
        while self.pending and self.staged + size > self.what.buffer_bytes:
            now_ns = self.pending[0][0]
            self.settle(now_ns)
        return now_ns


def flow(
    mode: str,
    spec: EngineSpec,
    arrivals_ns: Sequence[int],
    prompt: Sequence[int],
    output: Sequence[int],
    what: Persisting,
) -> Flow:
    """Serve the requests with writes of one mode.

    Raises:
        ConfigError: no such mode.
        CapacityError: a request could never be served.

    """
    if mode not in MODES:
        raise ConfigError(f"no mode {mode!r}", field="mode", value=mode, hint="one of " + ", ".join(MODES))
    model: EngineModel[int] = EngineModel(spec)
    device = _Device(what)
    count, now, added, held, pot = len(arrivals_ns), 0, 0, 0, 0
    first, last = np.zeros(count, np.int64), np.zeros(count, np.int64)
    lags: list[int] = []
    next_most = (spec.max_num_batched_tokens + what.flush_tokens) * what.token_bytes
    while True:
        while added < count and arrivals_ns[added] <= now:
            model.add(added, prompt[added], output[added])
            added += 1
        result = model.step(now, emitted=False)
        if result is None:
            if added == count:
                break
            now = arrivals_ns[added]
            continue
        end = out = now + result.duration_ns
        pot += result.prefill_tokens + result.decode_tokens - result.recomputed_tokens
        if mode != "none" and (pot >= what.flush_tokens or not len(model)):
            done = _write(mode, device, pot * what.token_bytes, now, end)
            lags.append(done - end)
            pot = 0
            out = max(end, done) if mode in WAITS else end
        elif mode != "none":
            device.settle(end)
        if not out < TIME_MOST_NS:
            raise ConfigError(
                "these writes take longer than 200 years",
                field="disk",
                value=what.disk.bytes_per_s,
                hint="look at the units of the disk's figures",
            )
        for name in result.first:
            first[name] = out
        for name in result.finished:
            last[name] = out
        now = out if mode in WAITS else device.room_at(next_most, out)
        held += now - end
    arrived = np.asarray(arrivals_ns, np.int64)
    end_ns = int(last.max()) if count else 0
    return Flow(
        mode=mode,
        ttft_ns=first - arrived,
        e2e_ns=last - arrived,
        end_ns=end_ns,
        held_ns=held,
        lag_ns=np.array(lags, np.int64),
        written_bytes=device.written,
        writes=device.writes,
        device_busy=device.busy_ns / max(end_ns, device.free_ns, 1),
        staged_bytes=device.staged_most,
    )


def _write(mode: str, device: _Device, size: int, start_ns: int, end_ns: int) -> int:
    """Put a step's writes to the device; when the last is done."""
    device.settle(start_ns)
    if size <= 0:
        return end_ns
    if mode not in BY_LAYER:
        return device.put(size, end_ns)
    layers = device.what.layers
    each, over = divmod(size, layers)
    done = end_ns
    for layer in range(layers):
        ready = start_ns + (end_ns - start_ns) * (layer + 1) // layers
        done = device.put(each + (layer < over), ready)
    return done


def slowdown(seen: Flow, baseline: Flow) -> float:
    """How much longer the whole work took than without writing."""
    return seen.end_ns / baseline.end_ns


def summary(seen: Flow) -> dict[str, float]:
    """The figures of a mode as people read them: ms, GB, shares."""
    lag = seen.lag_ns if len(seen.lag_ns) else np.zeros(1, np.int64)
    return {
        "ttft_p50_ms": float(np.quantile(seen.ttft_ns, 0.5)) / 1e6,
        "ttft_p99_ms": float(np.quantile(seen.ttft_ns, 0.99)) / 1e6,
        "e2e_mean_ms": float(seen.e2e_ns.mean()) / 1e6,
        "e2e_p99_ms": float(np.quantile(seen.e2e_ns, 0.99)) / 1e6,
        "span_s": seen.end_ns / SECOND,
        "held_s": seen.held_ns / SECOND,
        "lag_p99_ms": float(np.quantile(lag, 0.99)) / 1e6,
        "written_gb": seen.written_bytes / 1e9,
        "writes": float(seen.writes),
        "device_busy": seen.device_busy,
        "staged_gb": seen.staged_bytes / 1e9,
    }
