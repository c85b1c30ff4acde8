"""Laws of the importers: no field passes unseen, no secret is copied, and what was imported decides as the source would have.

The references below are the sources' own rules written down again, with nothing of ours in them.
"""

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.app.importing.gateway_api import read_gateway_api
from sits.app.importing.kthena import read_kthena
from sits.app.importing.litellm import read_litellm
from sits.core.caller import Caller
from sits.core.config import load_fleet
from sits.policy.match import Matcher

SAMPLES = Path(__file__).parents[1] / "data" / "importing"
READERS = {
    "litellm": lambda text: read_litellm(text, "f"),
    "gateway_api": lambda text: read_gateway_api(text, "f", {}),
    "kthena": lambda text: read_kthena(text, "f", {}),
}
OPAQUE = re.compile(
    r"(^|\.)(metadata|selector|workloadSelector|workloadPort|targetPorts|endpointPickerRef|parentRefs|poolRef|secretRef"
    r"|retry|global|timeouts|environment_variables|cache_params|litellm_params\.aws.*)\b"
)
"""Sections that are taken as they are: what stands in them means nothing here, or something as a whole."""


NAMED = re.compile(r"(^|\.)(model_group_alias|modelMatch\.headers)$")
"""Maps whose keys are names, so that any key is known there."""


def maps_of(value, path=""):
    """Every map of a tree with its path as accounts write it."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in list(value.items()):
            step = f".{key}" if re.fullmatch(r"[\w-]+", key) else f'["{key}"]'
            yield from maps_of(inner, f"{path}{step}" if path else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from maps_of(inner, f"{path}[{i}]")


def head_of(tree):
    """How accounts begin the paths of a document."""
    if "kind" not in tree:
        return ""
    return f"{tree['kind']}/{tree['metadata'].get('namespace', 'default')}/{tree['metadata']['name']}"


def around(path):
    """The sections around a path, from the outside in."""
    cuts = [match.start() for match in re.finditer(r"[.\[]", path)]
    return [path[:cut] for cut in cuts]


@pytest.mark.parametrize("name", READERS)
def test_a_key_nobody_knows_is_told_wherever_it_stands(name):
    trees = list(yaml.safe_load_all((SAMPLES / f"{name}.yaml").read_text()))
    places = []
    for tree in trees:
        for path, inside in list(maps_of(tree, head_of(tree))):
            if not NAMED.search(path):
                inside["zzz"] = 1
                places.append(f"{path}.zzz" if path else "zzz")
    assert len(places) > 15
    fates = {fate.path: fate for fate in READERS[name](yaml.safe_dump_all(trees)).fates}
    for place in places:
        if place in fates:
            assert fates[place].verdict == "lost", place
        else:  # the section around it is lost, or is taken as it is
            told = [fates[path] for path in around(place) if path in fates]
            assert told, place
            assert told[0].verdict == "lost" or OPAQUE.search(place), place


@pytest.mark.parametrize("name", READERS)
def test_every_leaf_has_one_fate_and_the_line_it_stands_on(name):
    text = (SAMPLES / f"{name}.yaml").read_text()
    made = READERS[name](text)
    paths = [fate.path for fate in made.fates]
    assert len(paths) == len(set(paths))
    lines = text.splitlines()
    for fate in made.fates:
        last = re.findall(r'\.([\w-]+)$|\["([^"]+)"\]$', fate.path)
        if last:
            assert "".join(last[0]) in lines[fate.line - 1], fate
    lost = [fate.path for fate in made.fates if fate.verdict == "lost"]
    assert not [p for p in paths for q in lost if p != q and re.match(re.escape(q) + r"[.\[]", p)]
    assert all(fate.note for fate in made.fates if fate.verdict != "mapped")


@pytest.mark.parametrize("name", READERS)
def test_what_comes_out_loads_and_holds_no_secret(name):
    made = READERS[name]((SAMPLES / f"{name}.yaml").read_text())
    assert load_fleet(made.yaml).engines
    everything = made.yaml + "".join(f"{fate.path}{fate.to}{fate.note}" for fate in made.fates)
    assert "LEAK" not in everything


# -- Kthena -------------------------------------------------------------------------------------------------------

NAMES = ("m1", "m2", "m3")
HEADERS = ("x-a", "x-b")
VALUES = ("red", "redder", "blue", "eu-1")
STRINGS = st.one_of(
    st.sampled_from(VALUES).map(lambda v: {"exact": v}),
    st.sampled_from(("red", "eu")).map(lambda v: {"prefix": v}),
    st.sampled_from(("red", "^eu-[0-9]", "(red|blue)$", "ed|lu", "^blue$", "r.d")).map(
        lambda v: {"regex": v}
    ),
)
URIS = st.sampled_from(
    [
        {"exact": "/v1/embeddings"},
        {"prefix": "/v1/chat"},
        {"prefix": "/"},
        {"prefix": "/v1"},
        {"exact": "/v1/completions"},
    ]
)
TARGETS = st.lists(st.sampled_from(("s1", "s2", "s3")), min_size=1, max_size=2, unique=True)


@st.composite
def kthena_rules(draw):
    match = {}
    headers = draw(st.dictionaries(st.sampled_from(HEADERS), STRINGS, max_size=2))
    if headers:
        match["headers"] = headers
    if draw(st.booleans()):
        match["uri"] = draw(URIS)
    if draw(st.integers(0, 3)) == 0:
        match["body"] = {"model": draw(st.sampled_from(NAMES))}
    servers = draw(TARGETS)
    targets = [{"modelServerName": name, "weight": draw(st.integers(1, 100))} for name in servers]
    return {"modelMatch": match, "targetModels": targets} if match else {"targetModels": targets}


@st.composite
def kthena_routes(draw):
    routes = []
    for i in range(draw(st.integers(1, 4))):
        spec = {"rules": draw(st.lists(kthena_rules(), min_size=1, max_size=4))}
        if draw(st.booleans()):
            spec["modelName"] = draw(st.sampled_from(NAMES))
        else:
            spec["loraAdapters"] = draw(st.lists(st.sampled_from(("l1", "l2")), min_size=1, unique=True))
        born = f"2026-01-{draw(st.integers(1, 28)):02}T00:00:00Z"
        routes.append(
            {"kind": "ModelRoute", "metadata": {"name": f"r{i}", "creationTimestamp": born}, "spec": spec}
        )
    return routes


SERVERS = [
    {
        "kind": "ModelServer",
        "metadata": {"name": name},
        "spec": {"model": f"real-{name}", "workloadPort": {"port": 8000}},
    }
    for name in ("s1", "s2", "s3")
]
REQUESTS = st.tuples(
    st.sampled_from((*NAMES, "l1", "l2")),
    st.sampled_from(("/v1/chat/completions", "/v1/embeddings", "/v1/completions")),
    st.dictionaries(st.sampled_from(HEADERS), st.sampled_from((*VALUES, "EU-1", "a red b")), max_size=2),
)


def as_list(objects):
    """Objects as one document; JSON is YAML, and written faster."""
    return json.dumps({"kind": "List", "items": objects})


def go_match(how, value):
    if "exact" in how:
        return value == how["exact"]
    return value.startswith(how["prefix"]) if "prefix" in how else re.search(how["regex"], value) is not None


def kthena_decides(routes, model, path, headers):
    """The targets of the first rule that matches, oldest route first; None for 404."""
    of = [r for r in routes if r["spec"].get("modelName") == model]
    of = of or [r for r in routes if model in r["spec"].get("loraAdapters", ())]
    for route in sorted(of, key=lambda r: (r["metadata"]["creationTimestamp"], r["metadata"]["name"])):
        for rule in route["spec"]["rules"]:
            match = rule.get("modelMatch", {})
            if "body" in match and match["body"]["model"] != model:
                continue
            if not all(
                go_match(how, headers.get(name, "")) for name, how in match.get("headers", {}).items()
            ):
                continue
            if "uri" in match and not go_match(match["uri"], path):
                continue
            return {target["modelServerName"]: target["weight"] for target in rule["targetModels"]}
    return None


def imported_decides(fleet, matcher, model, path, headers):
    """The engines of the route that matches, with the weights of its arms."""
    raw = {name.encode(): value.encode() for name, value in headers.items()}
    found = matcher.match(Caller(), model, "", path, raw)
    if not found.route:
        return None
    if found.release is None:
        return dict.fromkeys(found.target.engines, 1.0)
    return {found.targets[arm.name].engines[0]: arm.weight for arm in found.release.arms}


@settings(max_examples=40)
@given(kthena_routes(), st.lists(REQUESTS, min_size=8, max_size=16))
def test_imported_kthena_rules_decide_as_kthena_does(routes, requests):
    made = read_kthena(as_list([*SERVERS, *routes]), "f", {})
    never = "it asks for a model that its route does not take, so it never matched"
    assert {fate.note for fate in made.fates if fate.verdict == "lost" and "rules" in fate.path} <= {never}
    fleet = load_fleet(made.yaml)
    matcher = Matcher(fleet)
    for model, path, headers in requests:
        wanted = kthena_decides(routes, model, path, headers)
        found = imported_decides(fleet, matcher, model, path, headers)
        if wanted is not None and len(wanted) == 1:
            wanted = dict.fromkeys(wanted, 1.0)
        assert found == wanted, (model, path, headers)


# -- Gateway API --------------------------------------------------------------------------------------------------

POOLS = [
    {
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {"selector": {}, "targetPorts": [{"number": 8000}]},
    }
    for name in ("p1", "p2")
]
PATHS = (
    {"type": "PathPrefix", "value": "/"},
    {"type": "PathPrefix", "value": "/v1/chat"},
    {"type": "Exact", "value": "/v1/embeddings"},
)


@st.composite
def http_routes(draw):
    found = []
    for i in range(draw(st.integers(0, 2))):
        rules = []
        for _ in range(draw(st.integers(1, 3))):
            matches = []
            for _ in range(draw(st.integers(0, 2))):
                match = {}
                if draw(st.booleans()):
                    match["path"] = draw(st.sampled_from(PATHS))
                names = draw(st.lists(st.sampled_from(HEADERS), max_size=2, unique=True))
                if names:
                    match["headers"] = [
                        {"name": name, "value": draw(st.sampled_from(VALUES))} for name in names
                    ]
                matches.append(match)
            pools = draw(st.lists(st.sampled_from(("p1", "p2")), min_size=1, max_size=2, unique=True))
            refs = [
                {"kind": "InferencePool", "name": pool, "weight": draw(st.integers(1, 9))} for pool in pools
            ]
            rules.append({"backendRefs": refs, "matches": matches} if matches else {"backendRefs": refs})
        born = f"2026-02-{draw(st.integers(1, 28)):02}T00:00:00Z"
        found.append(
            {
                "kind": "HTTPRoute",
                "metadata": {"name": f"h{i}", "creationTimestamp": born},
                "spec": {"rules": rules},
            }
        )
    return found


@st.composite
def rewrites(draw):
    found = []
    for i in range(draw(st.integers(0, 3))):
        rules = []
        for _ in range(draw(st.integers(1, 2))):
            models = draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
            to = draw(st.lists(st.sampled_from(("v1", "v2", "v3")), min_size=1, max_size=2, unique=True))
            targets = [{"modelRewrite": name, "weight": draw(st.integers(1, 9))} for name in to]
            rules.append({"matches": [{"model": {"value": name}} for name in models], "targets": targets})
        born = f"2026-01-{draw(st.integers(1, 28)):02}T00:00:00Z"
        spec = {"poolRef": {"name": draw(st.sampled_from(("p1", "p2")))}, "rules": rules}
        found.append(
            {
                "kind": "InferenceModelRewrite",
                "metadata": {"name": f"w{i}", "creationTimestamp": born},
                "spec": spec,
            }
        )
    return found


def path_fits(how, path):
    return (
        path == how["value"]
        if how["type"] == "Exact"
        else path == how["value"] or path.startswith(how["value"].rstrip("/") + "/")
    )


def http_decides(routes, path, headers):
    """Pools and weights of the best match by the API's precedence; None when nothing matches."""
    found = []
    for route in routes:
        for i, rule in enumerate(route["spec"]["rules"]):
            for k, match in enumerate(rule.get("matches") or [{}]):
                how = match.get("path", PATHS[0])
                asked = match.get("headers", [])
                if path_fits(how, path) and all(headers.get(one["name"]) == one["value"] for one in asked):
                    best = (
                        how["type"] != "Exact",
                        -len(how["value"]) if how["type"] != "Exact" else 0,
                        -len(asked),
                    )
                    age = (route["metadata"]["creationTimestamp"], route["metadata"]["name"])
                    found.append(((*best, age, i, k), rule))
    if not found:
        return None
    return {ref["name"]: ref["weight"] for ref in min(found, key=lambda one: one[0])[1]["backendRefs"]}


def rewritten(objects, pool, model):
    """What a pool makes of a model, as shares: exact before generic, then the oldest object, then the first rule."""
    for exact in (True, False):
        for one in sorted(objects, key=lambda o: (o["metadata"]["creationTimestamp"], o["metadata"]["name"])):
            if one["spec"]["poolRef"]["name"] != pool:
                continue
            for rule in one["spec"]["rules"]:
                named = [match["model"]["value"] for match in rule["matches"]]
                if (model in named) if exact else not named:
                    total = sum(target["weight"] for target in rule["targets"])
                    return {target["modelRewrite"]: target["weight"] / total for target in rule["targets"]}
    return {model: 1.0}


@settings(max_examples=40)
@given(http_routes(), rewrites(), st.lists(REQUESTS, min_size=8, max_size=16))
def test_imported_gateway_routes_decide_as_the_api_says(routes, objects, requests):
    made = read_gateway_api(as_list([*POOLS, *routes, *objects]), "f", {})
    assert not [fate for fate in made.fates if fate.verdict == "lost"]
    fleet = load_fleet(made.yaml)
    matcher = Matcher(fleet)
    for model, path, headers in requests:
        pools = http_decides(routes, path, headers)
        if pools is None:
            continue  # without an HTTPRoute that leads to it, a pool gets nothing; here its models are served by name
        total = sum(pools.values())
        wanted = {}
        for pool, weight in pools.items():
            for name, part in rewritten(objects, pool, model).items():
                wanted[pool, name] = wanted.get((pool, name), 0) + weight / total * part
        raw = {name.encode(): value.encode() for name, value in headers.items()}
        found = matcher.match(Caller(), model, "", path, raw)
        if not found.route:  # it said nothing that is not so without it
            assert {name for _, name in wanted} == {model}
            assert len(pools) == len(POOLS)
            continue
        arms = found.release.arms if found.release else ()
        targets = [(found.targets[arm.name], arm.weight) for arm in arms] or [(found.target, 1.0)]
        whole = sum(weight for _, weight in targets)
        seen = {}
        for target, weight in targets:
            key = target.engines[0], target.model or model
            seen[key] = seen.get(key, 0) + weight / whole
        assert seen == pytest.approx(wanted)
