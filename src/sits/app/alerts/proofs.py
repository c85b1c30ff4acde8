"""Unit tests of the rules, for `promtool test rules`: made with them, so that whoever changes a rule can see that it still does its work.

Stories, each over the time its windows need: a quiet while; a breach, told in time, and its end; counters that begin anew; and one trouble
after another of those that are not promises.  Whether an alert fires is asked of Prometheus's own series `ALERTS`.

Deliberately absent: the values in the texts of alerts.
"""

from collections.abc import Mapping
from typing import Any

from sits.app.alerts.delays import Delays, delays
from sits.app.alerts.objectives import indicators, job_of, quoted
from sits.app.alerts.rules import FAST_BURN, alerts_of, threshold
from sits.core.fleet import Fleet
from sits.core.fleet_environment import profile_of
from sits.policy.burn_rate import BURNS

QUIET = 60
"""Steps before anything happens."""

RATE = 50
"""Requests a step."""

LONG_QUIET, LONG_BAD = 6, 30
"""Minutes of the long breach, and before it."""

COMPLETED = 'sits_requests_total{outcome="completed",engine="a",detail=""}'

Series = Mapping[str, str]

TROUBLE: Mapping[str, Series] = {
    "SitsNoEngine": {'sits_engine_healthy{engine="a"}': "0x{n}"},
    "SitsEngineDown": {
        'sits_engine_healthy{engine="a"}': "0x{n}",
        'sits_engine_healthy{engine="b"}': "1x{n}",
    },
    "SitsEngineFlaps": {'sits_engine_healthy{engine="a"}': "{flaps}"},
    "SitsPreemptions": {"sits_preemptions_total": "0+40x{n}"},
    "SitsRetries": {"sits_retries_total": "0+5x{n}"},
    "SitsGatewayDown": {"up": "0x{n}"},
    "SitsRowsDropped": {"sits_rows_dropped_total": "0+1x{n}"},
    "SitsStoreFailing": {"sits_store_failures_total": "0+1x{n}"},
    "SitsStoreTendingFails": {"sits_store_tending_failures_total": "0x{half} 1x{half}"},
    "SitsRestarted": {'sits_restarts_total{process="keeper"}': "0x{half} 1x{half}"},
    "SitsRestartsAgainAndAgain": {'sits_restarts_total{process="worker-0"}': "0+1x{n}"},
    "SitsReloadRefused": {'sits_reloads_total{result="refused"}': "0x{half} 1x{half}"},
    "SitsNoRoomForBodies": {"sits_requests_without_room_total": "0+1x{n}"},
    "SitsQuotaLedgerDown": {"sits_ledger_down": "1x{n}"},
    "SitsQuotaLedgerFlaps": {"sits_ledger_outages_total": "0+1x{n}"},
    "SitsQuotaLedgerLate": {"sits_ledger_expired_total": "0+1x{n}"},
    "SitsAdapterLoadsFail": {'sits_adapter_loads_failed_total{engine="a"}': "_x{half} 1x{half}"},
    "SitsAdapterWithdrawn": {
        'sits_adapter_withdrawn_total{engine="a",adapter="l",reason="lost"}': "_x{half} 1x{half}"
    },
    "SitsAdapterAnswersForBase": {'sits_adapter_base_mixed_total{engine="a"}': "_x{half} 1x{half}"},
    "SitsProfilesNotPushed": {'sits_profiles_pushed_total{result="dropped"}': "0x{half} 1x{half}"},
    "SitsSpansLost": {'sits_otlp_spans_total{result="dropped"}': "0x{half} 512x{half}"},
    "SitsSpansRefused": {
        "sits_otlp_requests_refused_total": "0x{half} 1x{half}",
        'sits_otlp_spans_total{result="refused"}': "0x{n}",
    },
    "SitsBoardFull": {'sits_board_streams_total{result="refused"}': "0x{half} 1x{half}"},
}
"""What makes each alert that is no promise fire, in steps of the evaluation."""

ALONE = ("SitsNoEngine", "SitsEngineDown", "SitsEngineFlaps")
"""Those that are about the same engine, and so need a story each."""

BAD = {"objective": 'sits_objective_missed_total{engine="a"}', "availability": "sits_errors_total"}


def proofs_of(fleet: Fleet, rules_file: str) -> dict[str, Any]:
    """The file of unit tests for the rules in `rules_file`."""
    lengths = delays(profile_of(fleet.telemetry).alert_within)
    stories = [_quiet(fleet, lengths), _anew(fleet, lengths), _breach(fleet, lengths), _long_breach(fleet)]
    known = {alert.name for alert in alerts_of(fleet)}
    alone = [{name: TROUBLE[name]} for name in ALONE]
    together = {name: series for name, series in TROUBLE.items() if name in known and name not in ALONE}
    stories += [_trouble(lengths, fleet, troubles) for troubles in (*alone, together)]
    return {"rule_files": [rules_file], "evaluation_interval": f"{lengths.step_s}s", "tests": stories}


def _story(fleet: Fleet, step_s: int, series: Series, firing: list[tuple[int, str, int]]) -> dict[str, Any]:
    """`firing`: at which second, which alerts (a matcher), how many of them."""
    job = job_of(fleet)
    return {
        "interval": f"{step_s}s",
        "input_series": [
            {"series": _labelled(name, job), "values": values} for name, values in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": f'count(count by (alertname) (ALERTS{{alertstate="firing",{matcher}}}))',
                "eval_time": f"{at}s",
                "exp_samples": [{"labels": "{}", "value": count}] if count else [],
            }
            for at, matcher, count in firing
        ],
    }


def _labelled(name: str, job: str) -> str:
    metric, _, labels = name.partition("{")
    return f'{metric}{{job={quoted(job)},instance="i"' + (f",{labels}" if labels else "}")


def _traffic(steps: int) -> dict[str, str]:
    return {
        'sits_objective_requests_total{engine="a"}': f"0+{RATE}x{steps}",
        COMPLETED: f"0+{RATE}x{steps}",
        **dict.fromkeys(BAD.values(), f"0x{steps}"),
        'sits_engine_healthy{engine="a"}': f"1x{steps}",
        "up": f"1x{steps}",
    }


def _quiet(fleet: Fleet, lengths: Delays) -> dict[str, Any]:
    steps = 1200 // lengths.step_s
    return _story(
        fleet, lengths.step_s, _traffic(steps), [(at, 'alertname=~".+"', 0) for at in (60, 600, 1200)]
    )


def _anew(fleet: Fleet, lengths: Delays) -> dict[str, Any]:
    """The keeper was started again: every counter begins at 0 once more."""
    series = {name: f"{values} {values}" for name, values in _traffic(QUIET).items()}
    at = QUIET * lengths.step_s
    times = [at + i * lengths.step_s for i in (1, 2, 4, 8, 60)]
    return _story(fleet, lengths.step_s, series, [(t, 'alertname=~".+"', 0) for t in times])


def _turned(quiet: int, bad: int, after: int) -> dict[str, str]:
    """All answers turn bad at once, for `bad` steps, and good again: what goes wrong is not completed meanwhile."""
    good = f"0+{RATE}x{quiet} {RATE * quiet}x{bad - 1} {RATE * (quiet + 1)}+{RATE}x{after}"
    wrong = f"0x{quiet} {RATE}+{RATE}x{bad - 1} {RATE * bad}x{after}"
    return _traffic(quiet + bad + after) | dict.fromkeys(BAD.values(), wrong) | {COMPLETED: good}


def _breach(fleet: Fleet, lengths: Delays) -> dict[str, Any]:
    """All answers turn bad for ten minutes: nothing just before, told in time, over soon after the end."""
    step, bad_steps = lengths.step_s, max(40, 600 // lengths.step_s)
    begins, ends = QUIET * step, (QUIET + bad_steps) * step
    firing = []
    for one in indicators(fleet):
        seen_s = (
            lengths.worst_s(threshold(one, FAST_BURN)) - lengths.step_s
        )  # before a group waits and a message travels
        by, after = begins + int(seen_s) // step * step, ends + lengths.window_s + 2 * step
        alert = f'alertname="Sits{one.title}FastBurn"'
        firing += [(begins, alert, 0), (by, alert, 1), (ends, alert, 1), (after, alert, 0)]
    return _story(fleet, step, _turned(QUIET, bad_steps, QUIET), firing)


def _long_breach(fleet: Fleet) -> dict[str, Any]:
    """A quiet time, and one in which all is bad: every window knows, and the short ones forget first.

    The longest windows see both times whole, and no threshold is above 3/4 (of a budget of a half): the bad one is five times as long.
    """
    ends_s = (LONG_QUIET + LONG_BAD) * 60
    firing = [(LONG_QUIET * 60, 'slo=~".+"', 0)]
    for one in indicators(fleet):
        alerts = [f'alertname="Sits{one.title}Burn{long}"' for _, _, long, _ in BURNS]
        firing += [(ends_s, alert, 1) for alert in alerts] + [(ends_s + 480, alerts[0], 0)]
    return _story(fleet, 60, _turned(LONG_QUIET, LONG_BAD, 10), firing)


def _trouble(lengths: Delays, fleet: Fleet, troubles: Mapping[str, Series]) -> dict[str, Any]:
    n = 700 // lengths.step_s
    flaps = " ".join(["1x3 0x3"] * (n // 8 + 1))
    told = {
        name: text.format(n=n, half=n // 2, flaps=flaps)
        for series in troubles.values()
        for name, text in series.items()
    }
    at = n * lengths.step_s
    firing = [(at, f'alertname="{alert}"', 1) for alert in troubles]
    return _story(fleet, lengths.step_s, _traffic(n) | told, firing)
