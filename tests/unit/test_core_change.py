"""Dump, digest, patch and diff: the same tree written, named, changed and compared."""

import pytest

from core_fleets import FLEET
from sits.core.config import diff, digest, dump_fleet, load_fleet, patch, text_of, unified
from sits.core.errors import ConfigErrors
from sits.core.units import Bytes, BytesPerSecond, Ns, Share

fleet = load_fleet(FLEET)


def test_a_dump_reads_back_and_keeps_like_and_units():
    text = dump_fleet(fleet)
    assert load_fleet(text) == fleet
    assert "like: a0" in text
    assert "gpu_memory: 80GiB" in text
    assert "gpu_memory_utilization: 92%" in text
    assert text.count("max_num_batched_tokens") == 1
    assert dump_fleet(load_fleet(text)) == text


def test_the_digest_is_of_what_is_meant_and_not_of_how_it_is_written():
    spelled = FLEET.replace(
        "    like: a0\n", "    kind: emulated\n    node: n0\n    model: llama\n    adapters: [support]\n"
    )
    spelled = spelled.replace(
        "scheduler: {max_num_seqs: 128}",
        "scheduler: {max_num_batched_tokens: 8192, max_num_seqs: 128}\n"
        "    memory: {gpu_memory_utilization: 0.92}\n    lora: {max_loras: 2}",
    )
    spelled = "# a comment\n" + spelled.replace("p99: 1200ms", "p99: 1.2s")
    assert digest(load_fleet(spelled)) == digest(fleet)
    assert diff(load_fleet(spelled), fleet) == ()
    assert len(digest(fleet)) == 64
    assert digest(patch(fleet, "gateway.workers", "3")[0]) != digest(fleet)


def test_a_default_written_out_does_not_change_the_digest():
    assert digest(load_fleet(FLEET.replace("workers: 2", "workers: 2\n  store: sits-store"))) == digest(fleet)


@pytest.mark.parametrize(
    ("path", "text", "old", "new"),
    [
        ("policy.window.kind", "none", "adaptive", "none"),
        ("policy.window.base", "0.05 s", "20ms", "50ms"),
        ("engines[a0].scheduler.max_num_batched_tokens", "2048", "8192", "2048"),
        ("engines[1].scheduler.max_num_seqs", "32", "128", "32"),
        ("engines[*].cpu_numa", "1", "0", "1"),
        ("engines[*].scheduler.max_num_seqs", "32", "64, 128", "32"),
        ("nodes[n0].gpu_numa", "[0, 1, 0, 1]", "[0, 0, 1, 1]", "[0, 1, 0, 1]"),
        ("nodes[n0].gpu_numa[3]", "0", "1", "0"),
        ("nodes[0].link.remote", "88Gb/s", "11GB/s", "11GB/s"),
        ("engines[a0].memory.gpu_memory_utilization", "0.9", "92%", "90%"),
        ("engines[remote].connect_timeout", "1500ms", "2s", "1.5s"),
        ("policy.release.arms[canary].weight", "0.25", "0.1", "0.25"),
        ("engines[*].adapters", "[]", "[support], []", "[]"),
    ],
)
def test_patch_takes_what_would_stand_in_the_file(path, text, old, new):
    patched, change = patch(fleet, path, text, why="because")
    assert (change.path, change.old, change.new, change.why) == (path, old, new, "because")
    again, back = patch(patched, path, text)
    assert again == patched
    assert back.old == new


def test_a_patch_of_all_engines_leaves_alone_those_without_the_field():
    patched, _ = patch(fleet, "engines[*].cpu_numa", "1")
    assert [getattr(engine, "cpu_numa", None) for engine in patched.engines] == [1, 1, None]


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("policy.windw.kind", "none", "did you mean 'window'?"),
        ("policy.window.kind", "fixd", "did you mean 'fixed'?"),
        ("policy.window.base", "20", "has no unit"),
        ("policy.window.base", "[", "not valid YAML"),
        ("policy.window.base", "", "empty"),
        ("engines[a9].cpu_numa", "1", "there is no [a9]"),
        ("engines[7].cpu_numa", "1", "there is no [7]"),
        ("engines[*].cpu_nima", "1", "did you mean 'cpu_numa'?"),
        ("engines[remote].cpu_numa", "1", "there is no 'cpu_numa'"),
        ("gateway[0]", "1", "not a list"),
        ("gateway.listen.port", "1", "inside a value"),
        ("engines[a0", "1", "is not a path"),
        ("", "1", "empty"),
        ("policy..window", "1", "is not a path"),
        ("engines[a0].gpus", "[2]", "used by"),
        ("engines[a0].name", "b0", "no engine named 'a0'"),
        ("gateway.workers", "0", "within 1..256"),
    ],
)
def test_a_patch_is_as_strict_as_the_file(path, text, says):
    with pytest.raises(ConfigErrors) as caught:
        patch(fleet, path, text)
    assert says in str(caught.value)
    assert all(error.field is not None for error in caught.value.errors) or not path


def test_diff_names_what_changed_by_name_and_field():
    after, _ = patch(fleet, "engines[*].cpu_numa", "1")
    after, _ = patch(after, "policy.window", "{kind: none}")
    assert [(c.path, c.old, c.new) for c in diff(fleet, after)] == [
        ("policy.window.kind", "adaptive", "none"),
        ("engines[a0].cpu_numa", "0", "1"),
        ("engines[a1].cpu_numa", "0", "1"),
    ]
    assert diff(fleet, fleet) == ()


def test_diff_shows_elements_that_came_or_went_and_a_new_order():
    less = load_fleet(FLEET[: FLEET.index("  - name: remote")])
    (gone,) = diff(fleet, less)
    assert (gone.path, gone.new) == ("engines[remote]", "")
    assert "name: remote" in gone.old
    (came,) = diff(less, fleet)
    assert (came.path, came.old) == ("engines[remote]", "")
    text = FLEET.replace("arms:\n      - {name: stable, weight: 0.9}\n", "arms:\n")
    text = text.replace("model: llama}\n", "model: llama}\n      - {name: stable, weight: 0.9}\n")
    (order,) = diff(fleet, load_fleet(text))
    assert (order.path, order.old, order.new) == ("policy.release.arms", "stable, canary", "canary, stable")


def test_unified_shows_the_changed_lines_of_two_dumps():
    after, _ = patch(fleet, "gateway.workers", "3")
    shown = unified(dump_fleet(fleet), dump_fleet(after))
    assert "-  workers: 2" in shown
    assert "+  workers: 3" in shown
    assert unified("a", "a") == ""


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (Ns(0), Ns, "0ns"),
        (Ns(1), Ns, "1ns"),
        (Ns(1_500), Ns, "1.5us"),
        (Ns(1_200_000_000), Ns, "1.2s"),
        (Ns(3_600_000_000_000), Ns, "1h"),
        (Ns(90_000_000_000), Ns, "90s"),
        (Bytes(32 * 2**20), Bytes, "32MiB"),
        (Bytes(141 * 10**9), Bytes, "141GB"),
        (Bytes(1025), Bytes, "1025B"),
        (BytesPerSecond(24e9), BytesPerSecond, "24GB/s"),
        (BytesPerSecond(0.5), BytesPerSecond, "0.5B/s"),
        (Share(0.9), Share, "90%"),
        (Share(1 / 3), Share, "0.3333333333333333"),
        ("no", str, "'no'"),
        ("12", str, "'12'"),
        (True, bool, "true"),
        (None, Ns | None, "null"),
        (Ns(1000), Ns | None, "1us"),
    ],
)
def test_values_are_shown_as_people_write_them(value, kind, text):
    assert text_of(value, kind) == text
