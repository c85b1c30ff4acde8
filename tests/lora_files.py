"""Writes tiny LoRA adapters for a Llama-shaped model: what a test gives a real engine to load.

The files are PEFT's: `adapter_config.json` and `adapter_model.safetensors` (a JSON head with offsets, then raw
little-endian numbers), written by hand so that no test needs torch.  Both matrices are random, so the adapter is
no identity (a fresh LoRA has B = 0 and changes nothing).
"""

import json
import struct

import numpy as np

from sits.world import stream_generator

MODULES = {
    "self_attn.q_proj": lambda c: (c["hidden_size"], c["num_attention_heads"] * c["head_dim"]),
    "self_attn.v_proj": lambda c: (c["hidden_size"], c["num_key_value_heads"] * c["head_dim"]),
    "mlp.down_proj": lambda c: (c["intermediate_size"], c["hidden_size"]),
}
"""Adapted modules -> (inputs, outputs) by the model's configuration."""


def write_adapter(path, config, *, seed, rank=4, strength=1.0, prefix="base_model.model.model.layers"):
    """An adapter of `rank` under `path` for a model of `config` (its `config.json` as a dict); returns `path`."""
    path.mkdir(parents=True, exist_ok=True)
    rng = stream_generator(seed, "lora")
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, shape in MODULES.items():
            inputs, outputs = shape(config)
            name = f"{prefix}.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.normal(0, inputs**-0.5, (rank, inputs))
            tensors[f"{name}.lora_B.weight"] = rng.normal(0, strength * rank**-0.5, (outputs, rank))
    (path / "adapter_model.safetensors").write_bytes(_safetensors(tensors))
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "base",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [module.rpartition(".")[2] for module in MODULES],
    }
    (path / "adapter_config.json").write_text(json.dumps(described))
    return path


def _safetensors(tensors):
    head, at, raw = {}, 0, []
    for name, values in tensors.items():
        data = np.ascontiguousarray(values, dtype="<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        raw.append(data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(raw)
