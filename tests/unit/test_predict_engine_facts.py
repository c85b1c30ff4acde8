"""Engine facts: what real texts say, who wins, what disagrees, and what is refused."""

import gzip
import json
from pathlib import Path

import pytest

from sits.core.errors import ConfigError
from sits.predict.engine_facts import REQUIRED, read_facts

SHARED = Path(__file__).parents[3] / "shared/data"
ENGINES = SHARED / "engines/vllm"
RECORDINGS = SHARED / "measurements/llmservingsim_vllm_recordings"

INFO = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="2588"} 1.0\n'
LOG = """\
(APIServer pid=1) INFO 11-30 non-default args: {'model': 'm', 'max_num_seqs': 16, 'async_scheduling': False}
(EngineCore pid=2) INFO Initializing a V1 LLM engine (v0.19.0) with config: enable_chunked_prefill=True
(EngineCore pid=2) INFO GPU KV cache size: 41,408 tokens, Maximum concurrency for 2,048 tokens per request: 20.2x
(EngineCore pid=2) INFO Chunked prefill is enabled with max_num_batched_tokens=2048.
"""


def needs(path):
    if not path.exists():
        pytest.skip(f"{path} is not here: recordings of real engines are kept beside the project")
    return path


def test_the_engine_itself_comes_before_its_log_and_the_log_before_a_configuration():
    config = {
        "max-num-seqs": 16,
        "scheduler": {"long_prefill_token_threshold": 512, "scheduler_reserve_full_isl": False},
    }
    facts = read_facts(log=LOG, metrics=INFO, config=config)
    assert facts.need("blocks") == 2587
    assert facts.blocks.source.startswith("metrics: vllm:cache_config_info, label num_gpu_blocks")
    assert facts.max_num_seqs.source == "log, non-default args"
    assert facts.long_prefill_token_threshold.source == "config, long_prefill_token_threshold"
    assert facts.arguments() == {
        "blocks": 2587,
        "block_size": 16,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "prefix_caching": False,
        "chunked_prefill": True,
        "long_prefill_token_threshold": 512,
        "order": "fcfs",
        "reserve_full_isl": False,
        "async_scheduling": False,
    }
    assert facts.assumed == ("order = fcfs: vLLM's default",)
    assert "assumed: order = fcfs: vLLM's default" in facts.lines()


def test_blocks_follow_from_the_tokens_they_hold():
    facts = read_facts(log=LOG, given={"block_size": 16})
    assert facts.need("blocks") == 2587
    assert "41408 tokens of 16 a block" in facts.blocks.source
    assert read_facts(log="kv_cache_utils.py] # GPU blocks: 1381").need("blocks") == 1380


@pytest.mark.parametrize("name", REQUIRED)
def test_what_decides_capacity_is_refused_by_name_with_the_way_to_get_it(name):
    with pytest.raises(ConfigError) as caught:
        read_facts(log="nothing of use").need(name)
    assert caught.value.field == name
    assert f"--{name.replace('_', '-')}" in caught.value.hint


def test_two_sources_that_disagree_are_of_two_engines():
    with pytest.raises(ConfigError, match="says block_size 16, config, block_size says 32") as caught:
        read_facts(metrics=INFO, config={"kv_cache": {"block_size": 32}})
    assert "another" in caught.value.hint
    assert read_facts(metrics=INFO, given={"block_size": 32}).need("block_size") == 32
    with pytest.raises(ConfigError, match="not a whole number"):
        read_facts(config={"max_num_seqs": "many"})


def test_asynchronous_scheduling_is_assumed_from_the_version_and_said_to_be():
    for version, value in (("0.19.0", True), ("0.13.2", False), ("1.2", True)):
        facts = read_facts(config={"vllm_version": version})
        assert facts.need("async_scheduling") is value
        assert any("async_scheduling" in what for what in facts.assumed)
    unknown = read_facts()
    assert unknown.need("async_scheduling") is True
    assert any("version is not known" in what for what in unknown.assumed)
    off = read_facts(log="INFO Asynchronous scheduling is disabled.", config={"vllm_version": "0.19.0"})
    assert (off.need("async_scheduling"), [a for a in off.assumed if "async" in a]) == (False, [])


def test_a_real_engine_says_all_of_it():
    packed = needs(ENGINES / "engine_log_observability.txt.gz").read_bytes()
    log = gzip.decompress(packed).decode()
    metrics = (ENGINES / "vllm_metrics_idle.txt").read_text(encoding="utf-8")
    facts = read_facts(log=log, metrics=metrics)
    assert [facts.need(name) for name in REQUIRED] == [1023, 128, 16, 2048]
    assert facts.need("version") == "0.32.0"
    assert read_facts(log=log, given={"block_size": 128}).need("blocks") == 1023


def test_saved_descriptions_are_configurations():
    meta = json.loads(needs(RECORDINGS / "RTX4090__Llama-3.1-8B__meta.json").read_text(encoding="utf-8"))
    assert [read_facts(config=meta).need(name) for name in REQUIRED] == [2587, 16, 256, 2048]
    meta = json.loads((RECORDINGS / "RTXPRO6000__Llama-3.1-8B__meta.json").read_text(encoding="utf-8"))
    with pytest.raises(ConfigError, match="does not say blocks"):
        read_facts(config=meta).arguments()
