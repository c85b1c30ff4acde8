"""Laws of the event splitter and of the stream reader: the cut decides nothing, no byte is lost."""

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sits.engine.answer import StreamReader
from sits.engine.sse import EventTooLongError, SseSplitter, data_of, event_end, events, only_data

LINES = st.sampled_from(
    [b"data: a", b"data:", b'data: {"x": 1}', b": ping", b"event: x", b"id: 7", b"", b"dat", b"data"]
)
STREAMS = st.lists(
    st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n\r\n"])), max_size=12
).map(lambda parts: b"".join(itertools.chain.from_iterable(parts)))
BYTES = st.one_of(STREAMS, st.binary(max_size=60), st.text("\n\rad: ", max_size=30).map(str.encode))


def cut(text, places):
    bounds = [0, *sorted(p % (len(text) + 1) for p in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


CUTS = st.lists(st.integers(0, 1000), max_size=10)


@given(BYTES, CUTS)
def test_any_split_gives_the_same_events_and_loses_nothing(text, places):
    splitter = SseSplitter()
    blocks = [splitter.feed(piece) for piece in cut(text, places) if piece]
    assert b"".join(blocks) + splitter.rest == text
    whole = SseSplitter()
    once = whole.feed(text) if text else b""
    assert b"".join(blocks) == once
    assert splitter.rest == whole.rest
    assert [e for block in blocks for e in events(block)] == events(once)


@given(BYTES)
def test_events_of_a_block_put_together_are_the_block_and_each_is_whole(text):
    block = SseSplitter().feed(text) if text else b""
    assert b"".join(events(block)) == block
    for event in events(block):
        assert event.endswith((b"\n\n", b"\n\r\n")) or event in (b"\n", b"\r\n")
        data_of(event)


EMPTY_LINE = re.compile(rb"(?:\A|(?<=\n))\r?\n")


def data_by_the_standard(event):
    lines = [line.removesuffix(b"\r").partition(b":") for line in event.split(b"\n")]
    said = [value.removeprefix(b" ") for name, _, value in lines if name == b"data"]
    return b"\n".join(said) if said else None


@example(b"data\r\n\r\n\n", 6)
@given(BYTES, st.integers(0, 60))
def test_an_event_ends_at_its_first_empty_line(text, start):
    start = min(start, len(text))
    found = EMPTY_LINE.search(text, start)
    assert event_end(text, start) == (found.end() if found else len(text))


@given(BYTES)
def test_the_data_of_an_event_is_what_the_standard_says(text):
    for event in events(text):
        assert data_of(event) == data_by_the_standard(event)
        if only_data(event):
            assert event == b"data:" + event[5:-2] + b"\n\n"
            assert not {10, 13} & set(event[-3:-2])
            assert b"\n" not in event[5:-2]


DELTA = st.sampled_from(
    [
        b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"data: [DONE]\\n\\n\\"error\\""},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"text":"a"}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":{"completion_tokens":1}}\n\n',
        b": ping\n\n",
    ]
)
END = [
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n',
    b"data: [DONE]\n\n",
]


def follow(pieces):
    reader = StreamReader(200, b"text/event-stream")
    chunks = [chunk for piece in pieces if piece and (chunk := reader.take(piece))]
    usage = [chunk.usage for chunk in chunks if chunk.usage]
    return b"".join(c.data for c in chunks), usage, reader.done, reader.problem, any(c.tokens for c in chunks)


@given(st.lists(DELTA, max_size=8), CUTS)
def test_the_reader_says_the_same_of_a_stream_however_it_is_cut(deltas, places):
    text = b"".join([*deltas, *END])
    data, usage, done, problem, content = follow(cut(text, places))
    assert (data, done, problem) == (text, True, None)
    assert usage[-1].output == 4
    assert content == any(b'"a"' in d or b"error" in d for d in deltas)


@given(st.lists(DELTA, max_size=5), CUTS)
def test_an_error_event_stops_the_reader_and_what_came_before_stays(deltas, places):
    good = b"".join(deltas)
    text = good + b'data: {"error":{"message":"gone"}}\n\n'
    data, _, done, problem, _ = follow(cut(text, places))
    assert data == good
    assert not done
    assert problem == ("engine_error_event", "failed in mid-stream: gone")


@given(st.integers(2, 50), st.integers(0, 60))
def test_an_event_without_end_is_refused_at_the_limit(limit, size):
    splitter = SseSplitter(limit)
    try:
        for _ in range(size):
            splitter.feed(b"x")
    except EventTooLongError:
        assert size > limit
    else:
        assert size <= limit


def test_rest_is_kept_until_its_end_comes():
    splitter = SseSplitter()
    assert splitter.feed(b"data: a\r\n") == b""
    assert splitter.feed(b"\r") == b""
    assert splitter.feed(b"\n") == b"data: a\r\n\r\n"
    assert splitter.rest == b""
    with pytest.raises(EventTooLongError, match="over 3 bytes"):
        SseSplitter(3).feed(b"data")
