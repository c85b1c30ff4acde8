"""Start-up: what a replica does before its first answer, how long each stage takes, and what could be done about it.

A start is a row of *marks*, moments at which something is known to be over ("up to here it was importing"), and of *facts*,
durations somebody stated ("loading weights took 0.08 s") that ended in one of the intervals.  An interval belongs to the stage
of the mark that ends it, less the facts within it; what nobody claims is `unattributed`.  Stages and the rest add up to the whole.

Published ranges, for a first CUDA call on one GPU: device enumeration 12 to 18 ms, context 45 to 92 ms, JIT 67 to 210 ms;
124 to 320 ms in all, which is small beside weights and graph capture (tens of seconds).

Whether the driver must compile (JIT) follows from what is shipped: SASS of X.y runs on X.z for z >= y and on nothing else; PTX of
any lower or equal capability is compiled at the first use; with neither, nothing runs.

Deliberately absent: reading logs (`sits.predict.startup_log`) and watching a process (`sits.bench.procstart`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from sits.core.errors import ConfigError
from sits.core.units import MS, SECOND, show_duration

STAGES = (
    "image", "container", "exec", "imports", "configuration", "device", "compile", "weights", "memory",
    "graphs", "listen", "answer", "unattributed",
)  # fmt: skip
PUBLISHED_NS = {"enumerate": (12 * MS, 18 * MS), "context": (45 * MS, 92 * MS), "jit": (67 * MS, 210 * MS)}


class Mark(msgspec.Struct, frozen=True):
    """At `at_ns`, what came before was `stage`; `said` by which line.  `exact_ns` is how exact the moment is."""

    at_ns: int
    stage: str
    said: str = ""
    exact_ns: int = 1


class Fact(msgspec.Struct, frozen=True):
    """`stage` took `took_ns` and was over at `at_ns`."""

    at_ns: int
    stage: str
    took_ns: int
    said: str = ""


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """One start: time of each stage, in order of `STAGES`; the whole; and how exact a single moment was.

    `of` says what the figures are of: marks' lines for each stage.
    """

    stages_ns: dict[str, int]
    total_ns: int
    exact_ns: int = 1
    of: dict[str, tuple[str, ...]] = {}


def attribute(start_ns: int, marks: Iterable[Mark], facts: Iterable[Fact] = ()) -> Startup:
    """Times of the stages between `start_ns` and the last mark.

    >>> seen = attribute(0, [Mark(17, "imports"), Mark(20, "weights"), Mark(30, "listen")], [Fact(29, "memory", 4)])
    >>> seen.stages_ns, seen.total_ns
    ({'imports': 17, 'weights': 3, 'memory': 4, 'listen': 6}, 30)

    Raises:
        ConfigError: no mark after the start, or a stage nobody knows.

    """
    ordered = sorted((mark for mark in marks if mark.at_ns >= start_ns), key=lambda mark: mark.at_ns)
    if not ordered:
        raise ConfigError(
            "nothing of a start in it", field="marks", value=0, hint="give the log from its beginning"
        )
    stages: dict[str, int] = {}
    lines: dict[str, list[str]] = {}

    def add(stage: str, took_ns: int, said: str) -> None:
        if stage not in STAGES:
            raise ConfigError(
                f"no stage {stage!r}", field="stage", value=stage, hint="one of " + ", ".join(STAGES)
            )
        stages[stage] = stages.get(stage, 0) + took_ns
        if said:
            lines.setdefault(stage, []).append(said)

    stated = sorted(facts, key=lambda fact: fact.at_ns)
    for before, mark in pairwise([Mark(start_ns, STAGES[-1]), *ordered]):
        left = mark.at_ns - before.at_ns
        for fact in stated:
            inside = before.at_ns < fact.at_ns <= mark.at_ns
            if inside or fact.at_ns == start_ns == before.at_ns:
                took = min(
                    fact.took_ns, left
                )  # clocks of logs tick in seconds: a fact never exceeds its interval
                left -= took
                add(fact.stage, took, fact.said)
        add(mark.stage, left, mark.said)
    return Startup(
        stages_ns={stage: stages[stage] for stage in STAGES if stages.get(stage)},
        total_ns=ordered[-1].at_ns - start_ns,
        exact_ns=max(mark.exact_ns for mark in ordered),
        of={stage: tuple(lines[stage]) for stage in STAGES if stage in lines},
    )


_ARCH = re.compile(r"(sm|compute)_?(\d+)(\d)[a-z]?")


def jit_needed(device: str, shipped: Sequence[str]) -> bool:
    """Whether the driver must compile for `device` (like sm_90), given what a library ships (like torch.cuda.get_arch_list()).

    >>> jit_needed("sm_90", ["sm_80", "sm_90"]), jit_needed("sm_89", ["sm_80", "sm_86"]), jit_needed("sm_90", ["sm_80", "compute_80"])
    (False, False, True)

    Raises:
        ConfigError: a word that is no architecture, or nothing shipped runs there at all.

    """

    def read(word: str) -> tuple[str, int, int]:
        match = _ARCH.fullmatch(word.strip())
        if match is None:
            raise ConfigError(
                f"{word!r} is no architecture", field="arch", value=word, hint="write it like sm_90"
            )
        return match[1], int(match[2]), int(match[3])

    _, major, minor = read(device)
    words = [read(word) for word in shipped]
    if any(kind == "sm" and (ours, theirs <= minor) == (major, True) for kind, ours, theirs in words):
        return False
    if any(kind == "compute" and (ours, theirs) <= (major, minor) for kind, ours, theirs in words):
        return True
    raise ConfigError(
        f"nothing of {', '.join(shipped) or 'what is shipped'} runs on {device}",
        field="arch",
        value=device,
        hint=f"build for sm_{major}{minor}, or ship PTX of at most that",
    )


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do: which stage, the time at stake (all of it, if it went away), and why."""

    stage: str
    stake_ns: int
    text: str


WORTH_SHARE, WORTH_NS = 0.03, 20 * MS
"""A stage is worth a word from this share of the start, or from this long where it is a whole second."""


def advise(
    seen: Startup,
    environment: Mapping[str, str],
    *,
    weights_bytes: int = 0,
    disk_bytes_per_s: float = 0.0,
    repeated: bool = False,
) -> tuple[Advice, ...]:
    """What would shorten this start, the most at stake first; nothing for what is set already.

    `repeated` says that the start was seen several times and this is how a later one looks: caches are warm.

    >>> slow = Startup(stages_ns={"imports": 20 * SECOND, "compile": 5 * SECOND}, total_ns=25 * SECOND)
    >>> [(advice.stage, advice.stake_ns // SECOND) for advice in advise(slow, {"TORCHINDUCTOR_CACHE_DIR": "/var/cache/torch"})]
    [('imports', 20)]
    """
    found = []
    for stage, took in seen.stages_ns.items():
        if took < WORTH_SHARE * seen.total_ns or took < WORTH_NS:
            continue
        text = _text(stage, took, environment, weights_bytes, disk_bytes_per_s, repeated)
        if text:
            found.append(Advice(stage=stage, stake_ns=took, text=text))
    return tuple(sorted(found, key=lambda advice: -advice.stake_ns))


CACHES = ("CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")
VOLATILE = ("/tmp", "/dev/shm", "/run")  # noqa: S108  # named, not used


def _text(
    stage: str, took: int, environment: Mapping[str, str], weights: int, disk: float, repeated: bool
) -> str:
    """What to say about one stage; empty when there is nothing to do."""
    if stage == "image":
        return "keep the image on the node (pre-pull, a registry mirror) or load it lazily; weights do not belong in it"
    if stage == "imports":
        if environment.get("PYTHONDONTWRITEBYTECODE"):
            return "PYTHONDONTWRITEBYTECODE is set: every start compiles all modules again; unset it, and compile when building the image"
        return "start from a process that has imported already (fork server, snapshot), or import less" + (
            "" if repeated else "; the first start reads files from disk, look at a repeated one"
        )
    if stage == "device":
        if environment.get("CUDA_MODULE_LOADING", "LAZY") != "LAZY":
            return "CUDA_MODULE_LOADING is not LAZY: all kernels are loaded at the first call; set it to LAZY"
        low, high = (sum(pair[i] for pair in PUBLISHED_NS.values()) for i in (0, 1))
        usual = f"usual are {show_duration(low)} to {show_duration(high)}"
        return f"show the process only the GPUs it uses (CUDA_VISIBLE_DEVICES), keep the driver loaded (persistence mode); {usual}"
    if stage == "compile":
        if environment.get("CUDA_CACHE_DISABLE") == "1":
            return "CUDA_CACHE_DISABLE=1 throws compiled kernels away: unset it, or ship SASS for this GPU"
        kept = [name for name in CACHES if environment.get(name)]
        volatile = [name for name in kept if environment[name].startswith(VOLATILE)]
        if volatile:
            return f"{', '.join(volatile)} lies where a restart loses it: put it on a volume"
        return (
            ""
            if kept
            else "keep compiled code over restarts ("
            + ", ".join(CACHES)
            + " on a volume), and ship SASS for this GPU"
        )
    if stage == "weights":
        if not weights:
            return "read weights from a local disk in large direct reads, or keep them in the page cache"
        rate = weights / took * SECOND
        text = f"weights come at {rate / 1e9:.2f} GB/s"
        if disk and rate < 0.7 * disk:
            return f"{text}, the disk gives {disk / 1e9:.2f}: read in parallel, past the page cache"
        return (
            f"{text}"
            + (f", about what the disk gives ({disk / 1e9:.2f})" if disk else "")
            + ": a faster disk, or fewer bytes"
        )
    if stage == "answer":
        return "it listens before it is ready: do the work of the first answer (compiling, warm-up) before, and let readiness wait for it"
    if stage == "graphs":
        return "capture fewer batch sizes, or capture after the first answers (they run eager until then)"
    return ""
