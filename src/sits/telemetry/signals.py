"""From a scraped page to our signals: values now, changes since, rows of table `signals`.

Reads a page through `core.engine_names`, so the same signal comes out of every engine family and version that tells it;
a signal an engine does not tell is absent, never 0.  `model` restricts labelled engines (vLLM, SGLang label
`model_name`) to one model where the page has it.  Deliberately absent: fetching the page.
"""

from collections.abc import Mapping

import msgspec

from sits.core.engine_names import SIGNALS, chosen, detect
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
        row = chosen(signal.name, family, names)
        if row is None:
            continue
        where = dict(row.labels) | _model(page, row.name, model)
        if signal.kind == "histogram":
            histogram = page.histogram(row.name, where)
            if histogram is not None:
                histograms[signal.name] = histogram
                used[signal.name] = row.name
            continue
        found = [sample.value for sample in page.samples(row.name, where)]
        if found:
            values[signal.name] = max(found) if signal.kind == "share" else sum(found)
            used[signal.name] = row.name
    return EngineView(family, values, histograms, used)


def change(before: Scrape, after: Scrape, model: str = "") -> Change:
    """What happened between two pages: counters and histograms as differences, gauges as at the end."""
    delta = between(before, after)
    seen = view(delta.scrape, model)
    mine = {name for used in seen.used.values() for name in (used, used.removesuffix("_total"))}
    return Change(seen, tuple(name for name in delta.resets if name in mine))


def rows(seen: EngineView, source: str, t_ns: int) -> list[tuple[int, str, str, float]]:
    """Rows for a `SignalLog`: the values of one page, sampled at `t_ns` (monotonic)."""
    return [(t_ns, source, name, value) for name, value in seen.values.items()]


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
