"""Two Grafana dashboards of a fleet: its promises and where the time goes, and the gateway's own health.

Both speak only of what the fleet has: no panel of a cache, a window, a quota or adapters without one.  Where a rule records a number
(`app.alerts.rules`), the panel shows that number, so that a board and an alert cannot disagree.

Deliberately absent: how a panel is written down (`app.alerts.panels`), and causes: those are in `sitsctl why`.
"""

from collections.abc import Iterator
from typing import Any

from sits.app.alerts.delays import delays
from sits.app.alerts.objectives import TIMES, indicators, quoted, recorded, selector, slug
from sits.app.alerts.panels import BAD, GOOD, SOURCE, WARN, Json, heat, laid_out, series, stat, states
from sits.app.alerts.rules import FAST_BURN, fast
from sits.core.fleet import Fleet
from sits.core.fleet_environment import profile_of
from sits.core.units import SECOND, show_duration
from sits.policy.burn_rate import BURNS

Row = tuple[str, int, list[Json]]
TAG = "sits"


def dashboards_of(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """The dashboards, by the last part of their file's name."""
    return {
        "service": _dashboard(fleet, "service", "promises, latency, engines", list(_service(fleet))),
        "gateway": _dashboard(fleet, "gateway", "the gateway's own health", list(_health(fleet))),
    }


def _service(fleet: Fleet) -> Iterator[Row]:
    s, of, objective = selector(fleet), recorded(fleet), fleet.objective
    latency, availability = indicators(fleet)
    window = fast(delays(profile_of(fleet.telemetry).alert_within))
    what, limit = TIMES[objective.metric], objective.p99 / SECOND
    left = [(BAD, None), (WARN, 0.1), (GOOD, 0.5)]
    of_all = f"histogram_quantile(0.99, sum by (le) (rate(sits_{objective.metric}_seconds_bucket{s}[5m])))"
    yield f"{fleet.name}: what is promised", 6, [
        stat(f"P99 {what}", of_all, "s", f"P99 of the last 5 min, interpolated within a bucket; the objective is {show_duration(objective.p99)}. Whether it was met is counted exactly, beside.", [(GOOD, None), (WARN, limit * 0.8), (BAD, limit)]),
        stat("Over the objective", latency.recorded(window), "percentunit", f"Share of answers of the last {window} over {show_duration(objective.p99)}, counted one by one; {latency.budget:.0%} may be. This is what pages.", [(GOOD, None), (WARN, latency.budget), (BAD, min(1.0, FAST_BURN * latency.budget))]),
        stat("Latency budget left", f"1 - {latency.recorded('30d')} / {latency.budget:g}", "percentunit", "Of the answers that may be over the objective in 30 days, the share that was not yet.", left),
        stat("Availability budget left", f"1 - {availability.recorded('30d')} / {availability.budget:g}", "percentunit", f"Of the {availability.budget:.3%} that may fail in 30 days, the share that did not yet.", left),
    ]  # fmt: skip
    windows = ["5m", "1h", "30m", "6h", "2h", "1d", "3d"]
    yield "How fast the budgets burn", 8, [
        series(f"{one.title}: burn rate", [(f"{one.recorded(w)} / {one.budget:g}", w) for w in windows], "none", f"Share of bad ones over the share that may be, in windows of several lengths: 1 spends exactly the budget. Pages at {BURNS[0].burn:g} (1h and 5m) and {BURNS[1].burn:g} (6h and 30m).", BURNS[0].burn)
        for one in (latency, availability)
    ]  # fmt: skip
    yield "Latency by engine", 9, [
        series("P99 time to first token", [("sits:ttft_seconds:p99_5m" + of, "{{engine}}")], "s", "Streamed answers, first byte in to first token out; last 5 min.", limit if objective.metric == "ttft" else None),
        series("P99 end-to-end time", [("sits:e2e_seconds:p99_5m" + of, "{{engine}}")], "s", "First byte in to answer flushed; last 5 min.", limit if objective.metric == "e2e" else None),
        heat(f"{what.capitalize()}, all engines", f"sum by (le) (increase(sits_{objective.metric}_seconds_bucket{s}[$__rate_interval]))", "s", "How many answers took how long."),
    ]  # fmt: skip
    yield "Traffic", 8, [
        series("Requests", [("sits:requests:rate1m" + of, "{{outcome}}")], "reqps", "Finished requests by outcome, last minute."),
        series("What went wrong", [(_wrong(fleet), "{{outcome}} {{detail}}")], "reqps", "Requests that were not answered, by why; callers' mistakes are among them."),
        series("Tokens", [(f"sum(rate(sits_output_tokens_total{s}[1m]))", "generated")], "short", "Generated tokens a second."),
        series("Share over the objective", [(f"sum by (engine) (rate(sits_objective_missed_total{s}[5m])) / sum by (engine) (rate(sits_objective_requests_total{s}[5m]))", "{{engine}}")], "percentunit", "By engine, counted one by one; last 5 min.", latency.budget),
    ]  # fmt: skip
    yield "Engines", 8, [
        states("Reachable", (f"min by (engine) (sits_engine_healthy{s})", "{{engine}}"), "Down from when the engine's breaker opened until the engine has answered again."),
        series("In flight", [(f"sum by (engine) (sits_inflight_requests{s})", "{{engine}}")], "short", "Requests sent to an engine and unfinished."),
        series("Tokens in flight", [(f"sum by (engine) (sits_inflight_tokens{s})", "{{engine}}")], "short", "Their tokens: prompt and allowed output."),
        series("Second tries and preemptions", [(f"sum(rate(sits_retries_total{s}[5m]))", "retries"), (f"sum(rate(sits_preemptions_total{s}[5m]))", "preemptions")], "reqps", "Requests sent to a second engine, and preemptions engines tell."),
    ]  # fmt: skip
    yield "What engines tell of themselves", 8, [
        series("KV blocks in use", [(f"max by (engine) (sits_engine_kv_usage{s})", "{{engine}}")], "percentunit", "Share of an engine's KV blocks in use; a gap is an engine that tells nothing."),
        series("Waiting in engines", [(f"max by (engine) (sits_engine_requests_waiting{s})", "{{engine}}")], "short", "Requests in each engine's own queue."),
        series("Running in engines", [(f"max by (engine) (sits_engine_requests_running{s})", "{{engine}}")], "short", "Requests each engine is working on."),
    ]  # fmt: skip


def _wrong(fleet: Fleet) -> str:
    bad = selector(fleet, 'outcome!="completed"')
    return f"sum by (outcome, detail) (rate(sits_requests_total{bad}[5m]))"


def _health(fleet: Fleet) -> Iterator[Row]:
    s = selector(fleet)
    pauses = f"sum by (le) (rate(sits_gc_pause_seconds_bucket{s}[5m]))"
    restarts = f"sum by (process) (increase(sits_restarts_total{s}[1h]))"
    yield f"{fleet.name}: processes", 8, [
        series("Memory", [(f"sum by (process) (sits_resident_memory_bytes{s})", "{{process}}")], "bytes", "Resident memory of each process."),
        series("Workers and restarts", [(f"sum(sits_workers{s})", "workers"), (restarts, "restarts of {{process}}, 1 h")], "short", "Processes that serve, and those that died."),
        series("Configuration", [(f"max(sits_generation{s})", "generation"), (f"sum by (result) (increase(sits_reloads_total{s}[1h]))", "{{result}}, 1 h")], "short", "Which configuration serves, and what became of changed ones."),
        series("Pauses", [(f"histogram_quantile(0.99, {pauses})", "P99 of garbage collection")], "s", "While it collects, a process does nothing else."),
    ]  # fmt: skip
    yield "Connections and room", 8, [
        series("Connections", [(f"sum(sits_connections{s})", "open")], "short", "Open client connections."),
        series("Bytes of requests held", [(f"sum(sits_request_bytes{s})", "held")], "bytes", "Arriving, waiting, or large and being answered.", float(fleet.gateway.body_memory * fleet.gateway.workers)),
        series("Turned away", [(f"sum(rate(sits_requests_without_room_total{s}[5m]))", "no room"), (f"sum(rate(sits_bad_requests_total{s}[5m]))", "no HTTP")], "reqps", "Requests there was no room for, and what was none."),
    ]  # fmt: skip
    yield "What is recorded", 8, [
        series("Rows", [(f"sum by (why) (rate(sits_rows_kept_total{s}[5m]))", "kept: {{why}}"), (f"sum(rate(sits_rows_thinned_total{s}[5m]))", "not kept")], "short", "Rows of requests a second, by why they are kept at the environment's share."),
        series("Stored", [(f"sum(rate(sits_rows_stored_total{s}[5m]))", "rows of all tables")], "short", "Rows made durable, a second."),
        series("Lost", [(f"sum(increase(sits_rows_dropped_total{s}[5m]))", "rows dropped, 5 min"), (f"sum(increase(sits_store_failures_total{s}[5m]))", "failed writes, 5 min"), (f"sum(increase(sits_store_tending_failures_total{s}[1h]))", "failed merges, 1 h")], "short", "Requests that were answered but not recorded, and why; hours that are over and could not be merged and indexed lose nothing."),
    ]  # fmt: skip
    parts = list(_parts(fleet))
    if parts:
        yield "Parts of this fleet", 8, parts


def _parts(fleet: Fleet) -> Iterator[Json]:
    s = selector(fleet)
    if fleet.policy.cache.kind != "none":
        yield series("Cache", [(f"sum by (verdict) (rate(sits_cache_requests_total{s}[5m]))", "{{verdict}}")], "reqps", "Requests by what the response cache did for them.")  # fmt: skip
        yield series("Cache memory", [(f"sum(sits_cache_bytes{s})", "bytes")], "bytes", "What kept answers cost of the cache's memory.", float(fleet.policy.cache.memory))  # fmt: skip
        yield series("Answers let go", [(f"sum by (why) (rate(sits_cache_removed_total{s}[5m]))", "{{why}}")], "short", "Kept answers that were removed, a second, by why.")  # fmt: skip
    if fleet.quotas:
        yield series("Quota ledger fails", [(f"sum(increase(sits_ledger_outages_total{s}[5m]))", "outages, 5 min"), (f"sum(increase(sits_ledger_down_total{s}[5m]))", "unanswered questions, 5 min"), (f"sum(increase(sits_ledger_expired_total{s}[5m]))", "never settled, 5 min"), (f"sum(increase(sits_ledger_over_use_total{s}[5m]))", "used above what was reserved, 5 min")], "short", "Times the ledger stopped answering, what it did not answer, and reservations that went wrong.")  # fmt: skip
        yield series("Quota ledger", [(f"sum(rate(sits_ledger_questions_total{s}[5m]))", "questions"), (f"sum(rate(sits_ledger_waits_total{s}[5m]))", "waits"), (f"sum(rate(sits_ledger_opened_total{s}[5m]))", "let in without it"), (f"max(sits_ledger_down{s})", "down")], "short", "What the ledger was asked, and what happened while it did not answer.")  # fmt: skip
    if fleet.policy.window.kind != "none":
        calls, requests = (
            f"sum by (engine) (rate(sits_window_{what}_total{s}[5m]))" for what in ("calls", "requests")
        )
        yield series("Mean batch", [(f"{requests} / {calls}", "{{engine}}")], "short", "Requests sent in one call of a batching window.")  # fmt: skip
        yield series("Calls taken apart", [(f"sum by (engine) (rate(sits_window_apart_total{s}[5m]))", "{{engine}}")], "short", "Calls of several requests, a second, that had to be sent one by one after all.")  # fmt: skip
    if fleet.runtime_adapters.adapters:
        yield series("Adapter loads", [(f"sum by (engine) (increase(sits_adapter_loads_{what}_total{s}[1h]))", f"{what} {{{{engine}}}}") for what in ("succeeded", "failed")], "short", "Loads of runtime adapters in the last hour.")  # fmt: skip
        yield series("Adapters in trouble", [(f"sum by (engine, reason) (increase(sits_adapter_withdrawn_total{s}[1h]))", "withdrawn {{engine}} {{reason}}"), (f"sum(increase(sits_adapter_refused_total{s}[1h]))", "requests refused"), (f"sum by (engine) (increase(sits_adapter_evicted_total{s}[1h]))", "evicted {{engine}}"), (f"sum by (engine) (increase(sits_adapter_base_mixed_total{s}[1h]))", "answers for its base {{engine}}")], "short", "In the last hour: adapters taken out of the routes or unloaded to make room, requests refused because theirs was not ready, and base models that an adapter answered for.")  # fmt: skip
    yield from _telling(fleet)


def _telling(fleet: Fleet) -> Iterator[Json]:
    s, otlp = selector(fleet), fleet.telemetry.otlp
    if fleet.telemetry.profile.push:
        yield series("Profiles pushed", [(f"sum by (result) (increase(sits_profiles_pushed_total{s}[5m]))", "{{result}}")], "short", "Profiles of the last 5 min by what became of pushing them; dropped and refused ones are in the store only.")  # fmt: skip
    if not fleet.admin.listen:
        return
    if otlp.export is not None or otlp.receive.http or otlp.receive.grpc:
        yield series("Spans over OTLP", [(f"sum by (result) (rate(sits_otlp_spans_total{s}[5m]))", "{{result}}"), (f"sum(rate(sits_otlp_requests_refused_total{s}[5m]))", "requests without room"), (f"sum(rate(sits_otlp_retries_total{s}[5m]))", "batches sent again")], "short", "Spans a second: received from others or refused; sent to a collector, dropped after all tries, or rejected by it.")  # fmt: skip
    yield series("Board", [(f"sum(sits_board_streams{s})", "streams"), (f"sum by (result) (increase(sits_board_streams_total{s}[5m]))", "{{result}}, 5 min")], "short", "Browsers that look at the board; those there was no room for, and those dropped because they took nothing.")  # fmt: skip


def _dashboard(fleet: Fleet, kind: str, title: str, rows: list[Row]) -> dict[str, Any]:
    environment = fleet.telemetry.environment
    firing = f'ALERTS{{alertstate="firing",fleet={quoted(fleet.name)}}}'
    return {
        "uid": f"sits-{slug(fleet.name)}-{kind}",
        "title": f"SITS {fleet.name} ({environment}): {title}",
        "tags": [TAG, environment],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"title": "SITS", "type": "dashboards", "tags": [TAG], "asDropdown": True, "keepTime": True, "includeVars": True, "icon": "external link", "tooltip": "", "url": "", "targetBlank": False}],
        "templating": {"list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0, "multi": False, "includeAll": False, "regex": "", "refresh": 1, "skipUrlSync": False}]},
        "annotations": {"list": [{"name": "Alerts", "enable": True, "hide": False, "iconColor": "red", "datasource": SOURCE, "expr": firing}]},
        "panels": laid_out(rows),
    }  # fmt: skip
