"""Which vLLM the probe knows: versions, the functions it wraps in each, and the names those wrappers rely on.

A `Site` is a function found by name; its leading parameters must have the names given.  A `Shape` is a class with fields that a wrapper reads.
Both are looked up in vLLM's source files, before anything is wrapped and without importing them (`probe.reading`).

Rules: a version that is not here is unknown, however alike it may be.  Patch releases of a known minor version are known (their functions are
checked all the same); development builds are not.  Every site is a method or a module's function that is looked up by name at each
call, so that wrapping it reaches all callers.

Source: vLLM 0.32.0 as published.

Deliberately absent: what the wrappers do (`probe.front`, `probe.scheduling`, `probe.stepping`).
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple


class Site(NamedTuple):
    """A function: `owner` is its class, empty for a module's own.  `part` and `wrapper` name the wrapper, `parameters` its leading ones."""

    module: str
    owner: str
    name: str
    parameters: tuple[str, ...]
    part: str
    wrapper: str

    def __str__(self) -> str:
        return f"{self.module}:{self.owner}{'.' if self.owner else ''}{self.name}"


class Shape(NamedTuple):
    """A class and the fields of it that are read."""

    module: str
    owner: str
    fields: tuple[str, ...]


class Known(NamedTuple):
    """What is known of one minor version."""

    sites: tuple[Site, ...]
    shapes: tuple[Shape, ...]


_LLM, _INPUTS = "vllm.v1.engine.async_llm", "vllm.v1.engine.input_processor"
_SCHEDULER, _KV = "vllm.v1.core.sched.scheduler", "vllm.v1.core.kv_cache_manager"
_RUNNER, _RUNNER2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
_STATE2, _TIMING2 = "vllm.v1.worker.gpu.model_states.default", "vllm.v1.worker.gpu.async_utils"

_FRONT = (
    Site(_LLM, "AsyncLLM", "add_request", ("self", "request_id", "prompt"), "front", "add_request"),
    Site(_INPUTS, "InputProcessor", "assign_request_id", ("request",), "front", "assign_request_id"),
)
_CORE = (
    Site(_SCHEDULER, "Scheduler", "add_request", ("self", "request"), "scheduling", "add_request"),
    Site(_SCHEDULER, "Scheduler", "schedule", ("self",), "scheduling", "schedule"),
    Site(
        _SCHEDULER, "Scheduler", "_update_waiting_for_remote_kv", ("self", "request"), "scheduling", "kv_came"
    ),
    Site(
        _SCHEDULER,
        "Scheduler",
        "update_from_output",
        ("self", "scheduler_output", "model_runner_output"),
        "scheduling",
        "update_from_output",
    ),
    Site(_KV, "KVCacheManager", "get_blocks", ("self", "request_id"), "scheduling", "get_blocks"),
)
_STEP = ("self", "scheduler_output")
_WORKER = (
    Site(_RUNNER, "GPUModelRunner", "execute_model", _STEP, "stepping", "execute_model"),
    Site(_RUNNER, "GPUModelRunner", "_prepare_input_ids", _STEP, "stepping", "batch_built"),
    Site(_RUNNER, "GPUModelRunner", "_prepare_inputs", _STEP, "stepping", "inputs_copied"),
    Site(
        _RUNNER,
        "GPUModelRunner",
        "_determine_batch_execution_and_padding",
        ("self",),
        "stepping",
        "graph_chosen",
    ),
    Site(_RUNNER, "GPUModelRunner", "_build_attention_metadata", ("self",), "stepping", "attention_ready"),
    Site(_RUNNER, "GPUModelRunner", "_preprocess", _STEP, "stepping", "all_ready"),
    Site(_RUNNER, "GPUModelRunner", "_model_forward", ("self",), "stepping", "kernel_launch"),
)
_WORKER2 = (
    Site(_RUNNER2, "GPUModelRunner", "execute_model", _STEP, "stepping", "execute_model"),
    Site(_RUNNER2, "GPUModelRunner", "gather_batch_req_state", _STEP, "stepping", "batch_gathered"),
    Site(_RUNNER2, "GPUModelRunner", "prepare_inputs", _STEP, "stepping", "inputs_copied"),
    Site(_STATE2, "DefaultModelState", "prepare_attn", ("self",), "stepping", "attention_ready"),
    Site(_TIMING2, "StepTimingCollector", "forward_start", ("self",), "stepping", "forward_start"),
)
_SHAPES = (
    Shape("vllm.v1.engine", "EngineCoreRequest", ("request_id", "arrival_time", "trace_headers")),
    Shape("vllm.v1.engine", "EngineCoreOutputs", ("outputs",)),
    Shape("vllm.v1.engine", "EngineCoreOutput", ("request_id", "new_token_ids")),
    Shape("vllm.v1.request", "Request", ("request_id", "trace_headers")),
    Shape("vllm.v1.core.sched.output", "SchedulerOutput", ("scheduled_new_reqs", "num_scheduled_tokens")),
    Shape("vllm.v1.core.sched.output", "NewRequestData", ("req_id",)),
    Shape(_RUNNER, "GPUModelRunner", ("device", "parallel_config")),
    Shape(_RUNNER2, "GPUModelRunner", ("device", "parallel_config")),
)

VERSIONS: Final[Mapping[str, Known]] = {"0.32": Known(_FRONT + _CORE + _WORKER + _WORKER2, _SHAPES)}
"""By minor version."""

_RELEASE: Final = re.compile(r"(\d+\.\d+)\.\d+(?:\.post\d+)?(?:\+[\w.]+)?")


def known(version: str) -> Known | None:
    """What is known of a version, None when nothing is.

    >>> known("0.32.0+cpu") is VERSIONS["0.32"], known("0.32.1.dev7"), known("0.33.0")
    (True, None, None)
    """
    match = _RELEASE.fullmatch(version)
    return VERSIONS.get(match[1]) if match else None
