"""Puts wrappers where functions were, all of them or none, now or when their module is imported, and takes them away again.

```
apply ── module loaded ──> wrapped now
      └─ not loaded ─────> a finder in front of sys.meta_path wraps it right after its import
```
Rules: what a process never imports is never imported for our sake.  A function that is not there when it should be wrapped undoes all
wrappers of this process, the finder too, and is told to `on_trouble`.  A wrapper keeps its function in `__wrapped__`, and its name.  A process forked
later has the wrappers already.

Deliberately absent: what is wrapped, and whether it should be (`probe.known`, `probe.reading`).
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from sits.telemetry.probe.known import Site

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Patches:
    """The wrappers of this process."""

    def __init__(self, wraps: Mapping[Site, Wrap], on_trouble: Callable[[str], None]) -> None:
        self._wraps = wraps
        self._on_trouble = on_trouble
        self._done: list[tuple[Any, str, Any]] = []
        self._awaited = {site.module for site in wraps}

    @property
    def applied(self) -> int:
        """Functions wrapped so far."""
        return len(self._done)

    def apply(self) -> None:
        """Wrap what is loaded, and wait for the rest."""
        for name in sorted(self._awaited):
            module = sys.modules.get(name)
            if module is not None:
                self._module(name, module)
        if self._awaited:
            sys.meta_path.insert(0, self)

    def undo(self) -> None:
        """All functions are what they were."""
        self._awaited = set()
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for owner, name, before in reversed(self._done):
            setattr(owner, name, before)
        self._done = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual answer of the path finder, with a loader that wraps afterwards; None for modules that do not concern us."""
        if name not in self._awaited:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self._module(name, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # this module's own loader
        return spec

    def _module(self, name: str, module: ModuleType) -> None:
        if name not in self._awaited:
            return
        self._awaited.discard(name)
        for site, wrap in self._wraps.items():
            if site.module == name and (problem := self._function(site, module, wrap)):
                self.undo()
                self._on_trouble(problem)
                return
        if not self._awaited and self in sys.meta_path:
            sys.meta_path.remove(self)

    def _function(self, site: Site, module: ModuleType, wrap: Wrap) -> str:
        """Wrap one; what stands against it in words."""
        owner = getattr(module, site.owner, None) if site.owner else module
        before = vars(owner).get(site.name) if owner is not None else None
        static = isinstance(before, staticmethod)
        function = before.__func__ if isinstance(before, staticmethod) else before
        if not callable(function):
            return f"there is no {site} in the module as it was imported"
        made: Any = functools.wraps(function)(wrap(function))
        setattr(owner, site.name, staticmethod(made) if static else made)
        self._done.append((owner, site.name, before))
        return ""
