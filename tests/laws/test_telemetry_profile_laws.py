"""Laws of profiles: formats lose nothing, sums are kept, chance is not called a difference."""

import random  # noqa: TID251  (requests made up for a test)

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.telemetry.profile import folded, pprof
from sits.telemetry.profile.compare import compare
from sits.telemetry.profile.profile import Frame, Labels, Profile, Sample, merged
from sits.telemetry.profile.tree import functions, tree

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
frames = st.builds(Frame, words, words, st.integers(0, 2**31))
labels = st.builds(
    Labels,
    st.sampled_from(["", "http", "model"]),
    st.sampled_from(["", "parse"]),
    st.sampled_from(["", "a", "b"]),
)
samples = st.builds(
    Sample,
    st.lists(frames, min_size=1, max_size=6).map(tuple),
    st.integers(0, 2**62),
    st.integers(0, 2**40),
    labels,
)
profiles = st.builds(
    Profile,
    st.lists(samples, max_size=8).map(tuple),
    process=st.just(""),
    wall_ns=st.integers(0, 2**62),
    duration_ns=st.integers(0, 2**50),
    period_ns=st.integers(1, 2**40),
    elsewhere_ns=st.integers(0, 2**50),
    dropped_ns=st.integers(0, 2**50),
)


@given(profiles)
def test_pprof_loses_nothing(profile):
    """But samples that took no time: they say nothing of where it went."""
    told = tuple(sample for sample in profile.samples if sample.ns)
    profile = msgspec.structs.replace(profile, samples=told)
    assert pprof.decode(pprof.encode(profile)) == profile


@given(st.binary(max_size=300))
def test_bytes_are_a_profile_or_refused(data):
    from sits.core.errors import ConfigError

    try:
        pprof.decode(data)
    except ConfigError:
        return


@given(profiles)
def test_a_cut_pprof_is_refused_or_smaller(profile):
    import gzip

    from sits.core.errors import ConfigError

    plain = gzip.decompress(pprof.encode(profile))
    for end in range(0, len(plain), 7):
        try:
            cut = pprof.decode(plain[:end])
        except ConfigError:
            continue
        assert cut.ns <= profile.ns


@given(st.lists(profiles, max_size=4))
def test_what_is_merged_adds_up_and_the_tree_has_all_of_it(many):
    both = merged(many)
    assert (both.ns, both.count) == (sum(one.ns for one in many), sum(one.count for one in many))
    root = tree(both)
    assert root.ns == both.ns
    stack = [root]
    while stack:
        node = stack.pop()
        assert node.ns == node.self_ns + sum(child.ns for child in node.children.values())
        stack += node.children.values()
    assert sum(node.self_ns for node in functions(both).values()) == both.ns


plain_words = st.text("abcXYZ_.<>0", min_size=1, max_size=8).filter(lambda word: not word.startswith("["))


@given(
    st.lists(
        st.tuples(
            st.lists(st.builds(Frame, plain_words, plain_words, st.integers(0, 999)), min_size=1, max_size=4),
            st.integers(1, 99),
        ),
        max_size=6,
    )
)
def test_collapsed_stacks_keep_frames_and_counts(rows):
    profile = Profile(tuple(Sample(tuple(stack), count * 10**7, count) for stack, count in rows))
    again = folded.decode(folded.encode(profile, lines=True))
    wanted = {}
    for stack, count in rows:
        wanted[tuple(stack)] = wanted.get(tuple(stack), 0) + count
    assert {sample.stack: sample.count for sample in again.samples} == wanted


def stream(seed):
    return random.Random(seed)


def of_requests(rng, requests, share, trace):
    """Samples of requests that each spend about `share` in `work`, in runs: samples of one request are alike."""
    made = []
    for number in range(requests):
        mine = min(1.0, max(0.0, rng.gauss(share, 0.15)))
        for _ in range(rng.randint(1, 12)):
            leaf = "work" if rng.random() < mine else "else"
            made.append(Sample((Frame("main"), Frame(leaf)), 10**7, 1, Labels("", "", f"{trace}{number}")))
    return made


def test_chance_is_called_a_difference_as_seldom_as_said():
    rng, wrong, runs = stream(5), 0, 400
    for _ in range(runs):
        profile = Profile(tuple(of_requests(rng, 40, 0.3, "s") + of_requests(rng, 200, 0.3, "r")))
        found = compare(profile, lambda trace: trace.startswith("s"))
        wrong += any(one.told for one in found.differences if one.frame.function == "work")
    assert wrong / runs < 0.09  # 5 % are meant; 400 runs have a standard error of 1.1 points


def test_a_difference_that_is_there_is_found():
    rng = stream(6)
    profile = Profile(tuple(of_requests(rng, 60, 0.7, "s") + of_requests(rng, 300, 0.3, "r")))
    found = compare(profile, lambda trace: trace.startswith("s"))
    first = found.differences[0]
    assert first.told
    assert first.frame.function in ("work", "else")
    work = next(one for one in found.differences if one.frame.function == "work")
    assert work.low > 0.2
    assert work.high < 0.6
    assert (
        work.slow_count + next(o for o in found.differences if o.frame.function == "else").slow_count
        == found.slow.count
    )


def test_too_few_requests_tell_nothing_and_say_so():
    rng = stream(7)
    profile = Profile(tuple(of_requests(rng, 5, 0.9, "s") + of_requests(rng, 300, 0.1, "r")))
    found = compare(profile, lambda trace: trace.startswith("s"))
    assert found.differences == ()
    assert found.why_not.startswith("5 slow requests were sampled")


@settings(max_examples=40)
@given(st.permutations(range(6)))
def test_requests_of_neither_group_are_in_neither(order):
    rng = stream(8)
    base = of_requests(rng, 30, 0.5, "s") + of_requests(rng, 30, 0.5, "r")
    extra = [Sample((Frame("main"), Frame("work")), 10**9, 5, Labels("", "", trace)) for trace in ("", "x")]
    every = base + extra
    rng.shuffle(every)
    is_slow = {"s": True, "r": False}
    found = compare(Profile(tuple(every)), lambda trace: is_slow.get(trace[0]))
    assert found.slow.count + found.rest.count == sum(sample.count for sample in base)
    assert msgspec.structs.asdict(found)["why_not"] == ""
