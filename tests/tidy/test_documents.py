"""What the documents say exists: dotted names, commands, targets, files; and the project's paperwork is there."""

import importlib
import re
import shlex
import shutil
import subprocess
import tomllib
from functools import lru_cache
from pathlib import Path

import click
import pytest

import sits
from sits.app.cli import cli
from sits.core import otel_names
from sits.core.config import load_fleet

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DOTTED = re.compile(r"sits(\.\w+)+")
_FILE = re.compile(r"[\w.-]+(/[\w.-]+)+\.(py|md|toml|yaml|yml|json|lock|sh|css|js|j2|html|png|svg)(?!\w)")
_COMMAND = re.compile(r"(?:^\s*|[$|&;/]\s*)sitsctl ([a-z][\w-]*)")
_TARGET = re.compile(r"\bmake ([a-z][\w-]*)")


def spans(path):
    """`(line, text)` of each code span and of each line of a fenced block."""
    text = path.read_text(encoding="utf-8")
    for match in _CODE.finditer(_FENCE.sub(lambda m: "\n" * m[0].count("\n"), text)):
        yield text.count("\n", 0, match.start()) + 1, match[1]
    for match in _FENCE.finditer(text):
        start = text.count("\n", 0, match.start(1)) + 1
        yield from enumerate(match[1].splitlines(), start)


def resolves(dotted):
    """Whether `sits.a.b.C.d` can be imported as far as it is a module and then read as attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            fields = getattr(found, "__struct_fields__", ()) or getattr(found, "__annotations__", ())
            if not hasattr(found, name) and name not in fields:
                return False
            found = getattr(found, name, None)
        return True
    return False


@lru_cache
def commands():
    cli = importlib.import_module("sits.app.cli")
    groups = [value for value in vars(cli).values() if isinstance(value, click.Group)]
    return {name for group in groups for name in group.list_commands(click.Context(group))}


@lru_cache
def targets():
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    return {line.partition(":")[0] for line in lines if re.match(r"[a-z-]+:", line)}


def exists(name):
    """A file by its path from the root, from the source tree (`core/fleet.py`), or from a document's folder."""
    return any((base / name).exists() for base in (ROOT, ROOT / "src/sits", ROOT / "docs", ROOT / "tests"))


def wrong(pattern, known):
    return [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in DOCUMENTS
        for line, text in spans(path)
        for match in pattern.finditer(text)
        if not known(match)
    ]


def is_attribute(name):
    """Whether it is an attribute of our spans, and no module."""
    ours = [
        value for value in vars(otel_names).values() if isinstance(value, str) and value.startswith("sits.")
    ]
    return any(name == one or f"{name}.".startswith(one) for one in ours if one.endswith(".") or name == one)


def test_dotted_names_in_documents_exist():
    assert wrong(_DOTTED, lambda m: resolves(m[0]) or is_attribute(m[0])) == []


def test_files_named_in_documents_exist():
    made = ("out/", "dist/", "sits-store/", "http")
    assert wrong(_FILE, lambda m: exists(m[0]) or m[0].startswith(made) or "/" not in m[0]) == []


def test_commands_named_in_documents_exist():
    pytest.importorskip("sits.app.cli", reason="there is no command line yet")
    assert wrong(_COMMAND, lambda m: m[1] in commands()) == []


def test_targets_named_in_documents_exist():
    assert wrong(_TARGET, lambda m: m[1] in targets()) == []


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("README*.md")))
def test_the_readme_opens_with_the_two_commands(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    first = _FENCE.search(text)
    assert first
    shown = [line.partition("#")[0].strip() for line in first[1].splitlines() if line.strip()]
    assert shown == ["make demo", "make test"]


def _commands(text):
    """Every `sitsctl ...` a document shows, in code or in a fence, with its arguments."""
    code = [*re.findall(r"`(sitsctl [^`]+)`", text), *re.findall(r"^(sitsctl .+)$", text, re.MULTILINE)]
    return [shlex.split(line.partition("#")[0])[1:] for line in code]


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_commands_of_the_readme_are_understood(name, tmp_path, monkeypatch):
    """Parsed by the command line itself, options and all; the files they name are the ones the README shows, or examples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sits-store").mkdir()
    (tmp_path / "FILE").touch()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    block = re.search(r"```yaml\n(.+?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "fleet.yaml").write_text(block[1])
    (tmp_path / "config.yaml").write_text("model_list: []")
    assert load_fleet(block[1]).engines
    found = _commands((ROOT / name).read_text(encoding="utf-8"))
    assert len(found) >= 6
    for arguments in found:
        command, words = cli, list(arguments)
        while isinstance(command, click.Group):
            if words[:1] and words[0].startswith("-") and command.invoke_without_command:
                break  # a group that does something by itself
            command = command.commands[words.pop(0)]
        if words:  # else the command is only mentioned
            command.make_context(command.name, words)


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("*.md")))
def test_links_and_pictures_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)\)", text):
        if not target.startswith(("http://", "https://")):
            assert (ROOT / target).exists(), f"{name}: {target}"


def test_the_checks_can_fail():
    assert not resolves("sits.core.fleet.Flet")
    assert not resolves("sits.cor")
    assert is_attribute("sits.bp.tokenized")
    assert not is_attribute("sits.stages")
    assert resolves("sits.core.fleet.Fleet.engines")
    assert not exists("core/no_such.py")
    assert "nonsense" not in targets()


def test_one_version_in_three_places():
    assert PROJECT["project"]["version"] == sits.__version__
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    ours = [package for package in lock["package"] if package["name"] == PROJECT["project"]["name"]]
    assert [package["version"] for package in ours] == [sits.__version__]


def test_changelog_licence_and_contributing_are_there():
    assert re.search(r"^## \[?Unreleased", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert (ROOT / "CONTRIBUTING.md").is_file()


def test_decisions_are_numbered_without_gaps_and_say_why():
    files = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert [int(path.name[:4]) for path in files] == list(range(1, len(files) + 1))
    for path in files:
        text = path.read_text(encoding="utf-8")
        parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert parts[:5] == ["Status", "Context", "Choice", "Cost", "What would change our mind"], path.name


def _pins(text):
    """`{package: version}` and the number of hashes of an exported requirements file."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ \\;]+)", text, re.MULTILINE)), text.count("--hash=")


@pytest.mark.parametrize(
    ("name", "extra"), [("requirements.lock", ["--no-dev"]), ("requirements-dev.lock", [])]
)
def test_the_hashed_exports_are_in_step_with_the_lock(name, extra):
    stored = _pins((ROOT / name).read_text(encoding="utf-8"))
    locked = {
        package["name"]: package["version"]
        for package in tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    }
    assert stored[0]
    assert stored[1] >= len(stored[0])
    assert {package: locked.get(package) for package in stored[0]} == stored[0], "run `make lock`"
    if shutil.which("uv") is None:
        pytest.skip("uv is not here: versions were compared, hashes were not")
    command = [
        "uv",
        "export",
        "--quiet",
        "--frozen",
        "--offline",
        "--no-emit-project",
        "--format",
        "requirements-txt",
    ]
    shown = subprocess.run([*command, *extra], cwd=ROOT, capture_output=True, text=True, check=False)
    if shown.returncode:
        pytest.skip(f"uv could not export: {shown.stderr[-200:]}")
    assert _pins(shown.stdout) == stored, "run `make lock`"
