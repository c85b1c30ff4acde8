"""How long an alert takes from the breach to the webhook, with real Prometheus and Alertmanager: both environments, a full breach and a partial one.

Takes about twenty minutes, nearly all of it waiting.  Ends with 1 when a promise of `docs/alerts.md` is not kept.
"""

import shutil
import sys

from sits.app.alerts.measure import measure, table
from sits.app.alerts.stack import PROMETHEUS
from sits.core.config import load_fleet
from sits.world import RealWorld

FLEET = """
name: shop
telemetry: {{environment: {environment}}}
engines: [{{kind: openai, name: a, url: "http://127.0.0.1:1", models: [m]}}]
"""
CASES = (("prod", 5, 1.0), ("prod", 5, 0.2), ("preprod", 2, 1.0))


def main():
    """Measure every case; print its table."""
    if not shutil.which(PROMETHEUS[0]):
        print("prometheus is not here (Debian: apt-get install prometheus prometheus-alertmanager)")
        return 0
    kept = True
    for environment, times, share in CASES:
        fleet = load_fleet(FLEET.format(environment=environment))
        found = measure(fleet, times, RealWorld(), lambda text: print(text, file=sys.stderr), share)
        print(table(found))
        kept &= found.longest_s <= found.within_s
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
