"""Models of engines as files: read one that `sitsctl calibrate` wrote.

Deliberately absent: what is in it (`sits.predict.fit_model`).
"""

from pathlib import Path

from sits.bench.lines import bytes_of
from sits.core.errors import ConfigError
from sits.predict.fit_model import FittedEngine, decode_model


def read_model(path: Path) -> FittedEngine:
    """Read `model.json`, gzipped or not.

    Raises:
        ConfigError: it is missing, cut off, or not a model this program reads.

    """
    if not path.is_file():
        raise ConfigError(
            f"no model at {path}", value=str(path), hint="make one with `sitsctl calibrate DIR -o model.json`"
        )
    return decode_model(bytes_of(path), str(path))
