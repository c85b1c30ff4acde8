"""The examples in the docstrings of routes, shifts and importers hold."""

import doctest
import importlib

import pytest

MODULES = (
    "core.pattern",
    "policy.sequential",
    "policy.tally",
    "policy.shift",
    "app.shift.board",
    "app.importing.go_words",
    "app.importing.kubernetes",
    "app.importing.made",
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_hold(name):
    found = doctest.testmod(importlib.import_module(f"sits.{name}"))
    assert found.attempted
    assert not found.failed
