"""Where processor time went while a report's requests were served: the part of a report that sampled stacks can tell.

Shares are of sampled CPU time, 0..1, each with the sightings behind it.  Differences are those between the slowest 1 % of requests and all
others, with intervals that hold together with 95 %; `told` says whether one can be told from chance.

Deliberately absent: the stacks themselves; they stay in the store.  What is here is enough to draw them.
"""

import msgspec

from sits.core.finding import Interval


class CpuDifference(msgspec.Struct, frozen=True):
    """Share in slow requests, share in the others, slow less others (with its interval), sightings behind each."""

    slow: float
    rest: float
    value: Interval
    slow_samples: int
    rest_samples: int
    told: bool


class CpuOperation(msgspec.Struct, frozen=True):
    """A layer and operation like `http/parse` (empty where unknown), or a function."""

    name: str
    share: Interval
    samples: int
    file: str = ""
    differs: CpuDifference | None = None


class CpuNode(msgspec.Struct, frozen=True):
    """A function below its callers: where it stands (callers come first), its share with callees, its own.

    `common`: how many functions, of which all samples pass each, this row stands for; 0 for others.
    """

    function: str
    file: str
    layer: str
    depth: int
    start: float
    share: float
    own: float
    samples: int
    common: int = 0
    differs: CpuDifference | None = None


class CpuTime(msgspec.Struct, frozen=True):
    """What the profiles of the report's window say.

    `slow_nodes` are the slow requests' stacks, with how they differ; `why_not` says why nothing is compared.  `hidden` functions were too small
    for `nodes`.
    """

    processes: str
    window_s: float
    cpu_s: float
    hz: float
    samples: int
    requests: int
    operations: tuple[CpuOperation, ...]
    functions: tuple[CpuOperation, ...]
    nodes: tuple[CpuNode, ...]
    hidden: int = 0
    slow_requests: int = 0
    slow_samples: int = 0
    slow_cpu_s: float = 0.0
    slow_nodes: tuple[CpuNode, ...] = ()
    why_not: str = ""
