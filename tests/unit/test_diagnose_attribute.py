import numpy as np
import pytest

from diagnose_tables import MS, Knobs, dice, make
from sits.core.breakpoints import STAGES
from sits.core.errors import CallerError
from sits.diagnose.attribute import PLANES, STAGE_PLANE, matrix, split
from sits.diagnose.steps import by_engine


def alone(**knobs):
    """A run in which requests never meet: 1 s apart."""
    return make(Knobs(n=400, arrivals_ms=1000.0 * np.arange(400), **knobs))


def test_every_stage_has_a_plane():
    assert set(STAGE_PLANE) == set(STAGES)
    assert set(STAGE_PLANE.values()) < set(PLANES)


def test_step_cost_is_found_again():
    _, steps, _ = make(Knobs(base_ms=8.0, prefill_us_per_token=20.0, decode_us_per_token=0.0))
    cost = by_engine(steps)["e0"].cost
    assert cost.base_ns == pytest.approx(8.0 * MS, rel=1e-3)
    assert cost.prefill_ns == pytest.approx(20e3, rel=1e-3)


def test_a_prompt_alone_is_its_own_compute():
    requests, steps, _ = alone(decode_us_per_token=0.0)
    parts = split(requests, steps)
    own, others = parts.part("prefill: own compute"), parts.part("prefill: other requests")
    assert np.allclose(own, 8 * MS + 20e3 * requests["prompt_tokens"], rtol=1e-3)
    assert others.max() < 0.05 * MS
    assert np.allclose(parts.part("prefill: delivery"), 50_000, atol=2)


def test_others_in_the_same_step_are_the_frameworks_share():
    arrivals = 1000.0 * (np.arange(400) // 2)
    requests, steps, _ = make(
        Knobs(
            n=400,
            arrivals_ms=arrivals,
            decode_us_per_token=0.0,
            long_prompts=dict.fromkeys(range(1, 400, 2), 5000),
        )
    )
    parts = split(requests, steps)
    short = np.arange(0, 400, 2)
    assert np.allclose(parts.part("prefill: other requests")[short], 5000 * 20e3, rtol=1e-2)


def test_copies_inside_the_queue_are_infrastructure():
    arrivals = np.sort(np.concatenate([1000.0 * np.arange(200), 1000.0 * np.arange(200) + 2.0]))
    load = np.zeros(400)
    load[::2] = 30.0
    requests, steps, _ = make(Knobs(n=400, arrivals_ms=arrivals, load_ms=load, copy_mbytes=0.0))
    parts = split(requests, steps)
    second = np.arange(1, 400, 2)
    assert np.allclose(parts.part("engine_queue: copies")[second], 28 * MS, rtol=1e-2)
    assert parts.planes[parts.names.index("engine_queue: copies")] == "infrastructure"


def test_without_steps_a_stage_keeps_its_plane_whole():
    requests, _, _ = alone()
    parts = split(requests, {})
    assert parts.names == parts.cut.names
    assert parts.planes == tuple(STAGE_PLANE[name] for name in parts.names)


def test_an_engine_that_tells_only_scheduled_and_first_token_is_split_by_its_steps():
    requests, steps, _ = alone(decode_us_per_token=0.0)
    requests["exactness"] = np.array(["3" * 9 + "0" * 8 + "333"] * 400, dtype=object)
    parts = split(requests, steps)
    assert parts.part("unattributed (scheduled..first_token): own compute").min() > 8 * MS
    blind = split(requests, {})
    assert (
        dict(zip(blind.names, blind.planes, strict=True))["unattributed (scheduled..first_token)"]
        == "unattributed"
    )


def test_decode_time_is_model_but_for_other_prompts():
    requests, steps, _ = make(Knobs(gap_ms=25.0))
    parts = split(requests, steps, "e2e")
    assert parts.part("decode: compute").sum() > parts.part("decode: other prompts").sum() > 0


def test_matrix_shares_of_a_band_add_up_to_one_and_bands_hold_everybody():
    requests, steps, _ = make(Knobs(gap_ms=20.0, window_ms=50.0))
    found = matrix(requests, steps, "ttft", dice(1))
    assert [band.name for band in found.bands] == ["<= P50", "P50..P90", "P90..P99", ">= P99"]
    assert [band.n for band in found.bands] == [500, 400, 89, 11]
    for band in found.bands:
        cells = [cell for cell in found.cells if cell.band == band.name]
        assert [cell.plane for cell in cells] == list(PLANES)
        assert sum(cell.share.value for cell in cells) == pytest.approx(1.0)
        assert all(0 <= c.share.low <= c.share.value <= c.share.high <= 1 + 1e-12 for c in cells)
        assert band.low_ms <= sum(cell.mean_ms for cell in cells) <= band.high_ms
    assert found == matrix(requests, steps, "ttft", dice(1))


def test_a_window_moves_share_to_the_framework():
    plain, held = (
        {
            (c.band, c.plane): c.share.value
            for c in matrix(*make(Knobs(window_ms=w))[:2], "ttft", dice(1)).cells
        }
        for w in (0.0, 100.0)
    )
    assert held[("<= P50", "framework")] > 0.8 > plain[("<= P50", "framework")]


def test_equal_latencies_leave_bands_empty_not_wrong():
    requests, _, _ = alone()
    requests["first_token"] = requests["api_recv"] + 40 * MS
    requests["exactness"] = np.array(["3" + "0" * 16 + "333"] * 400, dtype=object)
    found = matrix(requests, {}, "ttft", dice(1))
    assert [band.n for band in found.bands] == [0, 0, 0, 400]
    assert {cell.band for cell in found.cells} == {">= P99"}


def test_a_step_table_without_a_needed_column_is_an_error_that_names_it():
    requests, steps, _ = alone()
    del steps["prepare_ns"]
    with pytest.raises(CallerError, match="table 'steps' has no column 'prepare_ns'"):
        split(requests, steps)


def test_delivery_starts_at_the_step_that_finished_the_prompt_not_at_the_last_step():
    outward = np.where(np.arange(200) % 10 == 3, 300.0, 0.0)
    late, plain = (make(Knobs(n=200, outward_wait_ms=wait)) for wait in (outward, None))
    delivery = [
        split(requests, steps, "ttft").part("prefill: delivery") / 1e6 for requests, steps, _ in (late, plain)
    ]
    assert delivery[0] - delivery[1] == pytest.approx(outward)


def prefill_steps(tokens, running, decode=0):
    n = len(tokens)
    return {
        "engine": np.array(["e"] * n, dtype=object), "t_ns": 100 * np.arange(n), "duration_ns": np.full(n, 90),
        "prefill_tokens": np.array(tokens), "decode_tokens": np.full(n, decode), "running": np.array(running),
        "copy_ns": np.zeros(n, np.int64), "prepare_ns": np.zeros(n, np.int64),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "first_token", "end"),
    [
        (2000, 990, 90),  # fits the first step
        (5000, 990, 290),  # three chunks of at most 2048, though the steps hold more
        (9000, 990, 590),  # the full step counts nothing
        (9000, 400, 390),  # but it cannot have ended after its first token
        (10**6, 990, 690),  # more than there is: the last step with prompt tokens
        (1, 50, 50),  # no step ended by then
    ],
)  # fmt: skip
def test_the_end_of_a_prompt_is_found_from_what_its_steps_computed(tokens, first_token, end):
    steps = prefill_steps(
        [2048, 3000, 3000, 8192, 2048, 2048, 2048, 0, 0], [1, 2, 2, 4, 1, 1, 1, 1, 1]
    )  # fmt: skip
    (line,) = by_engine(steps).values()
    found = line.prompt_end(np.array([0]), np.array([first_token]), np.array([float(tokens)]))
    assert found.tolist() == [end]
