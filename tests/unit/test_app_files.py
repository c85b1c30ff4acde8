"""The limit of open files is as high as it may be."""

import resource

import pytest

from sits.app.up import files
from sits.app.up.files import raise_file_limit


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1024, 4096, 4096),
        (4096, 4096, 4096),
        (1024, resource.RLIM_INFINITY, files.FILES_MAX),
        (1024, 2**30, files.FILES_MAX),
        (2**30, resource.RLIM_INFINITY, 2**30),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_the_soft_limit_becomes_the_hard_one(monkeypatch, soft, hard, then):
    now = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: now[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: now.__setitem__(0, limits))
    assert raise_file_limit() == then
    assert now[0] == (then, hard)
