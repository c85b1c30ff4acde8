"""Profiles as rows of the store's table `profiles`: one row a process and window, the profile itself as gzipped pprof with its labels.

Rules: a row says on its own what a list of profiles needs (when, whose, how many samples, how much CPU time), so that finding is cheap and
only what is shown is unpacked.

Deliberately absent: the store.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sits.telemetry.profile import pprof
from sits.telemetry.profile.profile import Frame, Profile, merged


def row_of(profile: Profile) -> tuple[Any, ...]:
    """Its row, without the run's name: `wall_ns, duration_ns, process, period_ns, samples, cpu_ns, own_ns, profile`."""
    cpu_ns = profile.ns + profile.elsewhere_ns + profile.dropped_ns
    data = pprof.encode(profile)
    return (
        profile.wall_ns,
        profile.duration_ns,
        profile.process,
        profile.period_ns,
        profile.count,
        cpu_ns,
        profile.own_ns,
        data,
    )


def profile_of(row: Mapping[str, Any]) -> Profile:
    """The profile of a row.

    Raises:
        ConfigError: its bytes are no profile.

    """
    found = pprof.decode(bytes(row["profile"]), f"profile of {row['process']}")
    return msgspec.structs.replace(found, process=row["process"], own_ns=row["own_ns"])


def in_window(rows: Iterable[Mapping[str, Any]], since_wall_ns: int, until_wall_ns: int) -> Sequence[Profile]:
    """The profiles of rows whose windows touch `since <= t < until`, whole: a profile does not say when in it a sample was taken."""
    return [
        profile_of(row)
        for row in rows
        if row["wall_ns"] < until_wall_ns and row["wall_ns"] + row["duration_ns"] > since_wall_ns
    ]


def joined(mine: Iterable[Profile], others: Iterable[Profile] = ()) -> Profile:
    """Profiles of the same minutes as one; where they are of several processes, with the process as the outermost frame.

    A profile that does not say when it was taken is taken to belong; one that does, and has no moment in common with `mine`, is left out.
    """
    ours = list(mine)
    begin = min((one.wall_ns for one in ours if one.wall_ns), default=0)
    end = max((one.end_wall_ns for one in ours if one.wall_ns), default=0)
    kept = [
        one for one in others if not one.wall_ns or not end or (one.wall_ns < end and one.end_wall_ns > begin)
    ]
    if len({one.process for one in (*ours, *kept)}) < 2:
        return merged([*ours, *kept])
    named = [
        msgspec.structs.replace(
            one,
            samples=tuple(
                msgspec.structs.replace(sample, stack=(Frame(one.process or "process"), *sample.stack))
                for sample in one.samples
            ),
        )
        for one in (*ours, *kept)
    ]
    return merged(named)
