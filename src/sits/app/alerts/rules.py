"""Prometheus rules of a fleet: its promises watched over several windows, and what else somebody has to know of.

```
share of bad ones > burn x budget, in the long window and in the short one        (Google, The Site Reliability Workbook, ch. 5)
  page    14.4 x   last W                at least 5 bad ones: told within `alert_within` (`app.alerts.delays`)
  page    14.4 x   1 h and 5 min         2 % of a 30-day budget in an hour
  page     6   x   6 h and 30 min        5 % in six hours
  ticket   3   x   1 d and 2 h           10 % in a day
  ticket   1   x   3 d and 6 h           10 % in three days
```
The long window says that it matters, the short one that it still goes on.  The first row is not the workbook's: five minutes are too long
for a promise of 45 s; five bad ones keep a quiet night's single slow answer from waking anybody.

Rules: a threshold is never above the middle between budget and all (else a large budget could not be burned fast enough to be told); every
alert says what it means, which command explains it and where that command is run, and where the board is; expressions use only metrics the
gateway has.  What a fleet.yaml says is never a template of Prometheus (`verbatim`).

Deliberately absent: who is told (Alertmanager's), thresholds nobody promised, and the table of burns (`policy.burn_rate`).
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sits.app.alerts.delays import Delays, delays
from sits.app.alerts.objectives import Indicator, indicators, selector
from sits.core.fleet import Fleet
from sits.core.fleet_environment import profile_of
from sits.policy.burn_rate import BURNS

LEAST_BAD = 5
FAST_BURN = 14.4
NEAR, FAR = ("5m", "1h"), ("30m", "2h", "6h", "1d", "3d", "30d")
"""Windows recorded with every evaluation, and once a minute."""

PAGE, TICKET = "page", "ticket"
NOT_OPENED = 'result="refused"'
"""Streams of the board there was no room for."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alerting rule; `for_s` in seconds; `next` is what to do, as a command where there is one."""

    name: str
    expr: str
    severity: str
    summary: str
    next: str
    for_s: int = 0
    slo: str = ""


def threshold(indicator: Indicator, burn: float) -> float:
    """The share of bad ones at which a budget burns so fast."""
    return round(min(burn * indicator.budget, (1 + indicator.budget) / 2), 9)


def rules_of(fleet: Fleet) -> dict[str, Any]:
    """The rule file, as plain values."""
    lengths = delays(profile_of(fleet.telemetry).alert_within)
    near, far = [], []
    for indicator in indicators(fleet):
        near += [_record(fleet, indicator.rule(w), indicator.ratio(w)) for w in (fast(lengths), *NEAR)]
        far += [_record(fleet, indicator.rule(w), indicator.ratio(w)) for w in FAR]
    near += [_record(fleet, name, expr) for name, expr in _latencies(fleet)]
    alerts = alerts_of(fleet)
    slow = [alert for alert in alerts if alert.slo and not alert.name.endswith("FastBurn")]
    now = [alert for alert in alerts if alert not in slow]
    step = f"{lengths.step_s}s"
    groups = [
        ("now", step, near + [_alert(fleet, alert) for alert in now]),
        ("budget", "1m", far + [_alert(fleet, alert) for alert in slow]),
    ]
    return {
        "groups": [
            {"name": f"sits-{fleet.name}-{name}", "interval": interval, "rules": rules}
            for name, interval, rules in groups
        ]
    }


def fast(lengths: Delays) -> str:
    """The window of the fast rule as PromQL writes it."""
    return f"{lengths.window_s}s"


def alerts_of(fleet: Fleet) -> list[Alert]:
    """Every alert, those of the promises first."""
    lengths = delays(profile_of(fleet.telemetry).alert_within)
    found = [alert for one in indicators(fleet) for alert in _burns(one, lengths, fleet)]
    return [*found, *_engines(fleet, lengths), *_gateway(fleet, lengths), *_parts(fleet, lengths)]


def verbatim(text: str) -> str:
    """What is shown as it is, though Prometheus reads labels and annotations of an alert as templates.

    >>> print(verbatim("{{ $labels }}"))
    {{ "{{" }} $labels }}
    """
    return text.replace("{{", '{{ "{{" }}')


def _why(fleet: Fleet, since: str) -> str:
    """The command that explains; a path of the file that is relative is one from where the gateway was started, which only it knows."""
    store = fleet.gateway.store
    where = "" if Path(store).is_absolute() else ", in the directory where `sitsctl up` was started"
    return verbatim(
        f"sitsctl why --since {since} --store {shlex.quote(store)} (on the gateway's machine{where})"
    )


def _grew(metric: str, by: str, window: str = "10m") -> str:
    """That a counter has grown; also one that was not there before it first counted, whose first number `increase` takes for its beginning."""
    return f"sum by ({by}) (increase({metric}[{window}])) > 0 or sum by ({by}) ({metric} unless {metric} offset {window}) > 0"


def _burns(one: Indicator, lengths: Delays, fleet: Fleet) -> Iterator[Alert]:
    window, limit = fast(lengths), threshold(one, FAST_BURN)
    enough = one.bad.replace("{window}", window)
    of = verbatim(f"{fleet.name}'s {one.bad_words}")
    yield Alert(
        name=f"Sits{one.title}FastBurn",
        expr=f"{one.recorded(window)} > {limit} and on () {enough} * {lengths.window_s} >= {LEAST_BAD}",
        severity=PAGE,
        summary=f"{{{{ $value | humanizePercentage }}}} of {of}, in the last {window}; {one.budget:.3%} may",
        next=_why(fleet, "15m"),
        for_s=lengths.step_s,
        slo=one.name,
    )
    for severity, burn, long, short in BURNS:
        limit = threshold(one, burn)
        yield Alert(
            name=f"Sits{one.title}Burn{long}",
            expr=f"{one.recorded(long)} > {limit} and {one.recorded(short)} > {limit}",
            severity=severity,
            summary=f"{{{{ $value | humanizePercentage }}}} of {of}, in the last {long} and still; the budget burns {burn:g} times too fast",
            next=_why(fleet, short),
            slo=one.name,
        )


def _engines(fleet: Fleet, lengths: Delays) -> Iterator[Alert]:
    s, healthy = selector(fleet), f"sits_engine_healthy{selector(fleet)}"
    look = "see what the gateway says on stderr, and the engine's own log"
    why = _why(fleet, "15m")
    yield Alert(name="SitsNoEngine", expr=f"max({healthy}) == 0", severity=PAGE, for_s=lengths.step_s, next=look,
        summary=f"no engine of {verbatim(fleet.name)} can be reached")  # fmt: skip
    yield Alert(name="SitsEngineDown", expr=f"min by (engine) ({healthy}) == 0", severity=TICKET, for_s=3 * lengths.step_s, next=look,
        summary="engine {{ $labels.engine }} cannot be reached: its breaker opened, and it has not answered since")  # fmt: skip
    yield Alert(name="SitsEngineFlaps", expr=f"sum by (engine) (changes({healthy}[10m])) > 6", severity=TICKET, next=look,
        summary="the breaker of engine {{ $labels.engine }} opened and closed again {{ $value }} times in ten minutes")  # fmt: skip
    yield Alert(name="SitsPreemptions", severity=TICKET, for_s=300, next=f"{why}; sitsctl plan memory says how many sequences fit",
        expr=f"sum(rate(sits_preemptions_total{s}[5m])) / sum(rate(sits_requests_total{s}[5m])) > 0.05",
        summary="engines preempt {{ $value | humanizePercentage }} of the requests: the KV cache is too small for the load")  # fmt: skip
    yield Alert(name="SitsRetries", severity=TICKET, for_s=60, next=look,
        expr=f"sum(rate(sits_retries_total{s}[5m])) / sum(rate(sits_requests_total{s}[5m])) > 0.05",
        summary="{{ $value | humanizePercentage }} of the requests needed a second engine; the budget of retries ends at 10%")  # fmt: skip


def _gateway(fleet: Fleet, lengths: Delays) -> Iterator[Alert]:
    s, store = selector(fleet), fleet.gateway.store
    disk = verbatim(
        f"is there room on the disk of {store} on the gateway's machine, and may the gateway write there?"
    )
    refused = selector(fleet, 'result="refused"')
    restarts = f"sits_restarts_total{s}"
    yield Alert(name="SitsGatewayDown", expr=f"up{s} == 0", severity=PAGE, for_s=2 * lengths.step_s,
        summary="the gateway {{ $labels.instance }} does not answer Prometheus", next="is `sitsctl up` running there? what did it say last?")  # fmt: skip
    yield Alert(name="SitsRowsDropped", expr=f"sum(increase(sits_rows_dropped_total{s}[5m])) > 0", severity=TICKET, next=disk,
        summary="{{ $value }} requests of the last five minutes were answered but not recorded; answers are not affected")  # fmt: skip
    yield Alert(name="SitsStoreFailing", expr=f"sum(increase(sits_store_failures_total{s}[5m])) > 0", severity=TICKET, next=disk,
        summary="the store could not be written; rows wait, and are dropped when there is no more room")  # fmt: skip
    yield Alert(name="SitsStoreTendingFails", expr=f"sum(increase(sits_store_tending_failures_total{s}[1h])) > 0", severity=TICKET,
        summary="hours of the store that are over could not be merged and indexed; nothing is lost, but boards and `why` become slower", next=verbatim(f"sitsctl store tend {shlex.quote(store)} says why; {disk}"))  # fmt: skip
    yield Alert(name="SitsRestarted", expr=f"increase({restarts}[10m]) > 0", severity=TICKET, next="see what it said last on the gateway's stderr",
        summary="{{ $labels.process }} died and was started again; a worker's connections were lost, a keeper's unwritten rows")  # fmt: skip
    yield Alert(name="SitsRestartsAgainAndAgain", expr=f"sum(increase({restarts}[10m])) > 3", severity=PAGE,
        summary="processes of the gateway died {{ $value }} times in ten minutes", next="see what they said last on the gateway's stderr")  # fmt: skip
    yield Alert(name="SitsReloadRefused", expr=f"sum(increase(sits_reloads_total{refused}[10m])) > 0",
        severity=TICKET, summary="a changed configuration was refused; the old one goes on", next="sitsctl check on the file the gateway serves")  # fmt: skip
    yield Alert(name="SitsNoRoomForBodies", expr=f"sum(increase(sits_requests_without_room_total{s}[5m])) > 0", severity=TICKET,
        summary="{{ $value }} requests found no room in gateway.body_memory in five minutes", next="raise gateway.body_memory, or gateway.workers")  # fmt: skip


def _parts(fleet: Fleet, lengths: Delays) -> Iterator[Alert]:
    s = selector(fleet)
    if fleet.quotas:
        yield Alert(name="SitsQuotaLedgerDown", expr=f"max(sits_ledger_down{s}) > 0", severity=PAGE, for_s=2 * lengths.step_s,
            summary="the quota ledger does not answer; requests are let in or refused as its section says", next="sitsctl quota, and is the Redis up?")  # fmt: skip
        yield Alert(name="SitsQuotaLedgerFlaps", expr=f"sum(increase(sits_ledger_outages_total{s}[10m])) > 3", severity=TICKET,
            summary="the quota ledger stopped answering {{ $value | humanize }} times in ten minutes, and came back", next="sitsctl quota; the Redis's log, and the network to it")  # fmt: skip
        yield Alert(name="SitsQuotaLedgerLate", expr=f"sum(increase(sits_ledger_expired_total{s}[10m])) > 0", severity=TICKET,
            summary="{{ $value }} reservations were never settled in ten minutes", next="sitsctl quota; did a worker die?")  # fmt: skip
    if fleet.runtime_adapters.adapters:
        yield Alert(name="SitsAdapterLoadsFail", expr=_grew(f"sits_adapter_loads_failed_total{s}", "engine"),
            severity=TICKET, summary="adapters could not be loaded on {{ $labels.engine }}", next="sitsctl adapters")  # fmt: skip
        yield Alert(name="SitsAdapterWithdrawn", expr=_grew(f"sits_adapter_withdrawn_total{s}", "engine, adapter, reason"), severity=TICKET, next="sitsctl adapters",
            summary="adapter {{ $labels.adapter }} was taken out of the routes on {{ $labels.engine }}: {{ $labels.reason }}")  # fmt: skip
        yield Alert(name="SitsAdapterAnswersForBase", expr=_grew(f"sits_adapter_base_mixed_total{s}", "engine"), severity=TICKET, next="sitsctl adapters; start that engine again",
            summary="on {{ $labels.engine }} an adapter answers who asks for the base model: answers may be of the wrong model")  # fmt: skip
    yield from _telling(fleet)


def _telling(fleet: Fleet) -> Iterator[Alert]:
    """Of what is sent to others, and taken from them."""
    otlp, profile = fleet.telemetry.otlp, fleet.telemetry.profile
    if profile.push:
        lost = selector(fleet, 'result!="sent"')
        yield Alert(name="SitsProfilesNotPushed", expr=f"sum by (result) (increase(sits_profiles_pushed_total{lost}[10m])) > 0", severity=TICKET,
            summary="profiles did not reach the profile server: {{ $labels.result }}; those in the store are all there", next=verbatim(f"is {profile.push} up, and does it take them? the gateway's stderr says what it answered"))  # fmt: skip
    if not fleet.admin.listen:
        return
    if otlp.export is not None:
        lost = selector(fleet, 'result=~"dropped|rejected"')
        yield Alert(name="SitsSpansLost", expr=f"sum by (result) (increase(sits_otlp_spans_total{lost}[10m])) > 0", severity=TICKET,
            summary="{{ $value | humanize }} spans were {{ $labels.result }} in ten minutes and are not where traces are looked at; those in the store are all there", next="is the collector of telemetry.otlp.export up, and does it take them? the gateway's stderr says what it answered")  # fmt: skip
    if otlp.receive.http or otlp.receive.grpc:
        refused = selector(fleet, 'result="refused"')
        yield Alert(name="SitsSpansRefused", severity=TICKET, next="are engines' clocks and spans as docs/opentelemetry.md says? the gateway's stderr names the first; too many at once wait for room",
            expr=f"sum(increase(sits_otlp_requests_refused_total{selector(fleet)}[10m])) + sum(increase(sits_otlp_spans_total{refused}[10m])) > 0",
            summary="{{ $value | humanize }} spans, or requests with some, that engines and others sent were not taken in ten minutes")  # fmt: skip
    yield Alert(name="SitsBoardFull", expr=f"sum(increase(sits_board_streams_total{selector(fleet, NOT_OPENED)}[10m])) > 0", severity=TICKET,
        summary="{{ $value | humanize }} times in ten minutes the board had no room for one more browser", next="close boards nobody looks at")  # fmt: skip


def _latencies(fleet: Fleet) -> Iterator[tuple[str, str]]:
    s = selector(fleet)
    for family in ("ttft", "e2e"):
        buckets = f"sum by (engine, le) (rate(sits_{family}_seconds_bucket{s}[5m]))"
        yield f"sits:{family}_seconds:p99_5m", f"histogram_quantile(0.99, {buckets})"
    yield "sits:requests:rate1m", f"sum by (outcome) (rate(sits_requests_total{s}[1m]))"


def _record(fleet: Fleet, name: str, expr: str) -> dict[str, Any]:
    return {"record": name, "expr": expr, "labels": {"fleet": fleet.name}}


def _alert(fleet: Fleet, alert: Alert) -> dict[str, Any]:
    environment = fleet.telemetry.environment
    labels = {"severity": alert.severity, "fleet": verbatim(fleet.name), "environment": environment}
    notes = {"summary": alert.summary, "runbook": alert.next}
    if fleet.admin.listen:
        notes["board"] = f"http://{fleet.admin.listen}/"
    found: dict[str, Any] = {"alert": alert.name, "expr": alert.expr}
    if alert.for_s:
        found["for"] = f"{alert.for_s}s"
    return found | {"labels": labels | ({"slo": alert.slo} if alert.slo else {}), "annotations": notes}
