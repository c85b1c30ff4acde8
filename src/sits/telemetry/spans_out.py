"""Sends spans away over OTLP/HTTP with JSON, from a thread of its own: for processes that are not ours to burden.

```
any thread: put -> deque, bounded -> thread: batches -> POST <endpoint>/v1/traces -> sent | tried again, later | refused
```
Rules:
- `put` never waits and never raises: a full queue drops the new span and counts it.  Threads that put at the same moment may overshoot its
  bound, by one span each.
- The thread starts with the first span, is a daemon, and sends when a batch is full or `period_s` has passed.  When nobody answers, or says
  429, 502, 503 or 504, the batch is tried again after a wait that doubles from `period_s` up to `WAIT_MAX_S`, spread by a quarter so that
  processes do not come back together, or as long as `Retry-After` asks; meanwhile spans wait, as far as there is room.  Any other
  refusal loses the batch, as the protocol wants it: 500 too, for it is about what was sent.  A redirect is one, and told as such.
- What a receiver that takes a batch says it rejected is counted as failed and not sent again.
- Each kind of trouble is told once in the log `sits`, until something arrives; how many spans were lost is told when that doubled, and at the end.
- At the end of the process what waits is sent, within `LAST_S` in all; processes of `multiprocessing` have their own kind of end.  A forked child has a queue, a thread and counts of its own;
  what the parent had queued stays the parent's, and a sender that was closed stays closed.  An instance's id that ends with the process's
  (`host:123`) is made the child's.
- The standard library only, and what is heavy in it (`telemetry.posting`) is loaded in the thread.

Source: OpenTelemetry Protocol 1.x, "OTLP/HTTP" ("Failures", "Partial Success", "Retryable Response Codes"); the variables are those of the OpenTelemetry SDK's specification.

Deliberately absent: gRPC, compression, and sampling: a trace is whole or it is nothing.
"""

import atexit
import json
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from sits.core.plain_text import plain
from sits.telemetry.spans_json import Span, encoded

if TYPE_CHECKING:
    from sits.telemetry.posting import Answer

CAPACITY, BATCH = 4096, 512
INSTANCE = "service.instance.id"
PERIOD_S, TIMEOUT_S, WAIT_MAX_S, LAST_S = 1.0, 5.0, 30.0, 3.0

UNREACHED, UNWRITABLE, REJECTED = "cannot be sent to", "unwritable", "rejected"
"""Kinds of trouble, beside `answers STATUS`: nobody answers, or there is no thread; spans that are no JSON; a batch that was taken in part."""

Post = Callable[[str, bytes, Mapping[str, str], float], "Answer"]


def endpoint_of(environ: Mapping[str, str]) -> str:
    """Where the OpenTelemetry variables say traces go; empty when they name no place, or say that nothing is to be sent.

    >>> endpoint_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"})
    'http://collector:4318/v1/traces'
    """
    if (
        environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return ""
    if exact := environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""):
        return exact
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").rstrip("/")
    return f"{base}/v1/traces" if base else ""


def headers_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The headers those variables ask for.

    >>> headers_of({"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x, tenant=a"})
    {'authorization': 'Bearer x', 'tenant': 'a'}
    """
    said = environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    return pairs(said)


def pairs(said: str) -> dict[str, str]:
    """`a=1,b=2` as W3C baggage writes it, which the variables use; what has no `=` is left out."""
    parts = (part.partition("=") for part in said.split(","))
    return {key.strip(): unquote(value.strip()) for key, equals, value in parts if equals and key.strip()}


class SpansOut:
    """A queue of spans and the thread that empties it.

    Attributes:
        sent, dropped, failed: spans that arrived; for which the queue had no room; that the receiver refused or that could not be
            delivered before the end.

    """

    def __init__(
        self,
        endpoint: str,
        resource: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        scope: str = "sits",
        capacity: int = CAPACITY,
        period_s: float = PERIOD_S,
        timeout_s: float = TIMEOUT_S,
        post: Post | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.resource = dict(resource)
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._scope = scope
        self._capacity = capacity
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._post = post
        self._ending = False
        self._anew()
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _revive(me))

    def _anew(self) -> None:
        self.sent = self.dropped = self.failed = 0
        self._pid = os.getpid()
        self._told: set[str] = set()
        self._lost_told = 0
        self._away = False
        self._queue: deque[Span] = deque()
        self._thread: threading.Thread | None = None
        self._turn = threading.Condition()
        self._last: Any = None
        self._taken = 0
        """Spans in the thread's hands."""
        self._hurry = False

    def put(self, span: Span) -> bool:
        """Queue a span; False when there was no room, or sending has ended."""
        queue = self._queue
        if len(queue) >= self._capacity or self._ending:
            self.dropped += 1
            return False
        queue.append(span)
        if self._thread is None:
            self._start()
        elif len(queue) == BATCH:
            with self._turn:
                self._turn.notify_all()
        return True

    def flush(self, timeout_s: float = LAST_S) -> bool:
        """Send now what waits, and wait for that; False when some of it still waits after `timeout_s`."""
        with self._turn:
            self._hurry = True
            self._turn.notify_all()
            try:
                return self._turn.wait_for(self._idle, timeout_s)
            finally:
                self._hurry = False

    def close(self, timeout_s: float = LAST_S) -> None:
        """Send what waits, as far as that succeeds within `timeout_s`; no span is taken after that."""
        if self._thread is not None:
            if not self._away:  # somebody who does not answer is not waited for at the end
                self.flush(timeout_s)
            atexit.unregister(self.close)
            if self._last is not None:
                self._last.cancel()
        with self._turn:
            self._ending = True
            self.failed += len(self._queue)
            self._queue.clear()
            self._turn.notify_all()
        self._tell_lost(self._lost_told + 1)

    def _start(self) -> None:
        with self._turn:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="sits-spans-out", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # the interpreter is ending, or has no threads left
                self._thread = None
                self.failed += len(self._queue)
                self._queue.clear()
                self._tell(UNREACHED, str(error))
                return
        atexit.register(self.close)
        own = sys.modules.get("multiprocessing.util")  # its processes end without `atexit`
        if own is not None:
            self._last = own.Finalize(None, self.close, exitpriority=0)

    def _idle(self) -> bool:
        return not self._queue and not self._taken

    def _due(self) -> bool:
        return self._ending or self._hurry or len(self._queue) >= BATCH

    def _run(self) -> None:
        while not self._ending:
            with self._turn:
                self._turn.wait_for(self._due, self._period_s)
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH))]
                self._taken = len(batch)
                if not batch:
                    self._hurry = False
            if batch:
                self._deliver(batch)
            with self._turn:
                self._taken = 0
                self._turn.notify_all()

    def _deliver(self, batch: list[Span]) -> None:
        """Try until it is taken, refused, or over."""
        try:
            body = encoded(self.resource, batch, self._scope)
        except Exception as error:  # noqa: BLE001  # somebody's attributes: they lose their spans, and hear it
            self.failed += len(batch)
            self._tell(UNWRITABLE, f"spans cannot be written as JSON: {error}")
            return
        from sits.telemetry.posting import LATER, post  # noqa: PLC0415  # 10 ms that a process which sends nothing need not pay

        wait_s = self._period_s
        while True:
            answer = (self._post or post)(self.endpoint, body, self._headers, self._timeout_s)
            self._away = not answer.status or answer.status in LATER
            if 200 <= answer.status < 300:
                self._arrived(len(batch), answer.text)
                return
            self._tell(f"answers {answer.status}" if answer.status else UNREACHED, answer.text)
            if not self._away:
                break
            with self._turn:
                self._turn.wait_for(
                    lambda: self._ending, max(min(wait_s, WAIT_MAX_S) * _spread(), answer.retry_after_s)
                )
            if self._ending:
                break
            self._tell_lost(2 * self._lost_told)
            wait_s *= 2
        self.failed += len(batch)
        self._tell_lost(2 * self._lost_told)

    def _arrived(self, count: int, said: str) -> None:
        rejected, why = rejected_of(said)
        rejected = min(rejected, count)
        self.sent += count - rejected
        self.failed += rejected
        if rejected:
            self._tell(REJECTED, f"the receiver rejected {rejected} of {count} spans: {why}")
        else:
            self._told.clear()
        self._tell_lost(2 * self._lost_told)

    def _tell_lost(self, least: int) -> None:
        """Tell how many spans were lost, if they are at least `least`."""
        dropped, failed = self.dropped, self.failed
        if (lost := dropped + failed) and lost >= max(least, self._lost_told + 1):
            self._lost_told = lost
            logging.getLogger("sits").warning(
                "spans: %s spans lost: %s dropped, for the queue of %s was full; %s refused or not delivered",
                lost,
                dropped,
                self._capacity,
                failed,
            )

    def _tell(self, kind: str, text: str) -> None:
        """Say what went wrong, once of each kind."""
        if kind not in self._told:
            self._told.add(kind)
            from sits.telemetry.secrets import text_without_secrets  # noqa: PLC0415  # only trouble needs it

            said = "" if kind in (UNWRITABLE, REJECTED) else f" {kind}"
            where = plain(text_without_secrets(self.endpoint))
            logging.getLogger("sits").warning("spans: %s%s: %s", where, said, plain(text)[:300])


def _revive(me: "weakref.ref[SpansOut]") -> None:
    found = me()
    if found is not None:
        atexit.unregister(found.close)
        before, after = f":{found._pid}", f":{os.getpid()}"
        instance = str(found.resource.get(INSTANCE, ""))
        if instance.endswith(before):
            found.resource[INSTANCE] = instance.removesuffix(before) + after
        found._anew()


def rejected_of(said: str) -> tuple[int, str]:
    """How many spans a receiver that took a batch says it rejected, and why.

    >>> rejected_of('{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too old"}}'), rejected_of("fine")
    ((3, 'too old'), (0, ''))
    """
    try:
        partial = json.loads(said)["partialSuccess"]
        return max(0, int(partial.get("rejectedSpans", 0))), str(partial.get("errorMessage", ""))
    except (ValueError, TypeError, KeyError, AttributeError):  # no JSON, or another one: all were taken
        return 0, ""


def _spread() -> float:
    """Between 0.75 and 1.25, another one for each process: by its id times the golden ratio."""
    return 0.75 + os.getpid() * 0.6180339887498949 % 0.5
