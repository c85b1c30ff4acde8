"""The drawing of a fleet: what crosses, what differs, and fleets too large or too odd to draw."""

import re

import msgspec
import pytest

from app_pages import Page
from app_synthetic import fleet, live_fleet
from sits.app.topology import MAX_NODES, MAX_SERVERS, alike, topology_svg
from sits.core.fleet import Memory, OpenAIEngine


def svg_of(*fleets):
    drawn = topology_svg(*fleets)
    assert Page(drawn).problems == []
    return drawn


def test_only_remote_engines_cross():
    bad, good = svg_of(fleet(fixed=False)), svg_of(fleet(fixed=True))
    assert bad.count("across NUMA") == 1
    assert bad.count("11 GB/s") == 1
    assert bad.count(">24 GB/s<") == 1
    assert "across NUMA" not in good
    assert good.count(">24 GB/s<") == 2
    assert 'class="tp-remote" d=' not in good


def test_differences_are_marked_on_both_sides_and_nothing_else():
    def marked(drawn):
        return re.findall(r'tp-diff"[^>]*>([^<]*)<', drawn)

    bad, good = fleet(fixed=False), fleet(fixed=True)
    assert marked(svg_of(bad)) == []
    assert marked(svg_of(bad, bad)) == []
    assert marked(svg_of(bad, good))[:3] == ["1 worker", "window fixed 100 ms", "route round_robin"]
    assert marked(svg_of(good, bad))[:3] == ["4 workers", "window none", "route least_tokens"]
    assert marked(svg_of(bad, good)).count("memory 72%") == 2
    assert [one for one in marked(svg_of(good, bad)) if one in {"e0", "e1", "e2", "e3"}] == ["e1"]


def test_nodes_that_are_alike_are_drawn_once_and_all_named():
    whole = fleet(fixed=False)
    drawn = svg_of(whole, fleet(fixed=True))
    assert [[node.name for node in nodes] for nodes in alike(whole)] == [["a100-1", "a100-2"]]
    assert drawn.count('class="tp-node"') == 1
    assert "2 nodes like a100-1" in drawn
    assert "a100-1: e0, e1 · a100-2: e2, e3" in drawn


def test_a_node_that_differs_from_the_others_or_from_its_own_past_is_drawn_apart():
    whole = fleet(fixed=True)
    odd = msgspec.structs.replace(whole.engines[3], memory=Memory(gpu_memory_utilization=0.5))
    mixed = msgspec.structs.replace(whole, engines=(*whole.engines[:3], odd))
    assert len(alike(mixed)) == 2
    assert svg_of(mixed).count('class="tp-node"') == 2
    assert len(alike(whole, mixed)) == 2
    assert len(alike(whole, whole)) == 1


def test_the_values_of_an_engine_stay_inside_its_box():
    drawn = svg_of(fleet(fixed=True))
    box = re.search(r'class="tp-engine" x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', drawn)
    lines = re.findall(
        r'class="tp-small" x="[\d.]+" y="([\d.]+)">[^<]*(?:LoRA|memory|tokens a step|a prompt)', drawn
    )
    assert len(lines) >= 3
    assert max(float(y) for y in lines) < float(box[1]) + float(box[2])


def test_engines_by_address_are_drawn_without_machines():
    drawn = svg_of(live_fleet())
    assert "http://10.0.0.5:8000 · llama-8b" in drawn
    assert "NUMA" not in drawn


def test_large_fleets_are_cut_and_say_so():
    whole = fleet(fixed=True)
    nodes = tuple(
        msgspec.structs.replace(whole.nodes[0], name=f"n{i}", gpu_memory=(i + 1) * 2**30)
        for i in range(MAX_NODES + 3)
    )
    assert "and 3 more nodes, not drawn" in svg_of(
        msgspec.structs.replace(whole, nodes=nodes, engines=live_fleet().engines)
    )
    many = tuple(OpenAIEngine(name=f"s{i}", url=f"http://h{i}") for i in range(MAX_SERVERS + 5))
    assert "and 5 more engines, not drawn" in svg_of(msgspec.structs.replace(live_fleet(), engines=many))


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": ()},
        {"gpus": (99,)},
        {"gpus": (0, 7)},
        {"gpus": (2, 3, 4, 5)},
        {"cpu_numa": 9},
        {"node": "unknown"},
        {"name": "e" * 200},
        {"gpus": (1, 2)},
    ],
)
def test_odd_engines_do_not_break_the_drawing(change):
    whole = fleet(fixed=False)
    odd = msgspec.structs.replace(whole.engines[1], **change)
    drawn = svg_of(msgspec.structs.replace(whole, engines=(whole.engines[0], odd)))
    assert "nan" not in drawn


def test_a_single_socket_machine_and_one_without_gpus():
    whole = fleet(fixed=True)
    flat = msgspec.structs.replace(whole.nodes[0], gpu_numa=(0,) * 8)
    bare = msgspec.structs.replace(whole.nodes[1], gpus=0, gpu_numa=())
    svg_of(msgspec.structs.replace(whole, nodes=(flat, bare)))


def test_names_are_escaped():
    whole = fleet(fixed=True)
    evil = '"><script>alert(1)</script>'
    node = msgspec.structs.replace(whole.nodes[0], name=evil, gpu=evil)
    engine = msgspec.structs.replace(whole.engines[0], name=evil, model=evil, node=evil)
    drawn = svg_of(msgspec.structs.replace(whole, name=evil, nodes=(node,), engines=(engine,)))
    assert "<script" not in drawn
