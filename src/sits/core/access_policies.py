"""Cedar policies: read, validated against the fleet's own names, and compiled, all before anything is served.

Cedar (https://www.cedarpolicy.com): a request is allowed when a `permit` matches and no `forbid` does; order does not
matter.  Its validator is run in strict mode against the schema of `access_names`.  On top of it, here:
- every entity a policy names must exist in the fleet (Cedar takes any id of a known type);
- every attribute it asks for with `has` must exist (to Cedar a mistyped one is just never there, and a `forbid` is lost);
- templates are refused, for nothing links them; ids given with `@id("...")` are unique.

A policy without `@id` is called by its place, `policies[2]` or `policies[2].1` when the text holds several.

Deliberately absent: decisions (policy.access).  The library is imported here, when there is a policy, and not before.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from sits.core.access_names import ACTIONS, ANONYMOUS, ENDPOINTS, GROUPS, Names, schema_text
from sits.core.errors import ConfigError, ConfigErrors
from sits.core.problems import near

ENTITIES = (
    "Adapter",
    "Endpoint",
    "Family",
    "Gateway",
    "Key",
    "Model",
    "Region",
    "Role",
    "Team",
    "Tenant",
    "User",
)
ATTRIBUTES = frozenset({"tenant", "team", "claims", "region", "endpoint", "headers"})

_PREFIX = re.compile(r"^for policy `[^`]*`, ")
_UNKNOWN = re.compile(
    r'unrecognized (entity type|action) `(?:Action::")?([^`"]*)"?`|attribute `([^`]*)` .*not found'
)
_NOWHERE = "unable to find an applicable action"


class Compiled(NamedTuple):
    """Policies ready to decide.

    Attributes:
        handle: the library's parsed set.
        ids: what each policy is called, by the library's own name for it.
        named: `(type, id)` of each entity any policy names.
        asked: each attribute any policy asks for, and `context` where it is looked at.

    """

    handle: Any
    ids: dict[str, str]
    named: frozenset[tuple[str, str]]
    asked: frozenset[str]


class Problem(NamedTuple):
    """What is wrong with text `number`."""

    number: int
    message: str
    value: str
    hint: str | None


def compile_policies(texts: tuple[str, ...], names: Names) -> Compiled:
    """The compiled policies of a configuration that was checked at load.

    Raises:
        ConfigErrors: they cannot be used after all.  ConfigError: the library is not installed.

    """
    compiled, problems = read(texts, names)
    if problems:
        raise ConfigErrors(
            [
                ConfigError(p.message, field=f"access.policies[{p.number}]", value=p.value, hint=p.hint)
                for p in problems
            ]
        )
    return compiled


def read(texts: tuple[str, ...], names: Names) -> tuple[Compiled, list[Problem]]:
    """Compiled policies, and every problem of their texts; with problems, what is compiled is of no use."""
    reader = _Reader(names)
    for index, text in enumerate(texts):
        reader.add(index, text)
    handle = None if reader.problems else reader.cedar.PolicySet.from_str("\n".join(texts))
    compiled = Compiled(handle, reader.ids, frozenset(reader.named), frozenset(reader.asked))
    return compiled, reader.problems


class _Reader:
    """Reads one text after the other and keeps what was found."""

    def __init__(self, names: Names) -> None:
        self.cedar = library()
        self.names = names
        self.schema = self.cedar.Schema.from_str(schema_text(names))
        self.problems: list[Problem] = []
        self.ids: dict[str, str] = {}
        self.named: set[tuple[str, str]] = set()
        self.asked: set[str] = set()
        self._first: dict[str, str] = {}

    def add(self, index: int, text: str) -> None:
        """Read text number `index`."""
        try:
            parsed = self.cedar.PolicySet.from_str(text)
            tree = parsed.to_pst()
        except ValueError as error:
            self._problem(index, f"is not Cedar: {error}", text[:80])
            return
        if parsed.templates():
            hint = "name the principal and the resource; nothing fills in ?principal here"
            self._problem(index, "holds a template, which decides nothing", text[:80], hint)
        elif not len(parsed):
            self._problem(index, "holds no policy", text[:80], "write permit(...) or forbid(...)")
        policies = sorted(tree.static_policies.items(), key=lambda item: int(item[0].removeprefix("policy")))
        for i, (_, policy) in enumerate(policies):
            self._policy(index, f"policies[{index}]" + (f".{i}" if len(policies) > 1 else ""), policy)
        for problem in _invalid(self.cedar, text, self.schema, policies, self.names):
            self._problem(index, *problem)

    def _policy(self, index: int, place: str, policy: Any) -> None:
        name = policy.annotations.get("id") or place
        if name in self._first:
            hint = f"first in {self._first[name]}; ids are unique"
            self._problem(index, f"the policy id {name!r} is taken", name, hint)
        self._first.setdefault(name, place)
        self.ids[f"policy{len(self.ids)}"] = name
        entities, attributes = _walk(policy)
        self.named |= entities
        self.asked |= attributes
        for message, value, hint in _unknown(entities, attributes, self.names):
            self._problem(
                index, f"policy {name!r}: {message}" if policy.annotations.get("id") else message, value, hint
            )

    def _problem(self, index: int, message: str, value: str, hint: str | None = None) -> None:
        self.problems.append(Problem(index, message, value, hint))


def library() -> Any:
    """The Cedar library.

    Raises:
        ConfigError: it is not installed.

    """
    try:
        import cedarpy  # noqa: PLC0415  # 5 MB that only a fleet with policies needs
    except ImportError as error:
        raise ConfigError(
            "policies need the package 'cedarpy', which cannot be imported",
            field="access.policies",
            hint="pip install cedarpy",
        ) from error
    return cedarpy


def _walk(policy: Any) -> tuple[set[tuple[str, str]], set[str]]:
    """Entities (actions aside) and attributes that stand anywhere in a policy's tree; `context` if it does itself."""
    entities: set[tuple[str, str]] = set()
    attributes: set[str] = set()
    for node in _nodes(policy):
        kind = type(node).__name__
        if kind == "EntityUid":
            entities.add((str(node.type), node.id))
        elif kind == "GetAttr":
            attributes.add(node.attr)
        elif kind == "HasAttr":
            attributes.update(node.attrs)
        elif kind == "Var" and node.name == "context":
            attributes.add("context")
    return {(kind, name) for kind, name in entities if kind != "Action"}, attributes


def _nodes(root: Any) -> Iterator[Any]:
    stack = [root]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, tuple):
            stack.extend(value)
        elif is_dataclass(value):
            yield value
            stack.extend(getattr(value, field.name) for field in fields(value))


def _unknown(
    found: set[tuple[str, str]], attributes: set[str], names: Names
) -> Iterator[tuple[str, str, str]]:
    """What a policy names that the fleet does not have: message, value, hint."""
    known: dict[str, Iterable[str]] = {
        "Tenant": names.tenants,
        "Team": names.teams,
        "Role": names.roles,
        "Key": names.keys,
        "Model": names.models | names.aliases,
        "Adapter": names.adapters,
        "Family": names.families,
        "Region": names.regions,
        "Endpoint": ENDPOINTS,
        "Gateway": (names.gateway,),
    }
    for kind, name in sorted(found):
        if kind == "User":
            issuer, slash, subject = name.partition("/")
            if name != ANONYMOUS and not (slash and subject and issuer in names.issuers):
                users = [f"{one}/..." for one in names.issuers]
                yield f"there is no User {name!r}", name, f"a user is issuer/subject; {near(name, users)}"
        elif kind == "Adapter":
            if not names.has_adapter(name):
                served = [*names.adapters, *(f"{family}-0" for family in names.families)]
                yield f"there is no Adapter {name!r}", name, near(name, served)
        elif kind in known and name not in known[kind]:
            yield f"there is no {kind} {name!r}", name, _declare(kind, near(name, known[kind]))
    words = ATTRIBUTES | names.claims.keys() | set(names.headers)
    for attribute in sorted(attributes - words - {"context"}):
        yield f"there is no attribute {attribute!r}", attribute, near(attribute, words)


def _declare(kind: str, hint: str) -> str:
    """The hint, and where a name that only tokens bring is declared."""
    where = {"Tenant": "access.tenants", "Team": "access.tenants", "Role": "access.roles"}.get(kind)
    return f"{hint}; one that only tokens bring is declared in {where}" if where else hint


def _telling(message: str) -> tuple[bool, bool, bool, str]:
    """The more it explains, the less; the validator gives its errors in no order."""
    return _NOWHERE in message, not _UNKNOWN.search(message), "optional attribute" not in message, message


def _invalid(
    cedar: Any, text: str, schema: Any, policies: list[tuple[str, Any]], names: Names
) -> Iterator[tuple[str, str, str | None]]:
    """What the library's validator says, in our words: of each policy the first thing that explains the others."""
    said: dict[str, list[str]] = {}
    for error in cedar.validate_policies(text, schema).errors:
        said.setdefault(error.policy_id, []).append(_PREFIX.sub("", error.error))
    called = {own: policy.annotations.get("id") for own, policy in policies}
    words = ATTRIBUTES | names.claims.keys() | set(names.headers)
    for own, messages in said.items():
        message = min(messages, key=_telling)
        value, hint = message, None
        if unknown := _UNKNOWN.search(message):
            kind, word, attribute = unknown.groups()
            if attribute and attribute not in words:
                continue  # `_unknown` has told it, with the near word
            value = word or attribute
            if word:
                hint = near(word, ENTITIES if kind == "entity type" else [*ACTIONS, *GROUPS.values()])
        elif "optional attribute" in message:
            hint = "ask first whether it is there: `principal has team && ...`"
        elif _NOWHERE in message:
            hint = "principals are Key and User, resources Model and Adapter, and Gateway for 'admin'"
        about = f"policy {called[own]!r}: " if called.get(own) else ""
        yield about + message, value, hint
