"""A fuzzer on one target of `fuzz_targets`: atheris, guided by the coverage of `sits`; mutations of the seeds where there is none for this Python.

    fuzz.py TARGET [--seconds 300] [--corpus DIR] | --names

What it finds it leaves beside the corpus and shows; the run ends with 1.  The corpus stays, in the cache, so that the next run goes on from it.
Deliberately absent: targets (fuzz_targets), and their short run in the suite (laws/test_fuzz_targets_laws).
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sits-fuzz"
LONGEST = 4096
"""Bytes of a case."""
EACH_S = 30
"""How often mutations say how far they are; the fuzzer says so itself."""


def guided(name: str, seconds: int, corpus: Path) -> None:
    """Fuzz with atheris; never returns.  Imports come here, for what is imported before is not seen into."""
    import atheris

    with atheris.instrument_imports(include=["sits.engine", "sits.gateway", "sits.core"]):
        import fuzz_targets

    corpus.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(fuzz_targets.SEEDS[name]):
        (corpus / f"seed-{i}").write_bytes(seed)
    words = corpus.parent / "words"
    words.write_text("".join(f'"{escaped(word)}"\n' for word in fuzz_targets.WORDS))
    options = {
        "max_total_time": seconds,
        "max_len": LONGEST,
        "dict": words,
        "timeout": 20,
        "rss_limit_mb": 4096,
        "artifact_prefix": f"{corpus.parent}/{name}-",
        "print_final_stats": 1,
    }
    line = [sys.argv[0], str(corpus), *(f"-{key}={value}" for key, value in options.items())]
    atheris.Setup(line, fuzz_targets.TARGETS[name])
    atheris.Fuzz()


def escaped(word: bytes) -> str:
    """A word as the fuzzer's dictionaries have it."""
    return "".join(f"\\x{byte:02x}" for byte in word)


def unguided(name: str, seconds: int) -> None:
    """Mutate the seeds at random."""
    import fuzz_targets
    from http_streams import Rolls
    from sits.core.units import SECOND
    from sits.world import RealWorld

    world = RealWorld()
    dice, began_ns, told, cases = Rolls(world.rng(name)), world.now_ns(), 0.0, 0
    while (spent := (world.now_ns() - began_ns) / SECOND) < seconds:
        text = fuzz_targets.mutated(dice, dice.choice(fuzz_targets.SEEDS[name]))
        try:
            fuzz_targets.TARGETS[name](text)
        except BaseException as error:
            error.add_note(f"case {cases}: {text!r}")
            raise
        cases += 1
        if spent - told >= EACH_S:
            told = spent
            print(f"{name}: {cases:,} cases in {spent:.0f} s, unguided", flush=True)
    print(f"{name}: {cases:,} cases, unguided", flush=True)


def main() -> None:
    """Fuzz."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?")
    parser.add_argument("--names", action="store_true", help="say what the targets are")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--corpus", type=Path)
    args = parser.parse_args()
    if args.names or not args.target:
        from fuzz_targets import TARGETS

        print(*TARGETS, sep="\n")
        return
    print(f"-- {args.target}, {args.seconds} s", flush=True)
    if importlib.util.find_spec("atheris") is None:
        unguided(args.target, args.seconds)
    else:
        guided(args.target, args.seconds, args.corpus or CACHE / args.target)


if __name__ == "__main__":
    main()
