"""A request in another dialect than its engine's: said in the engine's on the way out, its answer in the caller's on the way back.

A Translation belongs to one request.  `request` is what the engine is sent; `reader` follows the engine's stream and gives
chunks of the caller's dialect, with the tokens and the usage the engine told; `whole` translates a plain answer, or a refusal.

Rules: what cannot be said is refused before anything is sent; a stream that ends without its dialect's own end has died;
headers of the caller's dialect are not for an engine of another (`anthropic-beta` asks for fields, and those are looked at).

Deliberately absent: connections (engine.openai), and the dialects themselves (engine.dialect).
"""

from collections.abc import Callable
from typing import NoReturn, Protocol

import msgspec

from sits.core.errors import UnknownError
from sits.core.request import Chunk, Request
from sits.engine.answer import StreamReader
from sits.engine.dialect import answer_anthropic, answer_openai
from sits.engine.dialect.ask_anthropic import to_messages
from sits.engine.dialect.ask_openai import to_chat
from sits.engine.dialect.messages_reader import MessagesReader
from sits.engine.dialect.reading import AnswerError

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"

JSON = b"application/json"


class Reader(Protocol):
    """Follows a stream; see `answer.StreamReader`."""

    done: bool
    problem: tuple[str, str] | None
    marker: bytes
    ending: Chunk | None

    def take(self, data: bytes) -> Chunk | None:
        """The chunk of whole events that `data` completes, None when it completes none."""

    def end(self, *, cut: bool) -> None:
        """No more bytes."""


class Translator(Protocol):
    """Turns a stream of one dialect into one of the other; `done`: it said that it is over."""

    done: bool

    def take(self, data: bytes) -> bytes:
        """What `data` completes.  Raises AnswerError."""


UNSAYABLE = frozenset(("untranslatable_field", "endpoint_not_served"))
"""Codes of errors that speak of the pair of caller and engine: another engine of the same model may be able to."""

READERS: dict[str, Callable[[int, bytes], Reader]] = {MESSAGES: MessagesReader}
"""Who follows the streams of an endpoint, where that is not `StreamReader`."""


class Translation:
    """One request, its engine's dialect, and its caller's."""

    def __init__(
        self,
        request: Request,
        translator: Callable[[], Translator],
        whole: Callable[[bytes], bytes],
        refusal: Callable[[int, bytes], bytes],
    ) -> None:
        self.request = request
        self._translator = translator
        self._whole = whole
        self._refusal = refusal

    def reader(self, status: int, content_type: bytes) -> "TranslatedReader":
        """Who follows the engine's stream."""
        kind = READERS.get(self.request.endpoint, StreamReader)
        return TranslatedReader(kind(status, content_type), self._translator())

    def whole(self, chunk: Chunk) -> Chunk:
        """A plain answer or a refusal, for the caller.  Raises AnswerError."""
        if chunk.status >= 400:
            chunk.data = self._refusal(chunk.status, chunk.data)
        else:
            chunk.data = self._whole(chunk.data)
        chunk.content_type = JSON
        return chunk


class TranslatedReader:
    """Follows a stream of the engine's dialect, and gives chunks of the caller's."""

    marker = b""
    ending: Chunk | None = None

    def __init__(self, reader: Reader, translator: Translator) -> None:
        self.done = False
        self.problem: tuple[str, str] | None = None
        self._reader = reader
        self._translator = translator

    def take(self, data: bytes) -> Chunk | None:
        """The chunk that `data` completes, None when it completes none."""
        reader = self._reader
        chunk = reader.take(data)
        self.done, self.problem = reader.done, reader.problem
        if chunk is None:
            return None
        try:
            chunk.data = self._translator.take(chunk.data)
        except AnswerError as error:
            self.done, self.problem = False, (error.code, error.what)
            return None
        return chunk

    def end(self, *, cut: bool) -> None:
        """No more bytes."""
        self._reader.end(cut=cut)
        self.problem = self._reader.problem
        if self.problem is None and not self._translator.done:
            self.problem = ("engine_died", "ended the stream without saying so")


def for_anthropic_client(request: Request) -> Translation:
    """A request of the Messages API for an engine of OpenAI's dialect.  Raises CallerError."""
    asked = msgspec.structs.replace(request, endpoint=CHAT, body=to_chat(request.body), dialect_headers="")
    return Translation(
        asked, answer_anthropic.MessageStream, answer_anthropic.message, answer_anthropic.refusal
    )


def for_openai_client(request: Request, output_tokens_max: int, created_s: int) -> Translation:
    """A request of Chat Completions for an engine of Anthropic's dialect.  Raises CallerError.

    `output_tokens_max` is the limit where the caller sets none, `created_s` the time the answer says it was made.
    """
    body, usage = to_messages(request.body, output_tokens_max)
    asked = msgspec.structs.replace(request, endpoint=MESSAGES, body=body)
    return Translation(
        asked,
        lambda: answer_openai.CompletionStream(created_s, usage=usage),
        lambda answer: answer_openai.completion(answer, created_s),
        answer_openai.refusal,
    )


def not_served(request: Request) -> NoReturn:
    """Refuse an endpoint that the engine's dialect has nothing for."""
    raise UnknownError(
        f"no engine that serves {request.adapter or request.model!r} has {request.endpoint}",
        field="endpoint",
        value=request.endpoint,
        hint=_HINTS.get(request.endpoint, "ask for a model of another kind of engine"),
        code="endpoint_not_served",
    )


_HINTS = {
    COUNT_TOKENS: "tokens are counted by engines that speak Anthropic's dialect: 'speaks: [openai, anthropic]', if they do",
    "/v1/completions": f"it answers {CHAT} and {MESSAGES}",
}
