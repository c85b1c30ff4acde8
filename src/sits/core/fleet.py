"""The typed tree of `fleet.yaml`: what serves, where it runs, and which policies decide.

Rules: every field is typed and has its unit in the type; unknown keys are errors; references (node, model,
adapter, `like`) are by name and must resolve; names are unique within their list; the tree is immutable and
its digest is the configuration generation.  Parsing lives in `core.config`, objects are built in `wire`.

Deliberately absent: anything that is measured.  A fleet file states intent; effective values come from engines.
"""

from typing import ClassVar, Literal

from sits.core.fleet_access import Access
from sits.core.fleet_adapters import RuntimeAdapters
from sits.core.fleet_admin import Admin
from sits.core.fleet_cache import ResponseCache
from sits.core.fleet_inject import Injection
from sits.core.fleet_quota import EmbeddedLedger, Quota, RedisLedger
from sits.core.fleet_routes import Regions, Residency, RouteRule, Shift
from sits.core.fleet_telemetry import Telemetry
from sits.core.fleet_window import Batches, Window
from sits.core.section import Section as _Section
from sits.core.units import Bytes, BytesPerSecond, Ns, Share


class Objective(_Section, frozen=True, kw_only=True):
    """What the service promised: `p99` of `metric` stays under this, and so many of the requests that could be answered are.

    What counts against `availability` is what went wrong here or at an engine, and no mistake of a caller's (`policy.outcome`).
    """

    metric: Literal["ttft", "e2e"] = "ttft"
    p99: Ns = Ns(1_200_000_000)
    availability: Share = Share(0.999)


class GatewayCost(_Section, frozen=True, kw_only=True):
    """CPU a gateway worker spends, for emulation only: a live gateway simply spends it.

    `request` is charged once a request (half while parsing, half after the engine), `chunk` for each token sent on.
    """

    request: Ns = Ns(45_000)
    chunk: Ns = Ns(9_000)


class Gateway(_Section, frozen=True, kw_only=True):
    """The live path: where it listens, what it refuses, how many workers it has.

    A running gateway reads its file again on SIGHUP; `reload: watch` does it on every change of the file as well.
    `body_memory`: bytes of requests that each worker holds, arriving, waiting and being answered; beyond it requests are refused.
    `metrics`: who may see `/metrics` and `/board/shift`: everybody who reaches this port (`open`), or those the admin process lets in (`admin`).
    `prompt_hash`: whether recorded requests tell the SHA-256 of their prompt (1.3 us for each kilobyte of it).
    """

    listen: str = "127.0.0.1:8080"
    workers: int = 1
    reload: Literal["signal", "watch"] = "signal"
    body_limit: Bytes = Bytes(32 * 2**20)
    body_memory: Bytes = Bytes(256 * 2**20)
    header_limit: Bytes = Bytes(64 * 2**10)
    first_byte_timeout: Ns = Ns(60_000_000_000)
    drain_timeout: Ns = Ns(30_000_000_000)
    store: str = "sits-store"
    keys: tuple[str, ...] = ()
    metrics: Literal["open", "admin"] = "open"
    prompt_hash: bool = True
    cost: GatewayCost = GatewayCost()


class Admit(_Section, frozen=True, kw_only=True):
    """When to refuse early instead of queueing without bound; 0 = no limit of that kind."""

    max_inflight: int = 1024
    max_inflight_tokens: int = 0
    retry_after: Ns = Ns(1_000_000_000)


class Route(_Section, frozen=True, kw_only=True):
    """How a replica is chosen: `round_robin`, or `least_tokens` = in-flight tokens first, engine state second."""

    kind: Literal["round_robin", "least_tokens"] = "least_tokens"
    stale_after: Ns = Ns(2_000_000_000)
    adapter_affinity: float = 0.0
    prefix_affinity: float = 0.0
    load_bound: float = 1.25


class Arm(_Section, frozen=True, kw_only=True):
    """One arm of a release: a share of the units, and which version answers them.

    `model` is the name its engines are asked for (a model's or an adapter's), the caller's own when empty.  `artefact` is one
    digest over all that shapes an answer: weights, quantisation, tokenizer, chat template.  `fallback` names the arm that
    answers while every engine of this one is down.
    """

    name: str
    weight: float
    model: str = ""
    artefact: str = ""
    fallback: str = ""


class Release(_Section, frozen=True, kw_only=True):
    """Which arm a unit belongs to; the assignment is a pure function of (unit, salt, arms).

    `policy.release` holds for every model; an entry of `policy.releases` for the one `model` it names, as callers ask for
    it.  A request that does not say its unit belongs to the next coarser one it does say: session, user, API key,
    tenant.  Tenants in `honour_version_hint` may pick an arm by name with the header `x-model-version`.
    """

    model: str = ""
    unit: Literal["user", "session", "tenant"] = "user"
    salt: str = "r1"
    arms: tuple[Arm, ...] = (Arm(name="stable", weight=1.0),)
    honour_version_hint: tuple[str, ...] = ()


class Policies(_Section, frozen=True, kw_only=True):
    """The decisions on the live path."""

    window: Window = Window()
    admit: Admit = Admit()
    route: Route = Route()
    release: Release = Release()
    releases: tuple[Release, ...] = ()
    cache: ResponseCache = ResponseCache()


class Link(_Section, frozen=True, kw_only=True):
    """Host to device copies: bandwidth a GPU gets from memory of its own NUMA node, and from the other one."""

    local: BytesPerSecond = BytesPerSecond(24e9)
    remote: BytesPerSecond = BytesPerSecond(11e9)


class Node(_Section, frozen=True, kw_only=True):
    """One machine: its GPUs and how they hang on the host.

    `gpu_numa[i]` is the NUMA node of GPU i.
    """

    name: str
    gpu: str
    gpus: int
    gpu_numa: tuple[int, ...]
    gpu_memory: Bytes
    link: Link = Link()
    region: str = ""


class Model(_Section, frozen=True, kw_only=True):
    """What an LLM is to a performance model: its shape."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    weights: Bytes
    kv_dtype: Literal["fp16", "bf16", "fp8"] = "fp16"


class Adapters(_Section, frozen=True, kw_only=True):
    """A family of LoRA adapters of one model: `count` adapters named `{name}-0`, `{name}-1`, ..."""

    name: str
    model: str
    count: int = 1
    rank: int = 16


class Scheduler(_Section, frozen=True, kw_only=True):
    """The engine's own scheduler settings, under vLLM's names."""

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    block_size: int = 16
    cudagraph_capture_max: int = 256


class Memory(_Section, frozen=True, kw_only=True):
    """How much device memory the engine may use; `kv_blocks` (when the engine told) beats the formula."""

    gpu_memory_utilization: Share = Share(0.9)
    activation_reserve: Bytes = Bytes(4 * 2**30)
    kv_blocks: int = 0


class Lora(_Section, frozen=True, kw_only=True):
    """Adapter slots on the device."""

    max_loras: int = 0


class EmulatedEngine(_Section, tag_field="kind", tag="emulated", frozen=True, kw_only=True):
    """An engine that pretends: durations come from predictors, on a virtual or on the real clock.

    `cpu_numa` is where the engine's host process and its pinned buffers live; a GPU on another NUMA node
    copies at the link's remote bandwidth.  `like` copies every unset field from another engine.
    """

    name: str
    like: str = ""
    node: str = ""
    gpus: tuple[int, ...] = ()
    model: str = ""
    adapters: tuple[str, ...] = ()
    cpu_numa: int = 0
    scheduler: Scheduler = Scheduler()
    memory: Memory = Memory()
    lora: Lora = Lora()


class RemoteEngine(_Section, frozen=True, kw_only=True):
    """What all servers at a URL have.  `api_key_env` names the environment variable that holds the server's key."""

    name: str
    like: str = ""
    url: str = ""
    models: tuple[str, ...] = ()
    api_key_env: str = ""
    region: str = ""
    weight: float = 1.0
    connect_timeout: Ns = Ns(2_000_000_000)


class OpenAIEngine(RemoteEngine, tag_field="kind", tag="openai", frozen=True, kw_only=True):
    """An OpenAI-compatible server at `url` (vLLM, SGLang, llama.cpp, a provider).

    `metrics` is the URL of its Prometheus page, `{url}/metrics` when empty.  `speaks` lists the dialects the server knows:
    with `anthropic` (vLLM from 0.11, SGLang) it answers `/v1/messages` itself, without its requests are translated.
    `batches`: whether what comes in one call is one batch, which is what a window is for (`policy.window`).
    """

    adapters: tuple[str, ...] = ()
    metrics: str = ""
    batches: Batches = "unknown"
    speaks: tuple[Literal["openai", "anthropic"], ...] = ("openai",)


class AnthropicEngine(RemoteEngine, tag_field="kind", tag="anthropic", frozen=True, kw_only=True):
    """A server of Anthropic's Messages API: Anthropic, or who offers the same; other endpoints are translated.

    `version` is sent where the caller names none.  `max_tokens` is the limit of answers to callers who set none: the API
    wants one, OpenAI's does not.
    """

    adapters: ClassVar[tuple[str, ...]] = ()
    url: str = "https://api.anthropic.com"
    version: str = "2023-06-01"
    max_tokens: int = 4096


AnyEngine = EmulatedEngine | OpenAIEngine | AnthropicEngine


def batches_of(engine: AnyEngine) -> Batches:
    """How an engine batches, as far as the configuration says."""
    return engine.batches if isinstance(engine, OpenAIEngine) else "unknown"


class Fleet(_Section, frozen=True, kw_only=True):
    """The whole tree of one `fleet.yaml`."""

    name: str
    objective: Objective = Objective()
    gateway: Gateway = Gateway()
    access: Access = Access()
    policy: Policies = Policies()
    telemetry: Telemetry = Telemetry()
    admin: Admin = Admin()
    quotas: tuple[Quota, ...] = ()
    ledger: EmbeddedLedger | RedisLedger = EmbeddedLedger()
    routes: tuple[RouteRule, ...] = ()
    regions: Regions = Regions()
    residency: tuple[Residency, ...] = ()
    shift: Shift | None = None
    injections: tuple[Injection, ...] = ()
    nodes: tuple[Node, ...] = ()
    models: tuple[Model, ...] = ()
    adapters: tuple[Adapters, ...] = ()
    runtime_adapters: RuntimeAdapters = RuntimeAdapters()
    engines: tuple[AnyEngine, ...]
