"""Our reading of an engine's answer beside h11's, on answers that are right, odd and wrong.

The law: what we take for a whole answer is one to h11 too, with the same status and body; and a connection we would use again is one
on which h11 sees nothing left and no reason to close.  Else the end of one answer could become the beginning of somebody else's.

Where we differ on purpose: empty lines before an answer and behind it are skipped, as a status line's reason is; of versions but 1.1,
which engines of old send, chunks are read and `keep-alive` is believed even beside `close`: who closes all the same is asked again on a
new connection; a trailer that tells of lengths or codings is dropped unread, where h11 looks at it.  What carries a coding but `chunked`, has no body by its status (204, 304) or is no answer (101) never gets to a client
(`engine.openai`), so how it ends does not matter.

With SITS_SOAK=1 the random walk has 10^6 answers.
"""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_answers import disagreement, one, ours
from http_streams import Rolls, broken
from sits.world import RealWorld

pytestmark = pytest.mark.patches  # the clock of a connection is a stand-in

SOAK = os.environ.get("SITS_SOAK") == "1"
ANSWERS = 1_000_000 if SOAK else 4_000


class Drawn:
    """Dice of hypothesis."""

    def __init__(self, data):
        self.choice = lambda options: data.draw(st.sampled_from(options))
        self.number = lambda low, high: data.draw(st.integers(low, high))


@given(st.data())
def test_what_is_whole_to_us_is_whole_to_h11(data):
    dice = Drawn(data)
    text = broken(dice, b"".join(one(dice) for _ in range(dice.choice([1, 1, 2]))))
    cut = dice.number(0, len(text))
    assert disagreement(text, [text[:cut], text[cut:]]) == ""


def test_what_is_whole_to_us_is_whole_to_h11_on_a_long_walk():
    seed = RealWorld().nonce() if SOAK else 21
    dice, whole = Rolls(RealWorld(seed).rng("answers")), 0
    for i in range(ANSWERS):
        text = broken(dice, b"".join(one(dice) for _ in range(dice.choice([1, 1, 2]))))
        cuts = sorted(dice.number(0, len(text)) for _ in range(dice.choice([0, 1, 3])))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        wrong = disagreement(text, pieces)
        assert wrong == "", f"seed {seed}, answer {i}: {text}: {wrong}"
        if i < 1000:
            whole += ours(pieces)[2]
    assert 50 < whole < 900


def test_the_judge_judges():
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    assert disagreement(good, [good]) == ""
    assert disagreement(good, [good[:-1] + b"d"])
    assert disagreement(good[:-1], [good])
    assert disagreement(good + b"HTTP", [good])
