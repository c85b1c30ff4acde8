"""What is compiled in a wheel obeys the rules that compiling needs; each was learnt from a failure."""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _compiled():
    tree = ast.parse((ROOT / "tools/compiled.py").read_text())
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "COMPILED"
    )
    return names


COMPILED = _compiled()


def awaits_in_finally(tree):
    """Lines of `finally` blocks that wait for something."""
    blocks = (node.finalbody for node in ast.walk(tree) if isinstance(node, ast.Try))
    waits = (inner for block in blocks for line in block for inner in ast.walk(line))
    return [node.lineno for node in waits if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)]


def structs_read_from_bytes(tree):
    """Decoders of a class that is defined beside them."""
    here = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("Decoder", "decode", "convert")
        and any(
            isinstance(a, ast.Name) and a.id in here for a in [*call.args, *(k.value for k in call.keywords)]
        )
    ]


def test_the_rules_see_what_breaks_them():
    assert awaits_in_finally(ast.parse("async def f():\n try:\n  pass\n finally:\n  await g()"))
    assert not awaits_in_finally(ast.parse("async def f():\n try:\n  await g()\n finally:\n  h()"))
    assert structs_read_from_bytes(ast.parse("class A: ...\nD = msgspec.json.Decoder(A)"))
    assert not structs_read_from_bytes(ast.parse("D = msgspec.json.Decoder(dict)"))


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_module_keeps_to_the_rules(name):
    tree = ast.parse((ROOT / f"src/sits/{name}.py").read_text())
    assert not awaits_in_finally(tree), "mypyc 2.4 raises there what an earlier call failed with"
    assert not structs_read_from_bytes(tree), "annotations are dropped: fields would be read as `type`"


def test_no_module_that_is_interpreted_inherits_from_a_compiled_class():
    owners = {
        node.name
        for name in COMPILED
        for node in ast.parse((ROOT / f"src/sits/{name}.py").read_text()).body
        if isinstance(node, ast.ClassDef)
        and not any(
            isinstance(b, ast.Name) and b.id in ("Protocol", "NamedTuple", "Exception") for b in node.bases
        )
    }
    files = [
        p
        for p in (ROOT / "src/sits").rglob("*.py")
        if str(p.relative_to(ROOT / "src/sits"))[:-3] not in COMPILED
    ]
    for file in files:
        tree = ast.parse(file.read_text())
        imported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.removeprefix("sits.").replace(".", "/") in COMPILED
            for alias in node.names
        }
        heirs = [
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and any(isinstance(base, ast.Name) and base.id in owners & imported for base in node.bases)
        ]
        assert not heirs, f"{file}: {heirs}"


def test_the_tests_here_run_what_is_written():
    found = importlib.util.find_spec("sits.gateway.pipeline")
    assert found is not None
    assert found.origin.endswith(".py"), "a compiled module lies beside its source"
