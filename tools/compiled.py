"""Builds the data plane's modules to machine code when a wheel is made with SITS_COMPILE=1 (mypyc; needs a C compiler).

The modules are ordinary Python and stay in the wheel as such; where their compiled form is there too, Python imports that.
So what is tested, read and debugged is the source, and a platform without a compiled wheel has a slower gateway and nothing else.

Rules for a module in `COMPILED`: what its annotations say is checked while it runs, so they must be true for every caller; no
`msgspec.Struct` whose fields are read from bytes (the compiler drops annotations); nobody replaces a part of it from outside.

Deliberately absent: everything that does not run for each request.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "core/remember",
    "core/timeline",
    "engine/answer",
    "engine/anthropic",
    "engine/client",
    "engine/openai",
    "engine/openai_answer",
    "engine/waiter",
    "gateway/choosing",
    "gateway/connection",
    "gateway/decisions",
    "gateway/endpoints",
    "gateway/exchange",
    "gateway/holding",
    "gateway/http",
    "gateway/ledger/book",
    "gateway/ledger/line",
    "gateway/openai_api",
    "gateway/pipeline",
    "gateway/places",
    "gateway/quota",
    "gateway/relay",
    "gateway/retry_budget",
    "gateway/server",
    "gateway/sink",
    "gateway/standing",
    "gateway/strand",
    "gateway/trace",
    "gateway/versions",
    "policy/admit",
    "policy/route",
    "telemetry/recorder",
)

_SETUP = """\
from mypyc.build import mypycify
from setuptools import setup
setup(name="sits", packages=[], ext_modules=mypycify({arguments!r}, opt_level="3", debug_level="0", target_dir={target!r}))
"""


class CompiledHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    def wanted(self, version: str) -> bool:
        """Whether this is a wheel to be installed, and it was asked for."""
        return self.target_name == "wheel" and version != "editable" and os.environ.get("SITS_COMPILE") == "1"

    def dependencies(self) -> list[str]:
        """What compiling needs: the compiler, and the packages whose types it reads."""
        if os.environ.get("SITS_COMPILE") != "1":
            return []
        return ["mypy[mypyc]>=2", "setuptools>=77", "types-pyyaml", *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put the results beside their sources.  Raises RuntimeError with what the compiler said."""
        if not self.wanted(version):
            return
        source = Path(self.root, "src")
        self._scratch = tempfile.TemporaryDirectory(prefix="sits-compiled-")
        built = Path(self._scratch.name)
        arguments = ["--config-file", str(Path(self.root, "pyproject.toml"))]
        arguments += [f"sits/{name}.py" for name in COMPILED]
        setup = built / "setup.py"
        setup.write_text(_SETUP.format(arguments=arguments, target=str(built / "c")))
        places = ["--build-lib", str(built / "lib"), "--build-temp", str(built / "objects")]
        ran = subprocess.run(  # noqa: S603  (our own interpreter and file)
            [sys.executable, str(setup), "build_ext", *places],
            cwd=source,
            env={**os.environ, "MYPY_CACHE_DIR": str(built / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(f"compiling the data plane failed:\n{ran.stdout[-4000:]}")
        for file in (built / "lib").rglob("*.so"):
            build_data["force_include"][str(file)] = str(file.relative_to(built / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written."""
        if self.wanted(version):
            self._scratch.cleanup()
