"""Section `telemetry.profile` of a `fleet.yaml`: whether the gateway's processes are sampled all the time, and where profiles go.

```yaml
telemetry:
  profile:
    hz: 100                       # samples a second of CPU time; 0, as without the section: only when asked for
    window: 10s                   # one profile a process for so long
    push: http://pyroscope:4040   # also to a Pyroscope server
    labels: {env: prod}
```
Rules: an address is http or https with a host; labels are what Pyroscope takes for labels; the key to a server is read from the
environment variable that `push_auth_env` names, never from this file.

Deliberately absent: how samples are taken.
"""

import re
from urllib.parse import urlsplit

import msgspec

from sits.core.problems import Report, join
from sits.core.section import Section
from sits.core.units import SECOND, Ns

HZ_MAX = 1000
WINDOW_MIN_NS, WINDOW_MAX_NS = SECOND, 600 * SECOND

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VALUE = re.compile(r'[^{},="\s]+')


class Profiling(Section, frozen=True, kw_only=True):
    """How processes are sampled.

    Attributes:
        hz: samples a second of CPU time, 0 to 1000; window: of one profile, 1 s to 10 min.
        push: base URL of a Pyroscope server; name: of the application there, the fleet's where empty; labels: of all profiles.
        push_tenant: sent as `X-Scope-OrgID`; push_auth_env: environment variable with the value of the `Authorization` header.
    """

    hz: int = 0
    window: Ns = Ns(10 * SECOND)
    push: str = ""
    name: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    push_tenant: str = ""
    push_auth_env: str = ""


def check_profiling(profile: Profiling, path: str, report: Report) -> None:
    """Report rates, windows, addresses and labels that cannot be."""
    if not 0 <= profile.hz <= HZ_MAX:
        hint = f"0 (only when asked for) to {HZ_MAX}"
        report.add(join(path, "hz"), f"{profile.hz} is no rate to sample at", value=profile.hz, hint=hint)
    if not WINDOW_MIN_NS <= profile.window <= WINDOW_MAX_NS:
        said = f"{profile.window / SECOND:g} s is no window of a profile"
        report.add(join(path, "window"), said, value=profile.window, hint="1s to 10min")
    if profile.push and not _is_address(profile.push):
        hint = "like http://pyroscope:4040"
        report.add(join(path, "push"), f"{profile.push!r} is no address", value=profile.push, hint=hint)
    for key, value in profile.labels.items():
        if not _LABEL.fullmatch(key) or not _VALUE.fullmatch(value):
            hint = "letters, digits and _ in its name; no space, quote, comma, brace or = in its value"
            report.add(f"{path}.labels.{key}", f"{value!r} cannot be a label", value=value, hint=hint)
    if profile.name and not _VALUE.fullmatch(profile.name):
        hint = "no space, quote, comma, brace or ="
        report.add(join(path, "name"), f"{profile.name!r} cannot be a name", value=profile.name, hint=hint)


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port_is_one = parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = not parts.query and not parts.fragment and not parts.username
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain and port_is_one
