"""A fleet drawn: machines with their NUMA halves, engines over their GPUs, and where their host memory sits.

What the drawing is for: seeing in one look which engine copies across the socket boundary.  An engine whose host
process and pinned buffers (`cpu_numa`) lie on another NUMA node than its GPUs gets a crossing link in the
warning colour with the bandwidth that is left.  With `other`, every value that differs from that fleet is marked.
Nodes that are alike but for names, engines and differences included, are one drawing, with all names under it.

The drawing is one self-contained SVG of `WIDTH` units that reads on a phone; its colours are CSS variables of
the page with fallbacks, so that it also works alone.  Fleets of more than `MAX_NODES` kinds of machines or
`MAX_SERVERS` servers are cut, and the drawing says so.

Deliberately absent: anything measured.  A fleet file states intent.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from html import escape

import msgspec

from sits.app.drawing import CHAR_WIDTH, LINE_HEIGHT, Drawing, fit, wrapped
from sits.core.fleet import AnyEngine, EmulatedEngine, Fleet, Node, RemoteEngine
from sits.core.units import show_duration

WIDTH = 380
MAX_NODES = 6
MAX_SERVERS = 12
MAX_NAMES = 24
GAP, PAD = 10, 8
GPU_HEIGHT, ENGINE_HEAD, LINK_HEIGHT, HOST_HEIGHT = 24, 21, 46, 26

CSS = """
.tp text{font-family:var(--font,Arial,sans-serif);font-size:11.5px;fill:var(--ink,#1c1f23)}
.tp .tp-small{font-size:10.5px;fill:var(--muted,#5b6470)}
.tp .tp-strong{font-weight:bold}
.tp rect{stroke:var(--line,#c9ced4);fill:var(--bg,#fff)}
.tp .tp-node{fill:var(--panel,#f5f6f7)}
.tp .tp-numa{fill:none;stroke-dasharray:3 3}
.tp .tp-gpu{fill:var(--bg,#fff)}
.tp .tp-engine{stroke:var(--device,#2b7a4b);fill:var(--device-soft,#e4f1e9)}
.tp .tp-gate{stroke:var(--http,#6b4fc3);fill:var(--http-soft,#eeeafa)}
.tp .tp-pin{fill:var(--bg,#fff);stroke:var(--muted,#5b6470)}
.tp .tp-pin.tp-remote{stroke:var(--warn,#b34700);stroke-width:1.6}
.tp path{fill:none;stroke:var(--muted,#5b6470);stroke-width:1.4}
.tp path.tp-remote{stroke:var(--warn,#b34700);stroke-width:2.4}
.tp text.tp-remote{fill:var(--warn,#b34700);font-weight:bold}
.tp .tp-diff{fill:var(--changed,#0f6a9c);font-weight:bold;text-decoration:underline;text-decoration-thickness:1px;text-underline-offset:2px}
""".strip()


def topology_svg(fleet: Fleet, other: Fleet | None = None) -> str:
    """The fleet as one SVG element; values that differ from `other` are marked."""
    drawing = Drawing()
    y = _gateway(drawing, fleet, other)
    kinds = alike(fleet, other)
    for nodes in kinds[:MAX_NODES]:
        y = _node(drawing, y + GAP, nodes, fleet, other)
    rest = sum(map(len, kinds[MAX_NODES:]))
    if rest:
        y += 18
        drawing.text(PAD, y, f"and {rest} more nodes, not drawn", "tp-small")
    y = _servers(drawing, y, fleet, other)
    height = y + PAD
    label = escape(f"Topology of {fleet.name}")
    return (
        f'<svg class="tp" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}" '
        f'xmlns="http://www.w3.org/2000/svg"><style>{CSS}</style>{"".join(drawing.marks)}</svg>'
    )


def alike(fleet: Fleet, other: Fleet | None = None) -> list[list[Node]]:
    """The nodes in groups that would be drawn the same but for names, in the order of the fleet."""
    groups: dict[bytes, list[Node]] = {}
    for node in fleet.nodes:
        engines = _engines(node, fleet)
        twins = [_twin(one, other) for one in engines]
        shape = (
            msgspec.structs.replace(node, name=""),
            [_nameless(one) for one in engines],
            [_nameless(one) if one else None for one in twins],
        )
        groups.setdefault(msgspec.json.encode(shape), []).append(node)
    return list(groups.values())


def _engines(node: Node, fleet: Fleet) -> list[EmulatedEngine]:
    return [one for one in fleet.engines if isinstance(one, EmulatedEngine) and one.node == node.name]


def _nameless(engine: EmulatedEngine) -> EmulatedEngine:
    return msgspec.structs.replace(engine, name="", node="")


def _gateway(drawing: Drawing, fleet: Fleet, other: Fleet | None) -> float:
    def parts(of: Fleet) -> list[str]:
        window = of.policy.window
        waits = {"fixed": show_duration(window.base), "adaptive": f"{window.reaction}, up to {show_duration(window.high)}"}  # fmt: skip
        workers = of.gateway.workers
        shown = [
            f"{workers} worker{'s' if workers != 1 else ''}",
            f"window {window.kind} {waits.get(window.kind, '')}".strip(),
            f"route {of.policy.route.kind}",
            f"admit {of.policy.admit.max_inflight:,} in flight"
            if of.policy.admit.max_inflight
            else "admit any number",
        ]
        arms = of.policy.release.arms
        return [*shown, *([f"{len(arms)} release arms"] if len(arms) > 1 else [])]

    mine = parts(fleet)
    before = set(parts(other)) if other is not None else set(mine)
    at = len(drawing.marks)
    last = drawing.words(
        PAD * 2, 32, [(part, part not in before) for part in mine], "tp-value", WIDTH - 4 * PAD
    )
    height = last + 9
    frame = Drawing()
    frame.box(1, 1, WIDTH - 2, height - 1, "tp-gate")
    frame.text(PAD * 2, 17, "gateway", "tp-strong")
    drawing.marks[at:at] = frame.marks
    return height


class _Half(msgspec.Struct, frozen=True):
    """One NUMA node of a machine: where it is drawn and which GPUs hang on it."""

    numa: int
    x: float
    width: float
    gpus: tuple[int, ...]


def _halves(node: Node) -> list[_Half]:
    numas = sorted(set(node.gpu_numa)) or [0]
    if len(numas) == 1:
        numas = [numas[0]]
    width = (WIDTH - 2 * PAD - (len(numas) - 1) * GAP) / len(numas)
    return [
        _Half(numa, PAD + index * (width + GAP), width, tuple(g for g in range(node.gpus) if _numa(node, g) == numa))
        for index, numa in enumerate(numas)
    ]  # fmt: skip


def _numa(node: Node, gpu: int) -> int:
    return node.gpu_numa[gpu] if gpu < len(node.gpu_numa) else (node.gpu_numa[-1] if node.gpu_numa else 0)


def _node(drawing: Drawing, y: float, nodes: Sequence[Node], fleet: Fleet, other: Fleet | None) -> float:
    node = nodes[0]
    engines = _engines(node, fleet)
    halves = _halves(node)
    place = {gpu: _gpu_box(half, gpu) for half in halves for gpu in half.gpus}
    rows = _stack(engines)
    depth = max(rows.values(), default=0) + 1
    said = _names(nodes, fleet)
    top = y + 26
    engine_top = top + 20 + GPU_HEIGHT + 4
    tall = max((_engine_height(one, place, fleet) for one in engines), default=ENGINE_HEAD + LINE_HEIGHT)
    host_top = engine_top + depth * (tall + 4) + LINK_HEIGHT
    bottom = host_top + HOST_HEIGHT + PAD
    frame = bottom - y + PAD + len(said) * LINE_HEIGHT + (2 if said else 0)
    drawing.box(1, y, WIDTH - 2, frame, "tp-node")
    memory = f"{node.gpu_memory / 2**30:.0f} GiB"
    alone = node.name if len(nodes) < 2 else f"{len(nodes)} nodes like {node.name}"
    drawing.text(PAD * 2, y + 17, fit(alone, 150), "tp-strong")
    drawing.text(
        WIDTH - PAD * 2, y + 17, fit(f"{node.gpus} × {node.gpu}, {memory} each", 200), "tp-small", "end"
    )
    for half in halves:
        drawing.box(half.x, top, half.width, bottom - top, "tp-numa")
        drawing.text(half.x + 6, top + 14, f"NUMA {half.numa}", "tp-small")
        drawing.box(half.x + 6, host_top, half.width - 12, HOST_HEIGHT, "tp-host")
        drawing.text(half.x + 12, host_top + 17, "host memory", "tp-small")
        for gpu in half.gpus:
            x, width = place[gpu]
            drawing.box(x, top + 20, width, GPU_HEIGHT, "tp-gpu", f"GPU {gpu} on NUMA {half.numa}")
            drawing.text(x + width / 2, top + 36, str(gpu), "tp-small", "middle")
    pins: Counter[int] = Counter()
    for engine in engines:
        at = engine_top + rows[engine.name] * (tall + 4)
        _engine(drawing, engine, at, tall, host_top, node, halves, place, pins, fleet, other)
    for index, line in enumerate(said):
        shown = " · ".join(content for content, _ in line)
        drawing.text(PAD * 2, bottom + PAD + 4 + index * LINE_HEIGHT, shown, "tp-small")
    return y + frame


def _names(nodes: Sequence[Node], fleet: Fleet) -> list[list[tuple[str, bool]]]:
    """The lines that name all nodes of one drawing, with their engines; none for a node on its own."""
    if len(nodes) < 2:
        return []
    named = [(node.name, ", ".join(one.name for one in _engines(node, fleet))) for node in nodes[:MAX_NAMES]]
    parts = [(f"{name}: {engines}" if engines else name, False) for name, engines in named]
    more = [(f"and {len(nodes) - MAX_NAMES} more", False)] if len(nodes) > MAX_NAMES else []
    return wrapped([("alike", False), *parts, *more], WIDTH - 4 * PAD)


def _engine_box(engine: EmulatedEngine, place: dict[int, tuple[float, float]]) -> tuple[float, float] | None:
    """The left and right edge of an engine, over its GPUs; None where it has none here."""
    known = [place[gpu] for gpu in engine.gpus if gpu in place]
    return (min(x for x, _ in known), max(x + width for x, width in known)) if known else None


def _engine_height(engine: EmulatedEngine, place: dict[int, tuple[float, float]], fleet: Fleet) -> float:
    box = _engine_box(engine, place)
    parts = [(part, False) for part in _engine_parts(engine, fleet)]
    lines = len(wrapped(parts, box[1] - box[0] - 12)) if box else 1
    return float(ENGINE_HEAD + lines * LINE_HEIGHT)


def _gpu_box(half: _Half, gpu: int) -> tuple[float, float]:
    each = (half.width - 12) / max(len(half.gpus), 1)
    return half.x + 6 + half.gpus.index(gpu) * each + 1, each - 2


def _stack(engines: Sequence[EmulatedEngine]) -> dict[str, int]:
    """The row of each engine: engines that share GPUs lie under one another."""
    taken: list[set[int]] = []
    rows: dict[str, int] = {}
    for engine in engines:
        span = set(range(min(engine.gpus), max(engine.gpus) + 1)) if engine.gpus else set()
        row = next((index for index, used in enumerate(taken) if not used & span), len(taken))
        if row == len(taken):
            taken.append(set())
        taken[row] |= span
        rows[engine.name] = row
    return rows


def _engine(
    drawing: Drawing,
    engine: EmulatedEngine,
    y: float,
    height: float,
    host_top: float,
    node: Node,
    halves: Sequence[_Half],
    place: dict[int, tuple[float, float]],
    pins: Counter[int],
    fleet: Fleet,
    other: Fleet | None,
) -> None:
    box = _engine_box(engine, place)
    if box is None:
        return
    left, right = box
    drawing.box(left, y, right - left, height, "tp-engine", _tip(engine))
    room = right - left - 12
    head = f"{engine.name} · TP{len(engine.gpus)} · {engine.model}"
    drawing.text(left + 6, y + 14, fit(head, room), "tp-strong")
    parts = _engine_parts(engine, fleet)
    twin = _twin(engine, other)
    before = set(_engine_parts(twin, other)) if twin is not None and other is not None else set(parts)
    drawing.words(left + 6, y + 27, [(part, part not in before) for part in parts], "tp-small", room)
    _link(drawing, engine, (left + right) / 2, y + height, host_top, node, halves, pins, twin)


def _engine_parts(engine: EmulatedEngine, fleet: Fleet) -> list[str]:
    owned = sum(family.count for family in fleet.adapters if family.name in engine.adapters)
    slots = [f"LoRA {engine.lora.max_loras} of {owned}"] if owned or engine.lora.max_loras else []
    memory = engine.memory
    pool = (
        f"{memory.kv_blocks:,} KV blocks"
        if memory.kv_blocks
        else f"memory {memory.gpu_memory_utilization:.0%}"
    )
    scheduler = engine.scheduler
    step = f"{scheduler.max_num_batched_tokens:,} tokens a step"
    limit = scheduler.long_prefill_token_threshold
    return [*slots, pool, step, *([f"{limit:,} a prompt"] if limit else [])]


def _twin(engine: EmulatedEngine, other: Fleet | None) -> EmulatedEngine | None:
    found = next((one for one in other.engines if one.name == engine.name), None) if other else None
    return found if isinstance(found, EmulatedEngine) else None


def _tip(engine: EmulatedEngine) -> str:
    scheduler = engine.scheduler
    return (
        f"{engine.name}: at most {scheduler.max_num_seqs} sequences and "
        f"{scheduler.max_num_batched_tokens:,} tokens a step, chunked prefill "
        f"{'on' if scheduler.enable_chunked_prefill else 'off'}"
    )


def _link(
    drawing: Drawing,
    engine: EmulatedEngine,
    start: float,
    y: float,
    host_top: float,
    node: Node,
    halves: Sequence[_Half],
    pins: Counter[int],
    twin: EmulatedEngine | None,
) -> None:
    home = next((half for half in halves if half.numa == engine.cpu_numa), None)
    if home is None:
        drawing.text(start, y + 16, f"host on NUMA {engine.cpu_numa}, no GPU there", "tp-remote", "middle")
        return
    remote = any(_numa(node, gpu) != engine.cpu_numa for gpu in engine.gpus)
    pin_width = max(26.0, len(engine.name[:8]) * CHAR_WIDTH + 12)
    end_box = home.x + home.width - 12 - (pins[home.numa] + 1) * (pin_width + 4)
    end_box = max(end_box, home.x + 78)
    pins[home.numa] += 1
    end = end_box + pin_width / 2
    kind = "tp-remote" if remote else "tp-local"
    middle = (y + host_top) / 2
    drawing.path(f"M{start:.1f} {y:.1f}C{start:.1f} {middle + 6:.1f} {end:.1f} {middle - 6:.1f} {end:.1f} {host_top + 4:.1f}", kind)  # fmt: skip
    drawing.box(end_box, host_top + 4, pin_width, HOST_HEIGHT - 8, f"tp-pin {kind}", f"pinned buffers of {engine.name}")  # fmt: skip
    moved = twin is not None and twin.cpu_numa != engine.cpu_numa
    drawing.text(end, host_top + 17, fit(engine.name, pin_width), "tp-diff" if moved else "", "middle")
    rate = f"{(node.link.remote if remote else node.link.local) / 1e9:.3g} GB/s"
    toward = end < start
    x, anchor = (start + 7, "start") if toward else (start - 7, "end")
    drawing.text(x, y + 15, rate, "tp-remote" if remote else "tp-small", anchor)
    if remote:
        drawing.text(x, y + 28, "across NUMA", "tp-remote tp-small", anchor)


def _servers(drawing: Drawing, y: float, fleet: Fleet, other: Fleet | None) -> float:
    """Engines without a drawn machine: by URL, or emulated without a node."""
    drawn = {node.name for node in fleet.nodes}
    rest = [one for one in fleet.engines if isinstance(one, RemoteEngine) or one.node not in drawn]
    known = {one.name: one for one in other.engines} if other is not None else {}
    for engine in rest[:MAX_SERVERS]:
        y += GAP
        drawing.box(1, y, WIDTH - 2, 40, "tp-engine")
        changed = other is not None and known.get(engine.name) != engine
        drawing.text(
            PAD * 2, y + 17, fit(engine.name, WIDTH / 2), f"tp-strong {'tp-diff' if changed else ''}"
        )
        drawing.text(PAD * 2, y + 32, fit(_server_line(engine), WIDTH - 4 * PAD), "tp-small")
        if isinstance(engine, RemoteEngine) and engine.region:
            drawing.text(WIDTH - PAD * 2, y + 17, fit(engine.region, 120), "tp-small", "end")
        y += 40
    if len(rest) > MAX_SERVERS:
        y += 18
        drawing.text(PAD, y, f"and {len(rest) - MAX_SERVERS} more engines, not drawn", "tp-small")
    return y


def _server_line(engine: AnyEngine) -> str:
    show: Callable[[Sequence[str]], str] = ", ".join
    if isinstance(engine, RemoteEngine):
        return f"{engine.url} · {show(engine.models)}" if engine.models else engine.url
    return f"emulated · {engine.model}"
