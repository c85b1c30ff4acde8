"""The exporter: follows the store and sends what is new, as spans and as metrics.

```
store ──tail──> rows ──> spans, in batches ──> sender ──> taken | tried again, later | dropped and counted
                    └──> histograms ──every `metrics_every`──> sender
```
A thread of its own does all of it and may block; the store is the queue, so nothing of ours grows while a receiver is away.

Rules: batches go one after the other.  One worth another try is tried again after a wait that doubles from 1 s to 1 min (shortened by up to half, so
that many gateways do not come at once), or after as long as the receiver asks for, for at most `retry_for`; then it is dropped, its spans are
counted, and the next one goes.  It begins with what becomes durable after it was first started, and goes on where it stopped (`progress`).

Deliberately absent: sampling (what the store keeps is sent), and spans that others sent us: they have senders.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sits.app.otlp.progress import Progress
from sits.app.otlp.sending import Answer, Sender, Signal
from sits.app.otlp.target import Target
from sits.core import otel_names as names
from sits.core.errors import SitsError
from sits.core.fleet_otlp import Export
from sits.core.ports import World
from sits.telemetry.otlp.emitted import spans_of
from sits.telemetry.otlp.measured import Measures
from sits.telemetry.otlp.protobuf import Messages, traces
from sits.telemetry.tables import Columns
from sits.telemetry.tail import Tail

BATCH_ROWS = 256
"""Requests of one batch: up to 2,000 spans, about half a megabyte."""
LOOK_ROWS = 8192
LOOK_S = 1.0
WAIT_S, WAIT_MAX_S = 1.0, 60.0
LAST_NS = 2 * 10**9
"""How long what is left may take when the process ends."""


class Exporter:
    """Sends the rows of the store in `path` to `target` from `start` to `stop`.

    Attributes:
        sent, dropped, rejected: spans taken; not taken and given up; taken with the batch but refused by the receiver.
        retries: batches sent once more.  failures: looks that the store did not answer.  trouble: what went wrong last, empty when nothing does.

    """

    def __init__(
        self,
        path: Path,
        export: Export,
        target: Target,
        sender: Sender,
        known: Messages,
        providers: Mapping[str, str],
        world: World,
        *,
        look_s: float = LOOK_S,
    ) -> None:
        self.sent = self.dropped = self.rejected = self.retries = self.failures = 0
        self.trouble = ""
        self._export, self._target, self._sender, self._known = export, target, sender, known
        self._providers, self._world, self._look_s = providers, world, look_s
        self._path = path
        self._progress = Progress(path, target.shown)
        self._tail: Tail | None = None
        if self._progress.cursor is None:
            self._progress.looked(Tail(path, "requests", world=world).cursor)
        self._measures = Measures(world.wall_ns(), target.convention, providers)
        self._measured_ns = world.now_ns()
        self._stopping = threading.Event()
        self._stop_by_ns = 0
        self._thread = threading.Thread(target=self._run, name="sits-otlp-export", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is durable now, within `LAST_NS`, and end."""
        self._stop_by_ns = self._world.now_ns() + LAST_NS
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join((LAST_NS / 1e9) + self._target.timeout_s)

    def _run(self) -> None:
        while not self._stopping.wait(self._look_s):
            self.round()
        self.round()
        if self._export.metrics_every:
            self._send_metrics()
        self._sender.close()

    def round(self) -> None:
        """Send all that is new, and the metrics when they are due; what the thread does again and again."""
        whole = False
        try:
            whole = self._send_new()
        except (SitsError, OSError) as error:
            self.failures += 1
            self.trouble = str(error)
        except Exception as error:  # noqa: BLE001  (the last fence: what cannot be sent is told, the thread goes on)
            self.failures += 1
            self.trouble = f"a bug: {type(error).__name__}: {error}"
        if not whole and self._tail is not None:
            self._tail.close()  # it is further than we are: the next one begins where that is
            self._tail = None
        every = self._export.metrics_every
        if every and self._world.now_ns() - self._measured_ns >= every:
            self._send_metrics()

    def _send_new(self) -> bool:
        """Send what is new, look by look; False when we are stopped in the middle of one."""
        if self._tail is None:
            self._tail = Tail(self._path, "requests", cursor=self._progress.cursor, world=self._world)
        while rows := self._look(self._tail):
            for first in range(0, len(rows["id"]), BATCH_ROWS):
                if not self._send_rows({k: v[first : first + BATCH_ROWS] for k, v in rows.items()}):
                    return False
            self._progress.looked(self._tail.cursor)
        return True

    def _look(self, tail: Tail) -> Columns | None:
        """What is new and was not sent before; None when nothing is."""
        rows = tail.look(LOOK_ROWS)
        if not len(rows["id"]):
            return None
        if self._progress.sent:
            fresh = [one not in self._progress.sent for one in rows["id"].tolist()]
            rows = {name: values[fresh] for name, values in rows.items()}
        return rows

    def _send_rows(self, rows: Columns) -> bool:
        """Send one batch; False when we are stopped before it is over, so that it goes out the next time."""
        for run_id, spans in spans_of(rows, self._target.convention, self._providers).items():
            resource = {**self._target.resource, names.RUN: run_id}
            request = traces(resource, spans, self._known, self._target.convention.schema_url)
            answer = self._until("traces", request)
            if answer is None:
                return False
            if answer.taken:
                self.sent += len(spans) - answer.rejected
                self.rejected += answer.rejected
            else:
                self.dropped += len(spans)
        self._measures.fold(rows)
        self._progress.sending(rows["id"].tolist())
        return True

    def _until(self, signal: Signal, request: Any) -> Answer | None:
        """Try until it is over; None when we are stopped before."""
        give_up_ns = self._world.now_ns() + self._export.retry_for
        wait_s = WAIT_S
        while True:
            answer = self._sender.send(signal, request)
            self.trouble = "" if answer.taken and not answer.rejected else answer.text
            if answer.taken or not answer.later:
                return answer
            pause_s = answer.after_s or wait_s * self._world.rng("otlp export").uniform(0.5, 1.0)
            if self._stopping.is_set() and self._world.now_ns() + round(pause_s * 1e9) > self._stop_by_ns:
                return None
            if self._world.now_ns() + round(pause_s * 1e9) > give_up_ns:
                return answer
            if self._stopping.wait(pause_s) and answer.after_s:
                return None  # it asked to be left alone for longer than we are there
            wait_s = min(wait_s * 2, WAIT_MAX_S)
            self.retries += 1

    def _send_metrics(self) -> None:
        """Send the metrics once; they are cumulative, so the next ones make good for these."""
        self._measured_ns = self._world.now_ns()
        request = self._measures.request(self._world.wall_ns(), self._target.resource, self._known)
        answer = self._sender.send("metrics", request)
        if not answer.taken:
            self.trouble = answer.text


def providers_of(engines: Sequence[Any], kind_of: Callable[[Any], str]) -> dict[str, str]:
    """`gen_ai.provider.name` by engine: Anthropic's own, ours where it is emulated, and `openai` for its dialect."""
    return {engine.name: names.PROVIDERS.get(kind_of(engine), "openai") for engine in engines}
