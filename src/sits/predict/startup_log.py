"""A start read from what was written about it: engine logs, container runtime events, start-up spans.

| source | moments | exact to |
|---|---|---|
| vLLM log | `INFO MM-DD HH:MM:SS [file:line] text`, and durations within the text | 1 s, durations 10 ms |
| llama.cpp log | `M.SS.mmm.uuu level ...`, time since its start | 1 us |
| container runtime | RFC 3339 time and words (`docker events`, kubelet, containerd), `pulled ... in 12.3s` | 1 ms |
| spans | name, start and end (what vLLM sends when tracing is on) | 1 us |

Rules: a log begins with its first line; what a process did before that is nobody's.  A line that is not understood is passed over,
a source with no line understood is an error.  Of spans, each moment belongs to the one that began last among those open then: a
parent owns what its children leave.

Deliberately absent: aligning clocks of several sources; each is a start of its own.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from sits.core.errors import ConfigError
from sits.core.units import MS, SECOND
from sits.predict.startup import STAGES, Fact, Mark, Startup, attribute

_VLLM = re.compile(r"^(?:\([^)]*\) )?[A-Z]+ (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d+))? \[[^\]]*\] ?(.*)")
_LLAMA = re.compile(r"^(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] (.*)")
_RUNTIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(?:Z|[+-]\d\d:?\d\d)?(.*)")

Table = Sequence[tuple[str, str]]
VLLM_MARKS: Table = (
    (r"version [\d.]+|non-default args", "imports"),
    (r"Resolved architecture|Using max model len", "configuration"),
    (r"Initializing a V\d LLM engine", "imports"),
    (r"world_size=\d+ rank=\d+|Using nccl", "imports"),
    (r"Starting to load model", "device"),
    (r"Loading weights took|Model loading took", "weights"),
    (r"KV cache size:|# \w+ blocks:", "memory"),
    (r"torch\.compile took|torch\.compile takes|Compiling a graph", "compile"),
    (r"Graph capturing finished", "graphs"),
    (r"init engine .* took", "memory"),
    (r"Starting vLLM (?:API )?server|Application startup complete", "listen"),
)
"""Up to a line like this it was that."""
VLLM_FACTS: Table = (
    (r"Loading weights took ([\d.]+) seconds", "weights"),
    (r"Initializing model took ([\d.]+) seconds", "weights"),
    (r"Model loading took .* ([\d.]+) seconds", "weights"),
    (r"torch\.compile (?:takes|took) ([\d.]+) s", "compile"),
    (r"Dynamo bytecode transform time: ([\d.]+) s", "compile"),
    (r"Graph capturing finished in ([\d.]+) secs", "graphs"),
    (r"init engine .* took ([\d.]+) s", "memory"),
)
LLAMA_MARKS: Table = (
    (r"llama_server: initializing", "exec"),
    (r"loading model", "configuration"),
    (r"threadpool init|initializing, n_slots", "weights"),
    (r"model loaded", "memory"),
    (r"listening on", "listen"),
)
RUNTIME_MARKS: Table = (
    (r"[Pp]ulling image|image pull|PullImage", "unattributed"),
    (r"[Pp]ulled|already present", "image"),
    (r"[Cc]reated container|container create|CreateContainer", "container"),
    (r"[Ss]tarted container|container start|StartContainer", "container"),
)
_PULLED = re.compile(r"[Pp]ulled image.*? in ((?:\d+h)?(?:\d+m(?!s))?(?:[\d.]+m?s))")
SPAN_STAGES: Mapping[str, str] = {
    "Overall Loading": "imports",
    "AsyncMPClient init": "imports",
    "EngineCoreProc init": "memory",
    "Executor init": "imports",
    "Worker init": "device",
    "Loading (CPU)": "weights",
    "Loading (GPU)": "weights",
    "Load model": "weights",
    "Initialize model": "weights",
    "Load weights": "weights",
    "Prepare model": "memory",
    "Allocate KV cache": "memory",
    "Warmup (GPU)": "compile",
    "Compile model": "compile",
    "Capture model": "graphs",
}
"""What a span does besides what its children do: vLLM's executor waits while its worker's process imports."""


def go_duration_ns(text: str) -> int:
    """A duration as Go writes it.

    >>> go_duration_ns("1m2.5s"), go_duration_ns("843ms")
    (62500000000, 843000000)
    """
    units = {"h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND, "ms": MS}
    return round(sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)(h|ms|m|s)", text)))


def read_log(lines: Iterable[str]) -> Startup:
    """The start a log tells of, whichever of the three it is.

    >>> told = read_log(["INFO 11-30 11:22:08 [a.py:1] version 0.32.0", "INFO 11-30 11:22:25 [core.py:133] Initializing a V1 LLM engine",
    ...     "INFO 11-30 11:22:27 [l.py:5] Loading weights took 1.50 seconds"])
    >>> {stage: ns / 1e9 for stage, ns in told.stages_ns.items()}
    {'imports': 17.0, 'weights': 2.0}

    Raises:
        ConfigError: no line of it is understood.

    """
    kept = list(lines)
    for reader in (_vllm, _llama, _runtime):
        start, marks, facts = reader(kept)
        if marks:
            return attribute(start, marks, facts)
    raise ConfigError(
        "no line tells of a start",
        field="log",
        value=len(kept),
        hint="logs of vLLM and llama.cpp, container runtime events and start-up spans are read",
    )


Read = tuple[int, list[Mark], list[Fact]]


def _found(table: Table, text: str) -> tuple[str, re.Match[str]] | None:
    for pattern, stage in table:
        match = re.search(pattern, text)
        if match is not None:
            return stage, match
    return None


def _vllm(lines: Sequence[str]) -> Read:
    start, marks, facts = -1, [], []
    for line in lines:
        match = _VLLM.match(line)
        if match is None:
            continue
        month, day, hour, minute, second = (int(part) for part in match.groups()[:5])
        when = datetime(2024, month, day, hour, minute, second)  # noqa: DTZ001  # no year, no zone: only differences count
        at = round((when - datetime(2024, 1, 1)).total_seconds()) * SECOND  # noqa: DTZ001
        at += round(float(f"0.{match[6]}") * SECOND) if match[6] else 0
        start = at if start < 0 else start
        text, exact = match[7], MS if match[6] else SECOND
        if (found := _found(VLLM_FACTS, text)) is not None:
            facts.append(Fact(at, found[0], round(float(found[1][1]) * SECOND), text))
        if (found := _found(VLLM_MARKS, text)) is not None:
            marks.append(Mark(at, found[0], text[:100], exact))
            if found[0] == "listen":
                break
    return start, marks, facts


def _llama(lines: Sequence[str]) -> Read:
    marks = []
    for line in lines:
        match = _LLAMA.match(line)
        found = _found(LLAMA_MARKS, match[5]) if match else None
        if match is None or found is None:
            continue
        minutes, seconds, ms, us = (int(part) for part in match.groups()[:4])
        at = (minutes * 60 + seconds) * SECOND + ms * MS + us * 1000
        marks.append(Mark(at, found[0], match[5][:100], 1000))
        if found[0] == "listen":
            break
    return 0, marks, []


def _runtime(lines: Sequence[str]) -> Read:
    start, marks, facts = -1, [], []
    for line in lines:
        match = _RUNTIME.search(line)
        found = _found(RUNTIME_MARKS, match[3]) if match else None
        if match is None or found is None:
            continue
        at = round(datetime.fromisoformat(match[1] + "+00:00").timestamp()) * SECOND
        at += round(float(f"0.{match[2]}") * SECOND) if match[2] else 0
        start = at if start < 0 else start
        exact = MS if match[2] else SECOND
        if (pulled := _PULLED.search(line)) is not None:
            took = go_duration_ns(pulled[1])
            start = min(start, at - took)
            facts.append(Fact(at, "image", took, match[3].strip()[:100]))
        marks.append(Mark(at, found[0], match[3].strip()[:100], exact))
    return start, marks, facts


def read_spans(spans: Iterable[Mapping[str, Any]]) -> Startup:
    """The start told by spans: each moment belongs to the span that began last among those open then.

    >>> spans = [{"name": "Worker init", "start_ns": 0, "end_ns": 10}, {"name": "Load weights", "start_ns": 4, "end_ns": 9}]
    >>> read_spans(spans).stages_ns
    {'device': 5, 'weights': 5}

    Raises:
        ConfigError: no span of a start among them.

    """
    known = [span for span in spans if span.get("name") in SPAN_STAGES]
    if not known:
        raise ConfigError("no span of a start", field="spans", hint="spans named like 'Load weights'")
    for span in known:
        start, end = span.get("start_ns"), span.get("end_ns")
        if not (isinstance(start, int) and isinstance(end, int) and start <= end):
            raise ConfigError(
                f"span {span['name']!r} lasts from {start!r} to {end!r}",
                field="start_ns",
                hint="start_ns and end_ns: whole nanoseconds, the end not before the start",
            )
    edges = sorted({int(span[end]) for span in known for end in ("start_ns", "end_ns")})
    stages: dict[str, int] = {}
    for low, high in pairwise(edges):
        open_then = [span for span in known if span["start_ns"] <= low and span["end_ns"] >= high]
        stage = "unattributed"
        if open_then:
            latest = max(open_then, key=lambda span: (span["start_ns"], -span["end_ns"]))
            stage = SPAN_STAGES[latest["name"]]
        stages[stage] = stages.get(stage, 0) + high - low
    return Startup(
        stages_ns={stage: stages[stage] for stage in STAGES if stages.get(stage)},
        total_ns=edges[-1] - edges[0],
        exact_ns=1000,
    )
