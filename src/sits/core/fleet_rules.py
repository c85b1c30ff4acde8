"""What a fleet needs beyond the types of its fields: names, references, ranges.

The checks run on the decoded tree, so they hold for a patched fleet as well as for a file.  Ranges are one
table.  The tensor-parallel rule is vLLM's: the number of GPUs divides the attention heads, and the KV heads
are either divided or repeated evenly.

Deliberately absent: whether a fleet is *good*.  That weights fit the memory or that a window helps is for
predictors and findings to say; here is only what cannot be used at all.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from sits.core import fleet as tree
from sits.core.adapter_rules import check_adapters
from sits.core.decode import fields_of
from sits.core.fleet_access_rules import check_access
from sits.core.fleet_adapters import AdapterEngine, AdapterProbe, RuntimeAdapter, RuntimeAdapters
from sits.core.fleet_cache import ResponseCache
from sits.core.fleet_environment import check_environment
from sits.core.fleet_profile import check_profiling
from sits.core.fleet_routes import RouteArm, Shift
from sits.core.fleet_signals import check_signals
from sits.core.fleet_window import WINDOW_RANGES, check_window
from sits.core.inherit import check_like, inherit, refer
from sits.core.inject_rules import check_injections
from sits.core.otlp_rules import OTLP_RANGES, check_otlp
from sits.core.problems import Report, Rule, join
from sits.core.quota_rules import QUOTA_RANGES, check_quotas
from sits.core.release_rules import check_releases, releases_of
from sits.core.remote_rules import NAME_CHARACTERS, check_remote, check_weight, is_host
from sits.core.route_rules import check_routes

_INF = math.inf
RANGES: dict[type, dict[str, tuple[float, float]]] = {
    tree.Objective: {"p99": (1, _INF), "availability": (0.5, 0.999_999)},
    tree.Gateway: {
        "workers": (1, 256),
        "body_limit": (1, _INF),
        "body_memory": (2**16, _INF),
        "header_limit": (256, _INF),
        "first_byte_timeout": (1, _INF),
    },
    **WINDOW_RANGES,
    tree.Admit: {"max_inflight": (0, 2**31), "max_inflight_tokens": (0, 2**53)},
    tree.Route: {
        "stale_after": (1, _INF),
        "adapter_affinity": (0, 1e6),
        "prefix_affinity": (0, 1e6),
        "load_bound": (1, 1e6),
    },
    tree.Arm: {"weight": (0, 1e6)},
    ResponseCache: {
        "ttl": (1, _INF),
        "memory": (2**16, _INF),
        "entries": (1, 2**24),
        "body_limit": (1, _INF),
        "answer_limit": (1, _INF),
    },
    RuntimeAdapters: {
        "watch": (10**7, _INF),
        "load_timeout": (10**6, _INF),
        "backoff": (10**6, _INF),
    },
    AdapterProbe: {
        "tokens": (1, 16),
        "tolerance": (0.0001, 10),
        "every": (0, _INF),
        "timeout": (10**6, _INF),
    },
    AdapterEngine: {"slots": (1, 65_536)},
    RuntimeAdapter: {"copies": (0, 65_536), "tolerance": (0, 10)},
    RouteArm: {"weight": (0, 1e6)},
    Shift: {"min_requests": (1, 2**31)},
    **QUOTA_RANGES,
    **OTLP_RANGES,
    tree.Link: {"local": (1, _INF), "remote": (1, _INF)},
    tree.Node: {"gpus": (1, 1024), "gpu_memory": (1, _INF)},
    tree.Model: {
        "layers": (1, 10_000),
        "hidden": (1, 10**6),
        "heads": (1, 10**5),
        "kv_heads": (1, 10**5),
        "head_dim": (1, 10**5),
        "intermediate": (1, 10**7),
        "vocab": (1, 10**8),
        "weights": (1, _INF),
    },
    tree.Adapters: {"count": (1, 100_000), "rank": (1, 4096)},
    tree.Scheduler: {
        "max_num_seqs": (1, 65_536),
        "max_num_batched_tokens": (1, 2**24),
        "long_prefill_token_threshold": (0, 2**31),
        "block_size": (1, 4096),
        "cudagraph_capture_max": (0, 65_536),
    },
    tree.Memory: {"gpu_memory_utilization": (0.01, 1), "kv_blocks": (0, 2**31)},
    tree.Lora: {"max_loras": (0, 65_536)},
    tree.EmulatedEngine: {"cpu_numa": (0, 1023)},
    tree.OpenAIEngine: {"weight": (0, 1e6), "connect_timeout": (1, _INF)},
    tree.AnthropicEngine: {"weight": (0, 1e6), "connect_timeout": (1, _INF), "max_tokens": (1, 2**31 - 1)},
}
"""Lowest and highest allowed value, in base units, of each field that has a range."""

_PORT = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"\w[\w.:/@+-]*")


def check(fleet: tree.Fleet, path: str, report: Report) -> None:
    """Report every name, reference and range of `fleet` that cannot be used."""
    for inner, owner in walk(fleet, path):
        _check_ranges(owner, inner, report)
    if not fleet.name.strip() or not fleet.name.isprintable() or len(fleet.name) > NAME_CHARACTERS:
        hint = f"one line of text, at most {NAME_CHARACTERS} characters"
        report.add(join(path, "name"), f"{fleet.name[:40]!r} cannot be a name", value=fleet.name, hint=hint)
    for field in ("nodes", "models", "adapters", "engines", "routes", "residency", "quotas"):
        _check_names(getattr(fleet, field), join(path, field), report)
    _check_gateway(fleet.gateway, join(path, "gateway"), report)
    _check_admin(fleet, path, report)
    check_window(fleet.policy.window, join(path, "policy.window"), report)
    engines = {engine.name for engine in fleet.engines}
    check_environment(fleet.telemetry, engines, join(path, "telemetry"), report)
    check_otlp(fleet.telemetry.otlp, fleet.admin.listen, join(path, "telemetry.otlp"), report)
    check_profiling(fleet.telemetry.profile, join(path, "telemetry.profile"), report)
    check_signals(fleet.telemetry.signals, join(path, "telemetry.signals"), report)
    for at, release in releases_of(fleet, path):
        _check_arms(release, join(at, "arms"), report)
    check_releases(fleet, path, report)
    for i, node in enumerate(fleet.nodes):
        _check_node(node, f"{join(path, 'nodes')}[{i}]", report)
    for i, model in enumerate(fleet.models):
        _check_model(model, f"{join(path, 'models')}[{i}]", report)
    models = {model.name for model in fleet.models}
    for i, family in enumerate(fleet.adapters):
        inner = f"{join(path, 'adapters')}[{i}].model"
        refer(family.model, models, "model", inner, report)
    _check_engines(fleet, path, report)
    _check_names(fleet.runtime_adapters.adapters, join(path, "runtime_adapters.adapters"), report)
    check_adapters(fleet, path, report)
    for i, rule in enumerate(fleet.routes):
        _check_names(rule.arms, f"{join(path, 'routes')}[{i}].arms", report)
    check_routes(fleet, path, report)
    check_injections(fleet, path, report)
    check_access(fleet, path, report)
    check_quotas(fleet, path, report)


FLEET_RULE = Rule(before=inherit, after=check, tolerant=True)
"""Hangs inheritance and checks on the type `Fleet`, wherever a file holds one."""


def walk(value: Any, path: str) -> Iterator[tuple[str, msgspec.Struct]]:
    """Every Struct of a tree with its path, outermost first."""
    if isinstance(value, msgspec.Struct):
        yield path, value
        for info in fields_of(type(value)):
            yield from walk(getattr(value, info.name), join(path, info.encode_name))
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from walk(item, f"{path}[{i}]")


def _check_ranges(owner: msgspec.Struct, path: str, report: Report) -> None:
    for field, (low, high) in RANGES.get(type(owner), {}).items():
        value = getattr(owner, field)
        if not low <= value <= high:
            hint = f"must be at least {low:g}" if high == _INF else f"must be within {low:g}..{high:g}"
            report.add(join(path, field), f"{value!r} is out of range", value=value, hint=hint)


def _check_names(items: tuple[Any, ...], path: str, report: Report) -> None:
    first: dict[str, int] = {}
    for i, item in enumerate(items):
        inner = f"{path}[{i}].name"
        if not _NAME.fullmatch(item.name) or item.name.isdigit() or len(item.name) > NAME_CHARACTERS:
            hint = (
                f"letters, digits and . _ : / @ + -, not digits alone, at most {NAME_CHARACTERS} characters"
            )
            report.add(inner, f"{item.name[:40]!r} cannot be a name", value=item.name, hint=hint)
        elif item.name in first:
            line = report.line(f"{path}[{first[item.name]}].name")
            hint = f"first on line {line}" if line else "names are unique within their list"
            report.add(inner, f"the name {item.name!r} is taken", value=item.name, hint=hint)
        else:
            first[item.name] = i


def _check_address(listen: str, path: str, report: Report) -> None:
    host, _, port = listen.rpartition(":")
    if not is_host(host) or not _PORT.fullmatch(port) or int(port) > 65_535:
        hint = "write host:port like '127.0.0.1:8080' or '[::1]:8080'; port 0..65535, 0 takes a free one"
        report.add(path, f"{listen[:80]!r} is not host:port", value=listen, hint=hint)


def _check_admin(fleet: tree.Fleet, path: str, report: Report) -> None:
    listen = fleet.admin.listen
    if listen:
        _check_address(listen, join(path, "admin.listen"), report)
        if listen == fleet.gateway.listen and not listen.endswith(":0"):
            hint = "give the board a port of its own"
            report.add(
                join(path, "admin.listen"), "is where requests are served already", value=listen, hint=hint
            )
    elif fleet.gateway.metrics == "admin":
        hint = "say where it listens (`admin.listen`), or leave `gateway.metrics` open"
        report.add(
            join(path, "gateway.metrics"), "there is no admin process to show them", value="admin", hint=hint
        )


def _check_gateway(gateway: tree.Gateway, path: str, report: Report) -> None:
    _check_address(gateway.listen, join(path, "listen"), report)
    if not gateway.store.strip() or not gateway.store.isprintable():
        hint = "write the path of a directory"
        report.add(join(path, "store"), f"{gateway.store!r} is not a path", value=gateway.store, hint=hint)
    if gateway.body_limit > gateway.body_memory and report.sound(join(path, "body_memory")):
        hint = "a body may be as large as `body_limit`; give `body_memory` room for several"
        report.add(
            join(path, "body_memory"),
            "holds no body of the length that is allowed",
            value=gateway.body_memory,
            hint=hint,
        )
    _check_keys(gateway.keys, join(path, "keys"), report)


def _check_keys(keys: tuple[str, ...], path: str, report: Report) -> None:
    """Whether each key can arrive in a header and belongs to one tenant.  Keys are never shown."""
    first: dict[str, int] = {}
    for i, entry in enumerate(keys):
        tenant, colon, secret = entry.partition(":")
        inner = f"{path}[{i}]"
        if not colon:
            tenant, secret = "default", entry
        if not tenant or not secret:
            report.add(inner, "an API key entry is empty", hint="write 'tenant:secret' or 'secret'")
        elif not tenant.isprintable() or tenant != tenant.strip():
            report.add(inner, "its tenant is not plain text", hint="write 'tenant:secret' or 'secret'")
        elif not secret.isascii() or not secret.isprintable() or " " in secret:
            report.add(inner, "cannot be sent in a header", hint="a key is printable ASCII without spaces")
        elif secret in first:
            hint = "a key tells one tenant from another"
            report.add(inner, f"is the key of {path}[{first[secret]}] already", hint=hint)
        else:
            first[secret] = i


def _check_arms(release: tree.Release, path: str, report: Report) -> None:
    _check_names(release.arms, path, report)
    for i, arm in enumerate(release.arms):
        check_weight(arm.weight, join(f"{path}[{i}]", "weight"), report)
    total = sum(arm.weight for arm in release.arms)
    if not total > 0 and report.sound_within(path):
        report.add(path, "no arm has any weight", value=total, hint="give one arm a weight above 0")


def _check_node(node: tree.Node, path: str, report: Report) -> None:
    told = len(node.gpu_numa)
    if told != node.gpus and report.sound(join(path, "gpus")):
        hint = f"one NUMA node for each of the {node.gpus} GPUs"
        report.add(join(path, "gpu_numa"), f"has {told} values", value=list(node.gpu_numa), hint=hint)
    for i, numa in enumerate(node.gpu_numa):
        if not 0 <= numa < 1024:
            report.add(
                f"{join(path, 'gpu_numa')}[{i}]", f"{numa} is out of range", value=numa, hint="0..1023"
            )


def _check_model(model: tree.Model, path: str, report: Report) -> None:
    if model.kv_heads > 0 and model.heads > 0 and model.heads % model.kv_heads:
        message = f"{model.kv_heads} KV heads do not divide {model.heads} heads"
        report.add(join(path, "kv_heads"), message, value=model.kv_heads, hint="heads are shared out evenly")


class _Names(NamedTuple):
    """What engines refer to by name, and which engine (its path) has which GPU of which node."""

    nodes: dict[str, tree.Node]
    models: dict[str, tree.Model]
    families: dict[str, tree.Adapters]
    owners: dict[tuple[str, int], str]


def _check_engines(fleet: tree.Fleet, path: str, report: Report) -> None:
    at = join(path, "engines")
    if not fleet.engines and report.sound(at):
        report.add(at, "is empty", hint="a fleet has at least one engine")
    bad = check_like(fleet, at, report)
    names = _Names(
        nodes={node.name: node for node in fleet.nodes},
        models={model.name: model for model in fleet.models},
        families={family.name: family for family in fleet.adapters},
        owners={},
    )
    for i, engine in enumerate(fleet.engines):
        inner = f"{at}[{i}]"
        if engine.name in bad or not report.sound(inner):
            continue
        if isinstance(engine, tree.RemoteEngine):
            check_remote(engine, inner, report)
        else:
            _check_emulated(engine, names, inner, report)


def _check_emulated(engine: tree.EmulatedEngine, names: _Names, path: str, report: Report) -> None:
    if not engine.gpus:
        report.add(join(path, "gpus"), "no GPU is given", hint="write a list like [0, 1]")
    if refer(engine.node, names.nodes, "node", join(path, "node"), report):
        _check_gpus(engine, names, path, report)
    if refer(engine.model, names.models, "model", join(path, "model"), report):
        _check_width(engine, names.models[engine.model], path, report)
    for k, name in enumerate(engine.adapters):
        inner = f"{join(path, 'adapters')}[{k}]"
        if not refer(name, names.families, "adapter family", inner, report):
            continue
        of = names.families[name].model
        if of != engine.model:
            message = f"{name!r} adapts {of!r}, the engine serves {engine.model!r}"
            report.add(inner, message, value=name, hint="an adapter only fits its own model")
    plan, at = engine.scheduler, join(path, "scheduler")
    seqs, tokens = join(at, "max_num_seqs"), join(at, "max_num_batched_tokens")
    if report.sound(seqs, tokens) and plan.max_num_batched_tokens < plan.max_num_seqs:
        message = f"{plan.max_num_batched_tokens} tokens a step are fewer than {plan.max_num_seqs} sequences"
        report.add(
            tokens, message, value=plan.max_num_batched_tokens, hint="at least max_num_seqs, as in vLLM"
        )


def _check_gpus(engine: tree.EmulatedEngine, names: _Names, path: str, report: Report) -> None:
    node = names.nodes[engine.node]
    for k, gpu in enumerate(engine.gpus):
        inner = f"{join(path, 'gpus')}[{k}]"
        owner = names.owners.setdefault((node.name, gpu), path)
        if not 0 <= gpu < node.gpus:
            if node.gpus > 0:
                hint = f"it has GPUs 0..{node.gpus - 1}"
                report.add(inner, f"node {node.name!r} has no GPU {gpu}", value=gpu, hint=hint)
        elif gpu in engine.gpus[:k]:
            report.add(inner, f"GPU {gpu} is listed twice", value=gpu, hint="list each GPU once")
        elif owner != path:
            message = f"GPU {gpu} of node {node.name!r} is used by {owner} already"
            report.add(inner, message, value=gpu, hint="a GPU belongs to one engine")


def _check_width(engine: tree.EmulatedEngine, model: tree.Model, path: str, report: Report) -> None:
    width = len(set(engine.gpus))
    if width < 1 or model.heads < 1 or model.kv_heads < 1:
        return
    if model.heads % width or (model.kv_heads % width and width % model.kv_heads):
        message = f"{width} GPUs do not divide the {model.heads} heads ({model.kv_heads} KV heads) of {model.name!r}"
        fitting = [
            n
            for n in (1, 2, 4, 8, 16)
            if not model.heads % n and not (model.kv_heads % n and n % model.kv_heads)
        ]
        hint = "use " + ", ".join(str(n) for n in fitting) + " GPUs"
        report.add(join(path, "gpus"), message, value=list(engine.gpus), hint=hint)
