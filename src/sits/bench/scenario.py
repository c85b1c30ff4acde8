"""A scenario: a fleet with its configuration, a workload, faults, and the fixes to try.

Rules: a scenario states causes (settings, sizes, bandwidths, costs of work), never a latency; faults are things
that happen to a machine and cannot be configured away, only repaired; a fix is a set of configuration changes
and repairs under one name.  The file is YAML, decoded as strictly as `fleet.yaml`.

Deliberately absent: what comes out of it (`bench.reproduce`).
"""

import re
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from sits.bench.workload import WorkloadPlan, lengths_named
from sits.core.config import decode, patch
from sits.core.errors import ConfigError
from sits.core.finding import Change
from sits.core.fleet import Fleet
from sits.core.units import Ns, Share

DEFAULT = "incident-2300ms.yaml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class PcieBandwidth(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="pcie_bandwidth",
    forbid_unknown_fields=True,
):
    """A host-to-device link that loses `depth` of its bandwidth for `width` out of `every`, repeating under load.

    The dips happen on the links of `nodes` while an engine there has at least `while_running` running requests.
    """

    id: str
    nodes: tuple[str, ...]
    depth: Share
    width: Ns
    every: Ns
    while_running: Annotated[int, Meta(ge=0, le=1_000_000)] = 1


class Fix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One remedy: configuration changes by path, faults that are repaired, and the findings it answers (their ids)."""

    id: str
    title: str
    why: str
    set: dict[str, str] = {}
    repair: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a reproduction needs; `repetitions` seeds from `seed` on."""

    name: str
    title: str
    repetitions: Annotated[int, Meta(ge=1, le=10_000)] = 12
    seed: Annotated[int, Meta(ge=0, le=2**62)] = 1
    workload: WorkloadPlan
    faults: tuple[PcieBandwidth, ...] = ()
    fleet: Fleet
    fixes: tuple[Fix, ...] = ()


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration to run: the fleet after some fixes, the faults that are left, and what was changed."""

    id: str
    fleet: Fleet
    faults: tuple[PcieBandwidth, ...]
    changes: tuple[Change, ...] = ()


def load_scenario(path: str | Path | None = None) -> Scenario:
    """Read a scenario file; None = the shipped 2300-ms incident.

    Raises:
        ConfigError: the file is missing or says something that cannot be.

    """
    if path is None:
        text = resources.files("sits.bench").joinpath("scenarios", DEFAULT).read_text()
        return _checked(decode(text, Scenario, DEFAULT), DEFAULT)
    path = Path(path)
    if not path.is_file():
        raise ConfigError(
            f"no scenario at {path}", value=str(path), hint="give the path of a scenario YAML file"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8", value=str(path), hint="save it as UTF-8 text; is it the right file?"
        ) from error
    return _checked(decode(text, Scenario, path.name), path.name)


def _checked(scenario: Scenario, file: str) -> Scenario:
    lengths_named(scenario.workload.prompt)
    lengths_named(scenario.workload.answer)
    lengths_named(scenario.workload.long_prompt)
    for name, items in (("faults", scenario.faults), ("fixes", scenario.fixes)):
        ids = [item.id for item in items]
        for item_id in ids:
            if ids.count(item_id) > 1:
                raise ConfigError(
                    f"{item_id!r} is named twice",
                    where=file,
                    field=name,
                    value=item_id,
                    hint="ids are unique",
                )
    if not _NAME.fullmatch(scenario.name):
        raise ConfigError(
            f"{scenario.name[:40]!r} cannot be a name",
            where=file,
            field="name",
            value=scenario.name,
            hint="letters, digits and . _ -, at most 100",
        )
    nodes = {node.name for node in scenario.fleet.nodes}
    for fault in scenario.faults:
        if not fault.nodes:
            raise ConfigError(
                "no node is named",
                where=file,
                field=f"faults[{fault.id}].nodes",
                value=(),
                hint="name at least one",
            )
        for node in fault.nodes:
            if node not in nodes:
                raise ConfigError(
                    f"no node is called {node!r}",
                    where=file,
                    field=f"faults[{fault.id}].nodes",
                    value=node,
                    hint=f"one of {', '.join(sorted(nodes))}",
                )
        if not 0 < fault.width <= fault.every:
            raise ConfigError(
                f"a dip of {fault.width} ns every {fault.every} ns",
                where=file,
                field=f"faults[{fault.id}].width",
                value=fault.width,
                hint="0 < width <= every",
            )
    for fix in scenario.fixes:
        variant(scenario, (fix.id,), file)
    return scenario


def variant(scenario: Scenario, fixes: tuple[str, ...], file: str = "") -> Variant:
    """The scenario's fleet after the named fixes, in the scenario's order.

    Raises:
        ConfigError: a fix sets a path that does not exist, or repairs a fault that is not there.

    """
    fleet, faults, changes = scenario.fleet, scenario.faults, []
    for fix in scenario.fixes:
        if fix.id not in fixes:
            continue
        for path, value in fix.set.items():
            fleet, change = patch(fleet, path, value)
            changes.append(msgspec.structs.replace(change, why=fix.why))
        for fault_id in fix.repair:
            if fault_id not in {fault.id for fault in scenario.faults}:
                raise ConfigError(
                    f"no fault is called {fault_id!r}",
                    where=file,
                    field=f"fixes[{fix.id}].repair",
                    value=fault_id,
                )
            faults = tuple(fault for fault in faults if fault.id != fault_id)
            changes.append(Change(path=f"faults.{fault_id}", old="present", new="repaired", why=fix.why))
    return Variant(id="+".join(fixes) or "as_is", fleet=fleet, faults=faults, changes=tuple(changes))
