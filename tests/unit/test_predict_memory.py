"""KV cache, capacity and adapters: known sizes, whose number wins, and clear refusals."""

import msgspec
import pytest

from sits.core.errors import ConfigError
from sits.core.fleet import Memory, Model
from sits.predict.kv import KvShape, capacity_blocks, kv_bytes, lora_bytes, token_bytes

LLAMA = Model(
    name="llama-3-70b",
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    head_dim=128,
    intermediate=28672,
    vocab=128256,
    weights=141_100_000_000,
)
GPU = 80 * 2**30


def test_the_classic_example_is_8_gib_and_2_gib_with_grouped_queries():
    assert kv_bytes(KvShape(layers=32, kv_heads=32, head_dim=128), [2048] * 8) == 8 * 2**30 == 8_589_934_592
    assert kv_bytes(KvShape(layers=32, kv_heads=8, head_dim=128), [2048] * 8) == 2 * 2**30


def test_deepseek_latent_is_small_and_never_divided():
    latent = KvShape(layers=61, latent_dim=512 + 64)
    assert token_bytes(latent) == 61 * 576 * 2 == token_bytes(latent, tp=8)


def test_sliding_layers_stop_at_their_window():
    mixed = KvShape(layers=48, kv_heads=8, window=1024, window_layers=40)
    full = KvShape(layers=48, kv_heads=8)
    assert kv_bytes(mixed, [1000]) == kv_bytes(full, [1000])
    long = kv_bytes(mixed, [131072]) / kv_bytes(full, [131072])
    assert long == pytest.approx(8 / 48 + 40 / 48 * (1024 + 16) / 131072)


def test_a_window_that_starts_inside_a_block_keeps_that_block():
    odd = KvShape(layers=1, kv_heads=1, head_dim=1, window=1000, window_layers=1)
    assert kv_bytes(odd, [100_000]) == 4 * 16 * (63 + 1)


def test_the_engines_own_number_wins_even_where_the_formula_would_refuse():
    told = capacity_blocks(LLAMA, gpu_memory=GPU, memory=Memory(kv_blocks=2588), tp=1)
    assert (told.blocks, told.source, told.assumed) == (2588, "engine", ())


def test_a_formula_says_what_it_assumed_and_adapter_slots_cost_blocks():
    plain = capacity_blocks(LLAMA, gpu_memory=GPU, memory=Memory(), tp=4)
    loras = capacity_blocks(LLAMA, gpu_memory=GPU, memory=Memory(), tp=4, max_loras=16, lora_rank=64)
    assert plain.source == "formula"
    assert any("90%" in a for a in plain.assumed)
    assert any("35.27 GB on each of 4 GPUs" in a for a in plain.assumed)
    block = 16 * 80 * 2 * 2 * 128 * 2
    assert plain.blocks - loras.blocks == pytest.approx(16 * lora_bytes(LLAMA, 64, 4) / block, abs=1)


def test_weights_that_do_not_fit_are_refused_with_the_numbers_and_the_way_out():
    with pytest.raises(ConfigError) as refused:
        capacity_blocks(LLAMA, gpu_memory=GPU, memory=Memory(), tp=1)
    text = str(refused.value)
    assert "77.31 GB usable" in text
    assert "weights take 141.10 GB" in text
    assert "more GPUs" in text


def test_adapter_sizes_by_hand():
    """Rank 16, two ranks: A of column-parallel and B of row-parallel layers stay whole."""
    small = msgspec.structs.replace(
        LLAMA, layers=1, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128
    )
    columns = (64 + 32) + 2 * (64 + 16) + 2 * (64 + 64)
    rows = (32 + 64) + (64 + 64)
    assert lora_bytes(small, 16, 2) == 16 * 2 * (columns + rows)
    whole = 16 * 2 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 128))
    assert lora_bytes(small, 16) == whole
    assert lora_bytes(small, 16, 2, fully_sharded=True) == whole / 2


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: KvShape(layers=0), "layers"),
        (lambda: KvShape(layers=2, window_layers=3, window=16), "window_layers"),
        (lambda: KvShape(layers=2, window_layers=1), "window_layers"),
        (lambda: kv_bytes(KvShape(layers=1), [-1]), "lengths"),
        (lambda: kv_bytes(KvShape(layers=1), [1], block_size=0), "block_size"),
        (lambda: token_bytes(KvShape(layers=1, kv_heads=8), tp=3), "tp"),
        (lambda: lora_bytes(LLAMA, 0), "rank"),
        (lambda: lora_bytes(LLAMA, 8, 5), "tp"),
        (lambda: capacity_blocks(LLAMA, gpu_memory=GPU, memory=Memory(), tp=4, max_loras=-1), "max_loras"),
    ],
)
def test_impossible_sizes_are_refused_by_name(call, field):
    with pytest.raises(ConfigError) as refused:
        call()
    assert refused.value.field == field
    assert refused.value.hint
