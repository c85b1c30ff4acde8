"""Lines of code and of tests, for each room.  A number to notice, not a gate."""

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lines(files: Iterable[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def main() -> None:
    rooms = sorted(
        path for path in (ROOT / "src/sits").iterdir() if path.is_dir() and path.name != "__pycache__"
    )
    print(f"{'room':<12}{'modules':>9}{'lines':>8}{'longest':>9}{'tests':>8}")
    total = [0, 0, 0]
    loose = sorted((ROOT / "src/sits").glob("*.py"))
    for name, files in [("(top)", loose), *((room.name, sorted(room.rglob("*.py"))) for room in rooms)]:
        tests = lines((ROOT / "tests").rglob(f"test_{name}_*.py"))
        longest = max((lines([file]) for file in files), default=0)
        print(f"{name:<12}{len(files):>9}{lines(files):>8}{longest:>9}{tests:>8}")
        total = [a + b for a, b in zip(total, (len(files), lines(files), tests), strict=True)]
    everything = lines((ROOT / "tests").rglob("*.py"))
    print(f"{'all':<12}{total[0]:>9}{total[1]:>8}{'':>9}{everything:>8}")


if __name__ == "__main__":
    main()
