"""What releases and the response cache need beyond the types of their fields.

Rules: a name that is asked of engines is served by one of them; one release a name; a fallback is another arm of the same
release, and following fallbacks comes to an end; an artefact is one word.

Deliberately absent: names, weights and ranges (as everywhere, in `core.fleet_rules`), and whether a release is wise.
"""

from collections.abc import Collection, Iterator

from sits.core import fleet as tree
from sits.core.inherit import refer
from sits.core.problems import Report, join, near

DIGEST_CHARACTERS = 200
"""The longest artefact digest."""


def releases_of(fleet: tree.Fleet, path: str) -> Iterator[tuple[str, tree.Release]]:
    """Every release with its path; the one for all models first."""
    yield join(path, "policy.release"), fleet.policy.release
    for i, release in enumerate(fleet.policy.releases):
        yield f"{join(path, 'policy.releases')}[{i}]", release


def served_names(fleet: tree.Fleet) -> Iterator[str]:
    """Every name an engine can be asked for: models, and adapters with their families spelled out."""
    families = {family.name: family for family in fleet.adapters}
    for engine in fleet.engines:
        yield from engine.models if isinstance(engine, tree.RemoteEngine) else (engine.model,)
        for name in engine.adapters:
            family = families.get(name)
            yield from (f"{name}-{i}" for i in range(family.count)) if family else (name,)
    yield from (adapter.name for adapter in fleet.runtime_adapters.adapters)


def check_releases(fleet: tree.Fleet, path: str, report: Report) -> None:
    """Report what of `policy.release`, `policy.releases` and `policy.cache` refers to nothing, or to itself."""
    served = frozenset(served_names(fleet)) if report.sound_within(join(path, "engines")) else frozenset()
    first: dict[str, str] = {}
    for at, release in releases_of(fleet, path):
        inner = join(at, "model")
        if at.endswith("]"):
            _check_model(release.model, first, served, inner, report)
        elif release.model:
            hint = "a release of one model is an entry of 'policy.releases'"
            report.add(inner, "'policy.release' holds for every model", value=release.model, hint=hint)
        arms = {arm.name: arm for arm in release.arms}
        for i, arm in enumerate(release.arms):
            _check_arm(arm, arms, served, f"{join(at, 'arms')}[{i}]", report)
    for i, name in enumerate(fleet.policy.cache.models):
        _check_served(name, served, f"{join(path, 'policy.cache.models')}[{i}]", report)


def _check_model(
    model: str, first: dict[str, str], served: Collection[str], path: str, report: Report
) -> None:
    if model in first:
        line = report.line(first[model])
        hint = f"first on line {line}" if line else "one release for each name"
        report.add(path, f"{model!r} has a release already", value=model, hint=hint)
    elif _check_served(model, served, path, report):
        first[model] = path


def _check_arm(
    arm: tree.Arm, arms: dict[str, tree.Arm], served: Collection[str], path: str, report: Report
) -> None:
    if arm.model:
        _check_served(arm.model, served, join(path, "model"), report)
    if len(arm.artefact) > DIGEST_CHARACTERS or " " in arm.artefact or not arm.artefact.isprintable():
        hint = f"one word of at most {DIGEST_CHARACTERS} characters, like 'sha256:9f86d0...'"
        report.add(join(path, "artefact"), "is not a digest", value=arm.artefact[:40], hint=hint)
    if arm.fallback:
        _check_fallback(arm, arms, join(path, "fallback"), report)


def _check_fallback(arm: tree.Arm, arms: dict[str, tree.Arm], path: str, report: Report) -> None:
    others = [name for name in arms if name != arm.name]
    if arm.fallback not in others:
        message = f"there is no other arm named {arm.fallback!r}"
        report.add(path, message, value=arm.fallback, hint=near(arm.fallback, others))
        return
    chain, here = [arm.name], arm
    while here.fallback in arms and here.fallback not in chain:
        here = arms[here.fallback]
        chain.append(here.name)
    if here.fallback == arm.name:
        shown = " -> ".join([*chain, arm.name])
        hint = "let one of them have no fallback"
        report.add(path, f"goes in a circle: {shown}", value=arm.fallback, hint=hint)


def _check_served(name: str, served: Collection[str], path: str, report: Report) -> bool:
    """Whether it is; nobody can say while the engines have problems of their own (then nothing counts as served)."""
    return not served or refer(name, served, "served model or adapter", path, report)
