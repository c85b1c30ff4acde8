"""What callers of an engine would see: a model of the engine from a few figures, and TTFT, TPOT and E2E of every request.

    TTFT = first token - arrival        E2E = last token - arrival        TPOT = (last - first) / (output tokens - 1)

TPOT leaves the first token out and is one figure a request, not pooled over tokens; a request of one token has none.

Rules: everything that decides capacity is asked for and nothing of it has a default (`predict.engine_facts` reads it from the engine);
host time is the step's own figure, so a fitted step time that contains it is used as it is.

Deliberately absent: adapters and links that dip (`EngineSpec` has them), the way to the engine and back, and
quantiles of what comes out.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sits.predict.prepare import Rank
from sits.predict.profile import Profile
from sits.predict.steptime import StepTime
from sits.sim.model import simulate
from sits.sim.spec import EngineSpec, FrontEnd, Order

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NO_FRONT = FrontEnd(api_us=0.0, tokenize_us_per_token=0.0, enqueue_us=0.0)
GRAPHS_ALWAYS = 2**31


class Forecast(NamedTuple):
    """One row a request, in the order given; ns.

    `ttft_ns` and `e2e_ns` are -1, and `tpot_ns` NaN, for a request that never fits; `tpot_ns` is NaN for one token, too.
    """

    ttft_ns: Ints
    tpot_ns: Floats
    e2e_ns: Ints
    queued_ns: Ints
    preemptions: Ints
    steps: int
    end_ns: int


def engine(
    step: StepTime | Profile,
    *,
    blocks: int,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    prefix_caching: bool,
    async_scheduling: bool = False,
    chunked_prefill: bool = True,
    long_prefill_token_threshold: int = 0,
    order: Order = "fcfs",
    reserve_full_isl: bool = True,
    graph_seqs_max: int = GRAPHS_ALWAYS,
    front: FrontEnd = NO_FRONT,
) -> EngineSpec:
    """An engine with the scheduler of vLLM V1 whose steps take as long as `step` says, host time included.

    Raises:
        ConfigError: figures no scheduler could work with.

    """
    return EngineSpec(
        step=step,
        ranks=(Rank(bandwidth=float("inf")),),
        block_size=block_size,
        blocks=blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        long_prefill_token_threshold=long_prefill_token_threshold,
        chunked_prefill=chunked_prefill,
        graph_seqs_max=graph_seqs_max,
        order=order,
        reserve_full_isl=reserve_full_isl,
        prefix_caching=prefix_caching,
        async_scheduling=async_scheduling,
        host=None,
        front=front,
    )


def block_names(ids: Sequence[int], tokens: int, block_size: int) -> list[int]:
    """Names of an engine's blocks for a trace that names pieces of `tokens` tokens, as Mooncake's does with 512.

    >>> block_names([7, 9], 512, 256)
    [14, 15, 18, 19]

    Raises:
        ValueError: such a piece is not a whole number of blocks.

    """
    count, rest = divmod(tokens, block_size)
    if rest or not count:
        raise ValueError(f"a piece of {tokens} tokens is no whole number of blocks of {block_size}")
    return [name * count + part for name in ids for part in range(count)]


def forecast(
    spec: EngineSpec,
    arrivals_ns: Ints,
    prompt_tokens: Ints,
    output_tokens: Ints,
    *,
    priorities: Ints | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    rng: np.random.Generator | None = None,
) -> Forecast:
    """Serve a trace; arrivals ascend.  `prefixes[i]` names the first blocks of prompt i, lower priorities go first.

    With `rng` steps vary by the step time's `noise_cv`; without, every step takes its mean.

    Raises:
        ValueError: arrays of unequal length, or arrivals that go back in time.

    """
    done = simulate(
        arrivals_ns, prompt_tokens, output_tokens, None, spec, rng, priorities=priorities, prefixes=prefixes
    )
    served = done.last_token_ns >= 0
    gaps = np.where(served & (np.asarray(output_tokens) > 1), np.asarray(output_tokens) - 1.0, np.nan)
    return Forecast(
        np.where(served, done.first_token_ns - arrivals_ns, -1),
        (done.last_token_ns - done.first_token_ns) / gaps,
        np.where(served, done.last_token_ns - arrivals_ns, -1),
        done.queued_ns,
        done.preemptions,
        done.steps,
        done.end_ns,
    )
