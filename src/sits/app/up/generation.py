"""A Generation: one configuration as it serves, numbered from 1, named by its content.

Read strictly by the supervisor, sent to the others as msgpack: a worker that had to parse YAML would answer nobody meanwhile.

Rules: what processes were made for cannot change while they run (the address, the number of workers, the store, emulated engines);
a new file that wants it otherwise is refused by the names of those fields, and the old generation goes on.

Deliberately absent: processes and objects; what a generation becomes in a worker is `app.up.worker`'s business.
"""

from pathlib import Path
from typing import Any

import msgspec

from sits.core.config import digest, load_fleet
from sits.core.errors import ConfigError, ConfigErrors
from sits.core.fleet import EmulatedEngine, Fleet
from sits.core.ports import World
from sits.core.units import SECOND

NAME_CHARACTERS = 12

FIXED = ("listen", "workers", "store", "reload")
"""Fields of `gateway` that were used up when the processes began."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What every process knows of the configuration in use.

    Attributes:
        number: how many there have been; name: digest of `fleet`, as answers carry it; run_id: of the rows recorded under it.
        written: what the file says; fleet: what is served, with the weights its shift has come to.
        slots: where each engine is counted (see `gateway.shared`).

    """

    number: int
    name: str
    run_id: str
    fleet: Fleet
    written: Fleet
    slots: dict[str, int]

    @property
    def emulated(self) -> bool:
        """Whether an engine only pretends, inside the worker."""
        return any(isinstance(engine, EmulatedEngine) for engine in self.fleet.engines)


def read(path: Path, workers: int | None = None) -> Fleet:
    """The fleet of a file; `workers` overrides what it says.

    Raises:
        ConfigErrors: the file has problems; all are named.
        ConfigError: it cannot be read, or is no text.

    """
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"byte {error.start} is not UTF-8", where=str(path), hint="save the file as UTF-8 text"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    fleet = load_fleet(text, str(path))
    if workers is not None:
        gateway = msgspec.structs.replace(fleet.gateway, workers=workers)
        fleet = msgspec.structs.replace(fleet, gateway=gateway)
    return fleet


def generation(number: int, written: Fleet, slots: dict[str, int], world: World) -> Generation:
    """The next one, of what a file says.

    Raises:
        ConfigError: the book of its shift cannot be read.

    """
    fleet = shifted(written)
    name = digest(fleet)[:NAME_CHARACTERS]
    run_id = f"{fleet.name}-{world.wall_ns() // SECOND}-{name}"
    return Generation(number=number, name=name, run_id=run_id, fleet=fleet, written=written, slots=slots)


def shifted(written: Fleet) -> Fleet:
    """What a file says, with the weights its shift has come to: a gateway that starts again goes on from there."""
    if written.shift is None:
        return written
    from sits.app.shift.book import overlaid, read_book  # noqa: PLC0415  (only where it is needed)

    return overlaid(written, read_book(Path(written.gateway.store)))


def check_change(before: Fleet, after: Fleet, path: Path) -> None:
    """Whether `after` may follow `before` without a restart.

    Raises:
        ConfigErrors: fields that differ and cannot.

    """
    problems = [
        _fixed(f"gateway.{field}", getattr(before.gateway, field), getattr(after.gateway, field), path)
        for field in FIXED
        if getattr(before.gateway, field) != getattr(after.gateway, field)
    ]
    if before.admin.listen != after.admin.listen:
        problems.append(_fixed("admin.listen", before.admin.listen, after.admin.listen, path))
    if _pretended(before) != _pretended(after):
        problems.append(
            ConfigError(
                "an emulated engine was added, removed or changed",
                where=str(path),
                field="engines",
                hint="restart to serve it; what emulates is compiled before anybody waits for it",
            )
        )
    if problems:
        raise ConfigErrors(problems)


def _fixed(field: str, was: Any, wanted: Any, path: Path) -> ConfigError:
    return ConfigError(
        f"is {was!r} and cannot become {wanted!r} while serving",
        where=str(path),
        field=field,
        value=wanted,
        hint="restart to change it, or put it back",
    )


def _pretended(fleet: Fleet) -> tuple[Any, ...]:
    """All that emulated engines are made of."""
    engines = tuple(engine for engine in fleet.engines if isinstance(engine, EmulatedEngine))
    return (engines, fleet.nodes, fleet.models, fleet.adapters) if engines else ()


def pack(one: Generation) -> bytes:
    """As it is sent."""
    return msgspec.msgpack.encode(one)


def unpack(data: bytes) -> Generation:
    """As it was."""
    return msgspec.msgpack.decode(data, type=Generation)
