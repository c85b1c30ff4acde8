"""The usage nearly every engine tells at the end of an answer, read without building an object of the rest.

The shapes are read by their annotations, which exist only where code is interpreted: this module is not among the compiled ones.

Deliberately absent: the other ways to tell usage (`dialect.usage`).
"""

from typing import Annotated

import msgspec

from sits.engine.dialect.usage import COUNT_END

Count = Annotated[int, msgspec.Meta(gt=0, lt=COUNT_END)]


class Counts(msgspec.Struct, frozen=True):
    """A usage object that tells two counts and nothing of a cache."""

    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: None = None
    cache_read_input_tokens: None = None


class Tail(msgspec.Struct, frozen=True):
    """The end of an answer from its field `usage` on."""

    usage: Counts


TAIL = msgspec.json.Decoder(Tail)
