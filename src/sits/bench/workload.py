"""A workload: what is asked, when, by whom.  An iterator of Requests, and the true output lengths beside it.

Rules: the true output length travels beside the Requests, never inside (`Workload.output_tokens`): only an
emulated engine may look at it.  Drawing is by named streams (arrivals, prompts, answers, adapters, units), so
changing one never moves another; the same seed gives the same workload.

Adapters are drawn by a Zipf law over their popularity rank, P(rank k) ~ k^-exponent; that popularity of
fine-tunes is skewed is common, the exponent is an assumption of the scenario that states it.

Deliberately absent: how load is sent (`bench.load` for sockets, `bench.virtual` for the virtual loop).
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sits.bench.arrivals import Gamma, OnOff
from sits.bench.lengths import NAMED, Quantiles
from sits.core.errors import ConfigError
from sits.core.ports import World
from sits.core.request import Request
from sits.core.units import SECOND, Share


class WorkloadPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recipe of a workload.

    Attributes:
        requests: how many are sent.
        arrivals: when they come.
        prompt, answer: name of a known length distribution.
        long_share, long_prompt: share of requests whose prompt is drawn from another distribution instead.
        prompt_max, answer_max: context limits, tokens.
        adapter_share: share of requests that ask for an adapter at all.
        adapter_zipf: popularity exponent over the fleet's adapters.
        units: how many users the requests come from.

    """

    requests: Annotated[int, Meta(ge=1, le=1_000_000)]
    arrivals: OnOff | Gamma = OnOff()
    prompt: str = "azure-conversation-prompt"
    answer: str = "azure-conversation-answer"
    long_share: Share = Share(0.0)
    long_prompt: str = "documents"
    prompt_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 8192
    answer_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 1024
    adapter_share: Share = Share(0.0)
    adapter_zipf: Annotated[float, Meta(ge=0, le=20)] = 1.0
    units: Annotated[int, Meta(ge=1, le=10_000_000)] = 500


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of one drawn workload, all of length n, in order of arrival.

    `arrival_ns` counts from the start of the run; `adapter` is an index into `adapters`, -1 for the base model.
    """

    name: str
    model: str
    adapters: tuple[str, ...]
    arrival_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    adapter: NDArray[np.int64]
    unit: NDArray[np.int64]
    answer_max: int

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def gaps_s(self) -> NDArray[np.float64]:
        """Inter-arrival gaps in seconds."""
        return np.diff(self.arrival_ns) / SECOND

    def requests(self) -> Iterator[Request]:
        """The Requests in order of arrival; ids are `r000000`, `r000001`, ... (the row number)."""
        for i in range(len(self)):
            adapter = int(self.adapter[i])
            yield Request(
                id=f"r{i:06d}",
                model=self.model,
                adapter=self.adapters[adapter] if adapter >= 0 else "",
                unit=f"u{self.unit[i]}",
                prompt_tokens=int(self.prompt_tokens[i]),
                output_tokens_max=self.answer_max,
                arrival_ns=int(self.arrival_ns[i]),
            )


def row_of(request: Request) -> int:
    """The row of a workload a Request came from."""
    return int(request.id[1:])


def lengths_named(name: str) -> Quantiles:
    """The known length distribution `name`.

    Raises:
        ConfigError: no such distribution; names the known ones.

    """
    found = NAMED.get(name)
    if found is None:
        raise ConfigError(
            f"no length distribution is called {name!r}", value=name, hint=f"one of {', '.join(NAMED)}"
        )
    return found


def draw(plan: WorkloadPlan, world: World, *, model: str, adapters: tuple[str, ...]) -> Workload:
    """Draw a workload from the world's dice."""
    n = plan.requests
    gaps_s = plan.arrivals.gaps_s(world.rng("workload.arrivals"), n)
    prompt = lengths_named(plan.prompt).draw(world.rng("workload.prompts"), n)
    if plan.long_share:
        rng = world.rng("workload.long_prompts")
        prompt = np.where(
            rng.random(n) < plan.long_share, lengths_named(plan.long_prompt).draw(rng, n), prompt
        )
    answer = lengths_named(plan.answer).draw(world.rng("workload.answers"), n)
    return Workload(
        name="drawn",
        model=model,
        adapters=adapters,
        arrival_ns=np.rint(np.cumsum(gaps_s) * SECOND).astype(np.int64),
        prompt_tokens=np.minimum(prompt, plan.prompt_max),
        output_tokens=np.minimum(answer, plan.answer_max),
        adapter=_adapters(plan, world, len(adapters)),
        unit=world.rng("workload.units").integers(0, plan.units, n),
        answer_max=plan.answer_max,
    )


def from_trace(
    arrival_s: NDArray[np.float64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    plan: WorkloadPlan,
    world: World,
    *,
    model: str,
    adapters: tuple[str, ...],
) -> Workload:
    """The first `plan.requests` rows of a real trace, with adapters and units drawn as the plan says."""
    n = min(plan.requests, len(arrival_s))
    shorter = msgspec.structs.replace(plan, requests=n)
    return Workload(
        name="trace",
        model=model,
        adapters=adapters,
        arrival_ns=np.rint(np.asarray(arrival_s[:n]) * SECOND).astype(np.int64),
        prompt_tokens=np.clip(prompt_tokens[:n], 1, plan.prompt_max).astype(np.int64),
        output_tokens=np.clip(output_tokens[:n], 1, plan.answer_max).astype(np.int64),
        adapter=_adapters(shorter, world, len(adapters)),
        unit=world.rng("workload.units").integers(0, plan.units, n),
        answer_max=plan.answer_max,
    )


def _adapters(plan: WorkloadPlan, world: World, count: int) -> NDArray[np.int64]:
    rng = world.rng("workload.adapters")
    if not count or plan.adapter_share == 0.0:
        return np.full(plan.requests, -1, dtype=np.int64)
    popularity = np.arange(1, count + 1, dtype=np.float64) ** -plan.adapter_zipf
    chosen = rng.choice(count, size=plan.requests, p=popularity / popularity.sum())
    return np.where(rng.random(plan.requests) < plan.adapter_share, chosen, -1).astype(np.int64)
