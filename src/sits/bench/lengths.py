"""Length distributions: how many tokens a prompt has and an answer gets.

A distribution here is its quantile function: `levels` (0..1) against `tokens`, interpolated linearly in
log(tokens).  That takes any measured distribution, multi-modal ones included, without a name for it, and its
figures are facts of a trace, not rows of it.

`AZURE_CONVERSATION_*` are the quantiles of the Azure 2023 "conv" trace (19,366 requests, CC-BY-4.0, Patel et
al., Splitwise, ISCA'24).  Prompt and answer lengths are drawn independently: their rank correlation in that
trace is +0.09.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray


class Quantiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A length distribution as its quantile function; `max_tokens` clips the tail (a model's context limit)."""

    levels: tuple[float, ...]
    tokens: tuple[float, ...]
    max_tokens: int = 1_000_000

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """`count` lengths in tokens, shape (count,), each at least 1."""
        logs = np.interp(rng.random(count), self.levels, np.log(self.tokens))
        return np.clip(np.rint(np.exp(logs)), 1, self.max_tokens).astype(np.int64)


LEVELS = (0.0, 0.01, 0.05, 0.10, 0.20, 0.30, 0.40, 0.50, 0.60, 0.70, 0.80, 0.90, 0.95, 0.99, 0.999, 1.0)

AZURE_CONVERSATION_PROMPT = Quantiles(
    levels=LEVELS,
    tokens=(2, 29, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2734, 4083, 4142, 6179, 14050),
)
AZURE_CONVERSATION_ANSWER = Quantiles(
    levels=LEVELS,
    tokens=(7, 16, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 954, 1000),
)

DOCUMENTS = Quantiles(levels=(0.0, 0.1, 0.5, 0.9, 1.0), tokens=(12_000, 13_000, 18_000, 23_500, 24_000))
"""Whole documents pasted into a prompt, 12 to 24 thousand tokens.  An assumption, not a measurement."""

NAMED: dict[str, Quantiles] = {
    "azure-conversation-prompt": AZURE_CONVERSATION_PROMPT,
    "azure-conversation-answer": AZURE_CONVERSATION_ANSWER,
    "documents": DOCUMENTS,
}
"""Distributions a scenario may name instead of writing out."""
