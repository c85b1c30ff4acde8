"""The picture of the README: the first screen of a report, taken by headless Chromium.

    tools/picture.py out/report.html docs/report.png

Light colours whatever the machine prefers, 1440 x 1000 pixels.  Refuses a picture over `MOST_BYTES`: a README
has to load.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1440, 1000
MOST_BYTES = 300_000
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--blink-settings=preferredColorScheme=1", f"--window-size={WIDTH},{HEIGHT}",
)  # fmt: skip


def main() -> str:
    """Take the picture; the message to end with, empty when all is well."""
    parser = argparse.ArgumentParser(description="Take the picture of a report's first screen.")
    parser.add_argument("page", type=Path, help="a report.html")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    asked = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return f"no browser found; one of {', '.join(BROWSERS)} takes the picture"
    if not asked.page.is_file():
        return f"{asked.page}: no such report; `sitsctl reproduce` writes out/report.html"
    with tempfile.TemporaryDirectory() as profile:
        shot = Path(profile) / "shot.png"
        done = subprocess.run(  # noqa: S603  # a known browser, our own flags
            [browser, *FLAGS, f"--user-data-dir={profile}", f"--screenshot={shot}", asked.page.absolute().as_uri()],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if not shot.exists():
            return f"{browser} took no picture:\n{done.stderr[-1000:]}"
        size = shot.stat().st_size
        if size > MOST_BYTES:
            return f"the picture has {size:,} bytes, more than {MOST_BYTES:,}"
        asked.picture.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shot, asked.picture)
    print(f"{asked.picture}: {size:,} bytes")
    return ""


if __name__ == "__main__":
    sys.exit(main() or 0)
