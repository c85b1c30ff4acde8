"""A Profile: how much CPU time a process used on which stacks, in a window of wall-clock time, with labels.

A stack is a tuple of frames, the outermost first.  `ns` is CPU time, `count` how often the stack was seen: shares are of `ns`, what may
be said of them depends on `count`.

Rules: labels are `layer` and `op` (where the work belongs, `profile.ops`) and `trace` (the request it was for); empty is unknown.
Profiles of one rate may be added up (`merged`) and cut down (`only`); both are pure.

Deliberately absent: how samples are taken (`profile.sampler`), and files (`profile.pprof`, `profile.folded`, `profile.speedscope`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from sits.core.units import SECOND


class Frame(msgspec.Struct, frozen=True, order=True):
    """A function that ran; `line` the one it was at, 0 where unknown."""

    function: str
    file: str = ""
    line: int = 0

    @property
    def place(self) -> "Frame":
        """The function, whatever the line."""
        return Frame(self.function, self.file) if self.line else self


class Labels(msgspec.Struct, frozen=True, order=True):
    """What a sample belongs to."""

    layer: str = ""
    op: str = ""
    trace: str = ""

    @property
    def name(self) -> str:
        """Layer and operation in one word, as in `model/llm_generate`; empty where unknown."""
        return "/".join(part for part in (self.layer, self.op) if part)


class Sample(msgspec.Struct, frozen=True):
    """A stack, outermost frame first; CPU ns and sightings."""

    stack: tuple[Frame, ...]
    ns: int
    count: int = 1
    labels: Labels = Labels()


class Profile(msgspec.Struct, frozen=True):
    """What one process did, or several.

    `wall_ns`: when it began, ns since the epoch, 0 where unknown; `duration_ns`: how long was looked; `period_ns`: CPU time
    from sample to sample; `elsewhere_ns`: CPU time of threads that run no Python; `own_ns`: what taking the samples cost;
    `dropped_ns`: CPU time of samples there was no room for.
    """

    samples: tuple[Sample, ...]
    process: str = ""
    wall_ns: int = 0
    duration_ns: int = 0
    period_ns: int = SECOND // 100
    elsewhere_ns: int = 0
    own_ns: int = 0
    dropped_ns: int = 0

    @property
    def ns(self) -> int:
        """CPU time of all samples."""
        return sum(sample.ns for sample in self.samples)

    @property
    def count(self) -> int:
        """Sightings."""
        return sum(sample.count for sample in self.samples)

    @property
    def end_wall_ns(self) -> int:
        """When looking ended."""
        return self.wall_ns + self.duration_ns

    def only(self, wanted: Callable[[Sample], bool]) -> "Profile":
        """The samples that are wanted; what belongs to no sample is left out."""
        kept = tuple(sample for sample in self.samples if wanted(sample))
        return msgspec.structs.replace(self, samples=kept, elsewhere_ns=0, own_ns=0, dropped_ns=0)

    def of(self, layer: str = "", op: str = "", trace: str = "") -> "Profile":
        """The samples with these labels; what is empty does not restrict."""
        if not (layer or op or trace):
            return self
        return self.only(
            lambda sample: all(
                not value or value == has
                for value, has in (
                    (layer, sample.labels.layer),
                    (op, sample.labels.op),
                    (trace, sample.labels.trace),
                )
            )
        )


def merged(profiles: Iterable[Profile], process: str = "") -> Profile:
    """All of them as one: equal stacks with equal labels are added up, times looked at reach from the first to the last.

    The period is the shortest of them; it is only told, for samples weigh what they weigh.
    """
    every = list(profiles)
    found: dict[tuple[Labels, tuple[Frame, ...]], list[int]] = {}
    for profile in every:
        for sample in profile.samples:
            seen = found.setdefault((sample.labels, sample.stack), [0, 0])
            seen[0] += sample.ns
            seen[1] += sample.count
    names = dict.fromkeys(profile.process for profile in every if profile.process)
    timed = [profile for profile in every if profile.wall_ns]
    wall_ns = min((profile.wall_ns for profile in timed), default=0)
    return Profile(
        tuple(Sample(stack, ns, count, labels) for (labels, stack), (ns, count) in found.items()),
        process=process or ", ".join(names),
        wall_ns=wall_ns,
        duration_ns=max((profile.end_wall_ns for profile in timed), default=wall_ns) - wall_ns
        if timed
        else max((profile.duration_ns for profile in every), default=0),
        period_ns=min((profile.period_ns for profile in every), default=SECOND // 100),
        elsewhere_ns=sum(profile.elsewhere_ns for profile in every),
        own_ns=sum(profile.own_ns for profile in every),
        dropped_ns=sum(profile.dropped_ns for profile in every),
    )


def from_batch(
    batch: Mapping[str, Any],
    label: Callable[[tuple[Frame, ...], str], Labels],
    *,
    process: str = "",
    wall_ns: int = 0,
    duration_ns: int = 0,
    period_ns: int = SECOND // 100,
) -> Profile:
    """What `Sampler.take` gave, as a profile; `label` is told a stack and the operation its context named."""
    frames = [Frame(str(function), str(file), int(line)) for function, file, line in batch["frames"]]
    samples = []
    for ns, count, trace, op, places in batch["samples"]:
        stack = tuple(frames[place] for place in reversed(places))
        labels = msgspec.structs.replace(label(stack, op), trace=trace)
        samples.append(Sample(stack, ns, count, labels))
    return Profile(
        tuple(samples),
        process,
        wall_ns,
        duration_ns,
        period_ns,
        batch["elsewhere_ns"],
        batch["own_ns"],
        batch["dropped_ns"],
    )
