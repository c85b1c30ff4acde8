"""Section `admin` of a `fleet.yaml`: where the pages for people are, and whatever else is not a request.

Rules: without a listening address there is no such process at all.  Who may see its pages is not said here but by `access`: whoever may
`admin` the gateway; a fleet without keys shows them on a loopback address only.

Deliberately absent: what is to be seen there.
"""

from sits.core.section import Section


class Admin(Section, frozen=True, kw_only=True):
    """`listen`: host:port of the board and its neighbours, apart from the port of requests; empty is off, port 0 takes a free one."""

    listen: str = ""
