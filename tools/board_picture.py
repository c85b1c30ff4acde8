"""Write docs/board.png: the board over an hour that is made up here, in which one of four engines was slow for half an hour after a reload.

What it shows is no measurement: rows as a gateway leaves them, so that each part of the board has something to say.  They go through the board's own
room and page, with the rows and the browser of its tests.

Run: `python tools/board_picture.py` (needs Chromium; half a minute)
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from board_rows import MINUTE_NS, row, stored  # noqa: E402  (of the tests, which are no package)
from board_served import house_of, in_flight, serving  # noqa: E402
from chromium_driven import driven  # noqa: E402
from sits.core.breakpoints import FIRST_TOKEN, NAMES  # noqa: E402
from sits.core.units import SECOND  # noqa: E402
from sits.telemetry.store import DuckStore  # noqa: E402
from sits.telemetry.tables import LOGS, columns_of  # noqa: E402
from sits.world import RealWorld, stream_generator  # noqa: E402

OUT = ROOT / "docs" / "board.png"
WIDTH, HEIGHT = 1440, 1950
REQUESTS = 36_000
BEGAN, ENDED = 44 * MINUTE_NS, 17 * MINUTE_NS
"""The incident, before now."""

SLOW, TENANTS = "b1", ("acme", "globex", "initech", "umbrella")
DRAWN = (
    "document.documentElement.dataset.drawn && document.querySelector('#matrix table') && document.querySelector('#engines li') && "
    "document.querySelector('#burn li') && document.querySelector('#groups tbody tr') && document.querySelector('#changes li')"
)
LINES = [
    (BEGAN + 40 * SECOND, "info", "supervisor", "generation 2 (326e7a3a0b14) serves", {}),
    (BEGAN - 9 * MINUTE_NS, "warning", "keeper", "breaker opened", {"engine": SLOW}),
    (BEGAN - 9 * MINUTE_NS - 4 * SECOND, "info", "keeper", "breaker closed", {"engine": SLOW}),
    (ENDED + 20 * SECOND, "info", "supervisor", "generation 3 (b81c09d2e5fa) serves", {}),
]


def rows(now_ns: int, dice: np.random.Generator) -> list[dict]:
    """An hour of requests; those of the slow engine wait in its queue while it lasts, and some of them are given up."""
    ago_ns = np.sort(dice.integers(2 * SECOND, 60 * MINUTE_NS, REQUESTS))[::-1]
    made = []
    for i, ago in enumerate(ago_ns.tolist()):
        engine = ("a0", "a1", "b0", SLOW)[int(dice.choice(4, p=(0.28, 0.27, 0.25, 0.2)))]
        slow = engine == SLOW and ENDED < ago < BEGAN
        wait_ms = float(dice.lognormal(7.2, 0.6) if slow else dice.lognormal(3.6, 0.7))
        more = {"tenant": TENANTS[int(dice.choice(4, p=(0.45, 0.3, 0.15, 0.1)))], "engine": engine}
        more |= {
            "prompt_tokens": int(dice.lognormal(6, 0.8)),
            "output_tokens": int(dice.integers(20, 400)),
        }
        if dice.random() < (0.02 if slow else 0.0005):
            more |= {
                "outcome": "failed",
                "status": 504,
                "detail": "engine_timeout",
                "how": "3" * 5 + "0" * 15,
            }
        made.append(_varied(row(i, now_ns - ago, queue_ms=wait_ms, **more), dice))
    return made


def _varied(one: dict, dice: np.random.Generator) -> dict:
    """The row with a prefill and a decode of its own."""
    prefill_ns, decode_ns = (int(ms * 1e6) for ms in (dice.lognormal(4.0, 0.8), dice.lognormal(6.5, 0.9)))
    if one["outcome"] == "completed":
        one["first_token"] += prefill_ns
        for name in NAMES[FIRST_TOKEN + 1 :]:
            one[name] += prefill_ns + decode_ns
    return one


def line(now_ns: int, ago_ns: int, level: str, process: str, event: str, more: dict) -> tuple:
    """A line of the log, as it is stored."""
    return ("r", now_ns - ago_ns, level, process, "", "", event, json.dumps({"event": event, **more}))


def picture(folder: Path) -> bytes:
    """The board as a PNG."""
    now_ns, dice = RealWorld().wall_ns(), stream_generator(1, "board picture")
    with DuckStore(folder / "store") as store:
        stored(store, rows(now_ns, dice), closed_before=(now_ns - MINUTE_NS) // MINUTE_NS * MINUTE_NS)
        store.append("logs", columns_of(LOGS, [line(now_ns, *one) for one in LINES]))
    house = house_of(folder / "store")
    in_flight(house, "a0", 18, 21_400)

    async def shift(_: object) -> bytes:
        return b'{"status": "none"}'

    house.ask = shift
    with serving(house) as (url, _), driven(folder) as chromium:
        page = chromium.page()
        page.size(WIDTH, HEIGHT)
        page.scheme("light")
        page.open(f"{url}?window=1h")
        page.until(DRAWN)
        shot = folder / "board.png"
        page.picture(shot, whole=False)
        return shot.read_bytes()


def main() -> None:
    """Write it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=OUT)
    out = arguments.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        out.write_bytes(picture(Path(folder)))


if __name__ == "__main__":
    main()
