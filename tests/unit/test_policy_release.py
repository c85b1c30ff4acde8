"""The Assigner: which release, which unit, which arm, and what follows from it."""

import pytest

from sits.core.errors import ConfigError
from sits.core.fleet import Arm, Release
from sits.policy.release import PLANS_MAX, REMEMBERED, Assigner, assign, fall_back, unit_digest_of

CATALOG = {"llama": ("llama", ""), "next": ("next", ""), "lora": ("llama", "lora")}
STABLE = Arm(name="stable", weight=0.5, artefact="sha256:aa")
CANARY = Arm(name="canary", weight=0.5, model="next", artefact="sha256:bb", fallback="stable")


def house(release=None, releases=(), **more):
    return Assigner(release or Release(), releases, CATALOG, **more)


def test_what_follows_from_an_assignment():
    given = house(releases=(Release(model="llama", arms=(STABLE, CANARY), honour_version_hint=("qa",)),)).assign(
        "llama", "qa", "ann", hint="canary"
    )  # fmt: skip
    assert (given.target.arm, given.target.name, given.target.model, given.target.adapter) == (
        "canary",
        "next",
        "next",
        "",
    )
    assert [target.arm for target in given.fallbacks] == ["stable"]
    assert given.fallbacks[0].name == "llama"
    assert given.target.artefact != given.fallbacks[0].artefact
    assert given.decision.outcome == "hinted"
    assert given.decision.reasons["release"] == "llama"


def test_the_release_of_a_name_and_the_one_of_all_others():
    one = Release(model="lora", salt="x", arms=(Arm(name="only", weight=1),))
    assigner = house(Release(arms=(Arm(name="a", weight=1),)), (one,))
    assert assigner.assign("lora", "t", "u").target.arm == "only"
    assert assigner.assign("llama", "t", "u").target.arm == "a"
    adapted = assigner.assign("lora", "t", "u").target
    assert (adapted.name, adapted.model, adapted.adapter) == ("lora", "llama", "lora")
    unknown = assigner.assign("gpt", "t", "u").target
    assert (unknown.name, unknown.model) == ("gpt", "gpt")


@pytest.mark.parametrize(
    ("declared", "said", "kind", "outcome"),
    [
        ("session", {"session": "s", "user": "u", "key": "k"}, "session", "assigned"),
        ("session", {"user": "u", "key": "k"}, "user", "assigned_coarser"),
        ("session", {"key": "k"}, "key", "assigned_coarser"),
        ("session", {}, "tenant", "assigned_coarser"),
        ("user", {"session": "s", "user": "u", "key": "k"}, "user", "assigned"),
        ("user", {"session": "s", "key": "k"}, "key", "assigned_coarser"),
        ("user", {"session": "s"}, "tenant", "assigned_coarser"),
        ("tenant", {"session": "s", "user": "u", "key": "k"}, "tenant", "assigned"),
    ],
)
def test_a_unit_that_is_not_said_is_the_next_coarser_one(declared, said, kind, outcome):
    given = house(Release(unit=declared, arms=(STABLE, CANARY))).assign("llama", "t", **said)
    assert (given.unit_kind, given.decision.outcome, given.coarser) == (kind, outcome, kind != declared)
    assert given.decision.reasons["declared"] == declared
    assert given.unit_digest == unit_digest_of(kind, "t", said.get(kind, "t"))


def test_units_of_two_tenants_and_of_two_kinds_are_not_one():
    digests = {
        unit_digest_of(kind, tenant, unit)
        for kind in ("user", "session", "key", "tenant")
        for tenant in ("a", "b", "a,")
        for unit in ("a", "1", ",a", "s1:a,")
    }
    assert len(digests) == 4 * 3 * 4


def test_a_hint_is_followed_only_for_whom_the_policy_trusts():
    release = Release(
        arms=(Arm(name="stable", weight=1), Arm(name="canary", weight=0)), honour_version_hint=("qa",)
    )
    assigner = house(release)
    followed = assigner.assign("llama", "qa", "u", hint="canary")
    assert (followed.target.arm, followed.decision.outcome) == ("canary", "hinted")
    for tenant, hint, became in (("qa", "nobody", "no such arm"), ("other", "canary", "not honoured")):
        given = assigner.assign("llama", tenant, "u", hint=hint)
        assert (given.target.arm, given.decision.outcome) == ("stable", "assigned")
        assert given.decision.reasons["hint"] == became
        assert given.unit_digest == assigner.assign("llama", tenant, "u").unit_digest


def test_fallbacks_in_their_order_and_then_no_more():
    arms = (
        Arm(name="a", weight=1, fallback="b"),
        Arm(name="b", weight=0, model="next", fallback="c"),
        Arm(name="c", weight=0, model="lora"),
    )
    given = house(Release(arms=arms)).assign("llama", "t", "u")
    names = []
    for tried in range(3):
        found = fall_back(given, tried)
        if found is not None:
            target, decision = found
            names.append((target.name, decision.outcome, decision.choice, decision.reasons["instead_of"]))
    assert names == [("next", "fell_back", "b", "a"), ("lora", "fell_back", "c", "a")]


def test_an_artefact_is_of_what_answers_and_not_of_who_asks():
    def artefact(asked="llama", digests=None, **arm):
        release = Release(arms=(Arm(name="x", weight=1, **arm),))
        return Assigner(release, (), CATALOG, digests or {}).assign(asked, "t", "u").target.artefact

    assert artefact(model="next") == artefact("next")
    told = {
        artefact(),
        artefact("next"),
        artefact("lora"),
        artefact(artefact="sha256:aa"),
        artefact(digests={"llama": "sha256:aa"}),
        artefact("lora", digests={"lora": "sha256:aa"}),
        artefact("lora", digests={"llama": "sha256:aa"}),
    }
    assert len(told) == 7
    assert artefact("lora", digests={"next": "sha256:aa"}) == artefact("lora")


def test_the_quick_way_deals_as_the_explained_one():
    release = Release(
        salt="s", arms=(STABLE, CANARY, Arm(name="third", weight=0.1), Arm(name="none", weight=0))
    )
    assigner = house(release)
    arms = set()
    for i in range(500):
        given = assigner.assign("llama", "t", f"u{i}")
        assert given.target.arm == assign(given.unit_digest, "s", release.arms).choice
        arms.add(given.target.arm)
    assert arms == {"stable", "canary", "third"}


def test_memory_is_bounded_whatever_callers_say():
    assigner = house(Release(arms=(STABLE, CANARY)))
    first = assigner.assign("llama", "t", "u0")
    for i in range(3 * REMEMBERED):
        assigner.assign("llama", "t", f"u{i}")
    assert len(assigner.young) + len(assigner._old) <= 2 * REMEMBERED
    assert assigner.assign("llama", "t", "u0") == first
    before = len(assigner.young)
    assigner.assign("llama", "t", "x" * 10_000)
    assert len(assigner.young) == before
    for i in range(2 * PLANS_MAX):
        assigner.assign(f"name-{i}", "t", "u")
    assert len(assigner._plans) <= PLANS_MAX


def test_made_up_names_take_no_memory_and_evict_nothing():
    catalog = {"llama": ("llama", ""), "next": ("next", "")}
    assigner = Assigner(Release(arms=(STABLE,)), (), catalog)
    first = assigner.assign("llama", "t", "ann")
    for i in range(2 * REMEMBERED):
        given = assigner.assign(f"name-{i}", "t", "ann")
    assert given == assigner.assign(given.target.name, "t", "ann")
    assert assigner.assign("llama", "t", "ann") is first
    assert len(assigner.young) == len(assigner._plans) == 1
    alias = Assigner(Release(arms=(Arm(name="stable", weight=1.0, model="next"),)), (), catalog)
    assert alias.assign("anything", "t", "ann") is alias.assign("anything", "t", "ann")


def test_whoever_keeps_coming_is_not_forgotten():
    assigner = house(Release(arms=(STABLE, CANARY)))
    first = assigner.assign("llama", "t", "regular")
    for i in range(2 * REMEMBERED):
        assigner.assign("llama", "t", f"u{i}")
        if i % 1000 == 0:
            assert assigner.assign("llama", "t", "regular") is first


def test_no_weight_at_all_is_an_error_that_names_the_field():
    with pytest.raises(ConfigError, match=r"policy\.release\.arms"):
        house(Release(arms=(Arm(name="a", weight=0.0),))).assign("llama", "t", "u")
