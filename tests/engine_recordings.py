"""Recordings for tests: the ones of a real engine kept in `tests/data`, and small ones made up with known laws."""

import gzip
import json
from pathlib import Path

import numpy as np

from sits.predict.fit_limits import Limit, Limits
from sits.predict.fit_model import FittedEngine, FittedOn, PrefixHits, Range
from sits.predict.fit_steps import Residuals, StepLaw
from sits.predict.frontend import FrontLaw, Outside

RECORDINGS = Path(__file__).parent / "data" / "engines" / "recordings"
LAW = {
    "base_ms": 10.0,
    "mixed_ms": 4.0,
    "prompt_token_ms": 0.1,
    "chunk_ms": 1.0,
    "decode_ms": 0.5,
    "kv_token_ms": 0.001,
}


def engine(
    *,
    law=None,
    pause_ms=2.0,
    enter_ms=3.0,
    out_ms=1.0,
    end_ms=0.5,
    serial_ms=0.0,
    slow=(1.0,),
    factor=(1.0,),
    **limits,
):
    """A model without any noise, whose times can be added up by hand."""
    known = {"blocks": 1000, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 512} | limits
    single = Residuals(factor=factor, beyond_ms=(0.0,) * len(factor))
    return FittedEngine(
        fitted_on=FittedOn(source="made up", runs=("a", "b"), requests=10, steps=100, failed=0, span_s=10.0),
        limits=Limits(
            **{name: Limit(value=value, source="made up", sure=True) for name, value in known.items()},
            prefix_caching=False,
            kv_used_most=0.1,
        ),
        steps=StepLaw(
            **(law or LAW), pause_ms=pause_ms, pause_decode_ms=0.0, pause_mixed_ms=0.0, levels={"a": 1.0, "b": 1.0},
            slow=slow, decode=single, mixed=single, steps=100, median_error=0.1,
        ),
        front=FrontLaw(
            serial_ms=serial_ms,
            bins=(
                Outside(
                    in_flight_min=0, enter_ms=(enter_ms,), first_ms=(out_ms,), last_ms=(out_ms,), end_ms=(end_ms,), weight=(1.0,)
                ),
            ),
        ),
        prefix=PrefixHits(),
        prompt_tokens=Range(low=1, high=1000),
        output_tokens=Range(low=1, high=1000),
        batch=Range(low=1, high=8),
        in_flight=Range(low=1, high=1000),
        rate_per_s=Range(low=0, high=100),
    )  # fmt: skip


def write_recording(folder, *, requests=30, steps=60, zipped=True, seed=1):
    """A small made-up recording of two runs: right in form, so that one thing at a time can be made wrong."""
    dice = np.random.Generator(np.random.PCG64(seed))
    folder.mkdir(parents=True, exist_ok=True)
    heads, lines, rows = [], [], ["run,ctx_reqs,ctx_tokens,gen_reqs,elapsed_ms,kv_pct"]
    scrapes = ["run,num_requests_running,num_requests_waiting,kv_cache_usage_perc"]
    for place, run in enumerate(("one", "two")):
        heads.append({"run": run, "mode": "poisson", "t0_unix": 1000.0 + 60 * place, "wall_s": 30.0})
        at = 0.0
        for i in range(requests):
            at += float(dice.exponential(0.3))
            lines.append(
                {
                    "run": run, "id": f"{run}-{i}", "prompt_tokens": 100, "output_tokens": 3, "sent": at, "headers": at + 0.004,
                    "ttft_ms": 40.0, "e2e_ms": 70.0, "tpot_ms": 12.0, "status": 200, "error": None, "chunks": [[40.0, 1], [64.0, 3]],
                    "server_metrics": {"queue_time_ms": 0.1, "time_to_first_token_ms": 30.0, "generation_time_ms": 24.0},
                }
            )  # fmt: skip
        for i in range(steps):
            decodes = i % 4
            noise = float(dice.uniform(0.95, 1.05))
            rows.append(
                f"{run},{int(decodes == 0)},{100 * (decodes == 0)},{decodes},{(10 + 10 * (decodes == 0)) * noise:.2f},1.0"
            )
        scrapes += [f"{run},1,0,{used / 499}" for used in (3, 7, 11, 20)]
    texts = {
        "runs.jsonl": "\n".join(map(json.dumps, heads)),
        "requests.jsonl": "\n".join(map(json.dumps, lines)),
        "steps.csv": "\n".join(rows),
        "scrapes.csv": "\n".join(scrapes),
    }
    for name, text in texts.items():
        if zipped and name != "runs.jsonl":
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text)
    return folder
