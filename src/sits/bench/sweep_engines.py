"""Where the points of a sweep run: processes of this machine, or a Ray cluster.

Both yield (point, result) as they come, in no order.  A worker of this machine dies with the sweep that started it, however that
ends: left alone, a pool's workers would wait for work for ever.

Ray is an extra (`pip install "sitsctl[ray]"`).  Without an address a cluster of this machine is started for the sweep and stopped
after it; with one, the cluster that is there is joined, whose machines must have this package.

Deliberately absent: keeping results, and progress.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

from sits.bench.sweep import Point, Result, Sweep, run_point
from sits.core.errors import ConfigError, EngineError

Outcome = tuple[Point, Result]
IN_FLIGHT = 4
"""Tasks a Ray worker has waiting."""


def run_here(sweep: Sweep, points: Sequence[Point], jobs: int) -> Iterator[Outcome]:
    """On `jobs` processes of this machine; in this one when that is 1."""
    from sits.sim.model import compile_kernel  # noqa: PLC0415  (numba loads with it)

    if points:
        compile_kernel()  # once, so that workers find it compiled
    if jobs <= 1 or len(points) <= 1:
        for point in points:
            yield point, run_point(sweep, point)
        return
    pool = ProcessPoolExecutor(jobs, get_context("forkserver"), initializer=_die_with_parent)
    try:
        running = {pool.submit(run_point, sweep, point): point for point in points}
        for done in as_completed(running):
            yield running[done], done.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _die_with_parent() -> None:
    """End this process when the one that runs the sweep is gone, whatever killed it.

    Workers hold the fork server open, so neither would ever see the other end; the sentinel is a pipe of the sweep's alone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the sweep's; it stops its workers itself
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="dies-with-parent", daemon=True).start()


def run_on_ray(sweep: Sweep, points: Sequence[Point], jobs: int, address: str = "") -> Iterator[Outcome]:
    """On a Ray cluster; one of this machine with `jobs` workers when no address is given.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
        EngineError: a task failed for a reason that is not the point's.

    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ConfigError(
            "Ray is not installed", field="engine", value="ray", hint='pip install "sitsctl[ray]"'
        ) from error
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    where = (
        {"address": address}
        if address
        else {"address": "local", "num_cpus": jobs, "include_dashboard": False}
    )
    try:
        ray.init(**where, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=False)
    except (ConnectionError, RuntimeError) as error:
        raise ConfigError(f"no Ray cluster: {error}", field="engine", value=address or "local") from error
    try:
        task = ray.remote(num_cpus=1)(run_point)
        shared, todo = ray.put(sweep), list(reversed(points))
        most = IN_FLIGHT * max(1, int(ray.cluster_resources().get("CPU", jobs)))
        running: dict[Any, Point] = {}
        while todo or running:
            while todo and len(running) < most:
                point = todo.pop()
                running[task.remote(shared, point)] = point
            for done in ray.wait(list(running), num_returns=1)[0]:
                try:
                    yield running.pop(done), ray.get(done)
                except ray.exceptions.RayError as error:
                    raise EngineError(f"a task failed on Ray: {error}") from error
    finally:
        ray.shutdown()
