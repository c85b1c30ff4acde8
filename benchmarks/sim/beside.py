"""Our simulator beside Vidur and DynoSim on one trace: each installed from the registry, each pinned to one core, CPU seconds.

The trace: the first 10,000 requests of the Azure 2023 conversation trace of 1 to 4,096 tokens in all (lengths as recorded, in
their order), with Poisson arrivals at the given rate.  Where the recorded trace is not there, lengths are drawn to its size,
and the table says so.

What is measured is the run of the simulator alone: not its start, not reading the trace, not what it writes at the end.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import numpy as np

from sits.world import stream_generator

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sits-bench"
SHARED = Path(__file__).parents[3].joinpath("shared", "data")
TRACE = SHARED / "traces/azure_llm_2023_conv.parquet"
PROFILE = SHARED / "measurements/llmservingsim_layer_profiles/RTXPRO6000__Llama-3.1-8B__tp1"
COUNT = 10_000
MAX_SEQS = 128
PEERS = {
    "Vidur 0.0.26": ("vidur", ("vidur==0.0.26",), ()),
    "DynoSim (ai-dynamo 1.6.1)": ("dynosim", ("ai-dynamo-runtime==1.6.1",), ("ai-dynamo==1.6.1",)),
}
"""Folder, packages, and packages without what they would bring."""


def lengths():
    """Prompt and output tokens, and where they come from."""
    if TRACE.is_file():
        table = duckdb.read_parquet(str(TRACE)).fetchnumpy()
        prompts, outputs = table["input_tokens"], table["output_tokens"]
        keep = (prompts + outputs <= 4096) & (outputs > 0)
        return prompts[keep][:COUNT], outputs[keep][:COUNT], "Azure 2023 conversation"
    rng = stream_generator(1, "bench")
    prompts = np.clip(rng.lognormal(6.4, 1.0, COUNT), 1, 3000).astype(int)
    outputs = np.clip(rng.lognormal(5.1, 0.8, COUNT), 1, 1000).astype(int)
    return prompts, outputs, "drawn (the recorded trace is not here)"


def write_traces(folder, per_second):
    """The trace as CSV (Vidur, ours) and as JSON lines (DynoSim); no block of any prompt is another's."""
    prompts, outputs, source = lengths()
    arrivals = np.cumsum(stream_generator(1, "bench").exponential(1 / per_second, len(prompts)))
    block = 0
    with (folder / "trace.csv").open("w") as table, (folder / "trace.jsonl").open("w") as lines:
        table.write("Time,Date,PromptTokenCount,CompletionTokenCount\n")
        for at, prompt, output in zip(arrivals, prompts, outputs, strict=True):
            table.write(f"{at:.6f},2023-11-16,{prompt},{output}\n")
            own = list(range(block, block + -(-int(prompt) // 512)))
            block += len(own)
            row = {"timestamp": round(at * 1000, 3), "input_length": int(prompt)}
            lines.write(json.dumps({**row, "output_length": int(output), "hash_ids": own}) + "\n")
    return source


def install(name):
    """The interpreter of a peer's virtual environment, made when it is not there; or why there is none."""
    folder, packages, bare = PEERS[name]
    home = CACHE / folder
    python = home / "bin/python"
    mark = home / "installed"
    wanted = "\n".join((*packages, *bare))
    if mark.is_file() and mark.read_text() == wanted:
        return python, ""
    shutil.rmtree(home, ignore_errors=True)
    print(f"installing {name} into {home}", file=sys.stderr, flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True, capture_output=True, text=True)
        if bare:
            subprocess.run([*pip, "--no-deps", *bare], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        return None, f"not installed: {said[-1] if said else error}"
    mark.write_text(wanted)
    return python, ""


def run(line, core):
    """The JSON a runner prints on its last line; its rows of error, when it fails."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    done = subprocess.run(
        ["taskset", "-c", str(core), *map(str, line)], capture_output=True, text=True, env=env, check=False
    )
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no reason given"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(rates=(2, 6)):
    """Every simulator at every rate: rows of a table."""
    core = max(os.sched_getaffinity(0))
    rows = []
    for per_second in rates:
        with tempfile.TemporaryDirectory() as folder:
            source = write_traces(Path(folder), per_second)
            table, lines = f"{folder}/trace.csv", f"{folder}/trace.jsonl"
            plans = [("sits, coefficients", [sys.executable, HERE / "ours_replay.py", table, MAX_SEQS])]
            if Path(f"{PROFILE}__dense.parquet").is_file():
                plans.append(("sits, layer tables", [*plans[0][1], PROFILE]))
            for name in PEERS:
                python, why = install(name)
                if python is None:
                    rows.append({"rate": per_second, "name": name, "failed": why})
                elif "Vidur" in name:
                    plans.append((name, [python, HERE / "vidur_replay.py", table, MAX_SEQS]))
                else:
                    plans.append((name, [python, HERE / "dynosim_replay.py", lines]))
            for name, line in plans:
                print(f"{per_second} requests/s: {name}", file=sys.stderr, flush=True)
                rows.append({"rate": per_second, "name": name, "source": source, **run(line, core)})
    return rows


def figures(rows):
    """The rows with requests a CPU second, and how many times each peer's time ours is."""
    for row in rows:
        if "cpu_s" not in row:
            continue
        row["requests_per_cpu_s"] = COUNT / row["cpu_s"]
        ours = [r["cpu_s"] for r in rows if r["rate"] == row["rate"] and r["name"].startswith("sits")]
        if not row["name"].startswith("sits"):
            row["times_ours"] = row["cpu_s"] / max(ours)
    return rows


def table(rows):
    """Markdown."""
    out = [
        "| requests/s | simulator | CPU-s | requests/CPU-s | ours is faster by | RSS MB | simulated s | steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "failed" in row:
            out.append(f"| {row['rate']} | {row['name']} | {row['failed']} | | | | | |")
            continue
        factor = f"{row['times_ours']:,.0f} x" if "times_ours" in row else ""
        steps = f"{row['steps']:,}" if "steps" in row else ""
        out.append(
            f"| {row['rate']} | {row['name']} | {row['cpu_s']:.3f} | {row['requests_per_cpu_s']:,.0f} | {factor} "
            f"| {row['rss_mb']} | {row['simulated_s']:,.0f} | {steps} |"
        )
    return "\n".join(out)


def bars(rows, start_s):
    """What was promised and what came out."""
    ours = [row for row in rows if row["name"].startswith("sits") and "cpu_s" in row]
    checks = [
        ("at least 100,000 requests a CPU-s", min(row["requests_per_cpu_s"] for row in ours), 100_000, True),
        ("at most 300 MB", max(row["rss_mb"] for row in ours), 300, False),
        ("a process with the compiled kernel on disk ready in at most 3 CPU-s", start_s, 3.0, False),
    ]
    for peer, factor in (("Vidur", 300), ("DynoSim", 15)):
        times = [row["times_ours"] for row in rows if peer in row["name"] and "times_ours" in row]
        if times:
            checks.append((f"at least {factor} times as fast as {peer}", min(times), factor, True))
    return [
        f"- {what}: {value:,.1f}{'' if (value >= bar) == up or value == bar else ' **(missed)**'}"
        for what, value, bar, up in checks
    ]


def page(rows, start_s):
    """docs/benchmark-sim.md."""
    source = next((row["source"] for row in rows if "source" in row), "")
    return f"""# The simulator beside others

Written by `make bench-sim`, which installs the others from the package registry into a cache of its own; run it again to
reproduce every figure here.  Python {platform.python_version()} on {platform.machine()}, one pinned core, CPU seconds of the run alone.

Trace: {COUNT:,} requests, lengths: {source}; Poisson arrivals; one engine, {MAX_SEQS} seats.

{table(rows)}

What was promised, the worst of the rows:

{chr(10).join(bars(rows, start_s))}

Read with care:

- Hardware models differ, so simulators do not take the same number of steps; the simulated time says that they saw the same load.
- Vidur trains its predictor on profiles that lie on a model hub.  So that it runs without one, its predictor is replaced by
  a formula of a few operations: the time is that of its scheduler, events and metrics, in its favour.  Its C++ predictor was not measured.
- DynoSim runs its mocker with its own default timing and cache; the blocks of every prompt are its own.
- "layer tables" is the model of `docs/accuracy-gpu.md`: four-dimensional tables, asynchronous scheduling, prefix caching.
  "coefficients" is a step time in coefficients and the host's chain of stages, as the emulated engines have it.
- Ours is the median of seven runs in one process, the others one run each.
"""
