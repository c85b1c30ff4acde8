"""A profile for speedscope: its JSON file format, one sampled profile a process, weights in nanoseconds.

Source: the schema at https://www.speedscope.app/file-format-schema.json (`type: sampled`).

Deliberately absent: reading it, and the order of samples in time, which a profile does not have.
"""

from typing import Any

from sits.telemetry.profile.profile import Frame, Profile


def encode(profile: Profile) -> dict[str, Any]:
    """The file's document."""
    frames: dict[Frame, int] = {}
    stacks = [[frames.setdefault(frame, len(frames)) for frame in sample.stack] for sample in profile.samples]
    name = profile.process or "profile"
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "exporter": "sitsctl",
        "activeProfileIndex": 0,
        "shared": {
            "frames": [
                {"name": frame.function}
                | ({"file": frame.file} if frame.file else {})
                | ({"line": frame.line} if frame.line else {})
                for frame in frames
            ]
        },
        "profiles": [
            {
                "type": "sampled",
                "name": name,
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": profile.ns,
                "samples": stacks,
                "weights": [sample.ns for sample in profile.samples],
            }
        ],
    }
