"""Laws of the configuration: what is written reads back, and difference and digest tell the same."""

import re

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core_fleets import FLEET
from sits.core import fleet as tree
from sits.core.change import diff, patch
from sits.core.config import digest, dump_fleet, load_fleet, text_of
from sits.core.decode import Decoder
from sits.core.errors import ConfigErrors, SitsError
from sits.core.problems import Report
from sits.core.units import (
    Bytes,
    BytesPerSecond,
    Ns,
    Share,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_share,
)
from sits.core.yaml_nodes import compose

NAMES = ("a", "b-1", "llama/3.1", "n:0", "été", "no1", "x" * 40)
durations = st.integers(1, 2**52).map(Ns)
sizes = st.integers(1, 2**52).map(Bytes)
rates = st.floats(1, 1e13).map(BytesPerSecond)
shares = st.floats(0.01, 1).map(Share)
words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Cn", "Co")), max_size=12)
titles = words.filter(lambda text: text.strip() and text.isprintable())
secrets = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=9
)
names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)
weights = st.floats(1e-6, 1e6)


@st.composite
def fleets(draw):
    """Valid fleets: engines of both kinds, some `like` an earlier one, most sections away from their defaults."""
    low, base, high = sorted(draw(st.tuples(durations, durations, durations)))
    window = tree.Window(
        kind=draw(st.sampled_from(("none", "fixed", "adaptive"))),
        low=low,
        base=base,
        high=high,
        max_batch=draw(st.integers(1, 99)),
    )
    arms = tuple(
        tree.Arm(
            name=n,
            weight=draw(weights),
            model=draw(st.sampled_from(("", "m"))),
            artefact=draw(st.sampled_from(("", "sha256:0f"))),
        )
        for n in draw(names)
    )
    model = tree.Model(
        name="m", layers=2, hidden=8, heads=8, kv_heads=draw(st.sampled_from((1, 2, 4, 8))), head_dim=4,
        intermediate=8, vocab=9, weights=draw(sizes), kv_dtype=draw(st.sampled_from(("fp16", "fp8"))),
    )  # fmt: skip
    gpus = 8
    node = tree.Node(
        name="n", gpu=draw(words), gpus=gpus, gpu_numa=tuple(draw(st.lists(st.integers(0, 3), min_size=gpus, max_size=gpus))),
        gpu_memory=draw(sizes), link=tree.Link(local=draw(rates), remote=draw(rates)), region=draw(words),
    )  # fmt: skip
    engines = []
    for i, name in enumerate(draw(names)):
        like = draw(st.sampled_from(["", *(e.name for e in engines)]))
        engines.append(
            tree.EmulatedEngine(
                name=name, like=like, node="n", model="m", gpus=(2 * i, 2 * i + 1), cpu_numa=draw(st.integers(0, 3)),
                adapters=draw(st.sampled_from(((), ("t",)))),
                scheduler=tree.Scheduler(
                    max_num_seqs=draw(st.sampled_from((64, 128))), enable_chunked_prefill=draw(st.booleans())
                ),
                memory=tree.Memory(gpu_memory_utilization=draw(shares), kv_blocks=draw(st.sampled_from((0, 512)))),
                lora=tree.Lora(max_loras=draw(st.integers(0, 2))),
            )
        )  # fmt: skip
    if draw(st.booleans()):
        kind = draw(st.sampled_from((tree.OpenAIEngine, tree.AnthropicEngine)))
        engines.append(
            kind(
                name="remote",
                url="https://h:8000/v1",
                models=tuple(draw(st.lists(titles, min_size=1, max_size=2))),
                weight=draw(weights),
            )
        )
    return tree.Fleet(
        name=draw(titles),
        objective=tree.Objective(metric=draw(st.sampled_from(("ttft", "e2e"))), p99=draw(durations)),
        gateway=tree.Gateway(
            workers=draw(st.integers(1, 256)), keys=tuple(draw(st.lists(secrets, max_size=2, unique=True)))
        ),
        policy=tree.Policies(window=window, release=tree.Release(salt=draw(words), arms=arms)),
        nodes=(node,),
        models=(model,),
        adapters=(tree.Adapters(name="t", model="m", count=draw(st.integers(1, 9))),),
        engines=tuple(engines),
    )


@settings(max_examples=60)
@given(fleets())
def test_what_is_dumped_loads_to_the_same_tree(fleet):
    text = dump_fleet(fleet)
    assert load_fleet(text) == fleet
    assert dump_fleet(load_fleet(text)) == text


@settings(max_examples=40)
@given(fleets(), fleets())
def test_nothing_differs_exactly_when_the_digests_agree(one, other):
    assert (diff(one, other) == ()) == (digest(one) == digest(other))
    assert diff(one, one) == ()


@settings(max_examples=40)
@given(fleets(), fleets())
def test_applying_a_difference_leads_there(one, other):
    """Every change between two trees with the same elements can be applied by `patch`, and they lead to the other."""
    other = msgspec.structs.replace(
        one, gateway=other.gateway, objective=other.objective,
        policy=msgspec.structs.replace(one.policy, window=msgspec.structs.replace(other.policy.window, low=Ns(0), high=Ns(2**53))),
    )  # fmt: skip
    here = one
    changes = diff(one, other)
    for change in sorted(changes, key=lambda c: ("window" in c.path, not c.path.endswith(("low", "high")))):
        here, applied = patch(here, change.path, change.new)
        assert (applied.old, applied.new) == (change.old, change.new)
    assert here == other


@settings(max_examples=100)
@given(durations, sizes, rates, shares)
@example(Ns(1), Bytes(2**40 + 1), BytesPerSecond(1.0000000000000002), Share(0.07))
def test_quantities_read_back_exactly(ns, size, rate, share):
    assert parse_duration(text_of(ns, Ns)) == ns
    assert parse_bytes(text_of(size, Bytes)) == size
    assert parse_bandwidth(text_of(rate, BytesPerSecond)) == rate
    text = text_of(share, Share)
    assert parse_share(text if text.endswith("%") else float(text)) == share


@settings(max_examples=200)
@given(
    words
    | st.sampled_from(
        ("yes", "null", "~", "1e3", "0x1", "1:30", "- a", "{", "2024-01-01", "<<", "=", " a ", "#")
    )
)
def test_any_text_value_survives_a_file(text):
    report = Report()
    node = compose(f"v: {text_of(text, str)}\n", "f")
    assert Decoder(report, {}).value(node.entries["v"], str, "v") == text
    assert not report.errors


_lines = st.sampled_from(
    dump_fleet(
        load_fleet("name: x\nengines: [{kind: openai, name: e, url: 'http://h', models: [m]}]\n")
    ).splitlines()
)
_rough = st.lists(_lines | st.text("abc:-[]{}&*!|>'\"% \t\n#,0159~<", max_size=14), max_size=8).map("\n".join)


@settings(max_examples=400)
@given(_rough)
def test_any_text_is_a_fleet_or_a_list_of_problems_that_say_where(text):
    try:
        load_fleet(text)
        problems = None
    except ConfigErrors as errors:
        problems = errors.errors
    assert problems is None or problems
    assert all(error.where.startswith("fleet.yaml:") and error.message for error in problems or ())


_TOKENS = [match.span() for match in re.finditer(r"[\w./%:-]+|\[.*?\]", FLEET)]
_JUNK = (
    "0", "-1", "x", "[]", "{}", "~", "''", "a0", "a1", "n0", "llama", "[0, 1]", "[a0]", "1ms", "1GiB", "true", ".nan",
    "{kind: openai}", "{a: b}", "9" * 40, "1e308s", "100%", "'http://['", "[[0]]", "like", '"\\ud800"', "!!set {a}", "? x", "",
)  # fmt: skip


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(_TOKENS), st.sampled_from(_JUNK)), min_size=1, max_size=3))
def test_a_fleet_with_words_replaced_is_refused_by_name_or_still_reads_back(edits):
    text = FLEET
    for (start, end), junk in sorted(dict(edits).items(), reverse=True):
        text = text[:start] + junk + text[end:]
    try:
        fleet = load_fleet(text)
    except ConfigErrors as errors:
        fleet = None
        assert [e.where for e in errors.errors if not e.where.startswith("fleet.yaml:")] == []  # noqa: PT017
    assert fleet is None or load_fleet(dump_fleet(fleet)) == fleet


@settings(max_examples=200)
@given(st.text(max_size=20) | st.floats() | st.integers() | st.none() | st.booleans())
@pytest.mark.parametrize("parse", [parse_duration, parse_bytes, parse_bandwidth, parse_share])
def test_a_parser_of_units_gives_a_number_or_our_error(parse, raw):
    try:
        value, hint = parse(raw), "fine"
    except SitsError as error:
        value, hint = 0, error.hint
    assert hint
    assert 0 <= value < float("inf")
