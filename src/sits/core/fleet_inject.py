"""The section `injections` of a `fleet.yaml`: faults put into live traffic on purpose, for those whose requests match.

```yaml
injections:
  - {name: slow-canary, match: {tenant: acme, headers: [{name: x-chaos, exact: "1"}]}, share: 10%, delay: 50ms}
  - {name: dead-batch, match: {endpoint: /v1/embeddings}, share: 1%, abort: 503}
```

Rules: the first injection whose criteria hold decides, as with routes; its share is of requests, drawn from the request's id; a
delay comes before an abort.  Answers to requests that were touched say so (`x-sits-injected`).

Deliberately absent: faults of engines and networks (they are made where they happen), and an end date: a reload ends it.
"""

from sits.core.fleet_routes import RouteMatch
from sits.core.section import Section
from sits.core.units import Ns, Share


class Injection(Section, frozen=True, kw_only=True):
    """A fault for a share of matching requests: wait `delay`, then answer `abort` (an HTTP status) if it is one."""

    name: str
    match: RouteMatch = RouteMatch()
    share: Share = Share(1.0)
    delay: Ns = Ns(0)
    abort: int = 0
