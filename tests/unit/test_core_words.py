"""The small words of the core: breakpoints, units, errors, timelines, replicas."""

import pytest

from sits.core import breakpoints as bp
from sits.core import errors
from sits.core.breakpoints import BREAKPOINTS, NAMES, STAGES, TTFT_STAGES, Exactness
from sits.core.replica import Replica
from sits.core.timeline import Timeline
from sits.core.units import parse_bandwidth, parse_bytes, parse_duration, parse_share, show_duration


def test_there_are_17_breakpoints_and_3_milestones_in_four_layers():
    layers = [b.layer for b in BREAKPOINTS]
    assert [layers.count(layer) for layer in ("http", "scheduler", "device", "result")] == [4, 5, 8, 3]
    assert sorted(layers, key=["http", "scheduler", "device", "result"].index) == layers
    assert (bp.BREAKPOINT_COUNT, bp.POINT_COUNT, len(STAGES), len(TTFT_STAGES)) == (17, 20, 19, 17)
    assert [b.index for b in BREAKPOINTS] == list(range(20))


def test_names_stages_and_constants_are_one_table():
    assert len(set(NAMES)) == 20
    assert len(set(STAGES)) == 19
    assert "" not in STAGES
    for name, index in bp.INDEX.items():
        assert getattr(bp, name.upper()) == index
        assert NAMES[index] == name
        assert BREAKPOINTS[index].moment
        assert BREAKPOINTS[index].source


def test_the_first_17_stages_end_at_the_first_token():
    assert NAMES[len(TTFT_STAGES)] == "first_token"
    assert NAMES[bp.KERNEL_LAUNCH] == "kernel_launch"
    assert bp.KERNEL_LAUNCH == 16


def test_exactness_is_ordered_by_trust():
    assert list(Exactness) == [Exactness.MISSING, Exactness.SAMPLED, Exactness.DERIVED, Exactness.MEASURED]
    assert not Exactness.MISSING


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_duration, "100ms", 100_000_000),
        (parse_duration, "2.5 s", 2_500_000_000),
        (parse_duration, "15m", 900_000_000_000),
        (parse_duration, "1e3us", 1_000_000),
        (parse_duration, "7µs", 7_000),
        (parse_duration, "0s", 0),
        (parse_bytes, "80GiB", 80 * 2**30),
        (parse_bytes, "80GB", 80 * 10**9),
        (parse_bandwidth, "400Gb/s", 50e9),
        (parse_bandwidth, "24GB/s", 24e9),
        (parse_share, "42%", 0.42),
        (parse_share, 1, 1.0),
        (parse_share, "0%", 0.0),
    ],
)
def test_quantities_are_read_with_their_unit(parse, text, value):
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (parse_duration, 100, "no unit"),
        (parse_duration, "100", "no unit"),
        (parse_duration, "100 MS", "not a unit"),
        (parse_duration, "-1ms", "negative"),
        (parse_duration, "1ms 2ms", "not a unit"),
        (parse_duration, True, "is not a duration"),
        (parse_duration, None, "is not a duration"),
        (parse_duration, "1e400s", "too large"),
        (parse_bytes, "80G", "not a unit"),
        (parse_bytes, "80Gb", "not a unit"),
        (parse_bandwidth, "24GB", "not a unit"),
        (parse_share, "142%", "outside"),
        (parse_share, "half", "not a share"),
        (parse_share, "x%", "not a share"),
        (parse_share, float("nan"), "outside"),
        (parse_share, True, "not a share"),
    ],
)
def test_a_wrong_quantity_says_what_is_wrong_and_how_to_write_it(parse, text, says):
    with pytest.raises(errors.ConfigError, match=says) as caught:
        parse(text)
    assert caught.value.hint
    assert caught.value.value is text or caught.value.value != caught.value.value


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (45_100, "45.1 us"), (2_312_000_000, "2.31 s"), (-5_000_000, "-5 ms")],
)
def test_durations_are_shown_with_three_digits(ns, text):
    assert show_duration(ns) == text


def _all_errors(base=errors.SitsError):
    ours = [kind for kind in base.__subclasses__() if kind.__module__ == errors.__name__]
    return [base] + [deep for kind in ours for deep in _all_errors(kind)]


def test_every_error_has_a_status_a_kind_and_the_openai_shape():
    for kind in _all_errors():
        if kind is errors.ConfigErrors:
            continue
        error = kind("went wrong", field="a.b", hint="do this", code="c")
        assert 400 <= error.status <= 504
        body = error.body()["error"]
        assert set(body) == {"message", "type", "param", "code"}
        assert "do this" in body["message"]
        assert body["param"] == "a.b"


def test_whose_fault_it_is_decides_the_status():
    assert {kind.status for kind in _all_errors(errors.CallerError)} == {400, 401, 403, 404, 413, 422}
    assert {kind.status for kind in _all_errors(errors.CapacityError)} == {429, 503}
    assert {kind.status for kind in _all_errors(errors.EngineError)} == {502, 504}
    assert errors.BugError("x").status == 500


def test_the_tree_in_the_docstring_names_every_error():
    for kind in _all_errors():
        if kind is not errors.RateLimitError:
            assert kind.__name__ in (errors.__doc__ or "")


def test_a_config_error_reads_place_field_message_and_way_out():
    error = errors.ConfigError("is odd", where="f.yaml:3", field="a.b", hint="take 2")
    assert str(error) == "f.yaml:3: a.b: is odd (take 2)"
    both = errors.ConfigErrors([error, errors.ConfigError("is empty", where="f.yaml:9")])
    assert str(both) == "f.yaml:3: a.b: is odd (take 2)\nf.yaml:9: is empty"
    assert str(errors.ConfigErrors([error] * 60)).endswith("\n... and 10 more")
    assert (both.where, both.field, len(both.errors)) == ("f.yaml:3", "a.b", 2)


def test_a_timeline_knows_what_it_saw():
    row = Timeline()
    assert not any(row.has(i) for i in range(20))
    row.mark(bp.API_RECV, 100)
    row.mark(bp.FIRST_TOKEN, 350, Exactness.DERIVED)
    assert row.span_ns(bp.API_RECV, bp.FIRST_TOKEN) == 250
    assert row.span_ns(bp.API_RECV, bp.SENT) is None
    assert row.how[bp.FIRST_TOKEN] == Exactness.DERIVED
    assert repr(row) == "Timeline(api_recv=100, first_token=350)"
    assert Timeline().at[bp.API_RECV] == 0


def test_disorder_names_the_two_points():
    row = Timeline()
    row.mark(bp.ROUTED, 50)
    row.mark(bp.QUEUED, 40)
    assert row.disorder() == "queued is 10 ns before routed"
    row.mark(bp.QUEUED, 50)
    assert row.disorder() is None


def test_a_replica_never_scraped_has_no_age():
    assert Replica(id="a").age_ns(5) is None
    assert Replica(id="a", observed_ns=3).age_ns(5) == 2
