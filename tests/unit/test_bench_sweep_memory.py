"""Static against paged in the simulator: the same work, and what has to be true of any result."""

import pytest

from sits.bench.sweep_memory import WORKS, compare_memory, work_of
from sits.core.errors import ConfigError
from sits.predict.sharding import Sharding
from sits.predict.sharding_models import MODELS

SEVEN = MODELS["llama-2-7b"]


def compared(work, **more):
    return compare_memory(SEVEN, "A100-SXM4-80GB", Sharding(tensor=2), work, gpu_memory=80 * 2**30, **more)


@pytest.mark.parametrize("kind", WORKS)
@pytest.mark.parametrize("context", [64, 2048, 131_072])
def test_work_stays_inside_its_context_and_follows_its_seed(kind, context):
    work = work_of(kind, context, 300, seed=1)
    assert (work.prompt >= 1).all()
    assert (work.output >= 1).all()
    assert (work.prompt + work.output <= context).all()
    again, other = work_of(kind, context, 300, seed=1), work_of(kind, context, 300, seed=2)
    assert (again.prompt == work.prompt).all()
    assert (other.output != work.output).any()


def test_blocks_waste_little_and_serve_more_at_a_time():
    seen = compared(work_of("conversation", 8192, 120, seed=0))
    assert seen.static.served == seen.paged.served == 120
    assert seen.static.memory.waste > 0.5
    assert seen.paged.memory.waste < 0.02
    assert seen.paged.memory.sequences > 2 * seen.static.memory.sequences
    assert 1 < seen.speedup < seen.paged.memory.sequences / seen.static.memory.sequences


def test_nothing_is_gained_where_everybody_fills_the_context():
    work = work_of("full", 8192, 60, seed=0)
    seen = compared(work)
    assert seen.static.memory.waste < 0.02
    assert seen.speedup == pytest.approx(1.0, abs=0.1)


def test_nothing_is_gained_while_memory_is_not_what_limits():
    seen = compared(work_of("conversation", 2048, 60, seed=0), max_num_seqs=8)
    assert seen.speedup == pytest.approx(1.0, abs=0.01)


def test_a_shared_prefix_is_computed_once():
    alone = compared(work_of("conversation", 8192, 120, seed=0))
    seen = compared(work_of("conversation", 8192, 120, seed=0, shared_prefix=512))
    assert (seen.paged, seen.static) == (alone.paged, alone.static)
    assert alone.shared is None
    assert seen.shared.served == 120
    assert seen.shared.output_per_s > 1.1 * seen.paged.output_per_s


@pytest.mark.parametrize(
    ("plan", "context", "says"),
    [(Sharding(), 131_072, "more than the whole pool"), (Sharding(layers=2), 2048, "tensor plans only")],
)
def test_what_cannot_be_compared_says_why(plan, context, says):
    seen = compare_memory(
        SEVEN, "A100-SXM4-80GB", plan, work_of("full", context, 3, seed=0), gpu_memory=80 * 2**30
    )
    assert says in seen.refused
    assert seen.speedup is None


def test_an_unknown_work_is_told():
    with pytest.raises(ConfigError, match="conversation"):
        work_of("chess", 2048, 1, seed=0)
