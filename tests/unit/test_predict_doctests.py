"""The numbers in the docstrings of the predictors are what the predictors say."""

import doctest
import importlib
import pkgutil

import pytest

import sits.predict

MODULES = sorted(m.name for m in pkgutil.iter_modules(sits.predict.__path__, "sits.predict."))


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_predictor_shows_numbers():
    finder = doctest.DocTestFinder(exclude_empty=True)
    silent = [m for m in MODULES if not any(t.examples for t in finder.find(importlib.import_module(m)))]
    assert silent == ["sits.predict.gpu_figures"]  # constants only
