"""Every published claim of the list is refuted by a derivation that runs, and derivations can fail."""

import json
import re

import msgspec
import pytest
from click.testing import CliRunner

from sits.app.seedcheck.command import entries, seedcheck
from sits.app.seedcheck.entry import Check, Derived, Entry, near

ENTRIES = {entry.id: entry for entry in entries()}


def test_e1_to_e38_are_all_there_once_and_in_order():
    assert [entry.id for entry in entries()] == [f"E{n}" for n in range(1, 39)]


@pytest.mark.parametrize("name", ENTRIES)
def test_the_derivation_holds(name):
    derived = ENTRIES[name].derive()
    assert [check.what for check in derived.checks if not check.ok] == []
    assert derived.checks
    assert derived.steps
    assert len(derived.right) > 10


RIGHT = {
    "E1": "8.00 GiB",
    "E6": "62.6%",
    "E7": "0.0057%",
    "E8": "2.46",
    "E9": "1.56",
    "E11": "1151 ms",
    "E13": "58.4",
    "E14": "not enough loads",
    "E18": "0.50",
    "E21": "12.25",
    "E22": "3.125",
    "E24": "44.7",
    "E26": "up to 8 values",
    "E27": "NVLink received 1012",
    "E32": "not enough node counts",
    "E35": "-4.8%",
    "E36": "torch==2.4.0",
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_value_is_the_known_one(name):
    """Values found by hand; the derivations compute them."""
    assert RIGHT[name] in ENTRIES[name].derive().right


def test_derivations_follow_the_predictors(monkeypatch):
    """A broken predictor makes its entry fail: nothing is written down beside the claim."""
    from sits.predict import kv, queue, window

    monkeypatch.setattr(kv, "kv_bytes", lambda *_args, **_more: 1_300_000_000)
    assert not ENTRIES["E1"].derive().passed
    real = queue.predict_queue
    monkeypatch.setattr(
        queue,
        "predict_queue",
        lambda *a, **m: msgspec.structs.replace(real(*a, **m), p99_ns=1.0, wait_mean_ns=1.0),
    )
    assert not ENTRIES["E11"].derive().passed
    assert not ENTRIES["E12"].derive().passed
    whole = window.predict_window
    monkeypatch.setattr(
        window, "predict_window", lambda *a, **m: msgspec.structs.replace(whole(*a, **m), bound="timeout")
    )
    assert not ENTRIES["E17"].derive().passed


def test_what_is_a_fact_says_where_it_is_from_and_what_is_computed_names_the_code():
    import importlib

    for entry in entries():
        assert entry.kind in {"computed", "fact"}
        assert entry.used
        for dotted in re.findall(r"sits(?:\.\w+)+", entry.used):
            head, _, tail = dotted.rpartition(".")
            try:
                importlib.import_module(dotted)
            except ModuleNotFoundError:
                assert hasattr(importlib.import_module(head), tail), dotted


def test_a_derivation_without_checks_shows_nothing():
    assert not Derived("x", ("y",), ()).passed
    assert not Derived("x", ("y",), (Check("a", True), Check("b", False))).passed
    assert Derived("x", ("y",), (Check("a", True),)).passed
    assert near(1.0, 1.005)
    assert not near(1.0, 1.02)


def run(*arguments):
    return CliRunner().invoke(seedcheck, list(arguments), standalone_mode=False)


def test_the_table_lists_all_and_says_what_a_pass_is():
    shown = run()
    assert shown.exception is None
    assert shown.return_value == 0
    assert shown.output.count("pass") >= 38
    assert "FAIL" not in shown.output
    assert "38 of 38 derivations hold" in re.sub(r"\s+", " ", shown.output)


def test_one_entry_is_explained():
    shown = run("e7").output
    for part in (
        "E7",
        "published",
        "right",
        "derivation",
        "shown",
        "computed with: sits.predict.kv.block_bytes",
    ):
        assert part in shown


def test_json_has_claim_right_value_derivation_and_checks():
    document = json.loads(run("E31", "E36", "--json").output)
    assert document["failed"] == []
    assert [row["id"] for row in document["entries"]] == ["E31", "E36"]
    assert document["entries"][1]["kind"] == "fact"
    assert all(check["ok"] for row in document["entries"] for check in row["checks"])


def test_no_such_entry_is_said():
    assert "there are E1 to E38" in str(run("E39").exception)


def test_a_derivation_that_fails_is_an_exit_code(monkeypatch):
    from sits.app.seedcheck import command

    broken = Entry("E1", "t", "c", "u", lambda: Derived("r", ("s",), (Check("w", False),)))
    monkeypatch.setattr(command, "entries", lambda: (broken,))
    shown = run()
    assert shown.return_value == 1
    assert "FAIL" in shown.output
