"""Workloads: same seed same rows, streams that do not move each other, burstiness as fitted, traces as published."""

import numpy as np
import pytest

from sits.bench.arrivals import Gamma, OnOff
from sits.bench.lengths import AZURE_CONVERSATION_ANSWER, AZURE_CONVERSATION_PROMPT, NAMED
from sits.bench.traces import read_trace
from sits.bench.workload import WorkloadPlan, draw, from_trace, lengths_named, row_of
from sits.core.errors import ConfigError
from sits.core.request import Request
from sits.predict.burstiness import burstiness
from sits.world import RealWorld, stream_generator

ADAPTERS = tuple(f"tuned-{i}" for i in range(24))


def drawn(seed=3, **changes):
    plan = WorkloadPlan(**({"requests": 2_000, "adapter_share": 0.9} | changes))
    return draw(plan, RealWorld(seed), model="m", adapters=ADAPTERS)


def test_same_seed_same_workload_another_seed_another():
    one, again, other = drawn(), drawn(), drawn(seed=4)
    for name in ("arrival_ns", "prompt_tokens", "output_tokens", "adapter", "unit"):
        assert np.array_equal(getattr(one, name), getattr(again, name)), name
    assert not np.array_equal(one.arrival_ns, other.arrival_ns)


def test_streams_do_not_move_each_other():
    base, documents = drawn(), drawn(long_share=0.1)
    assert np.array_equal(base.arrival_ns, documents.arrival_ns)
    assert np.array_equal(base.output_tokens, documents.output_tokens)
    changed = base.prompt_tokens != documents.prompt_tokens
    assert 0.07 < changed.mean() < 0.13


def test_requests_never_carry_the_true_output_length():
    workload = drawn(requests=50)
    for request in workload.requests():
        assert request.output_tokens_max == workload.answer_max
    fields = set(Request.__struct_fields__)
    assert not {name for name in fields if "output" in name} - {"output_tokens_max"}


def test_rows_and_ids_belong_together():
    assert [row_of(request) for request in drawn(requests=20).requests()] == list(range(20))


def test_adapters_follow_their_popularity():
    workload = drawn(requests=20_000)
    counts = np.bincount(workload.adapter[workload.adapter >= 0], minlength=24)
    assert counts[0] > counts[5] > counts[20]
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.15)
    assert (workload.adapter < 0).mean() == pytest.approx(0.1, abs=0.01)


def seen(gaps_s):
    return burstiness(np.cumsum(gaps_s), windows_s=[1.0])


def test_the_fitted_process_is_as_bursty_as_the_trace_it_was_fitted_to():
    rows = [seen(OnOff().gaps_s(stream_generator(seed, "t"), 9_000)) for seed in range(12)]
    assert 9.0 < np.median([row.cv for row in rows]) < 17.0  # the trace: 13.2
    assert 9.0 < np.median([row.idc_at(1.0) for row in rows]) < 17.0  # the trace: 13.2
    assert 2.0 < np.median([row.rate_per_s for row in rows]) < 3.6  # the trace: 2.57


def test_thinning_keeps_its_share_and_its_bursts():
    whole = seen(OnOff().gaps_s(stream_generator(1, "t"), 20_000))
    half = seen(OnOff(keep=0.5).gaps_s(stream_generator(1, "t"), 10_000))
    assert half.rate_per_s / whole.rate_per_s == pytest.approx(0.5, rel=0.25)
    assert half.cv > 5.0


@pytest.mark.parametrize("cv", [0.0, 1.0, 3.0])
def test_gamma_arrivals_have_their_rate_and_cv(cv):
    found = seen(Gamma(rate=5.0, cv=cv).gaps_s(stream_generator(2, "t"), 40_000))
    assert found.rate_per_s == pytest.approx(5.0, rel=0.05)
    assert found.cv == pytest.approx(cv, abs=0.1)
    if cv == 1.0:
        assert found.idc_at(1.0) == pytest.approx(1.0, abs=0.1)


def test_lengths_have_the_quantiles_they_state():
    for lengths in NAMED.values():
        tokens = lengths.draw(stream_generator(5, "t"), 60_000)
        for level, wanted in zip(lengths.levels[2:-2], lengths.tokens[2:-2], strict=True):
            assert np.quantile(tokens, level) == pytest.approx(wanted, rel=0.08)
    assert AZURE_CONVERSATION_PROMPT.draw(stream_generator(5, "t"), 60_000).mean() == pytest.approx(
        1155, rel=0.04
    )
    assert AZURE_CONVERSATION_ANSWER.draw(stream_generator(5, "t"), 60_000).mean() == pytest.approx(
        211, rel=0.04
    )


def test_an_unknown_distribution_names_the_known_ones():
    with pytest.raises(ConfigError, match="azure-conversation-prompt"):
        lengths_named("azure")


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:04.0789600,110,27\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n50,GPT-4,30,0,30,API log\n"
MOONCAKE = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 2354]}\n'


@pytest.mark.parametrize(
    ("name", "text", "arrivals", "prompts", "outputs"),
    [
        ("azure.csv", AZURE, [0.0, 0.052, 0.099], [4808, 3180, 110], [10, 8, 27]),
        ("burst.csv", BURSTGPT, [0.0, 40.0], [472, 1087], [18, 230]),
        ("mooncake.jsonl", MOONCAKE, [0.0, 3.053], [6955, 6472], [52, 26]),
    ],
)
def test_published_trace_formats(tmp_path, name, text, arrivals, prompts, outputs):
    path = tmp_path / name
    path.write_text(text)
    trace = read_trace(path)
    assert trace.arrival_s == pytest.approx(arrivals, abs=1e-6)
    assert trace.prompt_tokens.tolist() == prompts
    assert trace.output_tokens.tolist() == outputs


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.csv", "a,b\n1,2\n", "no trace we know: it has a, b"),
        ("x.txt", "hello", "unknown kind of file"),
        ("x.csv", "Timestamp,Request tokens,Response tokens\n1,5,0\n", "no request with an answer"),
        ("x.jsonl", "not json at all {", "cannot be read"),
    ],
)
def test_a_file_that_is_no_trace_says_why(tmp_path, name, text, says):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_trace(path)
    with pytest.raises(ConfigError, match="no trace at"):
        read_trace(tmp_path / "missing.csv")


def test_a_trace_keeps_arrivals_and_lengths_together():
    plan = WorkloadPlan(requests=3, prompt_max=4_000, adapter_share=0.5)
    arrival, prompt, output = (
        np.array([0.0, 1.0, 2.5, 9.0]),
        np.array([10, 5_000, 30, 40]),
        np.array([1, 2, 3, 4]),
    )
    workload = from_trace(arrival, prompt, output, plan, RealWorld(1), model="m", adapters=ADAPTERS)
    assert len(workload) == 3
    assert workload.arrival_ns.tolist() == [0, 10**9, 2_500_000_000]
    assert workload.prompt_tokens.tolist() == [10, 4_000, 30]
    assert workload.output_tokens.tolist() == [1, 2, 3]
