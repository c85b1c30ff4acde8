"""Of an answer that ends with its connection, only an object that is whole is taken for whole, wherever it was cut and in whatever pieces it came."""

import itertools

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from sits.engine.large import LargeReader

values = st.recursive(
    st.one_of(st.none(), st.integers(-9, 9), st.text(st.sampled_from('"\\{}[]a\n'), max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from('"\\{}ab'), inner, max_size=3)
    ),
)


def read(text, cuts, **how):
    """What becomes of the pieces."""
    bounds = [0, *sorted(1 + place % len(text) for place in cuts), len(text)]
    begins, *rest = [text[a:b] for a, b in itertools.pairwise(bounds)]
    reader = LargeReader(200, b"application/json", begins, **how)
    taken = [reader.take(piece) for piece in rest if piece]
    reader.end(cut=not how.get("framed"))
    assert b"".join(chunk.data for chunk in taken) in (text, b"")
    return reader


@given(st.dictionaries(st.text(max_size=3), values, min_size=1), st.lists(st.integers(0, 500), max_size=6))
@example({"a": '\\"}'}, [3, 5, 6, 7])
def test_a_whole_object_is_whole(found, cuts):
    reader = read(orjson.dumps(found) + b"\n", cuts)
    assert reader.done
    assert reader.problem is None


@given(
    st.dictionaries(st.text(max_size=3), values, min_size=1),
    st.lists(st.integers(0, 500), max_size=6),
    st.integers(1, 500),
)
@example({"choices": [{}], "usage": {}}, [], 1)
def test_a_part_of_it_is_none_even_if_it_ends_in_a_bracket(found, cuts, lost):
    text = orjson.dumps(found)
    reader = read(text[: -min(lost, len(text) - 1)], cuts)
    assert reader.problem == ("engine_died", "closed the connection inside its answer")
    assert not reader.done


def test_what_has_a_length_is_not_looked_at():
    assert read(b'{"a":[', [2], framed=True).done
