"""The engine core's wrappers: `queued`, `scheduled`, `kv_allocated`, `kv_ready` and the engine's own `first_token`.

```
Scheduler.add_request ──> schedule ──> KVCacheManager.get_blocks ──> (KV comes from elsewhere) ──> ... ──> update_from_output
   queued                 scheduled    kv_allocated                   kv_ready                             first_token
```
Rules: `scheduled` is the begin of the `schedule()` call in which a request first got blocks, as vLLM's own event has it.  `get_blocks` is asked for a
waiting request right after its blocks were reserved and for no other, so steps in which nothing starts cost next to nothing.  A
request that waits for nobody's KV is `kv_ready` when it is allocated (derived).  A request is told when its first token is there; one
that never gets there is told with what it has when `PENDING_MAX` others came after it.  Steps that start requests carry their traces
to the workers in an attribute of the scheduler's output.

Deliberately absent: locks.  All this runs in the engine core's main thread.
"""

from collections.abc import Callable
from typing import Any

from sits.core.breakpoints import FIRST_TOKEN, KV_ALLOCATED, KV_READY, QUEUED, SCHEDULED
from sits.telemetry.probe.seeing import DERIVED, Points, Seeing, Whose, whose

PENDING_MAX = 8192
TRACES = "sits_traces"
"""Attribute of `SchedulerOutput`: whose the requests are that it starts, by request id."""


class _Request:
    """A request between the queue and its first token."""

    __slots__ = ("at", "derived", "whose")

    def __init__(self, whose_: Whose, queued_ns: int) -> None:
        self.whose = whose_
        self.at: Points = {QUEUED: queued_ns}
        self.derived: dict[int, int] = {}


class Scheduling:
    """Wrappers of the scheduler."""

    def __init__(self, seeing: Seeing) -> None:
        self._seeing = seeing
        self._waiting: dict[str, _Request] = {}
        self._running: dict[str, _Request] = {}
        self._began_ns = 0

    def add_request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of `Scheduler.add_request`."""
        queued, trouble = self._queued, self._seeing.trouble

        def add_request(self: Any, request: Any) -> Any:
            result = original(self, request)
            try:
                queued(request)
            except Exception as error:  # noqa: BLE001  # vLLM must not notice
                trouble(error)
            return result

        return add_request

    def schedule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of `Scheduler.schedule`."""
        me, now_ns, trouble = self, self._seeing.now_ns, self._seeing.trouble

        def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not me._waiting:
                return original(self, *args, **kwargs)
            me._began_ns = now_ns()
            output = original(self, *args, **kwargs)
            try:
                me._scheduled(output)
            except Exception as error:  # noqa: BLE001  # vLLM must not notice
                trouble(error)
            return output

        return schedule

    def get_blocks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of `KVCacheManager.get_blocks`."""
        waiting, me, now_ns = self._waiting, self, self._seeing.now_ns

        def get_blocks(self: Any, request_id: str) -> Any:
            one = waiting.get(request_id)
            if one is not None and KV_ALLOCATED not in one.at:
                one.at[SCHEDULED] = me._began_ns
                one.at[KV_ALLOCATED] = now_ns()
            return original(self, request_id)

        return get_blocks

    def kv_came(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of `Scheduler._update_waiting_for_remote_kv`, called when KV has arrived from elsewhere."""
        waiting, now_ns = self._waiting, self._seeing.now_ns

        def _update_waiting_for_remote_kv(self: Any, request: Any) -> Any:
            result = original(self, request)
            one = waiting.get(request.request_id)
            if one is not None:
                one.at[KV_READY] = now_ns()
            return result

        return _update_waiting_for_remote_kv

    def update_from_output(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of `Scheduler.update_from_output`: the tokens of a step have come."""
        me, now_ns, trouble = self, self._seeing.now_ns, self._seeing.trouble

        def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
            result = original(self, scheduler_output, model_runner_output)
            if me._running:
                try:
                    me._first_tokens(result, now_ns())
                except Exception as error:  # noqa: BLE001  # vLLM must not notice
                    trouble(error)
            return result

        return update_from_output

    def _queued(self, request: Any) -> None:
        request_id = request.request_id
        if request_id in self._waiting or request_id in self._running:
            return  # more input of a request that is known
        whose_ = whose(request_id, request.trace_headers)
        self._waiting[request_id] = _Request(whose_, self._seeing.now_ns())
        for some in (self._waiting, self._running):
            if len(some) > PENDING_MAX:
                oldest = next(iter(some))
                self._tell(oldest, some.pop(oldest))

    def _scheduled(self, output: Any) -> None:
        started: dict[str, Whose] = {}
        for new in output.scheduled_new_reqs:
            one = self._waiting.pop(new.req_id, None)
            if one is not None:
                if KV_READY not in one.at and KV_ALLOCATED in one.at:
                    one.at[KV_READY] = one.at[KV_ALLOCATED]
                    one.derived[KV_READY] = DERIVED
                self._running[new.req_id] = one
                started[new.req_id] = one.whose
        if started:
            setattr(output, TRACES, started)

    def _first_tokens(self, outputs: Any, now_ns: int) -> None:
        running = self._running
        for some in outputs.values():
            for output in some.outputs:
                if output.request_id in running and output.new_token_ids:
                    one = running.pop(output.request_id)
                    one.at[FIRST_TOKEN] = now_ns
                    self._tell(output.request_id, one)

    def _tell(self, request_id: str, one: _Request) -> None:
        self._seeing.tell("vllm.core", request_id, one.whose, one.at, one.derived)
