"""The section `runtime_adapters` of a `fleet.yaml`: LoRA adapters that are loaded into running engines when they are asked for.

```yaml
runtime_adapters:
  wait: 2s
  engines:
    - {engine: gpu-0, slots: 8}
    - {engine: gpu-1, slots: 8}
  adapters:
    - {name: sql, model: llama-8b, path: /adapters/sql-v3, copies: 2}
    - {name: legal, model: llama-8b, path: /adapters/legal-v1, digest: "sha256:9f86...", fingerprint: "fp1:..."}
```
Rules: an adapter answers only where it was proven since that engine's last start (see `gateway.adapters`).  What is not written here
is recorded at the first proof: the digest of its files, and the fingerprint of its answer.  Changed weights get a new `path`: engines
keep KV blocks by (name, path), and those of the old weights would be used for the new.

`slots` is how many adapters are kept loaded in an engine.  It must not exceed what the engine itself keeps (vLLM:
`--max-cpu-loras`): an adapter the engine drops on its own is read from disk again when next asked for, changed or gone.

Deliberately absent: adapters of emulated engines (`adapters`, `engines[].adapters`: they are what they are said to be), and where
adapters come from (a registry or a bucket puts them under `path`).
"""

from typing import Literal

from sits.core.section import Section
from sits.core.units import MS, SECOND, Ns

PROMPT = "The capital of France is Paris, and the capital of Italy is"


class AdapterProbe(Section, frozen=True, kw_only=True):
    """The question by whose answer an adapter is known.

    `tolerance` is how far two answers of the same weights may lie apart, in nats a candidate: adapters that differ from
    their base, or from another, by less cannot be told apart.  `every` is how often what is ready is asked again (0 = never).
    """

    prompt: str = PROMPT
    tokens: int = 6
    tolerance: float = 0.1
    every: Ns = Ns(60 * SECOND)
    timeout: Ns = Ns(20 * SECOND)


class AdapterEngine(Section, frozen=True, kw_only=True):
    """An engine that adapters are loaded into, and how it is told to."""

    engine: str
    slots: int = 4
    api: Literal["vllm", "sglang"] = "vllm"


class RuntimeAdapter(Section, frozen=True, kw_only=True):
    """One adapter.

    `path` is where engines find it; without one the engine brings it itself (`--lora-modules`), and it is only proven.
    `files` is where *we* see the same directory, `path` when empty; where we do not, the digest is not checked.
    `copies` engines have it loaded at all times; 0 loads it into one when it is first asked for.
    `prompt` and `tolerance` replace those of the probe: a question from the adapter's own field tells it best from its base.
    """

    name: str
    model: str
    path: str = ""
    files: str = ""
    digest: str = ""
    fingerprint: str = ""
    copies: int = 0
    prompt: str = ""
    tolerance: float = 0.0


class RuntimeAdapters(Section, frozen=True, kw_only=True):
    """All of them, and how patient we are.

    A request for an adapter that is not ready waits up to `wait` for it (0 = not at all) and is then refused with
    `Retry-After: retry_after`.  `watch` is how often each engine is asked what it has loaded; below the engine's keep-alive
    (5 s with vLLM and SGLang) the connection in between tells of a restart at once.
    """

    wait: Ns = Ns(2 * SECOND)
    retry_after: Ns = Ns(2 * SECOND)
    watch: Ns = Ns(SECOND)
    load_timeout: Ns = Ns(60 * SECOND)
    backoff: Ns = Ns(500 * MS)
    backoff_max: Ns = Ns(60 * SECOND)
    probe: AdapterProbe = AdapterProbe()
    engines: tuple[AdapterEngine, ...] = ()
    adapters: tuple[RuntimeAdapter, ...] = ()
