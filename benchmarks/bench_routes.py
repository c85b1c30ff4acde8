"""What a match costs, by how many routes there are and what they ask for: thread CPU, the best of fifteen repetitions."""

import time

from sits.core.caller import Caller, Claims
from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.fleet_routes import ClaimMatch, HeaderMatch, Regions, Residency, RouteMatch, RouteRule, Target
from sits.core.pattern import Pattern
from sits.policy.match import Matcher
from sits.policy.residency import Reaches

HEADERS = {
    b"host": b"gateway",
    b"content-type": b"application/json",
    b"user-agent": b"openai/1.50",
    b"x-tier": b"gold",
    b"authorization": b"Bearer x",
}
CALLERS = [Caller(tenant=f"t{i}", claims=Claims(plan="pro", groups=("a", "b"))) for i in range(10)]
ENGINE = OpenAIEngine(name="e", url="http://h", models=("m",))
PATH = "/v1/chat/completions"


def ns_of(call, times: int) -> float:
    call()
    best = float("inf")
    for _ in range(15):
        begun = time.thread_time_ns()
        for _ in range(times):
            call()
        best = min(best, (time.thread_time_ns() - begun) / times)
    return best


def matching(name: str, route, ask) -> None:
    told = []
    for n in (1, 10, 1_000, 10_000):
        rules = tuple(RouteRule(name=f"r{i}", match=route(i)) for i in range(n))
        matcher = Matcher(Fleet(name="b", engines=(ENGINE,), routes=rules))
        calls = [(CALLERS[i % 10], *ask(i * 37 % n)) for i in range(100)]

        def once(matcher=matcher, calls=calls):
            match = matcher.match
            for caller, model, headers in calls:
                match(caller, model, "", PATH, headers)

        told.append(f"{ns_of(once, 50) / len(calls):6.0f}")
    print(f"{name:42} {' '.join(told)}  ns at 1, 10, 1,000, 10,000 routes")


def main() -> None:
    matching(
        "model and tenant",
        lambda i: RouteMatch(model=f"m{i // 10}", tenant=f"t{i % 10}"),
        lambda i: (f"m{i // 10}", HEADERS),
    )
    matching(
        "one model, an exact header",
        lambda i: RouteMatch(model="m", headers=(HeaderMatch(name="x-tier", exact=f"v{i}"),)),
        lambda i: ("m", {**HEADERS, b"x-tier": b"v%d" % i}),
    )
    matching(
        "model, tenant and a claim",
        lambda i: RouteMatch(
            model=f"m{i}", tenant="t0", claims=(ClaimMatch(name="plan", one_of=("pro", "x")),)
        ),
        lambda i: (f"m{i}", HEADERS),
    )
    matching(
        "model and a pattern",
        lambda i: RouteMatch(model=f"m{i}", headers=(HeaderMatch(name="x-tier", regex="gold|plat[a-z]+"),)),
        lambda i: (f"m{i}", HEADERS),
    )
    matching("no route takes it", lambda i: RouteMatch(model=f"m{i}"), lambda i: (f"other{i}", HEADERS))
    patterns = tuple(
        RouteRule(name=f"r{i}", match=RouteMatch(headers=(HeaderMatch(name="x-tier", regex=f"v{i}-[a-z]+"),)))
        for i in range(20)
    )
    matcher = Matcher(Fleet(name="b", engines=(ENGINE,), routes=patterns))
    cost = ns_of(lambda: matcher.match(CALLERS[0], "m", "", PATH, HEADERS), 200)
    print(f"{'twenty routes on patterns alone':42} {cost:6.0f}  ns")
    pattern, value = Pattern("(eu|us)-[a-z]+-[0-9]{1,2}(\\.prod)?"), b"eu-west-12.prod"
    print(f"{'a pattern on 15 bytes':42} {ns_of(lambda: pattern.matches(value), 2_000):6.0f}  ns")
    hostile, longest = Pattern("(a+)+b"), b"a" * 4_096
    print(f"{'(a+)+b on 4,096 bytes':42} {ns_of(lambda: hostile.matches(longest), 5):6.0f}  ns")
    engines = tuple(OpenAIEngine(name=f"e{i}", url="http://h", region=("eu", "us")[i % 2]) for i in range(16))
    clauses = (Residency(name="gdpr", regions=("eu",), tenants=("t0",)),)
    reaches = Reaches.of(Fleet(name="b", engines=engines, regions=Regions(here="eu"), residency=clauses))
    cost = ns_of(lambda: reaches.reach(Target(), tenant="t0", asked="m", region="eu"), 2_000)
    print(f"{'where it may go (residency, nearness)':42} {cost:6.0f}  ns")


if __name__ == "__main__":
    main()
