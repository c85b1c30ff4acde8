"""The page of a profile: what was looked at, the flame graph, then operations and functions in figures.

Rules: self-contained (style and script are in it, nothing is fetched), every text escaped; a share stands beside the samples behind it,
with its 95 % interval, because 30 samples are no measurement.  Where slow requests are compared with the others, the first line says
what differs, or that it cannot be told.

Deliberately absent: reading profiles (app.profiles.source).
"""

from html import escape
from importlib import resources
from math import sqrt

from sits.app.profiles.flame import Flame, flame
from sits.app.report.flame import layer_class, short
from sits.app.report.svg import element
from sits.core.units import SECOND
from sits.telemetry.profile.compare import Z95, Comparison, Difference
from sits.telemetry.profile.profile import Profile
from sits.telemetry.profile.tree import by_operation, functions

FUNCTIONS = 20
DIFFERENCES = 12
OPERATIONS = 14


def page_html(
    heading: str,
    profile: Profile,
    *,
    about: str = "",
    compared: Comparison | None = None,
    controls: str = "",
    linked: str = "",
) -> str:
    """The page; `about` says where the profile is from and what it was cut to, `controls` is markup of a form that cuts it;
    `linked` is where style and script are, if they are not to be in it.
    """
    drawn = flame(profile, compared=compared)
    shown = compared.slow if compared is not None else profile
    parts = [
        element("h1", escape(heading)),
        controls,
        _soft(about) if about else "",
        _soft(summary(profile)),
        *(_compared(compared) if compared is not None else [_says(profile)]),
    ]
    if shown.samples:
        parts += [
            _bar(shown, compared if compared is None or not compared.why_not else None),
            drawn.svg,
            '<div class="now soft" aria-live="polite"></div>',
            _small(drawn),
        ]
    if compared is not None and compared.differences:
        parts.append(_differences(compared))
    if profile.samples:
        parts.append(
            f'<div class="two"><div>{_operations(profile)}</div><div>{_functions(profile)}</div></div>'
        )
    style, script = (f"flame.{kind}" for kind in ("css", "js"))
    if linked:
        head = f'<link rel="stylesheet" href="{linked}{style}">'
        tail = f'<script src="{linked}{script}"></script>'
    else:
        head, tail = f"<style>{part(style)}</style>", f"<script>{part(script)}</script>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title>{head}</head><body><main>{''.join(parts)}</main>{tail}</body></html>\n"
    )


def part(name: str) -> str:
    """A file of the page."""
    return (resources.files(__package__) / name).read_text("utf-8")


def summary(profile: Profile) -> str:
    """One line: CPU time, samples, rate, what is not in the samples.

    >>> summary(Profile((), duration_ns=10 * SECOND))
    '0 s of CPU time in 10 s (0 % of a core), 0 samples at 100 Hz'
    """
    ns = profile.ns + profile.elsewhere_ns + profile.dropped_ns
    window = profile.duration_ns
    core = f" in {window / SECOND:.3g} s ({100 * ns / window:.3g} % of a core)" if window else ""
    line = f"{ns / SECOND:.3g} s of CPU time{core}, {profile.count:,} samples at {SECOND / profile.period_ns:.3g} Hz"
    if ns and profile.elsewhere_ns > ns / 1000:
        line += f"; {profile.elsewhere_ns / ns:.1%} in threads that run no Python"
    if ns and profile.dropped_ns:
        line += f"; {profile.dropped_ns / ns:.1%} had no room and is not shown"
    if ns and profile.own_ns:
        line += f"; taking the samples used {profile.own_ns / ns:.2%}"
    return line


def margin(share: float, count: int) -> float:
    """Half of the 95 % interval of a share (0..1) seen in `count` samples in all; independent samples assumed."""
    return Z95 * sqrt(max(share * (1 - share), 1 / (count + 2) ** 2) / count) if count else 1.0


def _soft(line: str) -> str:
    return element("p", escape(line), class_="soft")


def _says(profile: Profile) -> str:
    """What takes most."""
    ranked = [one for one in by_operation(profile.samples) if one[0]]
    if not ranked:
        return ""
    named = ", ".join(f"{name} {ns / profile.ns:.0%}" for name, ns, _ in ranked[:4])
    unknown = 1 - sum(ns for _, ns, _ in ranked) / profile.ns
    rest = f"; {unknown:.0%} belongs to no operation known here" if unknown > 0.005 else ""
    return element("p", escape(f"CPU time by operation: {named}{rest}."), class_="says")


def _compared(compared: Comparison) -> list[str]:
    both = (
        f"Slow requests: {compared.slow.count:,} samples of {len({s.labels.trace for s in compared.slow.samples}):,} requests; "
        f"others: {compared.rest.count:,} of {len({s.labels.trace for s in compared.rest.samples}):,}. "
        "Shares are of each group's own CPU time; requests are the units of the intervals."
    )
    if compared.why_not:
        return [
            element("p", escape(f"Cannot tell yet: {compared.why_not}."), class_="says warn"),
            _soft(both),
        ]
    told = [one for one in compared.differences if one.told and one.value > 0]
    if not told:
        said = (
            "No function has a larger share in slow requests than in others that could be told from chance."
        )
    else:
        first = max(told, key=lambda one: one.value)
        said = (
            f"{first.frame.function} has {first.slow:.0%} of the slow requests' CPU time and {first.rest:.0%} of the others' "
            f"({100 * first.value:+.1f} points, with 95 % {100 * first.low:+.1f} to {100 * first.high:+.1f})."
        )
    return [element("p", escape(said), class_="says"), _soft(both)]


def _bar(profile: Profile, compared: Comparison | None) -> str:
    layers: dict[str, int] = {}
    for sample in profile.samples:
        layer = layer_class(sample.labels.layer)
        layers[layer] = layers.get(layer, 0) + sample.ns
    chips = [
        f'<button class="chip of-{layer}" aria-pressed="false" data-layer="{layer}">'
        f"{'not known' if layer == 'none' else layer} <b>{ns / profile.ns:.0%}</b></button>"
        for layer, ns in sorted(layers.items(), key=lambda one: -one[1])
        if ns >= profile.ns / 200
    ]
    if compared is not None:
        chips = [
            f'<span class="chip of-{kind}">{said}</span>'
            for kind, said in (
                ("more3", "larger share in slow requests"),
                ("less3", "smaller"),
                ("none", "cannot be told from chance"),
            )
        ]
    search = '<input type="search" placeholder="Find a function  /" aria-label="Find a function">'
    return f'<div class="bar">{search}<button class="out" disabled>Show all</button>{"".join(chips)}<span class="found soft"></span></div>'


def _small(drawn: Flame) -> str:
    hidden = f" {drawn.hidden:,} functions below 0.1 % are not drawn." if drawn.hidden else ""
    return f'<p class="soft keys">Click or <kbd>Enter</kbd> zooms, <kbd>Esc</kbd> shows all, arrows walk, <kbd>/</kbd> finds.{hidden}</p>'


def _operations(profile: Profile) -> str:
    rows, ranked = [], by_operation(profile.samples)[:OPERATIONS]
    for name, ns, count in ranked:
        share, layer = ns / profile.ns, layer_class(name.split("/")[0])
        bar = element(
            "svg",
            element("rect", width=f"{100 * ns / ranked[0][1]:.1f}%", height=8, rx=2, class_=f"of-{layer}"),
            width="100%",
            height=8,
            aria_hidden="true",
        )
        off = 100 * margin(share, profile.count)
        rows.append(
            f'<tr><td>{escape(name or "not known")}</td><td class="num">{share:.1%} <small>±{off:.1f}</small></td>'
            f'<td class="num">{count:,}</td><td class="wide third">{bar}</td></tr>'
        )
    head = '<tr><th>layer/op</th><th class="num">share</th><th class="num">samples</th><th class="wide"></th></tr>'
    return f"<h2>By operation</h2><table>{head}{''.join(rows)}</table>"


def _functions(profile: Profile) -> str:
    ranked = sorted(functions(profile).values(), key=lambda node: (-node.self_ns, node.frame))[:FUNCTIONS]
    rows = [
        f"<tr><td>{escape(short(node.frame.function))} <small>{escape(node.frame.file)}</small></td>"
        f'<td class="num">{node.self_ns / profile.ns:.1%} <small>±{100 * margin(node.self_ns / profile.ns, profile.count):.1f}</small></td>'
        f'<td class="num">{node.ns / profile.ns:.1%}</td></tr>'
        for node in ranked
        if node.self_ns
    ]
    head = '<tr><th>function</th><th class="num">in itself</th><th class="num">with callees</th></tr>'
    return f"<h2>By function</h2><table>{head}{''.join(rows)}</table>"


def _differences(compared: Comparison) -> str:
    rows = [_difference(one) for one in compared.differences[:DIFFERENCES]]
    head = (
        '<tr><th>function</th><th class="num">slow</th><th class="num">others</th>'
        '<th class="num">difference, points</th><th class="num wide">samples, slow / others</th></tr>'
    )
    return (
        f'<h2>What differs</h2><p class="soft">Shares of CPU time with callees; the intervals hold together with 95 %.</p>'
        f"<table>{head}{''.join(rows)}</table>"
    )


def _difference(one: Difference) -> str:
    doubt = "" if one.told else " <small>not told from chance</small>"
    return (
        f"<tr><td>{escape(short(one.frame.function))} <small>{escape(one.frame.file)}</small>{doubt}</td>"
        f'<td class="num">{one.slow:.1%}</td><td class="num">{one.rest:.1%}</td><td class="num">{100 * one.value:+.1f} '
        f'<small class="range">{100 * one.low:+.1f} to {100 * one.high:+.1f}</small></td><td class="num wide">{one.slow_count:,} / {one.rest_count:,}</td></tr>'
    )
