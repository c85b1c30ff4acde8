"""Which key goes to an address that somebody gave on the command line.

```
--api-key-env NAME      ->  the key in NAME, to any address: that is what was asked for
nothing is named        ->  the key in the usual variable, if the address is this machine or stands in the user's own file; else none
```
A variable is set once and forgotten, and then an address with a typing error, or one out of a ticket, would be told the key.  So it takes two things to
send a key away from this machine, as with `curl` and `kubectl`: the address, and being told to.

Deliberately absent: sending (`bench.target`, which follows no redirect), and keys of engines (each is named in the fleet file, beside its address).
"""

import os
from urllib.parse import urlsplit

from sits.core.errors import CallerError
from sits.core.loopback import is_loopback


def key_for(url: str, named: str | None, usual: str, *, configured: bool = False) -> str:
    """The key to be sent to `url`; empty = none.

    Args:
        url: where to.
        named: the variable that was named; None = none was.
        usual: the variable that is looked into else; empty = none.
        configured: whether the address is from a file of the user's, and not from the command line.

    Raises:
        CallerError: the variable that was named is not set.

    """
    if named is not None:
        if named and not os.environ.get(named):
            raise CallerError(
                f"the variable {named} holds no key",
                field="--api-key-env",
                value=named,
                hint=f"set it, like {named}=...; or name another one",
            )
        return os.environ[named] if named else ""
    return os.environ.get(usual, "") if configured or _here(url) else ""


def _here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
