"""Laws of the key: the same question in any writing is one key, any other question is another."""

import json
from hashlib import sha256

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sits.policy.cachekey import IGNORED, canonical, digest_of, encode, fields_of, key_of

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
NEAR = st.sampled_from(
    ("1", "1.0", "true", "null", ":", '"', "\\", "\\u003a", "{", "a", "é", "\u2028", "\x00", "/")
)
NAMES = TEXT | NEAR | st.sampled_from(("temperature", "seed", "stop", "user", "stream", *IGNORED))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers(2**63 - 2, 2**64 + 2)
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from((0.0, 1.0, -1.0, 2.0**64, 1e22, 5e-324))
    | TEXT
    | NEAR
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(NAMES, VALUES, max_size=5)


def typed(value):
    """What a value is, types and all; floats by their double, keys in no order."""
    if isinstance(value, dict):
        return "map", frozenset((key, typed(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return "list", tuple(typed(inner) for inner in value)
    return type(value).__name__, repr(value)


def meant(fields):
    return typed({key: value for key, value in fields.items() if key not in IGNORED})


def written(value, shuffle, ascii_only, spaces):
    """JSON of `value` in one of its many writings; colons are never escaped."""

    def text(string):
        return json.dumps(string, ensure_ascii=ascii_only)

    gap = " \n\t"[:spaces]
    if isinstance(value, dict):
        items = list(value.items())
        shuffle.shuffle(items)
        inner = f",{gap}".join(
            f"{text(k)}{gap}:{gap}{written(v, shuffle, ascii_only, spaces)}" for k, v in items
        )
        return f"{{{gap}{inner}{gap}}}"
    if isinstance(value, list):
        return f"[{gap}" + f"{gap},".join(written(v, shuffle, ascii_only, spaces) for v in value) + "]"
    return text(value) if isinstance(value, str) else json.dumps(value)


def asked(text):
    body = text.encode()
    fields = fields_of(body)
    assert fields is not None, text
    return digest_of(body, fields)


WRITING = st.tuples(st.randoms(use_true_random=False), st.booleans(), st.integers(0, 3))


@settings(max_examples=150)
@given(FIELDS, WRITING, WRITING)
def test_one_question_in_two_writings_is_one_question(fields, one, other):
    left, right = asked(written(fields, *one)), asked(written(fields, *other))
    escaped = any(
        "\\u003" in written(fields, *way).lower() for way in (one, other)
    )  # a text that spells an escape
    assert left == right or (escaped and None in (left, right))
    if not escaped:
        assert left is not None


@settings(max_examples=200)
@given(FIELDS, FIELDS)
@example({"a": 1}, {"a": 1.0})
@example({"a": 1}, {"a": True})
@example({"a": 1}, {"a": "1"})
@example({"a": 2**64}, {"a": 2.0**64})
@example({"a": 2**64}, {"a": 2**64 + 1})
@example({"a": None}, {})
@example({"a": {}}, {"a": []})
@example({"a": "é"}, {"a": "e\u0301"})
@example({"model": "x", "Model": "y"}, {"model": "y", "Model": "x"})
def test_two_questions_are_two_digests(left, right):
    one, other = asked(json.dumps(left)), asked(json.dumps(right))
    if meant(left) != meant(right):
        assert one != other or one is None


@given(FIELDS, st.data())
def test_what_no_model_sees_changes_nothing(fields, data):
    name = data.draw(st.sampled_from(IGNORED))
    assume(name not in fields)
    more = {**fields, name: data.draw(VALUES)}
    one, other = asked(json.dumps(fields, ensure_ascii=False)), asked(json.dumps(more, ensure_ascii=False))
    assert one == other or None in (one, other)


def pairs(fields, twice, at):
    """The fields as JSON with one pair more, `twice`, put in at `at`."""
    items = [f"{json.dumps(k)}:{json.dumps(v)}" for k, v in fields.items()]
    items.insert(at % (len(items) + 1), twice)
    return "{" + ",".join(items) + "}"


@settings(max_examples=120)
@given(
    st.dictionaries(NAMES, VALUES, min_size=1, max_size=4),
    VALUES,
    st.integers(0, 9),
    st.booleans(),
    st.data(),
)
def test_a_name_that_stands_twice_has_no_key(fields, value, at, spelled, data):
    name = data.draw(st.sampled_from(sorted(fields)))
    key = "".join(f"\\u{ord(c):04x}" for c in name) if spelled and name.isascii() else json.dumps(name)[1:-1]
    assert asked(pairs(fields, f'"{key}":{json.dumps(value)}', at)) is None


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=2), st.integers(0, 5))
def test_neither_has_one_further_in_however_many_colons_are_spelled_out(fields, colons):
    inner = pairs(fields, f"{json.dumps(min(fields))}:1", 0)
    assert asked(f'{{"a":[{inner}],"b":"{":" * colons}"}}') is None
    assert asked(f'{{"a":[{inner}],"b":"{chr(92)}u003{"aA"[colons % 2]}"}}') is None


@settings(max_examples=150)
@given(
    st.lists(TEXT | NEAR | st.binary(max_size=4), max_size=5),
    st.lists(TEXT | NEAR | st.binary(max_size=4), max_size=5),
)
@example(["a", "b"], ["a,s1:b"])
@example(["ab"], ["a", "b"])
@example(["a"], [b"a"])
@example([""], [])
def test_parts_that_differ_are_written_differently(left, right):
    assert (encode(*left) == encode(*right)) == (left == right)


PART = TEXT | NEAR


@given(
    st.tuples(PART, PART, PART, PART, st.binary(max_size=3)),
    st.tuples(PART, PART, PART, PART, st.binary(max_size=3)),
)
def test_keys_are_equal_when_all_parts_are(left, right):
    assert (key_of(*left) == key_of(*right)) == (left == right)
    assert key_of(*left) == sha256(encode("answer", *left)).digest()


@given(VALUES)
def test_canonical_json_says_the_same(value):
    assert typed(json.loads(canonical(value))) == typed(value)
