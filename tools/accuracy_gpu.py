"""Write docs/accuracy-gpu.md and its picture: what layer profiles predict for recorded vLLM runs on GPUs, failures included.

    python tools/accuracy_gpu.py [SHARED_DATA]

SHARED_DATA holds `measurements/llmservingsim_vllm_recordings` and `..._layer_profiles` (default: ../shared/data).
"""

import sys
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.gpu_recordings import (
    CALIBRATED,
    METRICS,
    STATISTICS,
    Recording,
    calibrate_host,
    errors,
    load,
    predict,
    statistics,
)
from sits.predict.profile import Profile, load_profile
from sits.sim.forecast import engine
from sits.world import stream_generator

Floats = NDArray[np.float64]
ROOT = Path(__file__).parents[1]
MODEL = "Llama-3.1-8B"
LAYERS = 32
PRO_GIVEN = {"blocks": 30_000, "block_size": 16}
"""The record of this run lacks its KV blocks; 96 GB of memory are never full with 128 seats, and 30,000 blocks neither."""

BARS = {
    "RTXPRO6000": {"TTFT": {"P50": 0.05, "P99": 0.02}, "TPOT": {"mean": 0.02, "P50": 0.02, "P99": 0.02}},
    "RTX4090": {metric: dict.fromkeys(STATISTICS, 0.05) for metric in METRICS},
}
BARS["RTXPRO6000"]["E2E"] = BARS["RTXPRO6000"]["TPOT"]


def interval(values: Floats) -> Floats:
    """95 % of 2,000 resamples of the requests: how much a quantile of 300 requests is worth."""
    rng = stream_generator(7, "bootstrap")
    drawn = values[rng.integers(0, len(values), (2000, len(values)))]
    stats = np.stack([drawn.mean(1), *np.percentile(drawn, [50, 90, 99], axis=1)])
    return np.percentile(stats, [2.5, 97.5], axis=1).T


def table(gpu: str, recording: Recording, predicted: dict[str, Floats]) -> str:
    scale = 1e3
    out = [
        "| metric | measured | its 95 % interval | predicted | error | bar | |",
        "|---|---|---|---|---|---|---|",
    ]
    off = errors(recording, predicted)
    for metric in METRICS:
        measured, foretold = statistics(recording.measured[metric]), statistics(predicted[metric])
        spread = interval(recording.measured[metric])
        digits = 1 if metric == "TPOT" else 0
        for i, name in enumerate(STATISTICS):
            bar = BARS[gpu][metric].get(name)
            verdict = "" if bar is None else ("met" if abs(off[metric][i]) <= bar else "**missed**")
            low, high = spread[i] * scale
            out.append(
                f"| {metric} {name} (ms) | {measured[i] * scale:,.{digits}f} | {low:,.{digits}f} to {high:,.{digits}f} "
                f"| {foretold[i] * scale:,.{digits}f} | {off[metric][i]:+.1%} | {f'{bar:.0%}' if bar else ''} | {verdict} |"
            )
    return "\n".join(out)


def effects(recording: Recording, profile: Profile) -> str:
    """The same prediction with one thing left out, or guessed, at a time."""
    facts = recording.facts.arguments()
    whole = engine(profile, **facts)
    change = msgspec.structs.replace
    plain = change(profile, skew=0.0)
    idle = change(profile, eager_us=0.0)
    cases = {
        "as published": (profile, whole),
        "all KV lengths of a batch equal (no skew)": (plain, change(whole, step=plain)),
        "no host time": (idle, change(whole, step=idle)),
        "no host time, synchronous scheduling": (
            idle,
            change(whole, step=idle, async_scheduling=False),
        ),
        "a preempted request loses all its KV (no prefix cache)": (
            profile,
            change(whole, prefix_caching=False),
        ),
        "KV blocks guessed from memory (31 % too many)": (
            profile,
            change(whole, blocks=round(whole.blocks * 1.31)),
        ),
    }
    out = [
        "| | TTFT P50 | TTFT P99 | TPOT P50 | TPOT P99 | E2E P50 | E2E P99 |",
        "|---|---|---|---|---|---|---|",
    ]
    for what, (step, spec) in cases.items():
        off = errors(recording, predict(recording, step, spec))
        cells = [f"{off[metric][i]:+.1%}" for metric in METRICS for i in (1, 3)]
        out.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(out)


LOOK = (
    "text{fill:#1b1f24}.page{fill:#fff}.frame{fill:none;stroke:#999}.band{fill:#dcebf7}.right{stroke:#777;stroke-dasharray:3 3}"
    ".soft{fill:#59626d}.dot{fill:#0b5cad}@media (prefers-color-scheme:dark){text{fill:#e7eaee}.page{fill:#14171a}"
    ".frame{stroke:#59626d}.band{fill:#1d3446}.right{stroke:#8b949e}.soft{fill:#a3acb7}.dot{fill:#62bcf3}}"
)


def picture(runs: list[tuple[str, Recording, dict[str, Floats]]]) -> str:
    """Predicted against measured, quantile by quantile, as one SVG."""
    size, pad, gap = 190, 46, 34
    width, height = pad + 3 * (size + gap) + 10, 2 * (size + gap + 34) + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="11">',
        f"<style>{LOOK}</style>",
        f'<rect width="{width}" height="{height}" class="page"/>',
    ]
    steps = np.arange(1, 100)
    for row, (title, recording, predicted) in enumerate(runs):
        for column, metric in enumerate(METRICS):
            x0, y0 = pad + column * (size + gap), 40 + row * (size + gap + 34)
            scale = 1e3 if metric == "TPOT" else 1.0
            real = np.percentile(recording.measured[metric], steps) * scale
            told = np.percentile(predicted[metric], steps) * scale
            top = max(real.max(), told.max()) * 1.03
            zoom = size / top
            unit = "ms" if metric == "TPOT" else "s"
            out += [
                f'<rect x="{x0}" y="{y0}" width="{size}" height="{size}" class="frame"/>',
                f'<polygon points="{x0},{y0 + size} {x0 + size / 1.05:.1f},{y0} {x0 + size},{y0} {x0 + size},{y0 + size * (1 - 0.95):.1f}" class="band"/>',
                f'<line x1="{x0}" y1="{y0 + size}" x2="{x0 + size}" y2="{y0}" class="right"/>',
                f'<text x="{x0}" y="{y0 - 6}" font-weight="600">{metric}, {unit}</text>',
                f'<text x="{x0}" y="{y0 + size + 13}" class="soft">0</text>',
                f'<text x="{x0 + size}" y="{y0 + size + 13}" text-anchor="end" class="soft">{top:,.0f}</text>',
                f'<text x="{x0 + size / 2}" y="{y0 + size + 13}" text-anchor="middle" class="soft">measured</text>',
            ]
            if column == 0:
                out.append(
                    f'<text x="{pad}" y="{y0 - 22}" font-size="13" font-weight="700">{title}</text>'
                    f'<text x="{x0 - 8}" y="{y0 + size / 2}" transform="rotate(-90 {x0 - 8} {y0 + size / 2})" '
                    'text-anchor="middle" class="soft">predicted</text>'
                )
            out += [
                f'<circle cx="{x0 + r * zoom:.1f}" cy="{y0 + size - t * zoom:.1f}" r="1.8" class="dot"/>'
                for r, t in zip(real, told, strict=True)
            ]
    out.append(
        f'<text x="{pad}" y="{height - 8}" class="soft">Each dot is one percentile, P1 to P99; '
        "the blue band is 5 % either way.</text></svg>"
    )
    return "\n".join(out) + "\n"


def main(shared: Path) -> None:
    runs, parts = [], {}
    recordings, profiles = (
        shared / "measurements" / f"llmservingsim_{what}" for what in ("vllm_recordings", "layer_profiles")
    )
    host_us = 0.0
    for gpu, title, given in (
        ("RTXPRO6000", "RTX PRO 6000", PRO_GIVEN),
        ("RTX4090", "RTX 4090, starved of KV", None),
    ):
        recording = load(recordings, f"{gpu}__{MODEL}", given)
        profile = load_profile(profiles / f"{gpu}__{MODEL}__tp1", LAYERS, eager_us=host_us)
        if gpu == "RTXPRO6000":
            profile = calibrate_host(recording, profile)
            host_us = profile.eager_us
        predicted = predict(recording, profile)
        runs.append((title, recording, predicted))
        bars = [
            abs(errors(recording, predicted)[metric][STATISTICS.index(name)]) <= bar
            for metric, names in BARS[gpu].items()
            for name, bar in names.items()
        ]
        parts[gpu] = {
            "table": table(gpu, recording, predicted),
            "effects": effects(recording, profile),
            "facts": "\n".join(f"    {line}" for line in recording.facts.lines()),
            "skew": f"{profile.skew:.3f}",
            "source": profile.source,
            "met": f"{sum(bars)} of {len(bars)}",
        }
    pro, starved = parts["RTXPRO6000"], parts["RTX4090"]
    page = f"""# Accuracy on GPUs: recorded vLLM runs

Written by `tools/accuracy_gpu.py` from recordings and layer profiles of LLMServingSim (MIT); run it again to reproduce every figure
here.  `tests/unit/test_accuracy_gpu.py` holds them to the bars.

![Predicted against measured quantiles](accuracy-gpu.svg)

Two runs of vLLM 0.19.0 with {MODEL}, 300 requests of ShareGPT lengths at 10 a second each: more than either engine can
do, so that queues, seats and KV memory decide.  On the RTX PRO 6000 the seats (128) run out, on the RTX 4090 the KV blocks
(2,588), and requests are preempted some 200 times.

TTFT = first token - arrival.  E2E = last token - arrival.  TPOT = (last - first) / (output tokens - 1), one figure a request.
Error = predicted / measured - 1, of the statistic over all requests.  The interval is a bootstrap over the recorded requests: the P99 of
300 requests is the third largest.

**What was fitted.** One figure: the host's time for a step that holds prefill, {host_us / 1e3:.0f} ms, from the TTFT of the first {CALIBRATED} requests
(4 of 62 seconds) of the RTX PRO 6000's run; the 4090 is predicted with the same.  No layer table can hold it.  Everything else
is the GPU's layer profile, the recorded arrivals and lengths, and what the engine said of itself.

## RTX PRO 6000: bars met {pro["met"]}

{pro["table"]}

Its profile: {pro["source"]}; skew {pro["skew"]}.  The engine, where each figure comes from, and what was assumed:

{pro["facts"]}

The record of this run lacks its KV blocks, so the reader refused until they were given: 30,000, more than 128 seats can fill.

## RTX 4090, starved of KV: bars met {starved["met"]}

{starved["table"]}

Its profile: {starved["source"]}; skew {starved["skew"]}.  The engine:

{starved["facts"]}

## What decides

One thing changed at a time.  RTX PRO 6000:

{pro["effects"]}

RTX 4090:

{starved["effects"]}

## Known failures

- **E2E P50 on the RTX 4090 misses its bar of 5 % by a hair.**  The median request is one that a wave of admissions just takes
  or just leaves for the next, some 9 s later; the real engine took one to four more requests in a wave than predicted.  The
  recording's own median is uncertain by 10 % either way.  It is not the size of the pool: over the first wave (5 to 12 s, before order
  and preemptions are in doubt) the engine's own gauge and the blocks of the requests it ran differ by 5 of 2,587 at most.
  Forty blocks more, as prefixes shared by later prompts would leave free, bring this median to +1.5 % and its mean to +0.6 %; the
  recording cannot tell whether that is what happened, so nothing is fitted to it.
- **The text of the prompts is not in the recordings**, so prefixes they share are not known.  Some prefills on the RTX PRO 6000 took 10 to
  60 ms less than their length asks for, each as if an earlier prompt had been found in the cache: 23 of 220 that can be told apart.  Given
  those hits, the 4090's errors shrink by up to 0.6 points; the page does not use them, because they were read off a result.
- **Unequal KV lengths** are modelled by one share of the way from mean to maximum.  In steps without prefill the recordings bear
  out 0.018 on the RTX PRO 6000 and about none on the RTX 4090.
- The very first step of an engine takes 0.1 to 0.5 s longer than any other; it is predicted like any other.
- A step with several prefill chunks is looked up as one chunk of their sum.
- TTFT P50 on the RTX PRO 6000 is the weakest figure of that run: the median falls on the ramp in which the seats fill.
"""
    (ROOT / "docs/accuracy-gpu.md").write_text(page, encoding="utf-8")
    (ROOT / "docs/accuracy-gpu.svg").write_text(picture(runs), encoding="utf-8")
    print(f"docs/accuracy-gpu.md: RTX PRO 6000 {pro['met']} bars met, RTX 4090 {starved['met']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared/data")
