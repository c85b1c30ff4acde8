import numpy as np
import pytest

from diagnose_tables import Knobs, dice, make
from sits.bench.assemble import GAP_NS, Tables, lay_out, tpot_summary
from sits.core.errors import CallerError


def run(name, **knobs):
    tables = make(Knobs(**knobs))
    for table in tables:
        table["run_id"] = np.full(len(table["run_id"]), name, dtype=object)
    return Tables(*tables)


def test_a_run_starts_a_gap_after_the_one_before_has_ended():
    first, second = run("a", n=20), run("b", n=20)
    whole = lay_out([first, second])
    last = max(
        int(first.requests["sent"].max()), int(first.steps["t_ns"].max()), int(first.signals["t_ns"].max())
    )
    assert np.array_equal(whole.requests["api_recv"][20:], second.requests["api_recv"] + last + GAP_NS)


def test_two_runs_of_one_name_are_refused():
    with pytest.raises(CallerError, match="two runs are called 'a'"):
        lay_out([run("a", n=5), run("b", n=5), run("a", n=5)])


def test_tpot_of_runs_that_differ_has_a_wider_interval():
    runs = [run(f"r{r}", n=400, seed=r, base_ms=8.0 + 4.0 * r) for r in range(4)]
    requests = lay_out(runs).requests
    apart = tpot_summary(requests, dice(1))
    requests["run_id"][:] = "one"
    pooled = tpot_summary(requests, dice(1))
    assert apart.p99.value == pooled.p99.value
    assert apart.p99.high - apart.p99.low > 2 * (pooled.p99.high - pooled.p99.low)
