"""What access costs a request: credentials and decisions seen before, and the first time.

Prints CPU ns a call, best of several rounds; the keys of the hot path are new bytes objects each time, as they are when
they come from a socket.  `loop` is the bare loop around a call, already taken off.  Bars: a remembered credential <= 300 ns,
a remembered decision <= 500 ns.
"""

import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from access_tokens import CLAIMS, NOW_S, jwk, jwks, token
from sits.core.config import load_fleet
from sits.gateway.access import Access

ROUNDS, CALLS = 15, 20_000
MODELS, TENANTS = 20, 50


class World:
    """The clocks of a machine, set to the tokens' day."""

    now_ns = staticmethod(time.monotonic_ns)
    offset = NOW_S * 10**9 - time.time_ns()

    def wall_ns(self) -> int:
        """Now, as the tokens see it."""
        return time.time_ns() + self.offset


def fleet(jwks_path: Path, policies: int) -> str:
    """A fleet of many tenants with `policies` policies."""
    texts = [
        f'@id("p{i}") permit(principal in Tenant::"t{i % TENANTS}", action in Action::"use", '
        f'resource in Model::"m{i % MODELS}") when {{ principal in Role::"user" }};'
        for i in range(policies)
    ]
    keys = [
        {"id": f"k{i}", "tenant": f"t{i}", "roles": ["user"], "sha256": hashlib.sha256(secret(i)).hexdigest()}
        for i in range(TENANTS)
    ]
    issuer = {"name": "corp", "issuer": CLAIMS["iss"], "audience": ["sits"], "jwks": str(jwks_path)}
    issuer |= {"tenant": "t0", "algorithms": ["ES256", "RS256"]}
    engine = {
        "name": "e",
        "kind": "openai",
        "url": "http://127.0.0.1:1",
        "models": [f"m{i}" for i in range(MODELS)],
    }
    tree = {"name": "f", "engines": [engine], "access": {"keys": keys, "jwt": [issuer], "policies": texts}}
    return orjson.dumps(tree).decode()


def secret(i: int) -> bytes:
    """A key as long as those `sitsctl keys new` makes."""
    return b"sits-%043d" % i


def cost_ns(call: Callable[[int], object], calls: int = CALLS) -> float:
    """CPU ns of one call, the loop around it taken off."""
    best = idle = float("inf")
    for _ in range(ROUNDS if calls == CALLS else 3):
        start = time.process_time_ns()
        for i in range(calls):
            call(i)
        best = min(best, (time.process_time_ns() - start) / calls)
        start = time.process_time_ns()
        for i in range(calls):
            _nothing(i)
        idle = min(idle, (time.process_time_ns() - start) / calls)
    return best - idle


def _nothing(_: int) -> None:
    """A call that does nothing."""


def fresh(values: list[bytes]) -> Callable[[int], bytes]:
    """The i-th value as a new object, made before it is timed."""
    copies = [[bytes(bytearray(value)) for value in values] for _ in range(CALLS // len(values) + 1)]
    flat = [one for row in copies for one in row]
    return lambda i: flat[i]


def measured(access: Access) -> list[tuple[str, float]]:
    """Each cost, ns."""
    bearers = [b"Bearer " + secret(i) for i in range(TENANTS)]
    tokens = [b"Bearer " + token("RS256", "r1", sub=f"user-{i}", filler="x" * 400) for i in range(20)]
    shorter = [token(sub=f"user-{i}") for i in range(20)]
    key_of, token_of = fresh(bearers), fresh(tokens)
    taken_ns = cost_ns(key_of)
    callers = [access.identify(one) for one in bearers]
    asked = [(callers[i % TENANTS], f"m{i % MODELS}") for i in range(CALLS)]
    decide, by_cedar, verifier = access.decide, access.policy, access._tokens
    assert by_cedar is not None
    assert verifier is not None
    return [
        ("remembered key", cost_ns(lambda i: access.identify(key_of(i))) - taken_ns),
        ("remembered token of 1 KB", cost_ns(lambda i: access.identify(token_of(i))) - taken_ns),
        (
            "remembered decision",
            cost_ns(lambda i: decide(asked[i][0], "infer", asked[i][1], "", "", "/v1", ())),
        ),
        ("key by its digest", cost_ns(lambda _: access._ring.find(bearers[7][7:], 0))),
        ("token of RS256 verified", cost_ns(lambda i: verifier.verify(tokens[i % 20][7:]), 500)),
        ("token of ES256 verified", cost_ns(lambda i: verifier.verify(shorter[i % 20]), 500)),
        ("decision by Cedar", cost_ns(lambda i: by_cedar.decide(asked[i][0], "infer", asked[i][1]), 200)),
    ]


def main() -> None:
    """Measure and print."""
    path = Path("out") / "bench-jwks.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(jwks(jwk("ES256", "k1"), jwk("RSA", "r1")))
    for policies in (1, 100, 1000):
        access = Access(load_fleet(fleet(path, policies)), World())
        print(f"{policies} policies, {TENANTS} keys, {MODELS} models")
        for name, ns in measured(access):
            print(f"  {name:28s} {ns:12,.0f} ns")


if __name__ == "__main__":
    main()
