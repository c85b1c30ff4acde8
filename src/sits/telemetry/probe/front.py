"""The API server's wrappers: `engine_recv` and `tokenized`, and the trace context that goes with the request to the other processes.

```
AsyncLLM.add_request(prompt, trace_headers) ──> InputProcessor.assign_request_id(EngineCoreRequest) ──> EngineCore
        tokenized                                   engine_recv, whose trace
```
Rules: `engine_recv` is the arrival that vLLM itself stamps when it begins to render the prompt, the start of its `llm_request` span.  What lies
before it in the API server (reading JSON, waiting for a busy event loop) is in the stage that leads to it.  `tokenized` is when the rendered
prompt is handed to the engine's client.  vLLM drops the trace context where its own tracing is off; we put it back into the field it has
for it, whence the scheduler's process reads it.  Nothing else of a request is touched.

Deliberately absent: outputs.  What comes back is timed where it is made (`probe.scheduling`).
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from sits.core.breakpoints import ENGINE_RECV, TOKENIZED
from sits.telemetry.probe.seeing import Seeing, Whose, offset, whose

LOOKS = 3
"""Whoever is taken off the processor between two clocks would tell milliseconds too much: the closest of three counts."""
REMEMBERED = 4096
"""Requests in flight whose trace the statistics of their end can still be told to."""


class Front:
    """Wrappers of the front end."""

    def __init__(self, seeing: Seeing) -> None:
        self._seeing = seeing
        self._handed: ContextVar[tuple[int, Mapping[str, str] | None]] = ContextVar(
            "sits_probe_handed", default=(0, None)
        )
        self.whose: OrderedDict[str, Whose] = OrderedDict()
        """By the id the caller knows, for the statistics of finished requests."""

    def add_request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of `AsyncLLM.add_request`: the prompt is ids when it is rendered."""
        handed, now_ns = self._handed, self._seeing.now_ns

        async def add_request(self: Any, request_id: str, prompt: Any, *args: Any, **kwargs: Any) -> Any:
            rendered = isinstance(prompt, dict) and "type" in prompt
            handed.set((now_ns() if rendered else 0, kwargs.get("trace_headers")))
            return await original(self, request_id, prompt, *args, **kwargs)

        return add_request

    def assign_request_id(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of `InputProcessor.assign_request_id`, the last that sees a request before it leaves."""
        seen, trouble = self._assigned, self._seeing.trouble

        def assign_request_id(request: Any) -> Any:
            result = original(request)
            try:
                seen(request)
            except Exception as error:  # noqa: BLE001  # vLLM must not notice
                trouble(error)
            return result

        return assign_request_id

    def _assigned(self, request: Any) -> None:
        seeing = self._seeing
        tokenized_ns, headers = self._handed.get()
        if request.trace_headers is None and headers and "traceparent" in headers:
            request.trace_headers = dict(headers)
        whose_ = whose(request.request_id, request.trace_headers)
        # vLLM's stamp is of the wall clock, which may have been set since the start: its offset is looked at anew.
        arrived_ns = int(request.arrival_time * 1e9) - offset(seeing.now_ns, seeing.wall_ns, LOOKS)
        tokenized_ns = tokenized_ns or seeing.now_ns()
        at = {ENGINE_RECV: min(arrived_ns, tokenized_ns), TOKENIZED: tokenized_ns}
        seeing.tell("vllm.front", request.request_id, whose_, at, {})
        external = getattr(request, "external_req_id", None)
        if external:
            self.whose[external] = whose_
            if len(self.whose) > REMEMBERED:
                self.whose.popitem(last=False)
