"""Kubernetes' Gateway API with its inference extension as a fleet.

```
InferencePool ─> an engine (see `kubernetes`)                      HTTPRoute rules that lead to pools ─> routes
InferenceModelRewrite rules of a pool, or an InferenceModel ─> the models of its engines; routes and arms for what they rename
```
A request passes an HTTPRoute first and the rewrites of the pool it came to second; here one route says both, so each rule of an
HTTPRoute becomes one route for each model its pools rename, and one for all others.
Order: of HTTPRoute rules by the API's precedence (exact path, longest path, most headers, then the oldest object and the order
within it); of rewrites exact models before all, then the oldest object.
What is different: weights deal units, not requests.

Deliberately absent: listeners, hostnames, filters, and priorities (InferenceObjective).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sits.app.importing.kubernetes import Thing, endpoint_of, engines_of, is_given, settle, things, told
from sits.app.importing.made import Made, made, named
from sits.app.importing.source import Account, Value
from sits.core.errors import ConfigError
from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.fleet_routes import HeaderMatch, RouteArm, RouteMatch, RouteRule, Target
from sits.core.pattern import Pattern
from sits.core.route_rules import SECRET_HEADERS

KINDS = ("InferencePool", "InferenceModelRewrite", "InferenceModel", "HTTPRoute")
MODEL_HEADERS = frozenset({"x-gateway-model-name", "x-gateway-base-model-name", "x-ai-eg-model"})
"""Headers that body-based routing sets to the model of the body: asking for one is asking for the model."""


class _Pool:
    """A pool: its engines, what its rewrites make of a model (None = of any other), and what it is asked for."""

    def __init__(self, thing: Thing) -> None:
        self.thing = thing
        self.engines: list[str] = []
        self.rewrites: dict[str | None, list[tuple[str, float]]] = {}
        self.asked: list[str] = []

    def targets(self, model: str | None) -> list[tuple[str, float]]:
        """What `model` becomes, with weights; an empty name = it stays what it is."""
        return self.rewrites.get(model) or self.rewrites.get(None) or [("", 1.0)]


class _Ask(NamedTuple):
    """What one match of an HTTPRoute rule asks for; `rank` puts them in the API's order."""

    rank: tuple[object, ...]
    match: RouteMatch
    backends: "list[tuple[_Pool, float]]"
    name: str


def read_gateway_api(text: str, file: str, given: Mapping[str, Sequence[str]]) -> Made:
    """What `text` is as a fleet; `given` are addresses by the name of a pool.

    Raises:
        ConfigError: it holds none of these objects, or nothing of it can be served.

    """
    account = Account()
    found = things(text, file, account)
    if not any(thing.kind in KINDS for thing in found):
        raise ConfigError("holds no InferencePool and no route to one", where=file)
    fleet = _Import(given).fleet(found)
    return made(fleet, account.close([thing.root for thing in found]), file)


class _Import:
    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self.given = given
        self.pools: dict[str, _Pool] = {}
        self.engines: list[OpenAIEngine] = []
        self.asks: list[_Ask] = []
        self.routes: list[RouteRule] = []
        self._names: set[str] = set()
        self._route_names: list[str] = []

    def fleet(self, found: list[Thing]) -> Fleet:
        by_age = sorted(found, key=lambda thing: thing.age)
        for thing in found:
            if thing.kind == "InferencePool":
                self._pool(thing)
            elif thing.kind not in KINDS:
                thing.root.lost(f"a {thing.kind} is not imported")
        for thing in by_age:
            if thing.kind == "InferenceModelRewrite":
                self._rewrite(thing)
            elif thing.kind == "InferenceModel":
                self._model(thing)
        for thing in found:
            if thing.kind == "HTTPRoute":
                self._http(thing)
        self.asks.sort(key=lambda ask: ask.rank)
        for ask in self.asks:
            self._expand(ask)
        if not self.asks:
            for pool in self.pools.values():
                self._expand(_Ask((), RouteMatch(), [(pool, 1.0)], pool.thing.name))
        return Fleet(name="imported", routes=tuple(self.routes), engines=tuple(self._served()))

    def _served(self) -> list[OpenAIEngine]:
        """The engines with the models they are asked for."""
        found = []
        for pool in self.pools.values():
            renamed = [name for targets in pool.rewrites.values() for name, _ in targets if name]
            names = tuple(dict.fromkeys([*renamed, *pool.asked]))
            if not names:
                names = (pool.thing.name,)
                pool.thing.root.differs(
                    "engines[].models", "nothing says which models it serves: write them in place of its name"
                )
            found += [
                OpenAIEngine(name=engine.name, url=engine.url, models=names)
                for engine in self.engines
                if engine.name in pool.engines
            ]
        return found

    # -- pools and what they rename ------------------------------------------------------------------------------

    def _pool(self, thing: Thing) -> None:
        settle(thing, "engines[].name")
        spec = thing.spec
        port = spec.get("targetPortNumber")
        ports = spec.get("targetPorts")
        listed = list(ports.items()) if ports is not None else []
        if listed:
            port = listed[0].get("number")
        pool = self.pools[f"{thing.namespace}/{thing.name}"] = _Pool(thing)
        made_ = engines_of(thing, port.text if port is not None else "", [], self.given, self._names)
        pool.engines = [engine.name for engine in made_]
        self.engines += made_
        where = [
            value
            for value in (spec.get("selector"), spec.get("targetPortNumber"), ports)
            if value is not None
        ]
        for value in where:
            if is_given(thing, self.given):
                value.mapped("engines[].url", "as given with --engine")
            else:
                url = made_[0].url
                value.differs(
                    "engines[].url",
                    f"pods are not followed: make a Service for {url}, or say --engine {thing.name}=URL",
                )
        for more in listed[1:]:
            if not is_given(thing, self.given):
                more.lost("one port a pool; name every address with --engine")
        for key in ("endpointPickerRef", "extensionRef"):
            picker = spec.get(key)
            if picker is not None:
                picker.differs("policy.route", "this gateway picks replicas itself")

    def _pool_of(self, thing: Thing, ref: Value | None) -> _Pool | None:
        name = ref.get("name") if ref is not None else None
        pool = self.pools.get(f"{thing.namespace}/{name.text}") if name is not None else None
        if pool is None:
            thing.root.lost("the pool it is about is not in the file")
        elif ref is not None:
            ref.mapped("routes[].to.engines")
        return pool

    def _rewrite(self, thing: Thing) -> None:
        pool = self._pool_of(thing, thing.spec.get("poolRef"))
        if pool is None:
            return
        settle(thing, "routes[].name")
        rules = thing.spec.get("rules")
        for rule in rules.items() if rules is not None else ():
            matches, targets = rule.get("matches"), _targets(rule, "modelRewrite")
            asked: list[str | None] = []
            for match in matches.items() if matches is not None else ():
                kind, value = match.at("model", "type"), match.at("model", "value")
                if value is None or (kind is not None and kind.text != "Exact"):
                    match.lost("models are compared exactly")
                    continue
                asked.append(value.text)
                told((kind, value), "routes[].match.model")
            if matches is None or not matches.node.items:
                asked = [None]
                if matches is not None:
                    matches.mapped("", "all models")
            for one in asked:
                if targets and one in pool.rewrites:
                    rule.differs("", f"an older rule says what becomes of {one or 'other models'} already")
                elif targets:
                    pool.rewrites[one] = targets

    def _model(self, thing: Thing) -> None:
        """The older form: one model, and what it becomes."""
        spec = thing.spec
        pool, name = self._pool_of(thing, spec.get("poolRef")), spec.get("modelName")
        if pool is None:
            return
        settle(thing, "routes[].name")
        if name is None:
            thing.root.lost("it has no modelName")
            return
        name.mapped("routes[].match.model")
        targets = _targets(spec, "name", under="targetModels")
        if name.text in pool.rewrites:
            thing.root.lost(f"an older object says what becomes of {name.text} already")
            return
        pool.rewrites[name.text] = targets or [("", 1.0)]
        criticality = spec.get("criticality")
        if criticality is not None:
            criticality.lost("there are no priorities; tenants are limited by 'quotas'")

    # -- routes --------------------------------------------------------------------------------------------------

    def _http(self, thing: Thing) -> None:
        settle(thing, "routes[].name")
        spec = thing.spec
        for key, value in spec.entries():
            if key == "parentRefs":
                value.differs("", "there is one gateway, and all routes are its")
            elif key == "hostnames":
                thing.root.lost("it is for some hosts, and without that it would take more")
                return
        rules = spec.get("rules")
        for i, rule in enumerate(rules.items() if rules is not None else ()):
            self._http_rule(thing, rule, i)

    def _http_rule(self, thing: Thing, rule: Value, place: int) -> None:
        backends = self._backends(thing, rule)
        filters, timeouts = rule.get("filters"), rule.get("timeouts")
        if filters is not None:
            filters.lost("requests go out as they came in")
        if timeouts is not None:
            timeouts.differs("gateway.first_byte_timeout", "one for all: set it there")
        matches = rule.get("matches")
        listed = list(matches.items()) if matches is not None else []
        if not backends:
            rule.lost("it leads to no pool of this file")
            return
        if not listed:
            self.asks.append(_Ask((1, 0, 0, thing.age, place, 0), RouteMatch(), backends, thing.name))
        for k, value in enumerate(listed):
            found = _http_match(value)
            if found is None:
                continue
            path_rank, match = found
            rank = (*path_rank, -len(match.headers) - bool(match.model), thing.age, place, k)
            self.asks.append(_Ask(rank, match, backends, thing.name))

    def _backends(self, thing: Thing, rule: Value) -> "list[tuple[_Pool, float]]":
        refs = rule.get("backendRefs")
        found: list[tuple[_Pool, float]] = []
        for ref in refs.items() if refs is not None else ():
            kind, name, weight = ref.get("kind"), ref.get("name"), ref.get("weight")
            space = ref.get("namespace")
            label = f"{space.text if space is not None else thing.namespace}/{name.text if name is not None else ''}"
            number = weight.number() if weight is not None else 1.0
            pool = self.pools.get(label)
            if kind is None or kind.text != "InferencePool" or pool is None or number is None:
                ref.lost("only pools of this file are led to")
                continue
            found.append((pool, number))
            for key, value in ref.entries():
                if key == "weight" and refs is not None and len(refs.node.items) > 1:
                    value.differs(
                        "routes[].arms[].weight", "units are dealt, not requests: a user stays with one"
                    )
                elif key == "filters":
                    value.lost("requests go out as they came in")
                elif key in ("group", "kind", "name", "namespace", "port", "weight"):
                    value.mapped("routes[].to.engines")
        return found if any(weight > 0 for _, weight in found) else []

    def _expand(self, ask: _Ask) -> None:
        """The routes of one ask: for each model its pools rename, and for all others."""
        models: list[str | None] = list(
            dict.fromkeys(name for pool, _ in ask.backends for name in pool.rewrites if name)
        )
        if ask.match.model:
            models = [ask.match.model]
        else:
            models.append(None)
        for model in models:
            match = RouteMatch(model=model or "", endpoint=ask.match.endpoint, headers=ask.match.headers)
            arms = self._arms(ask, model)
            plain = len(arms) == 1 and not arms[0].to.model
            if (
                plain
                and len(self.engines) == len(arms[0].to.engines)
                and not (match.headers or match.endpoint)
            ):
                continue  # it says nothing that is not so without it
            own = ask.name if model is None else f"{ask.name}-{model}"
            name = named(own, self._route_names)
            self._route_names.append(name)
            if len(arms) == 1:
                self.routes.append(RouteRule(name=name, match=match, to=arms[0].to))
            else:
                self.routes.append(RouteRule(name=name, match=match, arms=tuple(arms)))

    def _arms(self, ask: _Ask, model: str | None) -> list[RouteArm]:
        labels: list[str] = []
        arms = []
        for pool, weight in ask.backends:
            targets = pool.targets(model)
            total = sum(part for _, part in targets) or 1.0
            for to, part in targets:
                labels.append(named(to or pool.thing.name, labels))
                if to or model:
                    pool.asked.append(to or model or "")
                target = Target(model="" if to == model else to, engines=tuple(pool.engines))
                arms.append(RouteArm(name=labels[-1], weight=weight * part / total, to=target))
        return arms


def _targets(rule: Value, key: str, under: str = "targets") -> list[tuple[str, float]]:
    """Names and weights of a list of targets."""
    listed = rule.get(under)
    items = list(listed.items()) if listed is not None else []
    found = []
    for one in items:
        name, weight = one.get(key), one.get("weight")
        number = weight.number() if weight is not None else 1.0
        if name is None or number is None or number < 0:
            one.lost("it has no name, or no weight that is a number")
            continue
        name.mapped("routes[].to.model, engines[].models")
        found.append((name.text, number))
        if weight is not None and len(items) > 1:
            weight.differs("routes[].arms[].weight", "units are dealt, not requests: a user stays with one")
        elif weight is not None:
            weight.mapped("", "the only target")
    return found if any(weight > 0 for _, weight in found) else []


def _http_match(match: Value) -> tuple[tuple[int, int], RouteMatch] | None:
    """The rank of its path, and the match; None (and told as lost) when it cannot be said here."""
    endpoint, rank = "", (1, 0)
    if not match.node.entries:
        match.mapped("", "all requests")
    path = match.get("path")
    if path is not None:
        kind, value = path.get("type"), path.get("value")
        word, text = kind.text if kind is not None else "PathPrefix", value.text if value is not None else "/"
        endpoint, known = (
            (text, True) if word == "Exact" else endpoint_of(text) if word == "PathPrefix" else ("", False)
        )
        if not known:
            match.lost("its path means no endpoint here, and without it the match would take more")
            return None
        told((kind, value), "routes[].match.endpoint")
        rank = (0, 0) if word == "Exact" else (1, -len(text.rstrip("/")))
    for key in ("queryParams", "method"):
        value = match.get(key)
        if value is not None and not (key == "method" and value.text == "POST"):
            match.lost(f"it asks for {key}, and without that the match would take more")
            return None
        if value is not None:
            value.mapped("", "requests for an answer are POST")
    model, headers = "", []
    listed = match.get("headers")
    for header in listed.items() if listed is not None else ():
        found = _http_header(header)
        if isinstance(found, str):
            match.lost(f"{found}, and without it the match would take more")
            return None
        if found.name in MODEL_HEADERS and found.exact:
            model = found.exact
            told((header.get(key) for key in ("type", "name", "value")), "routes[].match.model")
        else:
            headers.append(found)
            value = header.get("value")
            if found.regex and value is not None:
                value.differs("routes[].match.headers", "of the whole value, as Envoy does it")
            told((header.get(key) for key in ("type", "name", "value")), "routes[].match.headers")
    return rank, RouteMatch(model=model, endpoint=endpoint, headers=tuple(headers))


def _http_header(header: Value) -> HeaderMatch | str:
    """A header's criterion, or why there is none."""
    name, kind, value = header.get("name"), header.get("type"), header.get("value")
    label = name.text.lower() if name is not None else ""
    if not label or value is None or not value.text:
        return "a header compares with nothing"
    if label in SECRET_HEADERS:
        return f"it asks for {label}, which carries a secret"
    if kind is None or kind.text == "Exact":
        return HeaderMatch(name=label, exact=value.text)
    try:
        Pattern(value.text)
    except ConfigError as error:
        return f"its pattern cannot be matched in linear time ({error.message})"
    return HeaderMatch(name=label, regex=value.text)
