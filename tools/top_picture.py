"""Write docs/top.svg: the board of `sitsctl top` as it is drawn now, over metrics pages made up here.

What it shows is no measurement: four engines, of which one is nearly full and one is down, so that each part of the board has something to say.  Pages go
through the same fold and the same screen as those of a gateway; a test compares the picture with what is drawn.

Run: `python tools/top_picture.py`
"""

import argparse
import asyncio
import re
from html import unescape
from pathlib import Path

from sits.app.top.frame import Frame, Past
from sits.app.top.screen import Top
from sits.core.units import SECOND
from sits.telemetry.prometheus_text import parse

OUT = Path(__file__).parent.parent / "docs" / "top.svg"
SIZE = (120, 24)
OBJECTIVE = "P99 TTFT 1,200 ms"
BOUNDS_S = {
    "ttft": (0.05, 0.1, 0.25, 0.5, 1.0, 1.2, 2.5, 5.0, 10.0),
    "e2e": (0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 120.0),
}
LOOKS, EVERY_S = 90, 15
"""Pages: 22 minutes of them, so that burn has a past."""

ENGINES = {
    # requests a second, what of them is late, in flight, tokens, KV, waiting; shares of answers within each of BOUNDS_S
    "h100-a": (24.0, 0.003, 18, 31_000, 0.61, 0, (0.2, 0.9, 0.94, 0.98, 1.0, 1.0, 1.0, 1.0, 1.0)),
    "h100-b": (25.0, 0.002, 18, 30_400, 0.58, 0, (0.2, 0.9, 0.94, 0.98, 1.0, 1.0, 1.0, 1.0, 1.0)),
    "l4-c": (21.0, 0.02, 41, 88_200, 0.93, 12, (0.0, 0.1, 0.7, 0.8, 0.9, 0.96, 0.98, 1.0, 1.0)),
}


def board() -> Frame:
    """The last of the frames."""
    past = Past("http://127.0.0.1:8080", 60 * SECOND)
    counts = {name: [0.0, 0.0] for name in ENGINES}
    for look in range(LOOKS):
        wave = 1.0 + 0.08 * ((look * 7) % 5 - 2) / 2 + 0.15 * (look > LOOKS // 2)
        for name, (rate, late, *_) in ENGINES.items():
            more = rate * wave * EVERY_S
            counts[name][0] += more
            counts[name][1] += more * late * (3.0 if look > LOOKS * 0.8 else 1.0)
        past.add(look * EVERY_S * SECOND, parse(_page(counts, look)))
    return past.frame((LOOKS - 1) * EVERY_S * SECOND)


def _page(counts: dict[str, list[float]], look: int) -> str:
    seconds = look * EVERY_S
    lines = [
        "# TYPE sits_ttft_seconds histogram",
        "# TYPE sits_e2e_seconds histogram",
        "sits_workers 2",
        'sits_generation{name="7baa82e417f3"} 3',
        "sits_connections 96",
        f"sits_output_tokens_total {9_132 * seconds}",
        f"sits_errors_total {1.02 * seconds}",
        f'sits_requests_total{{outcome="refused",engine="",detail="refused_full"}} {0.2 * seconds}',
        'sits_engine_healthy{engine="l4-d"} 0',
        f'sits_requests_total{{outcome="failed",engine="l4-d",detail="engine_unreachable"}} {0.4 * seconds}',
        f'sits_cache_requests_total{{verdict="hit"}} {22 * seconds}',
        f'sits_cache_requests_total{{verdict="miss"}} {49 * seconds}',
        "sits_cache_answers 812",
        "sits_ledger_reserved 64",
    ]
    for name, (_, _, inflight, tokens, kv, waiting, shares) in ENGINES.items():
        of, (n, late) = f'engine="{name}"', counts[name]
        failed = 0.42 * seconds if name == "l4-c" else 0.0
        lines += [
            f'sits_requests_total{{outcome="completed",{of},detail=""}} {n}',
            f'sits_requests_total{{outcome="failed",{of},detail="engine_timeout"}} {failed}',
            f"sits_objective_requests_total{{{of}}} {n}",
            f"sits_objective_missed_total{{{of}}} {late}",
            f"sits_engine_healthy{{{of}}} 1",
            f"sits_inflight_requests{{{of}}} {inflight}",
            f"sits_inflight_tokens{{{of}}} {tokens}",
            f"sits_engine_kv_usage{{{of}}} {kv}",
            f"sits_engine_requests_waiting{{{of}}} {waiting}",
        ]
        for metric, bounds in BOUNDS_S.items():
            pairs = [(f"{bound:g}", share) for bound, share in zip(bounds, shares, strict=True)]
            lines += [
                f'sits_{metric}_seconds_bucket{{{of},le="{le}"}} {n * share}'
                for le, share in [*pairs, ("+Inf", 1.0)]
            ]
            lines += [f"sits_{metric}_seconds_count{{{of}}} {n}", f"sits_{metric}_seconds_sum{{{of}}} {n}"]
    return "\n".join(lines) + "\n"


async def picture() -> str:
    """The screen as SVG."""
    frame = board()
    app = Top(lambda: frame, 3600.0, OBJECTIVE)
    async with app.run_test(size=SIZE) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        return app.export_screenshot(title="sitsctl top fleet.yaml")


def words(svg: str) -> list[str]:
    """All that is written in a picture, in its order."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg, re.DOTALL)
    return [unescape(text).replace("\xa0", " ").strip() for text in texts]


def main() -> None:
    """Write it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=OUT)
    arguments.parse_args().out.write_text(asyncio.run(picture()), encoding="utf-8")


if __name__ == "__main__":
    main()
