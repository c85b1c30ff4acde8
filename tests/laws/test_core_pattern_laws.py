"""Laws of `core.pattern`: it decides as `re` does, and its time is linear in the value."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core import pattern as room
from sits.core.errors import ConfigError
from sits.core.pattern import POSITIONS_MAX, VALUE_MAX, Pattern

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "c",
        "-",
        ".",
        "[ab]",
        "[^a]",
        "[a-c]",
        "[]a]",
        "[a-]",
        r"\d",
        r"\w",
        r"\S",
        r"\.",
        r"\x61",
        "(?:ä)",
        "(?:)",
    ]
)
COUNTS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "{0}", "*?", "+?"])
PATTERNS = st.recursive(
    st.builds(str.__add__, ATOMS, COUNTS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.builds("(?:{}){}".format, st.lists(inner, min_size=1, max_size=3).map("|".join), COUNTS),
        st.builds("({}|)".format, inner),
    ),
    max_leaves=8,
)
VALUES = st.one_of(
    st.lists(st.sampled_from([b"a", b"b", b"c", b"-", b".", b"1", b"A", b" ", "ä".encode()]), max_size=12).map(b"".join),
    st.binary(max_size=8),
)  # fmt: skip


@settings(max_examples=400)
@given(PATTERNS, st.lists(VALUES, min_size=1, max_size=12), st.booleans())
def test_it_matches_exactly_what_re_matches(pattern, values, fold):
    text = "(?i)" * fold + pattern
    ours = Pattern(text)
    theirs = re.compile(text.encode(), re.DOTALL)
    most = 12 if sum(map(pattern.count, "*+{")) <= 3 else 5  # repeats in repeats take `re`, not us, for ever
    for value in (value[:most] for value in values):
        assert ours.matches(value) == bool(theirs.fullmatch(value)), (text, value)


@settings(max_examples=100)
@given(PATTERNS, st.lists(VALUES, min_size=1, max_size=8))
def test_forgetting_states_changes_no_answer(pattern, values):
    roomy = Pattern(pattern)
    kept, room.STATES_MAX = room.STATES_MAX, 2
    try:
        tight = Pattern(pattern)
        assert [tight.matches(v) for v in values] == [roomy.matches(v) for v in values]
        assert len(tight._states) <= 2
    finally:
        room.STATES_MAX = kept


@settings(max_examples=300)
@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_a_clear_error(text):
    try:
        found = Pattern(text)
    except ConfigError as refused:
        told = refused.message and refused.hint
    else:
        told = found.matches(b"x") in (True, False)
    assert told


class _Counted(list):
    """A row that counts how often it is read."""

    reads = 0

    def __getitem__(self, key):
        _Counted.reads += 1
        return list.__getitem__(self, key)


@pytest.mark.parametrize(
    "text", ["(a+)+b", "(a|a)*b", "(a|aa)+c", ".*x.*x.*x.*y", "(.*)*z", "a{0,200}a{0,200}b"]
)
def test_hostile_values_cost_one_look_a_byte(text, monkeypatch):
    monkeypatch.setattr(
        Pattern,
        "_state",
        lambda self, ahead, *, accept: _Counted([None] * len(self._kinds) + [ahead, accept]),
    )
    compiled = Pattern(text)
    for value in (b"a" * VALUE_MAX, b"x" * VALUE_MAX, b"ax" * (VALUE_MAX // 2)):
        _Counted.reads = 0
        assert not compiled.matches(value)
        states = len(compiled._states) + 1
        assert _Counted.reads <= len(value) + 2 * states * (len(compiled._kinds) + 1) + 2


def test_what_is_too_long_matches_nothing():
    assert Pattern("a*").matches(b"a" * VALUE_MAX)
    assert not Pattern("a*").matches(b"a" * (VALUE_MAX + 1))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("(a", "not closed"),
        ("a)", "closes no group"),
        ("*a", "repeats nothing"),
        ("a**", "repeated"),
        ("[a", "not closed"),
        ("[z-a]", "backwards"),
        ("[ä]", "brackets"),
        ("a{3,1}", "backwards"),
        ("a{x}", "no count"),
        ("a^b", "inside"),
        ("(a$)b", "inside"),
        (r"(a)\1", "not supported"),
        (r"\bword", "not supported"),
        ("(?=a)", "not supported"),
        ("(?P<n>a)", "not supported"),
        ("((a{100}){100}){100}", f"more than {POSITIONS_MAX}"),
        ("((((){999}){999}){999}){999}", "parts"),
        (r"\xg1", "not a byte"),
        ("\\", "not supported"),
        ("(" * 60 + ")" * 60, "nested"),
        ("a" * 2000, "longer"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_way_out(text, says):
    with pytest.raises(ConfigError, match=re.escape(says) if "(" not in says else says) as caught:
        Pattern(text)
    assert caught.value.hint


def test_anchors_at_the_ends_say_what_holds_anyway():
    assert Pattern("^eu-.*$").matches(b"eu-west")
    assert not Pattern("^eu-.*$").matches(b"xeu-west")
    assert Pattern("(?i)^EU$").matches(b"eu")
