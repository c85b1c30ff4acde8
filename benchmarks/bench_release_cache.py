"""What a release and the response cache cost a request: the assignment, the question, the key, a hit, a miss.

Prints CPU us a call, best of several rounds, beside one SHA-256 of the same 1 KB body: on a noisy machine compare lines of one
run.  Bars on a quiet one: a remembered assignment <= 1 us, reading a 1 KB question and its digest <= 8 us, look-up <= 1 us;
the cost of a question is linear in its body.
"""

import itertools
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from release_cases import CHAT, answer_of
from sits.core.fleet import Arm, Release, ResponseCache
from sits.core.request import Usage
from sits.gateway.cached import Cached
from sits.policy.cacheable import question_of
from sits.policy.cachekey import digest_of, fields_of, key_of
from sits.policy.release import Assigner

ROUNDS, CALLS = 40, 3_000
CONFIG = ResponseCache(kind="exact", body_limit=2**30)
ARMS = (
    Arm(name="stable", weight=0.95, artefact="sha256:aa"),
    Arm(name="canary", weight=0.05, model="next", artefact="sha256:bb", fallback="stable"),
)


def body(kilobytes: float) -> bytes:
    """A question of about that size, as an SDK writes it."""
    text = "What is it? " * int(kilobytes * 1024 // 12)
    return orjson.dumps(
        {"model": "llama", "messages": [{"role": "user", "content": text}], "temperature": 0, "user": "ann"}
    )


def cpu_us(call: Callable[[], object], calls: int = CALLS) -> float:
    """CPU of one call, us."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time_ns()
        for _ in range(calls):
            call()
        best = min(best, time.process_time_ns() - start)
    return best / calls / 1000


def main() -> None:
    """Print the table."""
    assigner, units = Assigner(Release(arms=ARMS)), itertools.count()
    given = assigner.assign("llama", "t", "ann")
    text = body(1)
    fields = fields_of(text)
    assert fields is not None
    digest = digest_of(text, fields)
    assert digest is not None
    cached = Cached(CONFIG)
    data, content_type = answer_of(["x" * 600], CHAT, 0)

    def ask(control: bytes | None = None):
        return cached.ask(text, CHAT, asked="llama", tenant="t", assignment=given, cache_control=control)

    def find():
        lookup = ask()
        cached.find(lookup, given.target, 0)
        cached.leave(lookup)
        return lookup

    def keep():
        lookup = ask(b"no-cache")
        cached.find(lookup, given.target, 0)
        cached.take(lookup, data)
        told = {"status": 200, "content_type": content_type, "usage": Usage(1, 1), "engine": "e", "now_ns": 0}
        return cached.keep(lookup, given.target, **told)

    print(f"{'sha256 of the body (yardstick)':44s} {cpu_us(lambda: sha256(text).digest()):8.2f} us")
    print(f"{'assignment, remembered':44s} {cpu_us(lambda: assigner.assign('llama', 't', 'ann')):8.2f} us")
    fresh = cpu_us(lambda: assigner.assign("llama", "t", f"u{next(units)}"))
    print(f"{'assignment, a new unit of two arms':44s} {fresh:8.2f} us")
    print(f"{'body read':44s} {cpu_us(lambda: fields_of(text)):8.2f} us")
    print(f"{'digest of the request':44s} {cpu_us(lambda: digest_of(text, fields)):8.2f} us")
    key = cpu_us(lambda: key_of("t", "", given.target.artefact, CHAT, digest))
    print(f"{'key from the digest':44s} {key:8.2f} us")
    print(f"{'a miss: asked, looked for, not found':44s} {cpu_us(find):8.2f} us")
    assert keep()
    assert ask().verdict == "miss"
    assert find().verdict == "hit"
    print(f"{'a hit: asked, looked for, found':44s} {cpu_us(find):8.2f} us")
    print(f"{'asked, copied and kept':44s} {cpu_us(keep):8.2f} us")
    found = key_of("t", "", given.target.artefact, CHAT, digest) + b"plain"
    look = cpu_us(lambda: cached.cache.look_up(found, "t", given.target.artefact, 0))
    print(f"{'  of which the look-up':44s} {look:8.2f} us")
    for kilobytes in (64, 256, 1024):
        large = body(kilobytes)
        spent = cpu_us(lambda large=large: question_of(large, CHAT, CONFIG, model="llama"), 5)
        print(f"{f'question of {kilobytes} KiB':44s} {spent:8.2f} us, {spent / kilobytes:.2f} us/KiB")


if __name__ == "__main__":
    main()
