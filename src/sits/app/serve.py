"""`sitsctl up`: one fleet served until Ctrl-C, every request recorded, every engine watched.

Before a child is started, the file has been read, the store been written to and the port been had, so that what is wrong is told at
once and by itself.

Deliberately absent: the processes (`app.up`).
"""

import gc
import tempfile
from pathlib import Path

from sits.app.up.generation import read
from sits.app.up.supervisor import Supervisor
from sits.core.errors import ConfigError
from sits.core.fleet import EmulatedEngine, Fleet
from sits.telemetry.logs import Log
from sits.world import RealWorld


def up(path: Path, say: Log, workers: int | None = None) -> None:
    """Serve the fleet of a file until SIGINT or SIGTERM, then drain; `workers` overrides what it says.

    Raises:
        ConfigErrors: the file has problems; all are named.
        ConfigError: the file is not UTF-8, the address cannot be had, the store not be written, or emulated engines are to be shared.

    """
    fleet = read(path, workers)
    _check_workers(fleet)
    _check_store(Path(fleet.gateway.store))
    supervisor = Supervisor(path, fleet, RealWorld(), say, workers=workers)
    say.know(generation=supervisor.current.number, environment=fleet.telemetry.environment)
    gc.collect()
    gc.freeze()  # what is here now stays, and pages nobody writes to are shared with all children
    supervisor.run()


def _check_workers(fleet: Fleet) -> None:
    count = fleet.gateway.workers
    if count > 1 and any(isinstance(engine, EmulatedEngine) for engine in fleet.engines):
        raise ConfigError(
            f"{count} workers cannot share emulated engines, which live inside a worker",
            field="gateway.workers",
            value=count,
            hint="set it to 1, or name real engines; more workers are emulated by `sitsctl reproduce`",
        )


def _check_store(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return
    except OSError as error:
        raise ConfigError(
            f"cannot record to {path}: {error.strerror}",
            field="gateway.store",
            value=str(path),
            hint="name a directory that may be written",
        ) from error
