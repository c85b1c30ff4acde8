"""Clock and dice: the only file that may ask the time or draw a number.

`RealWorld` reads the machine's clocks.  A virtual world (see `sits.sim.loop`) has the same methods and
time that jumps.  Random streams are named: the stream's generator depends on the seed and the name only, so
drawing more numbers in one part of the system never moves another part.  A `nonce` is the opposite: 64 bits that nobody
can draw again, not this process after a restart and not its sibling forked in the same nanosecond; identities begin there.

numpy is loaded by the first stream, not by this module: a gateway worker draws from none.
"""

import hashlib
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def stream_generator(seed: int, stream: str) -> "np.random.Generator":
    """The generator of the named stream: a function of `(seed, stream)` and nothing else."""
    import numpy as np  # noqa: PLC0415  # 14 MB that a process without dice need not hold

    digest = hashlib.blake2b(stream.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64([seed, *np.frombuffer(digest, dtype=np.uint32).tolist()]))


class RealWorld:
    """The machine's clocks, and seeded dice."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._streams: dict[str, np.random.Generator] = {}

    now_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)

    def rng(self, stream: str) -> "np.random.Generator":
        """The named stream, created on first use."""
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = stream_generator(self.seed, stream)
        return found

    def nonce(self) -> int:
        """64 bits from the operating system; no seed gives them again."""
        return int.from_bytes(os.urandom(8), "big")
