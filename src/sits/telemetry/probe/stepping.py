"""The worker's wrappers: how the first step of a request is prepared, from `batch_built` to `kernel_launch`.

Points of a step are read once and belong to every request whose first step it is; steps that start none are not timed.

```
V1 runner:  _prepare_input_ids ─ _prepare_inputs ─ _determine_batch... ─ _build_attention_metadata ─ _preprocess ─ _model_forward
            batch_built          inputs_copied     graph_chosen          attention_ready             collective    kernel_launch
V2 runner:  gather_batch_req_state ─ (graph) ─ prepare_inputs ─ model_state.prepare_attn ─ forward_start
            batch_built                        inputs_copied    attention_ready            collective_ready, kernel_launch
```
Rules: a moment is the host's.  On the CPU it is the device's too (measured); elsewhere copies and launches are only queued by then
(`inputs_copied`, `kernel_launch` are derived).  The V2 runner picks its graph before it builds its inputs, out of our order: there
`graph_chosen` is missing.  `collective_ready` is told by a single rank only, which waits for nobody (derived); ranks that wait for each other do so within
the forward pass, where nothing is called that could be wrapped.  The first rank speaks for all.

Deliberately absent: times on the device; those need its profiler.
"""

from collections.abc import Callable
from typing import Any

from sits.core.breakpoints import (
    ATTENTION_READY,
    BATCH_BUILT,
    COLLECTIVE_READY,
    GRAPH_CHOSEN,
    INPUTS_COPIED,
    KERNEL_LAUNCH,
)
from sits.telemetry.probe.scheduling import TRACES
from sits.telemetry.probe.seeing import DERIVED, Points, Seeing

QUEUED_ONLY = {INPUTS_COPIED: DERIVED, COLLECTIVE_READY: DERIVED, KERNEL_LAUNCH: DERIVED}
ALONE = {COLLECTIVE_READY: DERIVED}


class Stepping:
    """Wrappers of the model runner."""

    def __init__(self, seeing: Seeing) -> None:
        self._seeing = seeing
        self._at: Points | None = None
        """Points of the step that runs; None when it starts no request."""

    def execute_model(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of `GPUModelRunner.execute_model`: the step around all other wrappers."""
        me, trouble = self, self._seeing.trouble

        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if not scheduler_output.scheduled_new_reqs:
                return original(self, scheduler_output, *args, **kwargs)
            me._at = {}
            try:
                return original(self, scheduler_output, *args, **kwargs)
            finally:
                try:
                    me._over(self, scheduler_output)
                except Exception as error:  # noqa: BLE001  # vLLM must not notice
                    trouble(error)

        return execute_model

    def batch_built(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The host's arrays are there when they begin to be copied."""
        return self._before(original, BATCH_BUILT)

    def batch_gathered(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The host's arrays are there when they have been gathered (V2)."""
        return self._after(original, BATCH_BUILT)

    def inputs_copied(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Copies to the device are queued."""
        return self._after(original, INPUTS_COPIED)

    def graph_chosen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A captured graph or the eager path is picked."""
        return self._after(original, GRAPH_CHOSEN)

    def attention_ready(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Block tables and attention metadata are built."""
        return self._after(original, ATTENTION_READY)

    def all_ready(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Nothing is left to prepare."""
        return self._after(original, COLLECTIVE_READY)

    def kernel_launch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The model is called."""
        return self._before(original, KERNEL_LAUNCH)

    def forward_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The model is about to be called (V2)."""
        return self._before(self._before(original, KERNEL_LAUNCH), COLLECTIVE_READY)

    def _before(self, original: Callable[..., Any], point: int) -> Callable[..., Any]:
        me, now_ns = self, self._seeing.now_ns

        def before(*args: Any, **kwargs: Any) -> Any:
            at = me._at
            if at is not None:
                at.setdefault(point, now_ns())
            return original(*args, **kwargs)

        return before

    def _after(self, original: Callable[..., Any], point: int) -> Callable[..., Any]:
        me, now_ns = self, self._seeing.now_ns

        def after(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            at = me._at
            if at is not None:
                at[point] = now_ns()
            return result

        return after

    def _over(self, runner: Any, scheduler_output: Any) -> None:
        at, self._at = self._at, None
        traces = getattr(scheduler_output, TRACES, None)
        ranks = runner.parallel_config
        if not at or not traces or getattr(ranks, "rank", 0) != 0:
            return
        if getattr(ranks, "world_size", 1) > 1:
            at.pop(COLLECTIVE_READY, None)
        how = ALONE if runner.device.type == "cpu" else QUEUED_ONLY
        more = {"sits.vllm.batch_requests": len(scheduler_output.num_scheduled_tokens)}
        for request_id, whose_ in traces.items():
            self._seeing.tell("vllm.worker", request_id, whose_, at, how, more)
