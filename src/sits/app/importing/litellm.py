"""A LiteLLM proxy's `config.yaml` as a fleet.

```
model_list[]  deployments of one model_name ─> engines; a route when the name callers use is not the provider's
router_settings.model_group_alias ─> routes     fallbacks ─> an arm of weight 0 that answers while the others are down
api_key: os.environ/X ─> api_key_env: X         region_name ─> region         weight, rpm, tpm ─> weight
```
Rules: providers that speak OpenAI's API become `openai` engines at their known address, Anthropic an `anthropic` engine; others are lost.
A key that is written down is not copied: the engine gets the name of a variable to put it in.
LiteLLM deals every request anew among deployments; where their models differ, units are dealt here, so a user stays with one.

Deliberately absent: prices, budgets, callbacks, guardrails, and models named by wildcards.
"""

import re

from sits.app.importing.litellm_words import BUILT_IN, LOST, NOTHING, PROVIDERS, STRATEGIES
from sits.app.importing.made import Made, made, named
from sits.app.importing.source import Account, Value, documents
from sits.core.errors import ConfigError
from sits.core.fleet import AnthropicEngine, Fleet, Gateway, OpenAIEngine, Policies
from sits.core.fleet_cache import ResponseCache
from sits.core.fleet_routes import RouteArm, RouteMatch, RouteRule, Target
from sits.core.units import SECOND, Ns

TIMEOUTS = ("timeout", "request_timeout")
_ENV = re.compile(r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)")


class _Deployment:
    """One entry of model_list that can be served."""

    def __init__(
        self, asked: Value, engine: OpenAIEngine | AnthropicEngine, model: str, weight: float
    ) -> None:
        self.said = asked
        self.asked = asked.text
        self.engine = engine
        self.model = model
        self.weight = weight


def read_litellm(text: str, file: str) -> Made:
    """What `text` is as a fleet.

    Raises:
        ConfigError: it is no LiteLLM configuration, or nothing of it can be served.

    """
    nodes = documents(text, file)
    if len(nodes) != 1 or "model_list" not in nodes[0].entries:
        raise ConfigError("has no model_list", where=file, hint="a LiteLLM config.yaml has one")
    account = Account()
    root = Value(nodes[0], "", account)
    work = _Import(root)
    fleet = work.fleet()
    return made(fleet, account.close([root]), file)


class _Import:
    def __init__(self, root: Value) -> None:
        self.root = root
        self.deployments: list[_Deployment] = []
        self.timeouts_ns: list[int] = []
        self.engine_names: set[str] = set()

    def fleet(self) -> Fleet:
        listed = self.root.get("model_list")
        for entry in listed.items() if listed is not None else ():
            self._deployment(entry)
        cache = ResponseCache()
        fallbacks: dict[str, list[str]] = {}
        aliases: list[tuple[str, str, Value]] = []
        for section in ("router_settings", "litellm_settings", "general_settings"):
            for key, value in self._section(section):
                if key == "routing_strategy":
                    self._strategy(value)
                elif key == "model_group_alias":
                    aliases += [(name, one.text, one) for name, one in value.entries()]
                elif key == "fallbacks":
                    self._fallbacks(value, fallbacks)
                elif key in TIMEOUTS:
                    self._timeout(value)
                elif key == "cache" and value.text.lower() == "true":
                    cache = ResponseCache(kind="exact")
                    value.differs(
                        "policy.cache.kind", "in each worker's memory, and for equal questions only"
                    )
                elif key in BUILT_IN:
                    value.differs("", BUILT_IN[key])
                elif key in NOTHING:
                    value.mapped("", "nothing to set here")
                elif key in LOST:
                    value.lost(LOST[key])
                elif key == "master_key":
                    value.lost(
                        "a key is no part of a fleet file; `sitsctl keys new` makes one and prints its digest"
                    )
        variables = self.root.get("environment_variables")
        if variables is not None:
            variables.lost("set variables where the gateway runs")
        routes = self._routes(fallbacks, aliases)
        timeout = Ns(max(self.timeouts_ns)) if self.timeouts_ns else Gateway().first_byte_timeout
        return Fleet(
            name="imported",
            gateway=Gateway(first_byte_timeout=timeout),
            policy=Policies(cache=cache),
            routes=tuple(routes),
            engines=tuple(one.engine for one in self.deployments),
        )

    def _section(self, name: str) -> list[tuple[str, Value]]:
        found = self.root.get(name)
        return list(found.entries()) if found is not None else []

    # -- deployments ---------------------------------------------------------------------------------------------

    def _deployment(self, entry: Value) -> None:
        asked, params = entry.get("model_name"), entry.get("litellm_params")
        model = params.get("model") if params is not None else None
        if asked is None or params is None or model is None:
            entry.lost("it has no model_name, or no litellm_params.model")
            return
        provider, slash, name = model.text.partition("/")
        if params.get("custom_llm_provider") is not None:
            provider, name = params.get("custom_llm_provider").text, model.text  # type: ignore[union-attr]
        elif not slash or provider not in PROVIDERS:
            if slash and not _looks_like_a_model(provider):
                entry.lost(f"the provider {provider!r} has no API that is spoken here")
                return
            provider, name = "openai", model.text
            model.differs("engines[].models", "without a provider it is taken for OpenAI's")
        if provider not in PROVIDERS:
            entry.lost(f"the provider {provider!r} has no API that is spoken here")
            return
        if "*" in asked.text or "*" in name or not name:
            entry.lost("models by wildcard: list the names callers may ask for")
            return
        url = self._url(provider, params, entry)
        if not url:
            return
        self._engine(entry, asked, params, model, provider, name, url)

    def _url(self, provider: str, params: Value, entry: Value) -> str:
        base = params.get("api_base") or params.get("base_url")
        known = PROVIDERS[provider][0]
        if base is None:
            if not known:
                entry.lost(f"{provider} needs an api_base, and there is none")
            return known
        if _ENV.fullmatch(base.text):
            entry.lost(f"its address is in a variable ({base.text}); write it down")
            return ""
        url = base.text.rstrip("/")
        if provider.startswith("azure"):
            version = params.get("api_version")
            if version is not None:
                version.differs("", "Azure's v1 API has no versions")
            base.differs("engines[].url", "Azure's v1 API, which is OpenAI's, at /openai/v1")
            return url if url.endswith("/openai/v1") else f"{url}/openai/v1"
        if provider.startswith("ollama"):
            base.differs("engines[].url", "through Ollama's OpenAI API")
        else:
            base.mapped("engines[].url")
        return url

    def _engine(
        self, entry: Value, asked: Value, params: Value, model: Value, provider: str, name: str, url: str
    ) -> None:
        wanted = entry.at("model_info", "id")
        label = named(
            wanted.text if wanted is not None and wanted.text else f"{asked.text}-{provider}",
            self.engine_names,
        )
        self.engine_names.add(label)
        if wanted is not None:
            wanted.mapped("engines[].name")
        model.mapped("engines[].models")
        region = params.get("region_name")
        if region is not None:
            region.mapped("engines[].region")
        weight = self._weight(params)
        kind = AnthropicEngine if provider == "anthropic" else OpenAIEngine
        engine = kind(
            name=label,
            url=url,
            models=(name,),
            api_key_env=self._key(params, provider, label),
            region=region.text if region is not None else "",
            weight=weight,
        )
        for key, value in params.entries():
            if key in TIMEOUTS:
                self._timeout(value)
            elif key in BUILT_IN:
                value.differs("", BUILT_IN[key])
            elif key in NOTHING or key == "custom_llm_provider":
                value.mapped("", "nothing to set here")
            elif key in LOST:
                value.lost(LOST[key])
        info = entry.get("model_info")
        for key, value in info.entries() if info is not None else ():
            if key in LOST:
                value.lost(LOST[key])
        mode = entry.at("model_info", "mode")
        if mode is not None:
            mode.mapped("", "an engine answers what it is asked")
        self.deployments.append(_Deployment(asked, engine, name, weight))

    def _key(self, params: Value, provider: str, engine: str) -> str:
        """The variable that holds the key; a key that is written down is not copied."""
        given, known = params.get("api_key"), PROVIDERS[provider][1]
        if given is None:
            return known
        found = _ENV.fullmatch(given.text)
        if found:
            given.mapped("engines[].api_key_env")
            return found[1]
        if given.text.lower() in ("", "none", "empty", "dummy", "sk-no-key-required"):
            given.mapped("", "the engine wants no key")
            return ""
        variable = re.sub(r"[^A-Z0-9_]+", "_", f"{engine}_API_KEY".upper())
        variable = variable if variable[0].isalpha() else f"KEY_{variable}"
        given.differs("engines[].api_key_env", f"a key is not copied; put it into the variable {variable}")
        return variable

    def _weight(self, params: Value) -> float:
        """LiteLLM deals by weight, else by rpm, else by tpm."""
        found = 1.0
        for key in ("tpm", "rpm", "weight"):
            value = params.get(key)
            number = value.number() if value is not None else None
            if value is None or number is None or not 1e-6 <= number <= 1e9:
                continue
            found = number if key == "weight" else max(1e-6, number / (1e6 if key == "tpm" else 1e3))
            if key == "weight":
                value.mapped("engines[].weight")
            else:
                value.differs("engines[].weight", "a share of the load only; a limit is an entry of 'quotas'")
        return min(found, 1e6)

    def _timeout(self, value: Value) -> None:
        seconds = value.number()
        if seconds is None or not 0.001 <= seconds <= 86_400:
            value.lost("no number of seconds that can be used")
            return
        self.timeouts_ns.append(round(seconds * SECOND))
        value.differs(
            "gateway.first_byte_timeout",
            "the longest one holds for all, and bounds silence, not the whole answer",
        )

    # -- routes --------------------------------------------------------------------------------------------------

    def _strategy(self, value: Value) -> None:
        if value.text not in STRATEGIES:
            value.lost("no such strategy is known here")
        elif STRATEGIES[value.text]:
            value.differs("policy.route.kind", STRATEGIES[value.text])
        else:
            value.mapped("policy.route.kind")

    def _fallbacks(self, value: Value, found: dict[str, list[str]]) -> None:
        known = {one.asked for one in self.deployments}
        for item in value.items():
            for name, targets in item.entries():
                usable = [one for one in targets.items() if one.text in known and one.text != name]
                if name not in known or not usable:
                    targets.lost("it falls back from or to what is not served here")
                    continue
                found.setdefault(name, [one.text for one in usable])
                for one in targets.items():
                    if one.text in found[name]:
                        one.differs(
                            "routes[].arms[].fallback",
                            "while every engine of the model is down, not after any error",
                        )
                    else:
                        one.lost("it falls back to what is not served here")

    def _routes(
        self, fallbacks: dict[str, list[str]], aliases: list[tuple[str, str, Value]]
    ) -> list[RouteRule]:
        groups: dict[str, list[_Deployment]] = {}
        for one in self.deployments:
            groups.setdefault(one.asked, []).append(one)
        for asked, group in groups.items():
            for one in group:
                if len({other.model for other in group}) > 1:
                    one.said.differs(
                        "routes[].arms",
                        "units are dealt among the models, not requests: a user stays with one",
                    )
                else:
                    one.said.mapped("engines[].models" if one.model == asked else "routes[].match.model")
        routes: list[RouteRule] = []
        names: set[str] = set()

        def add(asked: str, of: str) -> None:
            rule = self._route(named(asked, names), asked, groups[of], groups, fallbacks.get(of, []))
            if rule is not None:
                names.add(rule.name)
                routes.append(rule)

        for asked in groups:
            add(asked, asked)
        for alias, of, value in aliases:
            if of in groups and alias not in groups:
                add(alias, of)
                value.mapped("routes[].match.model")
            else:
                value.lost("an alias of what is not served here")
        return routes

    def _route(
        self,
        name: str,
        asked: str,
        group: list[_Deployment],
        groups: dict[str, list[_Deployment]],
        fallbacks: list[str],
    ) -> RouteRule | None:
        """The route of one name; None when the engines serve it under that name themselves and nobody else does."""
        plain = {one.model for one in group} == {asked}
        alone = {one.engine.name for one in self.deployments if asked in one.engine.models} == {
            one.engine.name for one in group
        }
        if plain and alone and not fallbacks:
            return None
        match, arms = RouteMatch(model=asked), [*_arms(asked, group)]
        after = [_arms(other, groups[other])[0] for other in fallbacks]
        labels = list[str]()
        for arm in after:
            labels.append(named(arm.name, [*labels, *(one.name for one in arms)]))
        chain = [*labels, ""]
        arms = [RouteArm(name=arm.name, weight=arm.weight, fallback=chain[0], to=arm.to) for arm in arms]
        arms += [
            RouteArm(name=label, weight=0.0, fallback=then, to=arm.to)
            for label, then, arm in zip(labels, chain[1:], after, strict=True)
        ]
        if len(arms) == 1:
            return RouteRule(name=name, match=match, to=arms[0].to)
        return RouteRule(name=name, match=match, arms=tuple(arms))


def _arms(asked: str, group: list[_Deployment]) -> list[RouteArm]:
    """One arm for each model name that deployments of one asked name have; its engines share what they get."""
    by_model: dict[str, list[_Deployment]] = {}
    for one in group:
        by_model.setdefault(one.model, []).append(one)
    names: list[str] = []
    for model in by_model:
        names.append(named(model if len(by_model) > 1 else asked, names))
    return [
        RouteArm(
            name=name,
            weight=min(1e6, sum(one.weight for one in members)),
            to=Target(model=model, engines=tuple(one.engine.name for one in members)),
        )
        for name, (model, members) in zip(names, by_model.items(), strict=True)
    ]


def _looks_like_a_model(word: str) -> bool:
    """Whether what stands before the slash is part of a model's name (`meta-llama/...`), not a provider."""
    return "-" in word or any(character.isupper() for character in word)
