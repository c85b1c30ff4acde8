"""From a scraped page to our signals: values now, changes since, rows of table `signals`.

Reads a page through `core.engine_names`, so the same signal comes out of every engine family and version that tells it;
a signal an engine does not tell is absent, never 0.  `model` restricts labelled engines (vLLM, SGLang label
`model_name`) to one model where the page has it.  Deliberately absent: fetching the page.
"""

import math
from collections.abc import Mapping

import msgspec

from sits.core.engine_names import detect, on_page
from sits.core.engine_signals import SIGNALS, EngineName, Kind
from sits.core.errors import EngineError
from sits.telemetry.prometheus_text import Histogram, Scrape, between


class EngineView(msgspec.Struct, frozen=True):
    """What one page says, in our names.

    `values` are gauges, shares and counters; `histograms` are of seconds; `used` is which of the engine's names
    each came from.
    """

    family: str
    values: dict[str, float]
    histograms: dict[str, Histogram]
    used: dict[str, str]


class Change(msgspec.Struct, frozen=True):
    """What happened between two pages; `resets` names the metrics that restarted in between (then: a lower bound)."""

    view: EngineView
    resets: tuple[str, ...] = ()


def view(page: Scrape, model: str = "") -> EngineView:
    """Read one page in our names.  A page of no known engine has family `""` and no signals."""
    names = page.names
    family = detect(names)
    values: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    used: dict[str, str] = {}
    for signal in SIGNALS:
        for row in on_page(signal.name, family, names):
            if signal.kind == "histogram":
                histogram = _histogram(page, row, model)
                if histogram is None:
                    continue
                histograms[signal.name] = histogram
            else:
                value = _value(page, row, signal.kind, model)
                if value is None:
                    continue
                values[signal.name] = value
            used[signal.name] = row.name
            break
    return EngineView(family, values, histograms, used)


def _histogram(page: Scrape, row: EngineName, model: str) -> Histogram | None:
    try:
        found = page.histogram(row.name, dict(row.labels) | _model(page, row.name, model))
    except EngineError:  # its buckets decrease: this one is absent, and the page's other signals are not
        return None
    return found if found is None or row.scale == 1 else found.scaled(row.scale)


def _value(page: Scrape, row: EngineName, kind: Kind, model: str) -> float | None:
    """What the page says under this name, in our unit; None when it says nothing, or nothing that is a number."""
    where = dict(row.labels) | _model(page, row.name, model)
    series = [sample for sample in page.samples(row.name, where) if math.isfinite(sample.value)]
    if not series:
        return None
    if row.listed or row.told:  # in the labels of the newest series, whose value is a time
        labels = dict(max(series, key=lambda sample: sample.value).labels)
        if row.listed:
            names = labels.get(row.listed)
            return None if names is None else float(len({name for name in names.split(",") if name.strip()}))
        told = labels.get(row.told, "")
        return float(told) if told.isdecimal() else None
    found = [sample.value for sample in series]
    if row.over is not None:
        of = page.total(row.over[0], dict(row.over[1]))
        return sum(found) / of if of else None
    return (max(found) if kind == "share" else sum(found)) * row.scale


def change(before: Scrape, after: Scrape, model: str = "") -> Change:
    """What happened between two pages: counters and histograms as differences, gauges as at the end."""
    delta = between(before, after)
    seen = view(delta.scrape, model)
    mine = {name for used in seen.used.values() for name in (used, used.removesuffix("_total"))}
    return Change(seen, tuple(name for name in delta.resets if name in mine))


def rows(seen: EngineView, source: str, t_ns: int) -> list[tuple[int, str, str, float]]:
    """Rows for a `SignalLog`: the values of one page, sampled at `t_ns` (monotonic).

    Of a histogram `x` the count and the sum, as `x_count` and `x_sum`: two rows tell the mean of any time between them.
    """
    made = [(t_ns, source, name, value) for name, value in seen.values.items()]
    for name, histogram in seen.histograms.items():
        made += [
            (t_ns, source, f"{name}_count", histogram.count),
            (t_ns, source, f"{name}_sum", histogram.sum),
        ]
    return made


def engine_facts(page: Scrape) -> Mapping[str, str]:
    """What an engine tells about its own configuration: label values of vLLM's `cache_config_info`."""
    wanted = ("block_size", "num_gpu_blocks", "kv_cache_size_tokens", "enable_prefix_caching", "cache_dtype")
    for sample in page.samples("vllm:cache_config_info"):
        labels = dict(sample.labels)
        return {name: labels[name] for name in wanted if labels.get(name, "None") != "None"}
    return {}


def _model(page: Scrape, name: str, model: str) -> dict[str, str]:
    """The label that restricts a series to `model`, where the page has it."""
    if model:
        for suffix in ("", "_count"):
            if next(page.samples(name + suffix, {"model_name": model}), None) is not None:
                return {"model_name": model}
    return {}
