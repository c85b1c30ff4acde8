"""Ports of a gateway: whose they are is settled when they are taken."""

import pytest

from sits.app.up import ports
from sits.app.up.ports import listening
from sits.core.errors import ConfigError


def test_two_that_look_at_the_same_moment_do_not_both_get_a_port_that_is_not_shared(monkeypatch):
    at, first = listening("127.0.0.1:0", 1)
    real = ports._bound

    class Free:
        """What the other one's look found a moment ago."""

        def close(self):
            pass

    looks = iter([Free()])
    monkeypatch.setattr(ports, "_bound", lambda *a, share: next(looks, None) or real(*a, share=share))
    with pytest.raises(ConfigError, match=r"admin.listen: cannot listen on .*Address already in use"):
        listening(at, 1, field="admin.listen")
    for one in first[0]:
        one.close()


def test_workers_share_one_and_a_worker_that_comes_back_as_well():
    at, two = listening("127.0.0.1:0", 2)
    _, more = listening(at, 1, ours=True)
    for one in (*two[0], *two[1], *more[0]):
        assert one.getsockname()[1] == int(at.rpartition(":")[2])
        one.close()
