"""What Kubernetes objects have in common: kinds, names, owners, ages, and addresses of what is chosen by labels.

A pool or a model server is a set of pods, which a gateway outside the cluster's control plane cannot follow.  So it becomes one engine at
the address a Service of its name would have, unless somebody says where it really is (`--engine NAME=URL`, several times for several
replicas).

Rules: an object's path in the account is `Kind/namespace/name`; metadata that only Kubernetes reads, and `status`, mean nothing here.
"""

from collections.abc import Iterable, Mapping, Sequence

from sits.app.importing.made import named
from sits.app.importing.source import Account, Value, documents
from sits.core.errors import ConfigError
from sits.core.fleet import OpenAIEngine
from sits.core.yaml_nodes import Node

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages")
METADATA = {"namespace", "labels", "annotations", "uid", "resourceVersion", "generation", "managedFields"}
METADATA |= {"finalizers", "ownerReferences", "generateName", "selfLink"}


class Thing:
    """One object."""

    def __init__(self, root: Value, kind: str, namespace: str, name: str, born: str, place: int) -> None:
        self.root = root
        self.kind = kind
        self.namespace = namespace
        self.name = name
        self.age = (born or "~", place)
        """Oldest first; an object that says no time is younger than those that do, in the order of the file."""

    @property
    def spec(self) -> Value:
        """Its `spec`, empty when it has none."""
        return self.root.get("spec") or self.root


def things(text: str, file: str, account: Account) -> list[Thing]:
    """The objects of a file, `List`s opened.

    Raises:
        ConfigErrors: it is not YAML.
        ConfigError: a document has no kind.

    """
    found: list[Thing] = []
    for node in documents(text, file):
        listed = node.entries.get("items")
        inside = listed.items if listed is not None and listed.kind == "list" else [node]
        for one in inside:
            kind = one.entries.get("kind")
            if kind is None or not kind.text:
                raise ConfigError(
                    "has no kind", where=f"{file}:{one.line}", hint="Kubernetes objects are expected"
                )
            found.append(_thing(one, kind.text, account, len(found)))
    return found


def _thing(node: Node, kind: str, account: Account, place: int) -> Thing:
    probe = Value(node, kind, account)
    meta = probe.get("metadata")
    parts = {
        key: meta.get(key) if meta is not None else None for key in ("namespace", "name", "creationTimestamp")
    }
    words = {key: value.text if value is not None else "" for key, value in parts.items()}
    namespace, name = words["namespace"] or "default", words["name"] or f"unnamed-{place + 1}"
    root = Value(node, f"{kind}/{namespace}/{name}", account)
    return Thing(root, kind, namespace, name, words["creationTimestamp"], place)


def settle(thing: Thing, to: str) -> None:
    """Tell of what every object has: version, kind, metadata, status."""
    for key, value in thing.root.entries():
        if key in ("apiVersion", "kind"):
            value.mapped("", "what it is")
        elif key == "status":
            value.mapped("", "a state, not a configuration")
        elif key == "metadata":
            for inner, one in value.entries():
                if inner == "name":
                    one.mapped(to)
                elif inner == "creationTimestamp":
                    one.mapped("", "older objects come first")
                elif inner in METADATA:
                    one.mapped("", "Kubernetes reads it, nobody here")


def told(values: Iterable[Value | None], to: str) -> None:
    """Those of `values` that are there are mapped."""
    for value in values:
        if value is not None:
            value.mapped(to)


def engines_of(
    thing: Thing,
    port: str,
    models: Sequence[str],
    given: Mapping[str, Sequence[str]],
    taken: set[str],
    *,
    protocol: str = "http",
) -> list[OpenAIEngine]:
    """The engines of a pool: at the addresses somebody gave, else at that of a Service of its name."""
    urls = given.get(thing.name) or given.get(f"{thing.namespace}/{thing.name}")
    urls = urls or [f"{protocol}://{thing.name}.{thing.namespace}.svc:{port or '8000'}"]
    found = []
    for url in urls:
        name = named(thing.name, taken)
        taken.add(name)
        found.append(OpenAIEngine(name=name, url=url, models=tuple(models)))
    return found


def is_given(thing: Thing, given: Mapping[str, Sequence[str]]) -> bool:
    """Whether somebody said where a pool is."""
    return thing.name in given or f"{thing.namespace}/{thing.name}" in given


def endpoint_of(prefix: str) -> tuple[str, bool]:
    """The endpoint a path prefix means, empty for all; and whether it means that at all.

    >>> endpoint_of("/"), endpoint_of("/v1"), endpoint_of("/v1/chat"), endpoint_of("/v2")
    (('', True), ('', True), ('/v1/chat/completions', True), ('', False))
    """
    whole = prefix.rstrip("/")
    within = [one for one in ENDPOINTS if one == whole or one.startswith(f"{whole}/")]
    if len(within) == len(ENDPOINTS):
        return "", True
    return (within[0], True) if len(within) == 1 else ("", False)
