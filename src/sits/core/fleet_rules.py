"""What a fleet needs beyond the types of its fields: inheritance, references, ranges.

`like` is resolved on the nodes, before decoding, because only the file tells what was *set*: an engine takes
every key it does not have from the engine it is like, section by section (a child that sets
`scheduler.max_num_seqs` keeps the parent's other scheduler settings); lists are taken whole.  The checks run
on the decoded tree, so they hold for a patched fleet as well.

Ranges are one table.  The tensor-parallel rule is vLLM's: the number of GPUs divides the attention heads, and
the KV heads are either divided or repeated evenly.

Deliberately absent: whether a fleet is *good*.  That weights fit the memory or that a window helps is for
predictors and findings to say; here is only what cannot be used at all.
"""

import math
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sits.core import fleet as tree
from sits.core.decode import fields_of, tag_of
from sits.core.problems import Report, Rule, join, near
from sits.core.yaml_nodes import Node

_INF = math.inf
RANGES: dict[type, dict[str, tuple[float, float]]] = {
    tree.Objective: {"p99": (1, _INF)},
    tree.Gateway: {
        "workers": (1, 256),
        "body_limit": (1, _INF),
        "header_limit": (1, _INF),
        "first_byte_timeout": (1, _INF),
    },
    tree.Window: {"max_batch": (1, 65_536)},
    tree.Admit: {"max_inflight": (0, _INF), "max_inflight_tokens": (0, _INF)},
    tree.Route: {
        "stale_after": (1, _INF),
        "adapter_affinity": (0, _INF),
        "prefix_affinity": (0, _INF),
        "load_bound": (1, _INF),
    },
    tree.Arm: {"weight": (0, _INF)},
    tree.Link: {"local": (1, _INF), "remote": (1, _INF)},
    tree.Node: {"gpus": (1, 1024), "gpu_memory": (1, _INF)},
    tree.Model: dict.fromkeys(
        ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "weights"), (1, _INF)
    ),
    tree.Adapters: {"count": (1, 100_000), "rank": (1, 4096)},
    tree.Scheduler: {
        "max_num_seqs": (1, 65_536),
        "max_num_batched_tokens": (1, 2**24),
        "long_prefill_token_threshold": (0, _INF),
        "block_size": (1, 4096),
        "cudagraph_capture_max": (0, 65_536),
    },
    tree.Memory: {"gpu_memory_utilization": (0.01, 1), "kv_blocks": (0, _INF)},
    tree.Lora: {"max_loras": (0, 65_536)},
    tree.EmulatedEngine: {"cpu_numa": (0, 1023)},
    tree.OpenAIEngine: {"weight": (0, _INF), "connect_timeout": (1, _INF)},
}
"""Lowest and highest allowed value, in base units, of each field that has a range."""

_NAME = re.compile(r"\w[\w.:/@+-]*")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def inherit(node: Node, path: str, report: Report) -> Node:
    """The fleet's node with every engine's `like` followed; what cannot be followed is left to `check`."""
    engines = node.entries.get("engines")
    if engines is None or engines.kind != "list":
        return node
    by_name: dict[str, Node] = {}
    for item in engines.items:
        by_name.setdefault(_text(item, "name"), item)
    merged = Node("list", engines.line)
    merged.items = [_heir(item, by_name) for item in engines.items]
    found = Node("map", node.line)
    found.entries = {**node.entries, "engines": merged}
    found.key_lines = dict(node.key_lines)
    return found


def _text(node: Node, key: str) -> str:
    value = node.entries.get(key)
    return value.text if value is not None and value.kind == "scalar" else ""


def _heir(item: Node, by_name: dict[str, Node]) -> Node:
    seen = [item]
    while (name := _text(seen[-1], "like")) in by_name and by_name[name] not in seen and name:
        seen.append(by_name[name])
    if name:
        return _orphan(item, seen)
    found = item
    for parent in seen[1:]:
        if _text(found, "kind") and _text(parent, "kind") and _text(found, "kind") != _text(parent, "kind"):
            return found
        found = _overlay(found, parent, skip=("name", "like"))
    return found


def _orphan(item: Node, seen: list[Node]) -> Node:
    """An engine whose `like` leads nowhere or in a circle, given a kind so that `check` gets to say just that."""
    if "kind" in item.entries:
        return item
    kind = Node("scalar", item.line)
    likely = "openai" if "url" in item.entries else "emulated"
    kind.text = next((_text(parent, "kind") for parent in seen if _text(parent, "kind")), likely)
    kind.is_text = True
    found = Node("map", item.line)
    found.entries = {**item.entries, "kind": kind}
    found.key_lines = {**item.key_lines, "kind": item.line}
    return found


def _overlay(child: Node, parent: Node, skip: tuple[str, ...] = ()) -> Node:
    """`child` with the keys of `parent` it lacks, section by section."""
    found = Node("map", child.line)
    found.entries = dict(child.entries)
    found.key_lines = dict(child.key_lines)
    for key, value in parent.entries.items():
        own = child.entries.get(key)
        if key in skip:
            continue
        if own is None:
            found.entries[key] = value
            found.key_lines[key] = parent.key_lines[key]
        elif own.kind == value.kind == "map" and _text(own, "kind") == _text(value, "kind"):
            found.entries[key] = _overlay(own, value)
    return found


def check(fleet: tree.Fleet, path: str, report: Report) -> None:
    """Report every name, reference and range of `fleet` that cannot be used."""
    for inner, owner in walk(fleet, path):
        _check_ranges(owner, inner, report)
    for field in ("nodes", "models", "adapters", "engines"):
        _check_names(getattr(fleet, field), join(path, field), report)
    _check_gateway(fleet.gateway, join(path, "gateway"), report)
    _check_window(fleet.policy.window, join(path, "policy.window"), report)
    _check_arms(fleet.policy.release, join(path, "policy.release.arms"), report)
    for i, node in enumerate(fleet.nodes):
        _check_node(node, f"{join(path, 'nodes')}[{i}]", report)
    for i, model in enumerate(fleet.models):
        _check_model(model, f"{join(path, 'models')}[{i}]", report)
    for i, family in enumerate(fleet.adapters):
        inner = f"{join(path, 'adapters')}[{i}].model"
        _refer(family.model, [m.name for m in fleet.models], "model", inner, report)
    _check_engines(fleet, path, report)


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
        if not _NAME.fullmatch(item.name) or item.name.isdigit():
            hint = "letters, digits and . _ : / @ + -, not digits alone"
            report.add(inner, f"{item.name!r} cannot be a name", value=item.name, hint=hint)
        elif item.name in first:
            line = report.line(f"{path}[{first[item.name]}].name")
            hint = f"first on line {line}" if line else "names are unique within their list"
            report.add(inner, f"the name {item.name!r} is taken", value=item.name, hint=hint)
        else:
            first[item.name] = i


def _refer(name: str, known: list[str], what: str, path: str, report: Report) -> bool:
    """Report a reference to a `what` that does not exist; whether it does."""
    if name in known:
        return True
    message = f"there is no {what} named {name!r}" if name else f"no {what} is given"
    report.add(path, message, value=name, hint=near(name, known))
    return False


def _check_gateway(gateway: tree.Gateway, path: str, report: Report) -> None:
    host, _, port = gateway.listen.rpartition(":")
    inside = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (
        not inside
        or (":" in inside and inside == host)
        or not port.isascii()
        or not port.isdigit()
        or int(port) > 65_535
    ):
        hint = "write host:port like '127.0.0.1:8080' or '[::1]:8080'; port 0..65535, 0 takes a free one"
        report.add(
            join(path, "listen"), f"{gateway.listen!r} is not host:port", value=gateway.listen, hint=hint
        )


def _check_window(window: tree.Window, path: str, report: Report) -> None:
    if window.low > window.high:
        report.add(join(path, "low"), "'low' is above 'high'", value=window.low, hint="low <= base <= high")
    elif window.kind == "adaptive" and not window.low <= window.base <= window.high:
        report.add(
            join(path, "base"),
            "'base' is outside 'low'..'high'",
            value=window.base,
            hint="low <= base <= high",
        )


def _check_arms(release: tree.Release, path: str, report: Report) -> None:
    _check_names(release.arms, path, report)
    total = math.fsum(arm.weight for arm in release.arms)
    if not total > 0 and report.sound_within(path):
        report.add(path, "no arm has any weight", value=total, hint="give one arm a weight above 0")


def _check_node(node: tree.Node, path: str, report: Report) -> None:
    told = len(node.gpu_numa)
    if told != node.gpus and report.sound(join(path, "gpus")):
        hint = f"one NUMA node for each of the {node.gpus} GPUs"
        report.add(join(path, "gpu_numa"), f"has {told} values", value=list(node.gpu_numa), hint=hint)
    for i, numa in enumerate(node.gpu_numa):
        if numa < 0:
            report.add(
                f"{join(path, 'gpu_numa')}[{i}]", f"{numa} is out of range", value=numa, hint="0 or more"
            )


def _check_model(model: tree.Model, path: str, report: Report) -> None:
    if model.kv_heads > 0 and model.heads > 0 and model.heads % model.kv_heads:
        message = f"{model.kv_heads} KV heads do not divide {model.heads} heads"
        report.add(join(path, "kv_heads"), message, value=model.kv_heads, hint="heads are shared out evenly")


def _check_engines(fleet: tree.Fleet, path: str, report: Report) -> None:
    at = join(path, "engines")
    if not fleet.engines and report.sound(at):
        report.add(at, "is empty", hint="a fleet has at least one engine")
    bad = _check_like(fleet, at, report)
    owners: dict[tuple[str, int], str] = {}
    for i, engine in enumerate(fleet.engines):
        inner = f"{at}[{i}]"
        if engine.name in bad or not report.sound(inner):
            continue
        if isinstance(engine, tree.OpenAIEngine):
            _check_openai(engine, inner, report)
        else:
            _check_emulated(engine, fleet, inner, report, owners)


def _check_like(fleet: tree.Fleet, path: str, report: Report) -> set[str]:
    """Report `like`s that lead nowhere, in a circle, or to another kind; the names that cannot be judged."""
    by_name = {engine.name: engine for engine in reversed(fleet.engines)}
    bad: set[str] = set()
    told: set[frozenset[str]] = set()
    for i, engine in enumerate(fleet.engines):
        inner = f"{path}[{i}].like"
        chain, here = [engine.name], engine
        while here.like:
            parent = by_name.get(here.like)
            if parent is None or parent.name in chain:
                break
            chain.append(parent.name)
            here = parent
        if not here.like:
            parent = by_name[engine.like] if engine.like else engine
            if type(parent) is not type(engine):
                bad.add(engine.name)
                kinds = tag_of(type(parent))[1], tag_of(type(engine))[1]
                message = f"{parent.name!r} is of kind {kinds[0]!r}, this one is {kinds[1]!r}"
                report.add(
                    inner, message, value=engine.like, hint="an engine can only be like one of its kind"
                )
            continue
        bad.update(chain)
        if here.like not in by_name:
            if here is engine:
                _refer(here.like, [name for name in by_name if name != engine.name], "engine", inner, report)
            continue
        circle = chain[chain.index(here.like) :]
        if engine.name in circle and frozenset(circle) not in told:
            told.add(frozenset(circle))
            shown = " -> ".join([*circle, circle[0]])
            message = (
                "'like' names the engine itself" if len(circle) == 1 else f"'like' goes in a circle: {shown}"
            )
            report.add(inner, message, value=engine.like, hint="let one of them state its own settings")
    return bad


def _check_openai(engine: tree.OpenAIEngine, path: str, report: Report) -> None:
    _check_url(engine.url, join(path, "url"), report)
    if engine.metrics:
        _check_url(engine.metrics, join(path, "metrics"), report)
    if engine.api_key_env and not _ENV.fullmatch(engine.api_key_env):
        # The value is not shown: whoever gets this wrong has most likely pasted the key itself.
        hint = "name the variable that holds the key, like OPENAI_API_KEY; never the key itself"
        report.add(join(path, "api_key_env"), "is not the name of an environment variable", hint=hint)


def _check_url(url: str, path: str, report: Report) -> None:
    hint = "write it like 'http://127.0.0.1:8000'"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        usable = False
    if not usable or any(c.isspace() for c in url):
        report.add(path, f"{url!r} is not an http(s) URL" if url else "no URL is given", value=url, hint=hint)
    elif parts.username is not None or parts.password is not None:
        report.add(path, "holds a user or a password", hint="name a variable in 'api_key_env' instead")


def _check_emulated(
    engine: tree.EmulatedEngine,
    fleet: tree.Fleet,
    path: str,
    report: Report,
    owners: dict[tuple[str, int], str],
) -> None:
    nodes = {node.name: node for node in fleet.nodes}
    models = {model.name: model for model in fleet.models}
    families = {family.name: family for family in fleet.adapters}
    if not engine.gpus:
        report.add(join(path, "gpus"), "no GPU is given", hint="write a list like [0, 1]")
    if _refer(engine.node, list(nodes), "node", join(path, "node"), report):
        _check_gpus(engine, nodes[engine.node], path, report, owners)
    if _refer(engine.model, list(models), "model", join(path, "model"), report):
        _check_width(engine, models[engine.model], path, report)
    for k, name in enumerate(engine.adapters):
        inner = f"{join(path, 'adapters')}[{k}]"
        if (
            _refer(name, list(families), "adapter family", inner, report)
            and families[name].model != engine.model
        ):
            message = f"{name!r} adapts {families[name].model!r}, the engine serves {engine.model!r}"
            report.add(inner, message, value=name, hint="an adapter only fits its own model")
    plan, at = engine.scheduler, join(path, "scheduler")
    seqs, tokens = join(at, "max_num_seqs"), join(at, "max_num_batched_tokens")
    if report.sound(seqs, tokens) and plan.max_num_batched_tokens < plan.max_num_seqs:
        message = f"{plan.max_num_batched_tokens} tokens a step are fewer than {plan.max_num_seqs} sequences"
        report.add(
            tokens, message, value=plan.max_num_batched_tokens, hint="at least max_num_seqs, as in vLLM"
        )


def _check_gpus(
    engine: tree.EmulatedEngine,
    node: tree.Node,
    path: str,
    report: Report,
    owners: dict[tuple[str, int], str],
) -> None:
    for k, gpu in enumerate(engine.gpus):
        inner = f"{join(path, 'gpus')}[{k}]"
        owner = owners.setdefault((node.name, gpu), path)
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
