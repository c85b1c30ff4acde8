"""The examples in the docstrings of everything about OpenTelemetry are true."""

import doctest

import pytest

from sits.app.otlp import receiving_http, rpc_status, target
from sits.core import otel_aliases, otel_names
from sits.telemetry.otlp import counting, emitted, received

MODULES = (otel_names, otel_aliases, received, counting, emitted, target, rpc_status, receiving_http)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples(module):
    ran = doctest.testmod(module)
    assert ran.attempted
    assert not ran.failed
