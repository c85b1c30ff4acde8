"""Loading a fleet: what is read, and what is said of every way to get it wrong (line, field, way out)."""

from typing import Annotated, Literal

import msgspec
import pytest

from core_fleets import FLEET, at
from sits.core.config import Rule, decode, load_fleet
from sits.core.errors import ConfigError, ConfigErrors
from sits.core.units import Ns, Share


def problems(text, load=load_fleet):
    with pytest.raises(ConfigErrors) as caught:
        load(text)
    return caught.value.errors


def told(text, load=load_fleet):
    return [(e.where, e.field) for e in problems(text, load)]


def swap(old, new, text=FLEET):
    assert old in text
    return text.replace(old, new, 1)


def test_a_good_file_loads_with_units_defaults_and_kinds():
    fleet = load_fleet(FLEET)
    assert fleet.objective.p99 == 1_200_000_000
    assert fleet.nodes[0].gpu_memory == 80 * 2**30
    assert fleet.nodes[0].link.remote == 11e9
    assert fleet.engines[0].memory.gpu_memory_utilization == 0.92
    assert fleet.gateway.drain_timeout == 30_000_000_000
    assert [type(engine).__name__ for engine in fleet.engines] == [
        "EmulatedEngine",
        "EmulatedEngine",
        "OpenAIEngine",
    ]


def test_like_copies_what_is_unset_section_by_section():
    a0, a1, _ = load_fleet(FLEET).engines
    assert (a1.node, a1.model, a1.adapters, a1.lora) == (a0.node, a0.model, a0.adapters, a0.lora)
    assert a1.gpus == (2, 3)
    assert a1.scheduler.max_num_seqs == 128
    assert a1.scheduler.max_num_batched_tokens == 8192


def test_like_lets_a_child_return_to_a_default_and_follows_chains():
    text = FLEET + "  - {name: a2, like: a1, node: n1, gpus: [0, 1], lora: {max_loras: 0}}\n"
    text = swap(
        "models:\n",
        "  - {name: n1, gpu: A100, gpus: 2, gpu_numa: [0, 0], gpu_memory: 80GiB}\nmodels:\n",
        text,
    )
    a2 = load_fleet(text).engines[3]
    assert a2.lora.max_loras == 0
    assert a2.scheduler.max_num_seqs == 128
    assert a2.scheduler.max_num_batched_tokens == 8192


# The five of every configuration: each once, in full.


def test_unknown_key_names_line_field_and_the_near_key():
    text = swap("max_num_seqs: 64", "max_num_seq: 64")
    (error,) = problems(text)
    assert error.where == f"fleet.yaml:{at(text, 'max_num_seq: 64')}"
    assert error.field == "engines[0].scheduler.max_num_seq"
    assert error.value == "max_num_seq"
    assert "did you mean 'max_num_seqs'?" in str(error)


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        (swap("base: 20ms", "base: 20"), "policy.window.base", "no unit"),
        (swap("base: 20ms", "base: 20sec"), "policy.window.base", "'sec' is not a unit"),
        (swap("remote: 11GB/s", "remote: 11GB"), "nodes[0].link.remote", "'GB' is not a unit of a bandwidth"),
        (
            swap("gpu_memory: 80GiB", "gpu_memory: 80ms"),
            "nodes[0].gpu_memory",
            "'ms' is not a unit of a size",
        ),
        (
            swap("utilization: 92%", "utilization: 92"),
            "engines[0].memory.gpu_memory_utilization",
            "outside 0..1",
        ),
        (swap("base: 20ms", "base: 1e999s"), "policy.window.base", "too large"),
    ],
)
def test_wrong_unit_says_how_to_write_it(text, field, says):
    (error,) = problems(text)
    assert error.field == field
    word = field.rpartition(".")[2] + ":"
    assert error.where == f"fleet.yaml:{at(text, word)}"
    assert says in error.message
    assert error.hint


def test_missing_engine_is_named_with_the_near_one():
    text = swap("like: a0", "like: aO")
    (error,) = problems(text)
    assert error.where == f"fleet.yaml:{at(text, 'like: aO')}"
    assert error.field == "engines[1].like"
    assert error.value == "aO"
    assert error.hint == "did you mean 'a0'?"


def test_duplicate_name_points_at_both_lines():
    text = swap("name: remote", "name: a0")
    (error,) = problems(text)
    assert error.where == f"fleet.yaml:{at(text, 'name: a0' + chr(10) + '    kind: openai')}"
    assert error.field == "engines[2].name"
    assert error.hint == f"first on line {at(text, '- name: a0')}"


def test_cyclic_reference_shows_the_whole_circle_once():
    text = swap("    kind: emulated\n", "    kind: emulated\n    like: a2\n")
    text += "  - {name: a2, like: a1}\n"
    (error,) = problems(text)
    assert error.where == f"fleet.yaml:{at(text, 'like: a2')}"
    assert error.field == "engines[0].like"
    assert "a0 -> a2 -> a1 -> a0" in error.message


def test_an_engine_like_itself_is_told_so():
    text = swap("like: a0", "like: a1")
    (error,) = problems(text)
    assert (error.where, error.field) == (f"fleet.yaml:{at(text, 'like: a1')}", "engines[1].like")
    assert "itself" in error.message


def test_a_name_is_not_inherited():
    assert told(FLEET + "  - {like: remote}\n") == [
        (f"fleet.yaml:{len(FLEET.splitlines()) + 1}", "engines[3].name")
    ]


def test_gpus_divide_the_kv_heads_or_repeat_them_evenly():
    text = swap("heads: 64, kv_heads: 8", "heads: 12, kv_heads: 4")
    assert load_fleet(text)
    assert told(swap("gpus: [0, 1]", "gpus: [0, 1, 2]", text.replace("gpus: [2, 3]", "gpus: [3]"))) == [
        (f"fleet.yaml:{at(text, 'gpus: [0, 1]')}", "engines[0].gpus")
    ]
    assert load_fleet(swap("kv_heads: 8", "kv_heads: 1"))


def test_an_engine_like_one_of_another_kind_is_refused():
    text = FLEET + "  - {name: b, kind: openai, like: a0, url: 'http://h'}\n"
    (error,) = problems(text)
    assert error.field == "engines[3].like"
    assert "'emulated'" in error.message


# All at once.


def test_every_problem_of_a_file_is_reported_in_the_order_of_lines():
    text = swap("name: demo", "nam: demo")
    text = swap("base: 20ms", "base: 20", text)
    text = swap("gpus: [2, 3]", "gpus: [1, 9]", text)
    text = swap("url: http:", "url: ftp:", text)
    assert told(text) == [
        ("fleet.yaml:1", "nam"),
        ("fleet.yaml:1", "name"),
        (f"fleet.yaml:{at(text, 'base: 20')}", "policy.window.base"),
        (f"fleet.yaml:{at(text, 'gpus: [1, 9]')}", "engines[1].gpus[0]"),
        (f"fleet.yaml:{at(text, 'gpus: [1, 9]')}", "engines[1].gpus[1]"),
        (f"fleet.yaml:{at(text, 'url: ftp:')}", "engines[2].url"),
    ]
    with pytest.raises(ConfigError) as caught:
        load_fleet(text)
    assert str(caught.value).count("\n") == 5


def test_a_bad_value_does_not_echo_in_later_checks():
    assert told(swap("gpus: 4", "gpus: four")) == [(f"fleet.yaml:{at(FLEET, 'gpus: 4')}", "nodes[0].gpus")]
    assert len(problems(swap("heads: 64", "heads: x"))) == 1
    assert len(problems(swap("kind: openai", "kind: opena"))) == 1
    assert len(problems(swap("name: llama, layers", "name: [llama], layers"))) <= 3


def test_a_mistake_inherited_by_like_is_told_once():
    assert len(problems(swap("max_num_batched_tokens: 8192", "max_num_batched_token: 8192"))) == 1


# One line each: what cannot be used, and where it is said to be wrong.


@pytest.mark.parametrize(
    "case",
    [
        ("node: n0", "node: n9", "engines[0].node"),
        ("model: llama\n    adapters", "model: lama\n    adapters", "engines[0].model"),
        ("adapters: [support]", "adapters: [suport]", "engines[0].adapters[0]"),
        ("model: llama, count", "model: lama, count", "adapters[0].model"),
        ("gpus: [0, 1]", "gpus: [0, 4]", "engines[0].gpus[1]"),
        ("gpus: [0, 1]", "gpus: [0, 0]", "engines[0].gpus[1]"),
        ("gpus: [0, 1]", "gpus: []", "engines[0].gpus"),
        ("gpus: [2, 3]", "gpus: [1, 2]", "engines[1].gpus[0]"),
        ("gpu_numa: [0, 0, 1, 1]", "gpu_numa: [0, 0, 1]", "nodes[0].gpu_numa"),
        ("gpu_numa: [0, 0, 1, 1]", "gpu_numa: [0, 0, -1, 1]", "nodes[0].gpu_numa[2]"),
        ("gpus: [0, 1]", "gpus: [0, 1, 2]", "engines[0].gpus"),
        ("kv_heads: 8", "kv_heads: 7", "models[0].kv_heads"),
        ("layers: 80", "layers: 0", "models[0].layers"),
        ("weight: 0.1", "weight: -0.1", "policy.release.arms[1].weight"),
        ("weight: 0.1", "weight: .nan", "policy.release.arms[1].weight"),
        ("weight: 0.1", "weight: .inf", "policy.release.arms[1].weight"),
        ("weight: 0.1", "weight: 1e400", "policy.release.arms[1].weight"),
        ("name: canary", "name: stable", "policy.release.arms[1].name"),
        ("base: 20ms", "base: 3ms", "policy.window.base"),
        ("base: 20ms", "base: 300ms", "policy.window.base"),
        ("high: 100ms", "high: 1ms", "policy.window.low"),
        ("listen: 127.0.0.1:8080", "listen: 127.0.0.1", "gateway.listen"),
        ("listen: 127.0.0.1:8080", "listen: 127.0.0.1:65536", "gateway.listen"),
        ("listen: 127.0.0.1:8080", "listen: 127.0.0.1:http", "gateway.listen"),
        ("listen: 127.0.0.1:8080", "listen: '::1:80'", "gateway.listen"),
        ("workers: 2", "workers: 0", "gateway.workers"),
        ("workers: 2", "workers: 257", "gateway.workers"),
        ("workers: 2", "workers: 2.0", "gateway.workers"),
        ("workers: 2", "workers: '2'", "gateway.workers"),
        ("workers: 2", "workers: true", "gateway.workers"),
        ("workers: 2", "workers: 010", "gateway.workers"),
        ("workers: 2", f"workers: {'9' * 5000}", "gateway.workers"),
        ("workers: 2", "workers:", "gateway.workers"),
        ("workers: 2", "workers: [2]", "gateway.workers"),
        ("p99: 1200ms", "p99: 0ms", "objective.p99"),
        ("p99: 1200ms", "p99: -5ms", "objective.p99"),
        ("metric: ttft", "metric: tpot", "objective.metric"),
        ("url: http://127.0.0.1:8000", "url: 127.0.0.1:8000", "engines[2].url"),
        ("url: http://127.0.0.1:8000", "url: http://:8000", "engines[2].url"),
        ("url: http://127.0.0.1:8000", "url: http://h:99999", "engines[2].url"),
        ("url: http://127.0.0.1:8000", "region: eu", "engines[2].url", "name: remote"),
        ("models: [llama]", "models: llama", "engines[2].models"),
        ("models: [llama]", "models: {a: b}", "engines[2].models"),
        ("models: [llama]", "models: [1]", "engines[2].models[0]"),
        ("name: n0", "name: no", "nodes[0].name"),
        ("name: n0", "name: 'a b'", "nodes[0].name"),
        ("name: n0", "name: ''", "nodes[0].name"),
        ("gpu: A100-80G", "region: eu", "nodes[0].gpu", "name: n0"),
        ("kind: openai\n    url", "url", "engines[2].kind", "name: remote"),
        (
            "max_num_batched_tokens: 8192",
            "max_num_batched_tokens: 32",
            "engines[0].scheduler.max_num_batched_tokens",
        ),
    ],
)
def test_what_cannot_be_used_is_told_at_its_field_and_line(case):
    old, new, field, *place = case
    text = swap(old, new)
    errors = [e for e in problems(text) if e.field == field]
    assert errors, told(text)
    assert errors[0].where == f"fleet.yaml:{at(text, place[0]) if place else at(FLEET, old)}"
    assert errors[0].hint, errors[0]


def test_url_must_not_hold_a_password_and_a_pasted_key_is_not_repeated():
    (error,) = problems(swap("http://127.0.0.1:8000", "http://me:secret@h"))
    assert error.field == "engines[2].url"
    assert "secret" not in str(error)
    (error,) = problems(FLEET + "    api_key_env: sk-123-secret\n")
    assert error.field == "engines[2].api_key_env"
    assert "secret" not in str(error)
    assert error.value is None


def test_no_weight_at_all_and_an_empty_release():
    text = swap("weight: 0.9", "weight: 0")
    text = swap("weight: 0.1", "weight: 0", text)
    assert told(text) == [(f"fleet.yaml:{at(text, 'arms:')}", "policy.release.arms")]


@pytest.mark.parametrize("listen", ["'[::1]:8080'", "0.0.0.0:0", "localhost:65535"])
def test_listen_takes_names_addresses_and_any_free_port(listen):
    assert load_fleet(swap("listen: 127.0.0.1:8080", f"listen: {listen}"))


def test_window_order_matters_only_where_it_is_used():
    assert load_fleet(swap("kind: adaptive, base: 20ms", "kind: fixed, base: 500ms"))


# YAML itself.


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "empty"),
        ("# nothing\n", 1, "empty"),
        ("[]", 1, "is not a section"),
        ("name: x\nengines: [\n", 3, "not valid YAML"),
        ("name: x\n\tengines: []\n", 2, "tab"),
        ("name: x\nname: y\nengines: []\n", 2, "stands here twice"),
        ("name: x\n1: y\n", 2, "is not text"),
        ("name: x\ntrue: y\n", 2, "is not text"),
        ("name: x\n? [a]\n: y\n", 2, "is not text"),
        ("name: x\nengines: !!python/object/apply:os.system [ls]\n", 2, "tag"),
        ("name: x\n--- \nname: y\n", 2, "not valid YAML"),
        ("name: *nobody\n", 1, "not valid YAML"),
        ("name: a\x00b\n", 1, "not allowed in YAML"),
        ("a:\n" + "[" * 500, 2, "nested deeper"),
        ("name: x\nengines: &a [*a]\n", 2, "nested deeper"),
        ("name: x\n<<: 3\n", 2, "takes a section"),
        ('name: x\nengines: ["\\ud800"]\n', 2, "surrogate"),
        ('name: x\n"\\ud800": 1\n', 2, "is not text"),
    ],
)
def test_broken_yaml_is_one_clear_error_with_its_line(text, line, says):
    errors = problems(text)
    assert says in errors[0].message
    assert errors[0].where == f"fleet.yaml:{line}"


def test_a_billion_laughs_are_bounded():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "once aliases are followed" in problems("\n".join(levels))[0].message


def test_a_huge_file_is_refused_before_it_is_parsed():
    assert "characters" in problems("#" * (4 * 2**20 + 1))[0].message


def test_anchors_and_merge_keys_work_and_written_keys_win():
    text = swap("scheduler: {max_num_seqs: 64,", "scheduler: &s {max_num_seqs: 64,")
    text = swap("scheduler: {max_num_seqs: 128}", "scheduler: {<<: *s, max_num_seqs: 96}", text)
    plan = load_fleet(text).engines[1].scheduler
    assert (plan.max_num_seqs, plan.max_num_batched_tokens) == (96, 8192)


# `decode` for other trees.


class Fast(msgspec.Struct, tag_field="kind", tag="fast", frozen=True):
    speed: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1


class Slow(msgspec.Struct, tag_field="kind", tag="slow", frozen=True):
    pause: Ns


class Plan(msgspec.Struct, frozen=True):
    mode: Fast | Slow
    pair: tuple[float, float] = (0.0, 1.0)
    by_name: dict[str, Share] = {}
    pause: Ns | None = None
    unit: Literal["on", "off"] = "on"
    steps: list[int] = []


def plan(text, **more):
    return decode(text, Plan, "plan.yaml", **more)


def test_decode_reads_unions_pairs_maps_optionals_and_words_yaml_takes_for_truth():
    text = "mode: {kind: slow, pause: 3s}\npair: [1, 2.5e-1]\nby_name: {a: 10%, b: 0.5}\npause: ~\nunit: off\nsteps: [1]\n"
    assert plan(text) == Plan(
        Slow(pause=Ns(3_000_000_000)), (1.0, 0.25), {"a": Share(0.1), "b": Share(0.5)}, None, "off", [1]
    )


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("mode: {kind: slo}", "mode.kind", "did you mean 'slow'?"),
        ("mode: {}", "mode.kind", "one of fast, slow"),
        ("mode: fast", "mode", "a section with 'kind'"),
        ("mode: {kind: slow}", "mode.pause", "is missing"),
        ("mode: {kind: fast, speed: 10}", "mode.speed", "must be <= 9"),
        ("mode: {kind: fast}\npair: [1]", "pair", "it takes 2"),
        ("mode: {kind: fast}\nby_name: {a: 101%}", "by_name.a", "outside 0..1"),
        ("mode: {kind: fast}\npause: 3", "pause", "no unit"),
        ("mode: {kind: fast}\nunit: yes", "unit", "one of"),
        ("mode: {kind: fast}\nsteps: [1, x]", "steps[1]", "whole number"),
        ("mode: {kind: fast}\npair: [1, 1e999]", "pair[1]", "finite"),
    ],
)
def test_decode_tells_field_and_way_out(text, field, says):
    (error,) = problems(text, plan)
    assert error.field == field
    assert error.where.startswith("plan.yaml:")
    assert says in str(error) or says == "one of"


def test_a_rule_checks_a_type_of_the_callers_own():
    def odd(value, path, report):
        report.add(f"{path}.speed", "is odd", value=value.speed, hint="take an even one")

    rules = {Fast: Rule(after=odd)}
    (error,) = problems("mode:\n  kind: fast\n  speed: 3\n", lambda text: plan(text, rules=rules))
    assert (error.where, error.field) == ("plan.yaml:3", "mode.speed")


def test_a_rule_is_not_asked_about_stand_ins_unless_it_copes_with_them():
    asked = []

    def ask(value, path, report):
        asked.append(path)

    for tolerant in (False, True):
        rules = {Fast: Rule(after=ask, tolerant=tolerant)}
        problems("mode: {kind: fast, speed: x}", lambda text, rules=rules: plan(text, rules=rules))
        assert asked == ["mode"] * tolerant


def test_a_fleet_inside_another_tree_is_checked_there():
    class Scenario(msgspec.Struct):
        fleet: __import__("sits.core.fleet", fromlist=["Fleet"]).Fleet

    text = "fleet:\n" + "".join(f"  {line}\n" for line in swap("like: a0", "like: zero").splitlines())
    (error,) = problems(text, lambda t: decode(t, Scenario, "s.yaml"))
    assert (error.where, error.field) == (f"s.yaml:{at(text, 'like: zero')}", "fleet.engines[1].like")
