"""What vLLM loads from group `vllm.stat_logger_plugins`: statistics of its steps, and of each request when it ends, as spans beside the probe's.

```
record(scheduler stats, iteration stats), once a step ──> vllm.finished, one a request, in the request's trace
                                                      └─> vllm.steps, one a second: steps, requests running and waiting, KV usage, tokens
```
Rules: a plug-in of this group is a subclass of vLLM's own class; `SitsStats` is made when vLLM asks this module for it, so that the module itself
needs no vLLM.  Where the probe stands down it records nothing.  vLLM switches its statistics on when a plug-in of this group is there, even
if `--disable-log-stats` asks for none; to keep them off, leave `sits_probe` out of `VLLM_PLUGINS`.

Deliberately absent: vLLM's own metrics; they are scraped from `/metrics`.
"""

import os
from typing import Any

from sits.telemetry.probe import plugin
from sits.telemetry.probe.seeing import REQUEST, whose
from sits.telemetry.spans_json import Span

SECOND_NS = 1_000_000_000


class Steps:
    """What a second of steps adds up to; a gauge is the largest seen."""

    __slots__ = ("begin_ns", "count", "generated", "kv_usage", "preempted", "prompt", "running", "waiting")

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.count = self.running = self.waiting = self.prompt = self.generated = self.preempted = 0
        self.kv_usage = 0.0


class Statistics:
    """One engine's statistics, in the API server."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._engine = engine_index
        self._steps: Steps | None = None

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """One step's statistics."""
        probe = plugin.running()
        if probe is None:
            return
        try:
            self._add(probe, scheduler_stats, iteration_stats)
        except Exception as error:  # noqa: BLE001  # vLLM must not notice
            probe.seeing.trouble(error)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def _add(self, probe: plugin.Probe, scheduler: Any, iteration: Any) -> None:
        now_ns = probe.seeing.now_ns()
        steps = self._steps
        if steps is None:
            steps = self._steps = Steps(now_ns)
        if scheduler is not None:
            steps.count += 1
            steps.running = max(steps.running, scheduler.num_running_reqs)
            steps.waiting = max(steps.waiting, scheduler.num_waiting_reqs)
            steps.kv_usage = max(steps.kv_usage, scheduler.kv_cache_usage)
        if iteration is not None:
            steps.prompt += iteration.num_prompt_tokens
            steps.generated += iteration.num_generation_tokens
            steps.preempted += iteration.num_preempted_reqs
            for done in iteration.finished_requests:
                self._finished(probe, done, now_ns)
        if now_ns - steps.begin_ns >= SECOND_NS:
            self._second(probe, steps, now_ns)
            self._steps = None

    def _finished(self, probe: plugin.Probe, done: Any, now_ns: int) -> None:
        """A request's end, in the words of vLLM's own span, as far as they are known here."""
        request_id = done.request_id or ""
        to = probe.front.whose.pop(request_id, None) or whose(request_id, None)
        end_ns = now_ns + probe.seeing.offset_ns
        told = {
            REQUEST: request_id,
            "gen_ai.usage.prompt_tokens": done.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": done.num_generation_tokens,
            "gen_ai.latency.e2e": done.e2e_latency,
            "gen_ai.latency.time_in_queue": done.queued_time,
            "gen_ai.latency.time_in_model_prefill": done.prefill_time,
            "gen_ai.latency.time_in_model_decode": done.decode_time,
            "sits.preemptions": done.num_preemptions,
            "sits.vllm.cached_tokens": done.num_cached_tokens,
            "sits.vllm.finish_reason": str(done.finish_reason),
        }
        start_ns = end_ns - max(0, int(done.e2e_latency * 1e9))
        probe.seeing.put(
            Span(to.trace_id, os.urandom(8).hex(), to.parent_id, "vllm.finished", start_ns, end_ns, told)
        )

    def _second(self, probe: plugin.Probe, steps: Steps, now_ns: int) -> None:
        by = probe.seeing.offset_ns
        told = {
            "sits.vllm.engine": self._engine,
            "sits.vllm.steps": steps.count,
            "sits.vllm.running_max": steps.running,
            "sits.vllm.waiting_max": steps.waiting,
            "sits.vllm.kv_usage_max": steps.kv_usage,
            "sits.vllm.prompt_tokens": steps.prompt,
            "sits.vllm.generated_tokens": steps.generated,
            "sits.vllm.preempted": steps.preempted,
        }
        trace_id, span_id = os.urandom(16).hex(), os.urandom(8).hex()
        probe.seeing.put(Span(trace_id, span_id, "", "vllm.steps", steps.begin_ns + by, now_ns + by, told))


def __getattr__(name: str) -> type:
    """`SitsStats`, `Statistics` as vLLM wants them."""
    if name != "SitsStats":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.v1.metrics.loggers import StatLoggerBase  # noqa: PLC0415  # there in vLLM's processes only

    return type("SitsStats", (Statistics, StatLoggerBase), {"__doc__": Statistics.__doc__})
