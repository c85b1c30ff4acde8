"""Importing sits opens nothing, starts nothing, and loads no heavy library before it is needed.

Each check runs in a fresh interpreter under an audit hook, which sees what no monkeypatch can miss.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/sits").rglob("*.py"))
HEAVY = ("numba", "duckdb", "scipy", "rich", "pyarrow", "cedarpy", "jwt", "cryptography")
KERNELS = {"sits.sim.kernel", "sits.sim.arrays"}
"""Compiled code and its arrays: numba's decorators run, and look for their cache folder, when these are imported.
Everything else imports them where it needs them."""

HOOK = """
import sys
banned = ("socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.mkdir",
          "os.remove", "os.rename", "os.putenv", "signal.signal")
def watch(event, args):
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if event in banned or writes:
        print("WORK AT IMPORT:", event, args[:2], flush=True)
        raise SystemExit(3)
"""


def name_of(path):
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = [name for name in map(name_of, SOURCES) if not name.endswith("__main__")]


def python(code):
    return subprocess.run(
        [sys.executable, "-B", "-X", "utf8", "-c", code], capture_output=True, text=True, check=False
    )


def test_the_watch_itself_sees_work():
    assert python(HOOK + "sys.addaudithook(watch)\nopen('/dev/null', 'w')").returncode == 3
    assert (
        python(
            HOOK + "sys.addaudithook(watch)\nimport socket; socket.create_connection(('::1', 9))"
        ).returncode
        == 3
    )


def test_no_module_does_work_when_imported():
    plain = [name for name in MODULES if name not in KERNELS]
    code = f"{HOOK}\nimport importlib, numpy\nsys.addaudithook(watch)\nfor name in {plain!r}:\n"
    shown = python(code + "    print(name, flush=True)\n    importlib.import_module(name)\n")
    assert shown.returncode == 0, shown.stdout[-300:] + shown.stderr[-2000:]


@pytest.mark.parametrize("name", ["sits", "sits.app.cli", "sits.core.config", "sits.wire"])
def test_heavy_libraries_wait_until_they_are_needed(name):
    if name not in MODULES:
        pytest.skip(f"there is no {name} yet")
    shown = python(f"import sys, {name}\nprint(*[heavy for heavy in {HEAVY!r} if heavy in sys.modules])")
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert shown.stdout.split() == []


def test_only_kernels_import_heavy_libraries_at_the_top():
    found = []
    for path in SOURCES:
        if name_of(path) in KERNELS:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{name_of(path)} imports {n}" for n in names if n.partition(".")[0] in HEAVY]
    assert found == []
