"""`python -m sits.telemetry.probe`, run with the engine's Python: what the probe would wrap there, and what stands against it."""

import sys
from importlib.metadata import entry_points

from sits import __version__
from sits.telemetry.probe.plugin import look

GROUPS = ("vllm.general_plugins", "vllm.stat_logger_plugins")


def main() -> int:
    """Print what was found; 0 when the probe would run, 1 when it would stand down."""
    found = look()
    told = sys.stdout.write
    told(f"sits {__version__}, Python {sys.version.split()[0]}\n")
    told(f"vLLM {found.version or 'none'}{f' at {found.package}' if found.package else ''}\n")
    lacking = [
        group
        for group in GROUPS
        if not any(point.value.startswith("sits.") for point in entry_points(group=group))
    ]
    for group in GROUPS:
        told(
            f"entry point {group}: {'missing: vLLM will not load the probe' if group in lacking else 'there'}\n"
        )
    for site in found.known.sites if found.known else ():
        told(f"  {site.part:<10} {site.wrapper:<18} {site}\n")
    for problem in found.problems:
        told(f"PROBLEM {problem}\n")
    ready = not found.problems and not lacking
    told("the probe would run\n" if ready else "the probe would stand down\n")
    return 0 if ready else 1


if __name__ == "__main__":
    raise SystemExit(main())
