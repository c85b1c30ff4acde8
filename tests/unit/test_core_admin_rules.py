"""Where the admin process listens, and what it alone shows: what cannot be is told when the file is read."""

import pytest

from sits.core.config import load_fleet
from sits.core.errors import ConfigErrors

FLEET = "name: f\ngateway: {listen: '127.0.0.1:%s', metrics: %s}\nadmin: {listen: '%s'}\nengines: [{kind: openai, name: e, url: 'http://h', models: [m]}]\n"


@pytest.mark.parametrize(
    ("port", "metrics", "admin", "field"),
    [
        (8080, "admin", "", "gateway.metrics"),
        (8080, "open", "127.0.0.1:8080", "admin.listen"),
        (8080, "secret", "127.0.0.1:8081", "gateway.metrics"),
    ],
)
def test_what_cannot_be(port, metrics, admin, field):
    with pytest.raises(ConfigErrors) as told:
        load_fleet(FLEET % (port, metrics, admin))
    assert [error.field for error in told.value.errors] == [field]


@pytest.mark.parametrize(
    ("port", "metrics", "admin"),
    [
        (8080, "admin", "127.0.0.1:8081"),
        (0, "open", "127.0.0.1:0"),
        (8080, "open", "10.0.0.1:8080"),
        (8080, "open", ""),
    ],
)
def test_what_can_be(port, metrics, admin):
    assert load_fleet(FLEET % (port, metrics, admin)).gateway.metrics == metrics
