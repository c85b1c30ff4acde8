"""The cache as the pipeline sees it: a question on the way in, a copy of the answer on the way out.

```
lookup = cached.ask(...)        reads the body once; verdict `miss`, or `bypass_*` with no more to do
cached.find(lookup, target)     an answer of that target's artefact, or None; asked again when the target changes (fallback)
lookup.take(data)               each piece the client gets, copied while it may be kept
cached.keep(lookup, target, ..) under the artefact that really answered
cached.leave(lookup)            whatever happened; lets go of a copy nobody kept
```
Rules:
- What is kept: status 200, an answer that is whole (`gateway.answer_forms.is_whole`) in the form that was asked for, with usage.
- An answer is given again in its own form byte for byte, its `id` and `created` included; in another form when nothing is
  lost by that.  Its usage counts all prompt tokens as cached.
- Shared by unit, an answer needs that unit: a request that does not say which user it is gets none (`bypass_no_unit`).
- Copies being made take no more memory than the answers kept; over that, answers pass by without a copy.

Deliberately absent: HTTP, and the answers themselves (`gateway.cache`).
"""

from sits.core.fleet_cache import ResponseCache
from sits.core.request import Usage
from sits.gateway.answer_forms import as_body, as_stream, is_whole
from sits.gateway.cache import Answer, Cache
from sits.policy.cacheable import PLAIN, STREAM, STREAM_USAGE, Question, question_of
from sits.policy.cachekey import key_of
from sits.policy.release import Assignment, Target

_OTHERS = {PLAIN: (STREAM_USAGE,), STREAM: (PLAIN, STREAM_USAGE), STREAM_USAGE: (PLAIN,)}
"""Forms an answer can be turned from, by the form it is wanted in; a stream without usage tells too little."""

_SSE = b"text/event-stream"
_CONTENT_TYPES = {False: b"application/json", True: _SSE}


class Lookup:
    """What the cache has to do with one request.

    `verdict` is a label: `hit`, `hit_other_form`, `miss`, `refresh` (looked at by wish of nobody, kept all the same),
    or `bypass_*`.
    """

    __slots__ = ("copy", "endpoint", "question", "tenant", "unit", "verdict")

    def __init__(self, verdict: str, question: Question, tenant: str, unit: str, endpoint: str) -> None:
        self.verdict = verdict
        self.question = question
        self.tenant = tenant
        self.unit = unit
        self.endpoint = endpoint
        self.copy: bytearray | None = None

    @property
    def header(self) -> bytes:
        """The value of `x-sits-cache`."""
        return _HEADERS.get(self.verdict, b"bypass")


_HEADERS = {"hit": b"hit", "hit_other_form": b"hit", "miss": b"miss", "refresh": b"miss"}


class Cached:
    """The response cache of one gateway.  `counts` is requests by verdict, `copying` the bytes of copies being made."""

    def __init__(self, config: ResponseCache) -> None:
        self.config = config
        self.cache = Cache(config)
        self.counts: dict[str, int] = {}
        self.copying = 0

    def ask(
        self,
        body: bytes,
        endpoint: str,
        *,
        asked: str,
        tenant: str,
        assignment: Assignment,
        cache_control: bytes | None = None,
    ) -> Lookup:
        """What the cache may do for the request; its body is read here, and nowhere again."""
        question = question_of(body, endpoint, self.config, model=asked, cache_control=cache_control)
        verdict = question.verdict
        unit = ""
        if self.config.scope == "unit":
            unit = assignment.unit_digest
            if assignment.coarser and not verdict:
                verdict = "bypass_no_unit"
        lookup = Lookup(verdict or "miss", question, tenant, unit, endpoint)
        if not verdict and not question.wish.look:
            lookup.verdict = "refresh"
        self._count(lookup.verdict)
        return lookup

    def find(self, lookup: Lookup, target: Target, now_ns: int) -> Answer | None:
        """The answer `target` gave to the same question; without one, a copy of the answer to come is begun."""
        if lookup.verdict != "miss":
            self._begin(lookup)
            return None
        question = lookup.question
        key = key_of(lookup.tenant, lookup.unit, target.artefact, lookup.endpoint, question.digest)
        verdict, age_ns = "hit", question.wish.age_ns
        look_up = self.cache.look_up
        answer = look_up(key + question.form, lookup.tenant, target.artefact, now_ns, age_ns)
        if answer is None:
            verdict = "hit_other_form"
            for form in _OTHERS.get(question.form, ()):
                answer = look_up(key + form, lookup.tenant, target.artefact, now_ns, age_ns)
                answer = answer and _turned(answer, question.form, form, lookup.endpoint)
                if answer is not None:
                    break
        if answer is None:
            self._begin(lookup)
            return None
        self.leave(lookup)
        self._count(lookup.verdict, -1)
        self._count(verdict)
        lookup.verdict = verdict
        return answer

    def take(self, lookup: Lookup, data: bytes) -> None:
        """Copy a piece of the answer, as long as the copy may be kept."""
        copy = lookup.copy
        if copy is None:
            return
        if len(copy) + len(data) > self.config.answer_limit or self.copying + len(data) > self.config.memory:
            self.leave(lookup)
            return
        self.copying += len(data)
        copy += data

    def keep(
        self,
        lookup: Lookup,
        target: Target,
        *,
        status: int,
        content_type: bytes,
        usage: Usage | None,
        engine: str,
        now_ns: int,
    ) -> bool:
        """Keep the copy of a finished answer that `target` gave; whether it was worth it."""
        copy = lookup.copy
        if copy is None:
            return False
        self.leave(lookup)
        form = lookup.question.form
        stream = content_type.startswith(_SSE)
        if status != 200 or usage is None or stream != (form != PLAIN):
            return False
        data = bytes(copy)
        if not is_whole(data, lookup.endpoint, stream=stream):
            return False
        artefact = target.artefact
        key = key_of(lookup.tenant, lookup.unit, artefact, lookup.endpoint, lookup.question.digest) + form
        answer = Answer(data, content_type, usage, lookup.tenant, artefact, target.arm, engine, now_ns)
        return self.cache.store(key, answer, now_ns)

    def leave(self, lookup: Lookup) -> None:
        """Let go of the copy, if there is one."""
        if lookup.copy is not None:
            self.copying -= len(lookup.copy)
            lookup.copy = None

    def _begin(self, lookup: Lookup) -> None:
        if lookup.copy is None and lookup.verdict in ("miss", "refresh"):
            lookup.copy = bytearray()

    def _count(self, verdict: str, by: int = 1) -> None:
        self.counts[verdict] = self.counts.get(verdict, 0) + by


def _turned(answer: Answer, form: bytes, source: bytes, endpoint: str) -> Answer | None:
    """The answer in another form, if nothing of it is lost."""
    body = answer.data if source == PLAIN else as_body(answer.data, endpoint)
    if body is None:
        return None
    data = body if form == PLAIN else as_stream(body, endpoint, usage=form == STREAM_USAGE)
    if data is None:
        return None
    return Answer(
        data,
        _CONTENT_TYPES[form != PLAIN],
        answer.usage,
        answer.tenant,
        answer.artefact,
        answer.arm,
        answer.engine,
        answer.stored_ns,
    )
