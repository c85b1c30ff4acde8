"""A Run: the frame in which something happened: seed, configuration digest and window.

A live hour, a simulation, a benchmark and a training job are Runs; a baseline is a pinned Run.  `wall_ns` is
for display only; durations come from the monotonic bounds.
"""

import msgspec


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Seed, digest and window of one run.

    `clock` names the clock domain the monotonic bounds belong to (`monotonic` or `virtual`).
    """

    id: str
    kind: str
    seed: int
    config_digest: str
    clock: str = "monotonic"
    start_ns: int = 0
    end_ns: int = 0
    wall_ns: int = 0
