"""Whatever is printed arrives, in every encoding that an output may have: our drawings as what looks alike, JSON as JSON."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_processes import sitsctl
from sits.app.letters import ALIKE, write_every_letter

ROOT = Path(__file__).parents[2]
ENCODINGS = ("ascii", "latin-1", "cp1252", "utf-8")


def written(text, encoding, errors="strict"):
    """The bytes that standard output makes of it."""
    raw = io.BytesIO()
    before = sys.stdout
    sys.stdout = io.TextIOWrapper(raw, encoding=encoding, errors=errors, newline="\n")
    try:
        write_every_letter()
        sys.stdout.write(text)
        sys.stdout.flush()
    finally:
        sys.stdout.detach()
        sys.stdout = before
    return raw.getvalue()


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(st.text())
def test_any_text_is_written_and_ascii_of_it_as_it_is(encoding, text):
    said = written(text, encoding).decode(encoding)
    if text.isascii() or (encoding == "utf-8" and not any("\ud800" <= one <= "\udfff" for one in text)):
        assert said == text


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(st.recursive(st.text() | st.integers(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)))
def test_a_document_says_the_same(encoding, value):
    document = json.dumps({"it": value}, ensure_ascii=False)
    assert json.loads(written(document, encoding).decode(encoding)) == json.loads(document)


def test_our_own_drawings_keep_their_width_and_are_all_known():
    """Every letter beyond ASCII that stands in a string of ours has a look, but for words of other languages in tests of words."""
    drawn = "█▏▁▂▃▄▅▆▇─│┌└├…–−·×±≤≥→"
    said = written(drawn, "ascii").decode()
    assert len(said) == len(drawn)
    assert "\\" not in said
    used = {
        letter
        for path in (ROOT / "src/sits/app").rglob("*.py")
        if path.name != "letters.py"
        for letter in path.read_text("utf-8")
        if not letter.isascii() and not letter.isalpha()
    }
    assert {letter for letter in used if ord(letter) not in ALIKE} == set()


def test_somebody_who_chose_another_way_gets_it():
    assert written("ü█", "ascii", "replace") == b"??"
    assert written("ü█", "ascii", "surrogateescape") == rb"\u00fc#"


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1), (0, 1, 2)], ids=str)
def test_a_command_whose_outputs_are_closed_does_its_work(closed, tmp_path):
    """It is told to exit as it would, and what it opens does not become its output."""
    text = "name: x\nengines: [{kind: openai, name: e, url: 'http://h', models: [m]}]\n"
    (tmp_path / "fleet.yaml").write_text(text)
    gaps = " ".join(f"{fd}{'<' if not fd else '>'}&-" for fd in closed)
    command = [*sitsctl("check", "fleet.yaml"), "--json"]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {gaps}', "sh", *map(str, command)],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (done.stdout == b"") is (1 in closed)
    assert (tmp_path / "fleet.yaml").read_text() == text


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_a_command_says_it_where_the_locale_has_no_letters_for_it(encoding, tmp_path):
    good = "name: x\nengines: [{kind: openai, name: e, url: 'http://h', models: [m]}]\n"
    (tmp_path / "名前.yaml").write_text(good, "utf-8")
    (tmp_path / "bad.yaml").write_text(f"名前: 1\n{good}", "utf-8")
    env = {"PYTHONIOENCODING": encoding, "PATH": "/usr/bin:/bin"}
    done = [
        subprocess.run(
            sitsctl("check", tmp_path / name), capture_output=True, env=env, check=False, timeout=60
        )
        for name in ("名前.yaml", "bad.yaml")
    ]
    assert [one.returncode for one in done] == [0, 2]
    machine = subprocess.run(
        sitsctl("check", tmp_path / "bad.yaml", "--json"),
        capture_output=True,
        env=env,
        check=False,
        timeout=60,
    )
    assert "名前" in json.loads(machine.stdout.decode())["problems"][0]["message"]
    for told in (done[0].stdout, done[1].stderr):
        assert ("名前" if encoding == "utf-8" else r"\u540d\u524d") in told.decode(encoding)
