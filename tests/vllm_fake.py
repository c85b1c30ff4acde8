"""A vLLM of a few lines with the modules, classes, functions and calls that the probe meets in 0.32, for tests without a vLLM.

`write(folder)` makes the package; `SCRIPT` is a request through it, from the API server's `add_request` to the first token.  What is here is
checked against a real one by `tests/unit/test_telemetry_probe_real.py`: same files, same signatures of what is wrapped.
"""

from pathlib import Path

VERSION = "0.32.0"

FILES = {
    "__init__.py": "",
    "_version.py": "__version__ = version = '{version}'\n",
    "v1/__init__.py": "",
    "v1/engine/__init__.py": """
class EngineCoreRequest:
    request_id: str
    arrival_time: float
    trace_headers: dict | None = None
    external_req_id: str | None = None

    def __init__(self, request_id, arrival_time, trace_headers=None):
        self.request_id, self.arrival_time, self.trace_headers = request_id, arrival_time, trace_headers


class EngineCoreOutput:
    request_id: str
    new_token_ids: list

    def __init__(self, request_id, new_token_ids):
        self.request_id, self.new_token_ids = request_id, new_token_ids


class EngineCoreOutputs:
    outputs: list

    def __init__(self, outputs):
        self.outputs = outputs
""",
    "v1/request.py": """
class Request:
    def __init__(self, request_id, trace_headers):
        self.request_id, self.trace_headers = request_id, trace_headers
""",
    "v1/engine/input_processor.py": """
import time

from vllm.v1.engine import EngineCoreRequest


class InputProcessor:
    def process_inputs(self, request_id, prompt, params, trace_headers=None):
        return EngineCoreRequest(request_id, prompt.get("arrival_time", time.time()), trace_headers)

    @staticmethod
    def assign_request_id(request: EngineCoreRequest):
        request.external_req_id = request.request_id
        request.request_id = f"{request.request_id}-0123abcd"
""",
    "v1/engine/async_llm.py": """
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.request import Request


class AsyncLLM:
    def __init__(self, core):
        self.input_processor, self.core = InputProcessor(), core

    async def add_request(self, request_id, prompt, params, arrival_time=None, lora_request=None,
                          tokenization_kwargs=None, trace_headers=None):
        trace_headers = None  # as with its own tracing off
        request = self.input_processor.process_inputs(request_id, prompt, params, trace_headers)
        self.input_processor.assign_request_id(request)
        self.core.add_request(Request(request.request_id, request.trace_headers))
        return request.request_id
""",
    "v1/core/__init__.py": "",
    "v1/core/sched/__init__.py": "",
    "v1/core/sched/output.py": """
from dataclasses import dataclass


@dataclass
class NewRequestData:
    req_id: str


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list
    num_scheduled_tokens: dict
""",
    "v1/core/kv_cache_manager.py": """
class KVCacheManager:
    def get_blocks(self, request_id: str):
        return [1, 2]
""",
    "v1/core/sched/scheduler.py": """
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs


class Scheduler:
    def __init__(self):
        self.waiting, self.running, self.fetching = [], [], []
        self.kv_cache_manager = KVCacheManager()

    def add_request(self, request):
        self.waiting.append(request)

    def schedule(self, throttle_prefills=False):
        new, waiting = [], self.waiting
        self.waiting = []
        for request in waiting:
            self.kv_cache_manager.get_blocks(request.request_id)
            if request in self.fetching:
                self.waiting.append(request)
                continue
            new.append(NewRequestData(request.request_id))
            self.running.append(request)
        return SchedulerOutput(new, {r.request_id: 1 for r in self.running})

    def _update_waiting_for_remote_kv(self, request):
        self.fetching.remove(request)

    def update_from_output(self, scheduler_output, model_runner_output):
        return {0: EngineCoreOutputs([EngineCoreOutput(i, [7]) for i in scheduler_output.num_scheduled_tokens])}
""",
    "v1/worker/__init__.py": "",
    "v1/worker/gpu_model_runner.py": """
class Ranks:
    rank, world_size = 0, 1


class Device:
    type = "cpu"


class GPUModelRunner:
    def __init__(self):
        self.parallel_config, self.device = Ranks(), Device()

    def _prepare_input_ids(self, scheduler_output, num_reqs, total_num_scheduled_tokens, cu_num_tokens):
        pass

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        self._prepare_input_ids(scheduler_output, 1, 1, None)
        return None, None, 1

    def _determine_batch_execution_and_padding(self, num_tokens, num_reqs):
        return "NONE"

    def _build_attention_metadata(self, num_tokens, num_reqs, max_query_len):
        return {}, None

    def _preprocess(self, scheduler_output, num_input_tokens, intermediate_tensors=None):
        return ()

    def _model_forward(self, input_ids=None, positions=None):
        return "hidden"

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        self._prepare_inputs(scheduler_output, None)
        self._determine_batch_execution_and_padding(num_tokens=1, num_reqs=1)
        self._build_attention_metadata(num_tokens=1, num_reqs=1, max_query_len=1)
        self._preprocess(scheduler_output, 1, intermediate_tensors)
        return self._model_forward(input_ids=1)
""",
    "v1/worker/gpu/__init__.py": "",
    "v1/worker/gpu/model_states/__init__.py": "",
    "v1/worker/gpu/async_utils.py": """
class StepTimingCollector:
    def forward_start(self):
        pass
""",
    "v1/worker/gpu/model_states/default.py": """
class DefaultModelState:
    def prepare_attn(self, input_batch, cudagraph_mode):
        return {}
""",
    "v1/worker/gpu/model_runner.py": """
from vllm.v1.worker.gpu.async_utils import StepTimingCollector
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu_model_runner import Device, Ranks


class GPUModelRunner:
    def __init__(self):
        self.parallel_config, self.device = Ranks(), Device()
        self.model_state, self.step_timing = DefaultModelState(), StepTimingCollector()

    def gather_batch_req_state(self, scheduler_output, dummy_run):
        return None, None

    def prepare_inputs(self, scheduler_output, batch_req_state, batch_desc, num_active_loras):
        pass

    def execute_model(self, scheduler_output, intermediate_tensors=None, dummy_run=False):
        self.gather_batch_req_state(scheduler_output, dummy_run)
        self.prepare_inputs(scheduler_output, None, None, 0)
        self.model_state.prepare_attn(None, None)
        self.step_timing.forward_start()
        return "hidden"
""",
    "v1/metrics/__init__.py": "",
    "v1/metrics/loggers.py": """
from abc import ABC, abstractmethod


class StatLoggerBase(ABC):
    @abstractmethod
    def __init__(self, vllm_config, engine_index=0): ...

    @abstractmethod
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...

    @abstractmethod
    def log_engine_initialized(self): ...
""",
}

SCRIPT = """
import asyncio, json, os, sys, time
from sits.telemetry.probe import plugin
{before}
plugin.load()
plugin.load()
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.worker.{runner} import GPUModelRunner

core, runner = Scheduler(), GPUModelRunner()
llm = AsyncLLM(core)
headers = {{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
{more}

def step():
    output = core.schedule()
    assert runner.execute_model(output) == "hidden"
    return core.update_from_output(output, None)

async def ask(name, headers):
    prompt = {{"type": "token", "prompt_token_ids": [1], "arrival_time": time.time()}}
    return await llm.add_request(name, prompt, None, trace_headers=headers)

asyncio.run(ask("cmpl-r1-0", headers))
step()
asyncio.run(ask("cmpl-r2-0", None))
step()
step()
{after}
"""


def write(folder: Path, version: str = VERSION, changed=None) -> Path:
    """The package in `folder`; `changed` holds (old, new) texts by file."""
    for name, original in FILES.items():
        text = original
        for old, new in (changed or {}).get(name, ()):
            assert old in text, (name, old)
            text = text.replace(old, new)
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{version}", version))
    return folder / "vllm"


def script(before: str = "", runner: str = "gpu_model_runner", more: str = "", after: str = "") -> str:
    return SCRIPT.format(before=before, runner=runner, more=more, after=after)
