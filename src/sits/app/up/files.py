"""How many files the processes of a gateway may have open: as many as the system lets them.

A stream is two connections, one to its client and one to its engine, so the soft limit most systems start a process with (1024) is
five hundred streams, and then connections are refused and engines look dead.  The soft limit is there for programs that use
`select`, which this one does not; the hard one is the administrator's.

Deliberately absent: raising the hard limit, which takes rights a gateway should not have.
"""

import resource

FILES_MAX = 1_048_576
"""Enough; some systems call their hard limit infinite and refuse to grant it."""


def raise_file_limit() -> int:
    """Raise the soft limit to the hard one; returns what it is now.  Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
