"""A server of Anthropic's Messages API as an Engine: Anthropic itself, or who offers the same.

Requests to `/v1/messages` go out as they came in and their answers come back byte for byte, as with `engine.openai`, whose
connections and rules these are; those to `/v1/chat/completions` are translated both ways.

Rules:
- The key goes as `x-api-key`; the caller's `anthropic-version` and `anthropic-beta` go along, a version of ours where there is none.
- 529 (`overloaded_error`) is lack of room at the engine, not its failure: a CapacityError, with the engine's `retry-after`.
- A stream ends with `message_stop`; without it it has died, however the connection ended.

Deliberately absent: batches, files and models of the provider's API; embeddings, which it has none of.
"""

from typing import Final

from msgspec.structs import replace

from sits.core.errors import CapacityError
from sits.core.ports import World
from sits.core.request import Chunk, Request
from sits.core.units import SECOND
from sits.engine.answer import error_text
from sits.engine.client import Connection
from sits.engine.openai import OpenAIEngine
from sits.engine.translated import CHAT, Translation, for_openai_client, not_served

VERSION: Final = "2023-06-01"
OVERLOADED: Final = 529
RETRY_AFTER_S: Final = 5.0
"""When an overloaded engine may be asked again, where it does not say."""


class AnthropicEngine(OpenAIEngine):
    """Client of one server of the Messages API.

    Args:
        name, url, world, api_key, models, connect_timeout, first_byte_timeout: as of OpenAIEngine.
        version: `anthropic-version` of requests that name none.
        max_tokens: the limit of answers to callers of OpenAI's dialect who set none.

    Raises:
        ConfigError: `url` is not one, or `api_key` cannot be sent.

    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        world: World,
        api_key: str = "",
        models: tuple[str, ...] = (),
        connect_timeout: int = 2 * SECOND,
        first_byte_timeout: int = 60 * SECOND,
        version: str = VERSION,
        max_tokens: int = 4096,
    ) -> None:
        super().__init__(
            name,
            url,
            world=world,
            api_key=api_key,
            models=models,
            connect_timeout=connect_timeout,
            first_byte_timeout=first_byte_timeout,
            key_header="x-api-key: ",
        )
        self._version = f"anthropic-version: {version}\r\n"
        self._max_tokens = max_tokens
        self._wall_ns = world.wall_ns
        self.translations = {
            CHAT: self._translate,
            "/v1/completions": not_served,
            "/v1/embeddings": not_served,
        }

    def whole(self, connection: Connection, body: bytes) -> Chunk:
        """The one chunk of a plain answer, or the error it stands for."""
        if connection.status != OVERLOADED:
            return super().whole(connection, body)
        told = connection.retry_after
        raise CapacityError(
            f"engine {self.name!r} at {self.url} is overloaded: {error_text(body)}",
            code="engine_overloaded",
            retry_after_s=float(told) if told.isdigit() and len(told) < 6 else RETRY_AFTER_S,
        )

    def head(self, request: Request) -> bytes:
        """The head of a caller's request; it names a version in any case."""
        if "anthropic-version:" not in request.dialect_headers:
            request = replace(request, dialect_headers=self._version + request.dialect_headers)
        return super().head(request)

    def _translate(self, request: Request) -> Translation:
        created_s = self._wall_ns() // SECOND
        return for_openai_client(request, self._max_tokens, created_s)
