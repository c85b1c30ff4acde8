"""Kthena's ModelRoute, ModelServer and ExternalModelProvider as a fleet.

```
ModelServer ─> an engine (see `kubernetes`)      ExternalModelProvider ─> an engine at its address
ModelRoute: modelName or loraAdapters × rules ─> routes, oldest object first      rateLimit ─> quotas
```
Rules of the source that are kept: the first rule that matches decides, routes of one model are tried oldest first, a name that is both a
model and an adapter is the model; a regular expression matches anywhere in the value unless it is anchored.
What is different: weights deal units, not requests; a request that no rule takes is answered by its name here, if an engine has it,
and not with 404.

Deliberately absent: disaggregated prefill, and gateways an object may be attached to.
"""

import re
from collections.abc import Mapping, Sequence

from sits.app.importing.go_words import anywhere, nanoseconds
from sits.app.importing.kubernetes import Thing, endpoint_of, engines_of, is_given, settle, things, told
from sits.app.importing.made import Made, made, named
from sits.app.importing.source import Account, Value
from sits.core.errors import ConfigError
from sits.core.fleet import AnthropicEngine, Fleet, Gateway, OpenAIEngine
from sits.core.fleet_quota import Quota, QuotaMatch, QuotaWeights
from sits.core.fleet_routes import HeaderMatch, RouteArm, RouteMatch, RouteRule, Target
from sits.core.pattern import Pattern
from sits.core.route_rules import SECRET_HEADERS
from sits.core.units import Ns

KINDS = ("ModelRoute", "ModelServer", "ExternalModelProvider")
PER = {"second": "1s", "minute": "1m", "hour": "1h", "day": "1d"}


class _Server:
    """What rules may send to: its engines, and the name they are asked for, if it is one."""

    def __init__(self, thing: Thing, model: str) -> None:
        self.thing = thing
        self.model = model
        self.engines: list[str] = []
        self.asked: list[str] = []


def read_kthena(text: str, file: str, given: Mapping[str, Sequence[str]]) -> Made:
    """What `text` is as a fleet; `given` are addresses by the name of a ModelServer.

    Raises:
        ConfigError: it holds none of these objects, or nothing of it can be served.

    """
    account = Account()
    found = things(text, file, account)
    if not any(thing.kind in KINDS for thing in found):
        raise ConfigError("holds no ModelRoute and no ModelServer", where=file)
    work = _Import(given)
    fleet = work.fleet(found)
    return made(fleet, account.close([thing.root for thing in found]), file)


class _Import:
    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self.given = given
        self.servers: dict[str, _Server] = {}
        self.engines: list[OpenAIEngine | AnthropicEngine] = []
        self.routes: list[RouteRule] = []
        self.quotas: list[Quota] = []
        self.timeouts_ns: list[int] = []
        self._names: set[str] = set()
        self._route_names: set[str] = set()

    def fleet(self, found: list[Thing]) -> Fleet:
        for thing in found:
            if thing.kind == "ModelServer":
                self._server(thing)
            elif thing.kind == "ExternalModelProvider":
                self._provider(thing)
            elif thing.kind != "ModelRoute":
                thing.root.lost(f"a {thing.kind} is not imported")
        routes = sorted((t for t in found if t.kind == "ModelRoute"), key=lambda t: t.age)
        for thing in routes:
            self._route(thing)
        self._serve()
        timeout = Ns(max(self.timeouts_ns)) if self.timeouts_ns else Gateway().first_byte_timeout
        return Fleet(
            name="imported",
            gateway=Gateway(first_byte_timeout=timeout),
            routes=tuple(self.routes),
            quotas=tuple(self.quotas),
            engines=tuple(self.engines),
        )

    def _serve(self) -> None:
        """Give each server's engines the names they are asked for, and drop what nobody is sent to."""
        served: list[OpenAIEngine | AnthropicEngine] = []
        for server in self.servers.values():
            names = [server.model] if server.model else list(dict.fromkeys(server.asked))
            if server.model:
                names += [name for name in dict.fromkeys(server.asked) if name != server.model]
            if not names:
                server.thing.root.lost("no route is sent there, and it names no model")
                continue
            for engine in self.engines:
                if engine.name in server.engines and not isinstance(engine, OpenAIEngine):
                    served.append(engine)
                elif engine.name in server.engines:
                    served.append(
                        OpenAIEngine(
                            name=engine.name,
                            url=engine.url,
                            models=tuple(names),
                            api_key_env=engine.api_key_env,
                        )
                    )
        self.engines = served

    # -- servers -------------------------------------------------------------------------------------------------

    def _server(self, thing: Thing) -> None:
        settle(thing, "engines[].name")
        spec = thing.spec
        model, port, protocol = (
            spec.get("model"),
            spec.at("workloadPort", "port"),
            spec.at("workloadPort", "protocol"),
        )
        server = self.servers[f"{thing.namespace}/{thing.name}"] = _Server(
            thing, model.text if model is not None else ""
        )
        made_ = engines_of(
            thing,
            port.text if port is not None else "",
            [server.model] if server.model else [],
            self.given,
            self._names,
            protocol=protocol.text if protocol is not None else "http",
        )
        server.engines = [engine.name for engine in made_]
        self.engines += made_
        if model is not None:
            model.mapped("engines[].models, routes[].to.model")
        for key, value in spec.entries():
            if key == "inferenceEngine":
                value.mapped("engines[].kind", "both speak OpenAI's API")
            elif key == "workloadSelector" and value.get("pdGroup") is not None:
                value.lost(
                    "prefill and decode apart: name the address of a router that does it with --engine"
                )
            elif key in ("workloadSelector", "workloadPort"):
                if is_given(thing, self.given):
                    value.mapped("engines[].url", "as given with --engine")
                else:
                    url = made_[0].url
                    value.differs(
                        "engines[].url",
                        f"pods are not followed: make a Service for {url}, or say --engine {thing.name}=URL",
                    )
            elif key == "trafficPolicy":
                self._policy(value)
            elif key == "kvConnector":
                value.lost("KV is moved by engines among themselves")

    def _policy(self, policy: Value) -> None:
        timeout, retry = policy.get("timeout"), policy.get("retry")
        ns = nanoseconds(timeout.text) if timeout is not None else 0
        if timeout is not None and ns:
            self.timeouts_ns.append(ns)
            timeout.differs("gateway.first_byte_timeout", "the longest one holds for all engines")
        if retry is not None:
            retry.differs("", "one retry on another engine, within a budget, and never after the first byte")

    def _provider(self, thing: Thing) -> None:
        settle(thing, "engines[].name")
        spec = thing.spec
        url, model, kind = spec.get("baseURL"), spec.get("model"), spec.get("providerType")
        if url is None:
            thing.root.lost("it has no baseURL")
            return
        name = named(thing.name, self._names)
        self._names.add(name)
        server = self.servers[f"{thing.namespace}/{thing.name}"] = _Server(
            thing, model.text if model is not None else ""
        )
        server.engines = [name]
        variable = ""
        secret = spec.at("auth", "secretRef")
        if secret is not None:
            variable = re.sub(r"[^A-Z0-9_]+", "_", f"{name}_API_KEY".upper())
            variable = variable if variable[0].isalpha() else f"KEY_{variable}"
            secret.differs(
                "engines[].api_key_env", f"a Secret is not read; give its value in the variable {variable}"
            )
            scheme = spec.at("auth", "scheme")
            if scheme is not None:
                scheme.differs("", "OpenAI's API takes a bearer token, Anthropic's its own header")
        models = (server.model,) if server.model else ()
        if kind is not None and kind.text == "Anthropic":
            if not models:
                thing.root.lost("an Anthropic provider without a model")
                return
            self.engines.append(AnthropicEngine(name=name, url=url.text, models=models, api_key_env=variable))
        else:
            self.engines.append(OpenAIEngine(name=name, url=url.text, models=models, api_key_env=variable))
        url.mapped("engines[].url")
        for value, to in ((model, "engines[].models"), (kind, "engines[].kind")):
            if value is not None:
                value.mapped(to)
        for key, value in spec.entries():
            if key == "headers":
                value.lost("requests go out as they came in; nothing is added")
            elif key == "insecureSkipVerify":
                if value.text.lower() == "true":
                    value.lost("certificates are always verified")
                else:
                    value.mapped("", "certificates are always verified")

    # -- routes --------------------------------------------------------------------------------------------------

    def _route(self, thing: Thing) -> None:
        settle(thing, "routes[].name")
        spec = thing.spec
        model, adapters = spec.get("modelName"), spec.get("loraAdapters")
        names = [model.text] if model is not None else []
        names += [one.text for one in adapters.items()] if adapters is not None else []
        parents = spec.get("parentRefs")
        if parents is not None:
            parents.differs("", "there is one gateway, and all routes are its")
        rules = spec.get("rules")
        taken = [
            rule for rule in (rules.items() if rules is not None else ()) if self._rule(thing, rule, names)
        ]
        for value in (model, adapters):
            if value is not None and taken and all(rule.get("modelMatch") is not None for rule in taken):
                value.differs(
                    "routes[].match.model",
                    "what no rule takes goes by this name, if an engine answers to it, and not to 404",
                )
            elif value is not None:
                value.mapped("routes[].match.model")
        if names and taken:
            self._limit(thing, spec, names)

    def _rule(self, thing: Thing, rule: Value, names: list[str]) -> bool:
        """Make the routes of a rule, one for each name; whether it could be said here."""
        matches = self._matches(rule, names)
        targets = self._targets(thing, rule)
        if not matches or not targets:
            return False
        label = rule.get("name")
        if label is not None:
            label.mapped("routes[].name")
        own = f"{thing.name}-{label.text}" if label is not None and label.text else thing.name
        for match in matches:
            name = named(own if len(names) == 1 else f"{own}-{match.model}", self._route_names)
            self._route_names.add(name)
            self.routes.append(self._made(name, match, targets))
        return True

    def _made(self, name: str, match: RouteMatch, targets: "list[tuple[_Server, float]]") -> RouteRule:
        def target(server: _Server) -> Target:
            if not server.model:
                server.asked.append(match.model)
            return Target(model=server.model, engines=tuple(server.engines))

        if len(targets) == 1:
            return RouteRule(name=name, match=match, to=target(targets[0][0]))
        arms, labels = [], list[str]()
        for server, weight in targets:
            labels.append(named(server.thing.name, labels))
            arms.append(RouteArm(name=labels[-1], weight=weight, to=target(server)))
        return RouteRule(name=name, match=match, arms=tuple(arms))

    def _matches(self, rule: Value, names: list[str]) -> list[RouteMatch]:
        """The matches of a rule, one for each name; none when a criterion cannot be said here."""
        match = rule.get("modelMatch")
        if match is None:
            return [RouteMatch(model=name) for name in names]
        if not match.node.entries:
            match.mapped("", "all requests")
        body = match.at("body", "model")
        if body is not None:
            names = [name for name in names if name == body.text]
            body.mapped("routes[].match.model")
            if not names:
                rule.lost("it asks for a model that its route does not take, so it never matched")
                return []
        endpoint, headers = "", []
        uri = match.get("uri")
        if uri is not None:
            endpoint, known = _endpoint(uri)
            if not known:
                rule.lost("its path means no endpoint here, and without it the rule would take more")
                return []
            told((uri.get("exact") or uri.get("prefix"),), "routes[].match.endpoint")
        for name, value in (
            (match.get("headers") or match).entries() if match.get("headers") is not None else ()
        ):
            made_, why = _header(name, value)
            if made_ is None:
                rule.lost(f"{why}, and without it the rule would take more")
                return []
            headers.append(made_)
            told(
                (value.get((made_.exact and "exact") or (made_.prefix and "prefix") or "regex"),),
                "routes[].match.headers",
            )
        return [RouteMatch(model=name, endpoint=endpoint, headers=tuple(headers)) for name in names]

    def _targets(self, thing: Thing, rule: Value) -> "list[tuple[_Server, float]]":
        listed = rule.get("targetModels")
        found: list[tuple[_Server, float]] = []
        for one in listed.items() if listed is not None else ():
            value = one.get("modelServerName") or one.get("externalModelProviderName")
            server = self.servers.get(f"{thing.namespace}/{value.text}") if value is not None else None
            weight = one.get("weight")
            number = weight.number() if weight is not None else 1.0
            if value is None or server is None or not server.engines or number is None:
                one.lost("what it names is not in the file")
                continue
            value.mapped("routes[].to.engines")
            found.append((server, number))
            if weight is not None and listed is not None and len(listed.node.items) > 1:
                weight.differs(
                    "routes[].arms[].weight", "units are dealt, not requests: a user stays with one"
                )
            elif weight is not None:
                weight.mapped("", "the only target")
        if not any(weight > 0 for _, weight in found):
            rule.lost("none of its targets can be served here")
            return []
        return found

    def _limit(self, thing: Thing, spec: Value, names: list[str]) -> None:
        limit = spec.get("rateLimit")
        if limit is None:
            return
        unit, shared = limit.get("unit"), limit.get("global")
        per = PER.get(unit.text if unit is not None else "second", "")
        if not per:
            limit.lost("there are no windows of a month")
            return
        if unit is not None:
            unit.differs("quotas[].per", "windows are aligned to the clock")
        if shared is not None:
            shared.differs(
                "ledger", "one gateway counts for itself; for several write ledger: {kind: redis, ...}"
            )
        for key, weights in (
            ("inputTokensPerUnit", QuotaWeights(input=1.0, output=0.0)),
            ("outputTokensPerUnit", QuotaWeights(input=0.0, output=1.0, cached=0.0)),
        ):
            value = limit.get(key)
            number = value.number() if value is not None else None
            if value is None or number is None or number < 1:
                continue
            for name in names:
                label = named(
                    f"{thing.name}-{name}-{key.removesuffix('TokensPerUnit')}", [q.name for q in self.quotas]
                )
                match = QuotaMatch(model=name)
                self.quotas.append(
                    Quota(name=label, match=match, tokens=int(number), per=per, weights=weights)
                )
            if len(names) > 1:
                value.differs("quotas[].tokens", "each name has the limit to itself")
            else:
                value.differs(
                    "quotas[].tokens", "allowed output is reserved before, and settled by what was used"
                )


def _endpoint(uri: Value) -> tuple[str, bool]:
    exact, prefix = uri.get("exact"), uri.get("prefix")
    if exact is not None:
        return exact.text, exact.text.startswith("/")
    return endpoint_of(prefix.text) if prefix is not None else ("", False)


def _header(name: str, value: Value) -> tuple[HeaderMatch | None, str]:
    """A header's criterion; None, and why, when it cannot be said here."""
    label = name.lower()
    if label in SECRET_HEADERS:
        return None, f"it asks for {label}, which carries a secret"
    exact, prefix, regex = value.get("exact"), value.get("prefix"), value.get("regex")
    if exact is not None and exact.text:
        return HeaderMatch(name=label, exact=exact.text), ""
    if prefix is not None and prefix.text:
        return HeaderMatch(name=label, prefix=prefix.text), ""
    if regex is not None:
        try:
            pattern = anywhere(regex.text)
            Pattern(pattern)
        except ConfigError as error:
            return None, f"its pattern cannot be matched in linear time ({error.message})"
        return HeaderMatch(name=label, regex=pattern), ""
    return None, "it compares with nothing"
