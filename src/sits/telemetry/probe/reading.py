"""Reads vLLM's sources without importing them: which version it is, and whether what the probe would wrap is as it was known.

```
importlib finds the package ──> _version.py ──> known? ──> ast of each file ──> what differs, in words
```
Rules: nothing of vLLM is executed, so a look costs 0.2 s and not the 11 s of its imports, and it is the same look in all of vLLM's processes,
whichever of its modules they load.  All that differs is told, not only the first.

Deliberately absent: guessing.  A function that moved or a parameter with another name is a difference.
"""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from sits.telemetry.probe.known import Known, Shape, Site

_VERSION = re.compile(r"^__version__\s*(?:=\s*version\s*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def package_of(name: str = "vllm") -> Path | None:
    """Where a package lies; None when there is none.  It is not imported."""
    spec = find_spec(name)
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def version_of(package: Path) -> str:
    """The version its sources name, `unknown` when they name none."""
    try:
        match = _VERSION.search((package / "_version.py").read_text(encoding="utf-8"))
    except OSError:
        return "unknown"
    return match[1] if match else "unknown"


def differences(package: Path, known: Known) -> list[str]:
    """What is not as known, in words; empty when all of it is."""
    wanted: dict[str, list[Site | Shape]] = {}
    every: list[Site | Shape] = [*known.sites, *known.shapes]
    for one in every:
        wanted.setdefault(one.module, []).append(one)
    return [
        problem
        for module, ones in wanted.items()
        for problem in _module(file_of(package, module), module, ones)
    ]


def file_of(package: Path, module: str) -> Path:
    """The source of a module of the package."""
    path = package.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _module(path: Path, module: str, ones: list[Site | Shape]) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        yield f"module {module} cannot be read: {error}"
        return
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for one in ones:
        holder: ast.Module | ast.ClassDef | None = classes.get(one.owner) if one.owner else tree
        if holder is None:
            yield f"{module} has no class {one.owner}"
        elif isinstance(one, Site):
            yield from _function(holder, one)
        elif missing := set(one.fields) - set(_fields(classes[one.owner])):
            yield f"{module}:{one.owner} has no field {', '.join(sorted(missing))}"


def _function(holder: ast.Module | ast.ClassDef, site: Site) -> Iterator[str]:
    found = [
        node
        for node in holder.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == site.name
    ]
    if not found:
        yield f"there is no {site}"
        return
    names = tuple(argument.arg for argument in (*found[-1].args.posonlyargs, *found[-1].args.args))
    if names[: len(site.parameters)] != site.parameters:
        yield f"{site} begins with parameters {names[: len(site.parameters)]} and not {site.parameters}"


def _fields(of: ast.ClassDef) -> Iterator[str]:
    """Fields declared in the class, and attributes its `__init__` sets."""
    for node in of.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                    yield inner.attr
