"""What a report says of processor time, where the store holds profiles of its window.

Rules: without profiles, and without samples in them, a report is what it was; profiles that cannot be read are a doubt of it, and no more.  Slow is what it is for `sitsctl profile show --diff slow`: the
slowest 1 % of completed requests.  Operations are compared as functions are: requests are the units.

Deliberately absent: drawing (`app.report.cpu`), and any claim of a cause.
"""

from pathlib import Path

import msgspec

from sits.app.profiles.flame import nodes_of, told
from sits.app.profiles.page import margin
from sits.app.profiles.stored import profiles_in, slow_traces
from sits.core.cpu_report import CpuOperation, CpuTime
from sits.core.errors import ConfigError
from sits.core.finding import Interval
from sits.core.ports import World
from sits.core.report import Note, Report
from sits.core.units import SECOND
from sits.telemetry.profile.compare import Comparison, compare
from sits.telemetry.profile.kept import joined
from sits.telemetry.profile.profile import Frame, Profile
from sits.telemetry.profile.tree import by_operation

LEAST = 0.002
"""Of the whole: a report has much else to say."""

OPERATIONS, FUNCTIONS = 14, 10


def with_cpu(
    report: Report, store: Path, world: World, *, since_wall_ns: int, newest: bool = False
) -> Report:
    """The report with what the profiles since then say; `newest`: it is about the newest run alone, and so are they."""
    digest = report.before.config_digest if newest else None
    try:
        found = profiles_in(store, world, since_wall_ns=since_wall_ns, digest=digest)
    except ConfigError as error:
        doubt = Note("Processor time", f"The profiles of this window cannot be read: {error}")
        return msgspec.structs.replace(report, notes=(*report.notes, doubt))
    if not any(one.samples for one in found):
        return report
    slow = slow_traces(store, world, since_wall_ns=since_wall_ns)
    return msgspec.structs.replace(report, cpu=cpu_of(joined(found), slow))


def cpu_of(profile: Profile, slow: dict[str, bool]) -> CpuTime:
    """A profile as a report has it; `slow` tells of each trace whether it is one of the slow."""
    compared = compare(profile, slow.get)
    nodes, hidden = nodes_of(profile, least=LEAST)
    return CpuTime(
        processes=profile.process,
        window_s=profile.duration_ns / SECOND,
        cpu_s=profile.ns / SECOND,
        hz=SECOND / profile.period_ns,
        samples=profile.count,
        requests=_requests(profile),
        operations=_operations(profile, slow),
        functions=tuple(
            CpuOperation(
                one.frame.function,
                Interval(one.slow, one.slow, one.slow),
                one.slow_count,
                one.frame.file,
                told(one),
            )
            for one in compared.differences[:FUNCTIONS]
        ),
        nodes=nodes,
        hidden=hidden,
        slow_requests=_requests(compared.slow),
        slow_samples=compared.slow.count,
        slow_cpu_s=compared.slow.ns / SECOND,
        slow_nodes=() if compared.why_not else nodes_of(profile, compared=compared, least=LEAST)[0],
        why_not=compared.why_not,
    )


def _requests(profile: Profile) -> int:
    return len({sample.labels.trace for sample in profile.samples if sample.labels.trace})


def _operations(profile: Profile, slow: dict[str, bool]) -> tuple[CpuOperation, ...]:
    differences = {one.frame.function: told(one) for one in _by_label(profile, slow).differences}
    rows = []
    for name, ns, count in by_operation(profile.samples)[:OPERATIONS]:
        share, off = ns / profile.ns, margin(ns / profile.ns, profile.count)
        interval = Interval(share, max(0.0, share - off), min(1.0, share + off))
        rows.append(CpuOperation(name, interval, count, differs=differences.get(name)))
    return tuple(rows)


def _by_label(profile: Profile, slow: dict[str, bool]) -> Comparison:
    """Each operation as if it were a function."""
    samples = tuple(
        msgspec.structs.replace(sample, stack=(Frame(sample.labels.name),)) for sample in profile.samples
    )
    return compare(msgspec.structs.replace(profile, samples=samples), slow.get)
