"""Runs inside Vidur's own virtual environment: its simulator on a trace; prints one JSON line.

    python vidur_replay.py TRACE.csv MAX_SEQS

Vidur's measured profiles lie on a model hub, and its predictor is trained on them when it starts.  Where there is
no hub, its predictor is replaced by a formula of a few operations with about the step times of the others, which is
cheaper than what it replaces: the time is that of its scheduler, events and metrics alone, in Vidur's favour.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from vidur._native.entities import ExecutionTime
from vidur.config import SimulationConfig
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType
from vidur.utils.random import set_seeds

LAYERS = 32


def peak_mb():
    """Most memory this program ever had; `ru_maxrss` would count what its parent had before it started this."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


class Formula:
    """Milliseconds of a layer: affine in the step's tokens and in the KV its sequences read."""

    def __init__(self, **_given):
        pass

    def get_execution_time(self, batch, _stage):
        dense_ms = (10.4 + 0.038 * sum(batch.num_q_tokens)) / LAYERS
        decode_ms = (0.0000037 * sum(batch.num_kv_tokens)) * 1000.0 / LAYERS / 30.0
        rest = (0.0,) * 9
        return ExecutionTime(LAYERS, 0.0, 0.0, decode_ms, 0.0, dense_ms, *rest)


def main(trace, max_seqs):
    with tempfile.TemporaryDirectory() as out:
        sys.argv = [
            "vidur",
            *("--replica_config_device", "a100", "--replica_config_network_device", "a100_dgx"),
            *("--replica_config_model_name", "meta-llama/Llama-3-8B"),
            *("--cluster_config_num_replicas", "1", "--replica_config_num_pipeline_stages", "1"),
            *("--replica_config_tensor_parallel_size", "1"),
            *("--request_generator_config_type", "trace_replay"),
            *("--trace_request_generator_config_trace_file", trace),
            *("--trace_request_generator_config_date", "2023-11-16"),
            *("--trace_request_generator_config_max_tokens", "4096"),
            *("--trace_request_generator_config_prefill_scale_factor", "1"),
            *("--trace_request_generator_config_decode_scale_factor", "1"),
            *("--trace_request_generator_config_time_scale_factor", "1"),
            *("--replica_scheduler_config_type", "vllm"),
            *("--vllm_scheduler_config_batch_size_cap", max_seqs),
            *("--vllm_scheduler_config_max_tokens_in_batch", "4096"),
            *("--metrics_config_output_dir", out),
            *("--no-metrics_config_write_json_trace", "--no-metrics_config_enable_chrome_trace"),
            *("--no-metrics_config_store_plots", "--no-metrics_config_write_metrics"),
        ]
        ExecutionTimePredictorRegistry.unregister(ExecutionTimePredictorType.RANDOM_FORREST)
        ExecutionTimePredictorRegistry.register(ExecutionTimePredictorType.RANDOM_FORREST, Formula)
        config = SimulationConfig.create_from_cli_args()
        set_seeds(1)
        simulator = Simulator(config)
        start = time.process_time()
        simulator.run()
        cpu_s = time.process_time() - start
    print(
        json.dumps(
            {
                "cpu_s": cpu_s,
                "rss_mb": peak_mb(),
                "simulated_s": float(simulator._time),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
