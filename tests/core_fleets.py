"""A fleet that uses every section, for the tests of the configuration.  `at(text, needle)` finds its lines."""

FLEET = """\
name: demo
objective: {metric: ttft, p99: 1200ms}
gateway:
  listen: 127.0.0.1:8080
  workers: 2
  cost: {request: 45us, chunk: 9us}
policy:
  window: {kind: adaptive, base: 20ms, low: 5ms, high: 100ms}
  admit: {max_inflight: 256}
  route: {kind: least_tokens, stale_after: 2s}
  release:
    unit: user
    arms:
      - {name: stable, weight: 0.9}
      - {name: canary, weight: 0.1, model: llama}
nodes:
  - name: n0
    gpu: A100-80G
    gpus: 4
    gpu_numa: [0, 0, 1, 1]
    gpu_memory: 80GiB
    link: {local: 24GB/s, remote: 11GB/s}
models:
  - {name: llama, layers: 80, hidden: 8192, heads: 64, kv_heads: 8, head_dim: 128,
     intermediate: 28672, vocab: 128256, weights: 141GB}
adapters:
  - {name: support, model: llama, count: 4}
engines:
  - name: a0
    kind: emulated
    node: n0
    gpus: [0, 1]
    model: llama
    adapters: [support]
    scheduler: {max_num_seqs: 64, max_num_batched_tokens: 8192}
    memory: {gpu_memory_utilization: 92%}
    lora: {max_loras: 2}
  - name: a1
    like: a0
    gpus: [2, 3]
    scheduler: {max_num_seqs: 128}
  - name: remote
    kind: openai
    url: http://127.0.0.1:8000
    models: [llama]
"""


def at(text, needle):
    """The line (from 1) of the first occurrence of `needle`."""
    assert needle in text
    return text[: text.index(needle)].count("\n") + 1
