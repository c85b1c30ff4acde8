"""Which hosts are this machine and nothing else: what may be trusted with a key, and who may be let in without one.

Deliberately absent: names that a resolver may give any address (only `localhost` counts), and 0.0.0.0, which is every address of the machine.
"""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host, an address or a name, is this machine and nothing else.

    >>> is_loopback("127.0.0.9"), is_loopback("[::1]"), is_loopback("localhost"), is_loopback("localhost.example"), is_loopback("0.0.0.0")
    (True, True, True, False, False)
    """
    bare = host.strip("[]")
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare.lower().rstrip(".") == "localhost"
