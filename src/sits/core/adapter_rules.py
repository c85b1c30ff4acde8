"""What the section `runtime_adapters` needs beyond the types of its fields.

Rules: an engine that is named is an OpenAI-compatible one, once; an adapter's model is served by at least one of these engines,
so that it can be loaded somewhere; its name is nobody else's, for callers ask by name; a digest is a SHA-256, a fingerprint can
be read and is of the prompt in force.

Deliberately absent: whether the files exist and fit the model; that is tried before a load, and an engine may see other disks.
"""

import re
from collections.abc import Collection

from sits.core import fleet as tree
from sits.core.decode import tag_of
from sits.core.errors import CallerError
from sits.core.fingerprint import probe_name, read_fingerprint
from sits.core.fleet_adapters import RuntimeAdapter, RuntimeAdapters
from sits.core.inherit import refer
from sits.core.problems import Report, join

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def check_adapters(fleet: tree.Fleet, path: str, report: Report) -> None:
    """Report what of `fleet.runtime_adapters` cannot be used."""
    control, at = fleet.runtime_adapters, join(path, "runtime_adapters")
    if not report.sound_within(join(path, "engines")):
        return
    served = _check_engines(fleet, control, join(at, "engines"), report)
    taken = {model for engine in fleet.engines for model in _models(engine)}
    for i, adapter in enumerate(control.adapters):
        inner = f"{join(at, 'adapters')}[{i}]"
        if not control.engines:
            hint = "list engines under runtime_adapters.engines"
            report.add(inner, "there is no engine to load it into", value=adapter.name, hint=hint)
        elif refer(adapter.model, sorted(served), "model these engines serve", join(inner, "model"), report):
            _check_room(adapter, control, served, inner, report)
        _check_name(adapter, fleet, taken, inner, report)
        _check_proof(adapter, control, inner, report)
    if control.backoff_max < control.backoff:
        hint = "backoff_max is at least backoff"
        report.add(join(at, "backoff_max"), "is below 'backoff'", value=control.backoff_max, hint=hint)


def loadable_into(fleet: tree.Fleet, engine: str, models: Collection[str]) -> list[str]:
    """The runtime adapters of these models, when the engine is one they are loaded into."""
    control = fleet.runtime_adapters
    if all(entry.engine != engine for entry in control.engines):
        return []
    return [adapter.name for adapter in control.adapters if adapter.model in models]


def _models(engine: tree.AnyEngine) -> tuple[str, ...]:
    return (engine.model,) if isinstance(engine, tree.EmulatedEngine) else engine.models


def _check_engines(
    fleet: tree.Fleet, control: RuntimeAdapters, path: str, report: Report
) -> dict[str, list[str]]:
    """The models of the engines named, with the engines that serve each."""
    by_name = {engine.name: engine for engine in fleet.engines}
    served: dict[str, list[str]] = {}
    first: dict[str, int] = {}
    for i, entry in enumerate(control.engines):
        inner = join(f"{path}[{i}]", "engine")
        if not refer(entry.engine, by_name, "engine", inner, report):
            continue
        engine = by_name[entry.engine]
        if not isinstance(engine, tree.OpenAIEngine):
            hint = "adapters are loaded into engines of kind 'openai'; the others have what their 'adapters' says"
            message = f"{entry.engine!r} is of kind {tag_of(type(engine))[1]!r}"
            report.add(inner, message, value=entry.engine, hint=hint)
        elif entry.engine in first:
            hint = f"first as {path}[{first[entry.engine]}]"
            report.add(inner, f"{entry.engine!r} is listed twice", value=entry.engine, hint=hint)
        else:
            first[entry.engine] = i
            for model in engine.models:
                served.setdefault(model, []).append(entry.engine)
    return served


def _check_room(
    adapter: RuntimeAdapter, control: RuntimeAdapters, served: dict[str, list[str]], path: str, report: Report
) -> None:
    engines = served[adapter.model]
    if adapter.copies > len(engines):
        message = f"{adapter.copies} copies, and {len(engines)} of these engines serve {adapter.model!r}"
        report.add(join(path, "copies"), message, value=adapter.copies, hint="a copy is one engine")
    if adapter.copies and not adapter.path:
        hint = "give it a path; without one the engine loads it itself"
        report.add(join(path, "copies"), "cannot be loaded without a path", value=adapter.copies, hint=hint)
    kept = sum(other.copies for other in control.adapters if other.model == adapter.model)
    slots = sum(entry.slots for entry in control.engines if entry.engine in engines)
    if adapter.copies and kept > slots:
        message = f"{kept} copies are to be kept of adapters of {adapter.model!r}, in {slots} slots"
        report.add(join(path, "copies"), message, value=adapter.copies, hint="fewer copies, or more slots")


def _check_name(
    adapter: RuntimeAdapter, fleet: tree.Fleet, models: set[str], path: str, report: Report
) -> None:
    inner = join(path, "name")
    if adapter.name in models:
        message = f"{adapter.name!r} is the name of a model"
        report.add(inner, message, value=adapter.name, hint="callers ask for an adapter by its name")
    for engine in fleet.engines:
        if adapter.name in engine.adapters:
            hint = f"take it out of the adapters of engine {engine.name!r}: those are not proven"
            report.add(inner, f"{adapter.name!r} is a fixed adapter already", value=adapter.name, hint=hint)


def _check_proof(adapter: RuntimeAdapter, control: RuntimeAdapters, path: str, report: Report) -> None:
    if adapter.digest and not _DIGEST.fullmatch(adapter.digest):
        hint = "sha256: and 64 hexadecimal digits; sitsctl adapters fingerprint prints it"
        report.add(join(path, "digest"), "is not a digest", value=adapter.digest[:80], hint=hint)
    if not adapter.fingerprint:
        return
    try:
        told = read_fingerprint(adapter.fingerprint)
    except CallerError as error:
        report.add(join(path, "fingerprint"), error.message, value=error.value, hint=error.hint)
        return
    if told.probe != probe_name(adapter.prompt or control.probe.prompt):
        hint = "print it anew: sitsctl adapters fingerprint"
        report.add(join(path, "fingerprint"), "is of another prompt", value=told.probe, hint=hint)
