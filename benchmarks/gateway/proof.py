"""That the features our figures claim were really on: each is made to act, and what was recorded is read back.

A bar reached with a feature quietly off would be worth nothing; the run names every feature that did not act.
"""

import json
import time
from dataclasses import replace
from pathlib import Path

import duckdb
from gateway.load import free_ports
from gateway.measure import Running
from gateway.peers import KEY, Peer
from gateway.wire_client import Reply, ask
from gateway.wire_mock import Engines

REQUESTS = 80


def _ask(running: Running, key: str, user: str = "u") -> Reply:
    fields = {"model": "m", "user": user, "messages": [{"role": "user", "content": "#do=ok#"}]}
    return ask(running.port, json.dumps(fields).encode(), running.peer.path, key=key)


def prove(peer: Peer, home: Path) -> dict[str, bool]:
    """Which features of our gateway acted."""
    ports = free_ports(2)
    engines = Engines(ports)
    running = Running(replace(peer, drain_s=20.0), home, ports)
    try:
        running.first_ok()
        found = {
            "keys": _ask(running, "sk-nobody").status == 401,
            "access policy": _ask(running, "sk-denied-key").status == 403,
            "quota": [_ask(running, "sk-poor-key").status for _ in range(2)] == [200, 429],
        }
        engines.reset()
        good = sum(_ask(running, KEY, f"u{i}").status == 200 for i in range(REQUESTS))
        found["routing over two replicas"] = good == REQUESTS and min(engines.tries) > REQUESTS // 5
        time.sleep(1.5)
        running.end()
        found |= _recorded(running.scratch / "store")
    finally:
        running.stop()
        engines.close()
    return found


def _read(store: Path, table: str, columns: str) -> list[tuple]:
    """Rows of a table; none when there is no such table."""
    if not any(store.glob(f"{table}/**/*.parquet")):
        return []
    return duckdb.sql(f"select {columns} from '{store}/{table}/**/*.parquet'").fetchall()


def _recorded(store: Path) -> dict[str, bool]:
    """What the store holds: one row a request with its arm and its timeline, one decision a request."""
    points = "api_recv, parsed, authorized, routed, dispatched, sent"
    rows = [row[1:] for row in _read(store, "requests", f"outcome, arm, {points}") if row[0] == "completed"]
    return {
        "release of two arms": {row[0].rpartition("/")[2] for row in rows} == {"stable", "canary"},
        "every request recorded": len(rows) >= REQUESTS,
        "timeline": bool(rows) and all(point > 0 for row in rows for point in row[1:]),
        "decision records": len(_read(store, "decisions", "id")) >= REQUESTS,
    }
