"""Environments: profiles, values that go before them, and names that are none."""

import pytest

from sits.core.config import dump_fleet, load_fleet
from sits.core.errors import ConfigErrors
from sits.core.fleet_environment import DAY, PROFILES, profile_of, values
from sits.core.units import SECOND


def fleet(telemetry=""):
    said = f"telemetry: {telemetry}\n" if telemetry else ""
    return load_fleet(
        f'name: shop\n{said}engines: [{{kind: openai, name: a, url: "http://127.0.0.1:1", models: [m]}}]\n',
        "f.yaml",
    )


def test_production_is_what_holds_when_nothing_is_said():
    holds = profile_of(fleet().telemetry)
    assert holds == PROFILES["prod"]
    assert (holds.sampling, holds.traces_kept, holds.metrics_kept) == (1.0, 30 * DAY, 90 * DAY)
    assert holds.alert_within == 45 * SECOND


def test_what_the_file_says_goes_before_the_profile_and_the_rest_stays():
    holds = profile_of(fleet("{environment: preprod, sampling: 25%, traces_kept: 36h}").telemetry)
    assert values(holds) == {
        "name": "preprod",
        "sampling": "25%",
        "traces_kept": "36h",
        "metrics_kept": "7d",
        "alert_within": "5min",
    }


def test_an_environment_of_ones_own_says_everything():
    own = "{environment: load-test, sampling: 0%, traces_kept: 1d, metrics_kept: 7d, alert_within: 10min}"
    tree = fleet(own)
    assert profile_of(tree.telemetry).sampling == 0.0
    assert load_fleet(dump_fleet(tree)) == tree


@pytest.mark.parametrize(
    ("telemetry", "told"),
    [
        ("{environment: preprd}", "telemetry.environment: there is no profile 'preprd' (did you mean 'preprod'?; one of your own also says sampling, traces_kept, metrics_kept, alert_within)"),
        ("{environment: 'a b'}", "telemetry.environment: 'a b' cannot be an environment (letters, digits, - and _, at most 63)"),
        ("{traces_kept: 10min}", "telemetry.traces_kept: 600 s is too short (at least 3600 s)"),
        ("{alert_within: 5s}", "telemetry.alert_within: 5 s is too short (at least 15 s)"),
        ("{sampling: 110%}", "telemetry.sampling: '110%' is outside 0..1 (a share is between 0% and 100%)"),
        ("{pinned: {engines: [b]}}", "telemetry.pinned.engines[0]: there is no engine 'b' (known: a)"),
        ("{pinned: {traces: [XY]}}", "telemetry.pinned.traces[0]: 'XY' is no trace id (32 hex digits, lower case)"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_with_the_way_out(telemetry, told):
    with pytest.raises(ConfigErrors) as caught:
        fleet(telemetry)
    assert [str(one) for one in caught.value.errors] == [f"f.yaml:2: {told}"]
