"""Layer tables composed into steps: by hand on a tiny profile, the filling of the grid, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from sits.core.errors import ConfigError
from sits.predict.profile import AXES, attention_us, load_profile, profile_time_us

PUBLISHED = Path(__file__).parents[3] / "shared/data/measurements/llmservingsim_layer_profiles"


def write(folder, attention, skew=None, dense=None):
    """A profile of a model whose layers take round times."""
    dense = dense or {
        "embedding": [(1, 1), (101, 1)],
        "layernorm": [(1, 2), (101, 12)],
        "qkv_proj": [(1, 10), (101, 110)],
        "final_layernorm": [(1, 3), (101, 3)],
    }
    rows = [f"{layer},{tokens},{us}" for layer, points in dense.items() for tokens, us in points]
    (folder / "dense.csv").write_text("layer,tokens,time_us\n" + "\n".join(rows) + "\n")
    heads = "lm_head,1,50\nsampler,1,5\nlm_head,9,58\nsampler,9,13\n"
    (folder / "per_sequence.csv").write_text("layer,sequences,time_us\n" + heads)
    lines = [",".join(map(str, row)) for row in attention]
    (folder / "attention.csv").write_text(",".join((*AXES, "time_us")) + "\n" + "\n".join(lines) + "\n")
    if skew:
        lines = [",".join(map(str, row)) for row in skew]
        (folder / "skew.csv").write_text("regime,t_mean_us,t_max_us,t_skew_us\n" + "\n".join(lines) + "\n")
    return folder


PURE = [
    (0, 0, 1, 16, 10),
    (0, 0, 1, 64, 20),
    (0, 0, 4, 16, 30),
    (0, 0, 4, 64, 60),
    (32, 0, 0, 0, 40),
    (64, 0, 0, 0, 100),
    (32, 16, 0, 0, 50),
    (64, 16, 0, 0, 120),
]


def test_a_step_is_the_sum_of_its_layers(tmp_path):
    profile = load_profile(write(tmp_path, PURE), layers=2)
    # 51 tokens: two layernorms of 7 and a projection of 60 in each of two layers; embedding and last norm once
    dense_us = 2 * (2 * 7 + 60) + 1 + 3
    head_us = 50 + 5
    assert profile.step_us(51, 0, 0, emitting=1) == pytest.approx(
        dense_us + head_us + 2 * (40 + 60 * 19 / 32)
    )
    four = profile.step_us(0, 4, 40)
    assert four == pytest.approx(2 * (2 * 2.3 + 13) + 4 + 55 + 6 + 2 * 45)
    assert profile.step_us(0, 0, 0) == 0.0
    assert profile_time_us(profile, tokens=4, seqs_emitting=4, decode_kv=[20, 60, 30, 50]) == pytest.approx(
        four
    )


def test_an_empty_mixed_cell_takes_the_ratio_of_its_neighbours_not_the_sum_of_its_parts(tmp_path):
    # Measured at a chunk of 32 only, where mixed takes twice the sum of its parts.
    mixed = [
        (32, before, n, kv, 2 * (prefill + decode))
        for before, prefill in ((0, 40), (16, 50))
        for n, kv, decode in ((1, 16, 10), (1, 64, 20), (4, 16, 30), (4, 64, 60))
    ]
    profile = load_profile(write(tmp_path, PURE + mixed), layers=1)
    assert profile.source.endswith("1 layers, 50% of the attention grid measured")
    assert attention_us(profile, 32, 0, 4, 64) == 200
    assert attention_us(profile, 64, 16, 4, 64) == 2 * (120 + 60)
    assert attention_us(profile, 1, 0, 4, 64) == 200  # a batch has prefill or it has none
    assert attention_us(profile, 0, 0, 4, 64) == 60
    assert attention_us(profile, 0, 0, 4, 112) == 90  # the last slope goes on
    assert attention_us(profile, 0, 0, 4, 3) == 30


def test_unequal_batches_cost_a_share_of_the_way_to_their_longest(tmp_path):
    skew = [("pure", 10, 20, 12), ("pure", 10, 30, 14), ("mixed", 10, 20, 20)]
    profile = load_profile(write(tmp_path, PURE, skew), layers=1)
    assert profile.skew == pytest.approx(0.2)
    equal = profile.step_us(0, 4, 16)
    assert profile.step_us(0, 4, 16, context_max=64) == pytest.approx(equal + 0.2 * 30)
    assert profile.step_us(0, 1, 16, context_max=64) == profile.step_us(0, 1, 16)


def test_what_is_no_profile_says_why(tmp_path):
    with pytest.raises(ConfigError, match="no table 'dense'") as caught:
        load_profile(tmp_path / "nothing", 32)
    assert caught.value.hint
    write(tmp_path, PURE)
    with pytest.raises(ConfigError, match="0 layers"):
        load_profile(tmp_path, 0)
    (tmp_path / "dense.csv").write_text("layer,time_us\nqkv_proj,3\n")
    with pytest.raises(ConfigError, match=r"lacks .*tokens"):
        load_profile(tmp_path, 2)
    (tmp_path / "moe.csv").write_text("tokens,time_us\n1,2\n")
    with pytest.raises(ConfigError, match="mixture of experts"):
        load_profile(tmp_path, 2)
    with pytest.raises(ConfigError, match="one rank of several"):
        load_profile(tmp_path / "GPU__model__tp2", 2)


def test_published_profiles_are_complete_and_grow_with_work():
    if not PUBLISHED.is_dir():
        pytest.skip(f"{PUBLISHED} is not here: published measurements are kept beside the project")
    for gpu in ("RTXPRO6000", "RTX4090"):
        profile = load_profile(PUBLISHED / f"{gpu}__Llama-3.1-8B__tp1", 32)
        assert np.isfinite(profile.attention_us).all()
        assert (profile.attention_us >= 0).all()
        assert not profile.attention_us[0, :, 0, :].any()
        assert 0.01 < profile.skew < 0.03
        times = [profile.step_us(0, n, kv) for n, kv in ((8, 100), (8, 1000), (128, 1000))]
        assert times == sorted(times)
        assert profile.step_us(512, 64, 1000) > profile.step_us(0, 64, 1000) > 8_000
