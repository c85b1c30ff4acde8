"""The shapes of the OpenAI-compatible bodies: the fields decisions need, with their bounds.

They are read by their annotations, which exist only where code is interpreted: this module is not among the compiled ones.

Deliberately absent: errors and what the fields mean (gateway.openai_api).
"""

from collections.abc import Callable
from typing import Annotated

import msgspec

PREFIX_BYTES = 512
"""Two prompts that share this many leading bytes of JSON are taken to share a prefix worth keeping together."""

COUNT_MAX = 2**31 - 1
"""The largest token count believed: what callers claim is added up, divided and stored."""

MODEL_CHARACTERS = 256
"""The longest model name read; names are recorded and repeated in answers."""

_Count = Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]


class Body(msgspec.Struct):
    """What all endpoints share."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=MODEL_CHARACTERS)]
    stream: bool | None = None
    user: str | None = None


class Chat(Body):
    """`/v1/chat/completions`; `messages` is JSON as it came."""

    messages: msgspec.Raw = msgspec.Raw()
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None


class Completion(Body):
    """`/v1/completions`."""

    prompt: msgspec.Raw = msgspec.Raw()
    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)] | None = None


class Embedding(Body):
    """`/v1/embeddings`."""

    input: msgspec.Raw = msgspec.Raw()


class Parsed(msgspec.Struct):
    """What a body says, in the gateway's words; `prompt` is JSON as it came."""

    model: str
    stream: bool
    user: str
    prompt_tokens: int
    output_tokens_max: int
    prompt: bytes | memoryview

    @property
    def prefix(self) -> bytes:
        """What the prompt begins with, as long as it is longer than that; empty when not."""
        prompt = self.prompt
        return bytes(prompt[:PREFIX_BYTES]) if len(prompt) >= PREFIX_BYTES else b""


Parser = Callable[[bytes], Parsed]
"""Reads a body.  Raises CallerError."""

CHAT = msgspec.json.Decoder(Chat)
COMPLETION = msgspec.json.Decoder(Completion)
EMBEDDING = msgspec.json.Decoder(Embedding)
