"""Topologies as XML trees: NCCL's (`NCCL_TOPO_DUMP_FILE`, `NCCL_GRAPH_DUMP_FILE`) and hwloc's (`lstopo x.xml`).

NCCL: `system` > `cpu` (a NUMA node) > `pci` ... > `pci class=0x0302..`, with the link of the slot; `gpu dev=` and `nvlink` below it
where the run saw them.  A link to itself or to what is no GPU of the file says nothing about two GPUs and is remarked.
hwloc: objects nest by place, `OSDev nvmlN` (or `cudaN`) below a `PCIDev` is a GPU; its NUMA node is that of the nearest object
above that has one; `NVLinkBandwidth` is a matrix in MB/s one way, in several pieces.

Deliberately absent: PCIe distance between two GPUs of these trees (it needs the bridges' semantics; `topo -m` tells it).
"""

import re

from sits.core.errors import CallerError
from sits.telemetry.gpu.report import Device, Link, Report
from sits.telemetry.gpu.safe_xml import Node

_DISPLAY = ("0x0300", "0x0302", "0x0380")
_NETWORK = ("0x0200", "0x0207")
_PCI = re.compile(r"(03[0-9a-f]{2}) \[10de:")
_OSDEV = re.compile(r"(nvml|cuda)(\d{1,4})")
_NODES = re.compile(r"[0-9a-fx,]{1,200}")
DISTANCES_MAX = 1024
REMARKS_MAX = 20


def read_nccl(root: Node) -> Report:
    """NCCL's system or its graphs, read already."""
    return _graphs(root) if root.tag == "graphs" else _system(root)


def _system(root: Node) -> Report:
    devices: list[Device] = []
    wires: list[tuple[str, str, str]] = []
    nets = 0
    for cpu in root.all("cpu"):
        for node in cpu.walk():
            kind = node.attributes.get("class", "")
            nets += (node.tag == "pci" and kind.startswith(_NETWORK)) or node.tag == "net"
            if node.tag == "pci" and kind.startswith(_DISPLAY):
                gpu = node.first("gpu")
                dev = gpu.attributes.get("dev", "") if gpu else ""
                devices.append(_slot(node, f"GPU{dev or len(devices)}", cpu.attributes.get("numaid", "")))
                bus = node.attributes.get("busid", "")
                ends = (wire.attributes for wire in gpu.all("nvlink")) if gpu else ()
                wires += [(bus, end.get("target", ""), end.get("count", "")) for end in ends]
    links, remarks = _wires(wires, {device.facts.get("bus", ""): device.name for device in devices})
    if not devices:
        remarks.append("it shows no GPU")
    facts = {"numa_nodes": str(len(root.all("cpu"))), "network_cards": str(nets)}
    return Report("NCCL topology", tuple(devices), tuple(links), facts=facts, remarks=tuple(remarks))


def _slot(node: Node, name: str, numa: str) -> Device:
    said = node.attributes
    facts = {"bus": said.get("busid", ""), "numa_node": numa, "link_speed": said.get("link_speed", "")}
    lanes = said.get("link_width", "")
    some = lanes.isdecimal() and len(lanes) < 4 and int(lanes) > 0
    values = {"gpu_pcie_lanes": float(lanes)} if some else {}
    return Device(name, values, {key: text for key, text in facts.items() if text})


def _wires(wires: list[tuple[str, str, str]], by_bus: dict[str, str]) -> tuple[list[Link], list[str]]:
    links: dict[frozenset[str], Link] = {}
    remarks: list[str] = []
    for bus, target, count in wires:
        a, b = by_bus.get(bus, ""), by_bus.get(target, "")
        if not a or not b or a == b or not count.isdecimal() or len(count) > 3:
            shown = f"{count[:9]} NVLinks from {bus[:20]} to {target[:20] or 'nowhere'}"
            remarks.append(f"{shown} join no two GPUs of this file")
        else:
            links[frozenset((a, b))] = Link(a, b, f"NV{int(count)}")
    return list(links.values()), remarks[:REMARKS_MAX]


def _graphs(root: Node) -> Report:
    """The paths that NCCL searched: their numbers, and over what."""
    found = root.all("graph")
    gpus = sorted(
        {gpu.attributes.get("dev", "") for node in found for gpu in node.walk() if gpu.tag == "gpu"}
    )
    facts = {"graphs": str(len(found))}
    for graph in found:
        said = graph.attributes
        told = [f"{len(graph.all('channel'))} channels"]
        told += [f"{said[name]} GB/s {shown}" for name, shown in (("speedintra", "inside"), ("speedinter", "between")) if name in said]  # fmt: skip
        told += [f"over {said['typeintra']}"] if "typeintra" in said else []
        facts[f"graph {said.get('id', '?')}"] = ", ".join(told)
    return Report("NCCL graph", tuple(Device(f"GPU{dev}") for dev in gpus if dev), facts=facts)


def read_hwloc(root: Node) -> Report:
    """A tree of hwloc, read already.

    Raises:
        CallerError: it is other XML.

    """
    if root.tag != "topology":
        raise CallerError(f"this XML is no topology of hwloc: its root is {root.tag!r}")
    gpus: dict[str, Device] = {}
    names: dict[str, str] = {}
    numas = 0
    todo: list[tuple[Node, str, str]] = [(node, "", "") for node in reversed(root.children)]
    while todo:
        node, numa, pci = todo.pop()
        said = node.attributes
        kind = said.get("type", "")
        numas += kind == "NUMANode" and node.tag == "object"
        if kind == "PCIDev" and (_PCI.match(said.get("pci_type", "")) or _nvidia(node)):
            pci = said.get("pci_busid", "")
            gpus[pci] = Device(f"GPU{len(gpus)}", {}, {"bus": pci} | ({"numa_node": numa} if numa else {}))
            names[f"PCIDev:{said.get('gp_index', '')}"] = gpus[pci].name
        elif kind == "OSDev" and pci in gpus and (match := _OSDEV.fullmatch(said.get("name", ""))):
            gpus[pci] = _named(gpus[pci], node, match)
            names[f"OSDev:{said.get('gp_index', '')}"] = gpus[pci].name
        own = next((c.attributes.get("os_index", "") for c in node.children if c.attributes.get("type") == "NUMANode"), numa)  # fmt: skip
        todo += [(child, own, pci) for child in reversed(node.children)]
    links, remarks = _bandwidths(root, names)
    if not gpus:
        remarks.append("it shows no NVIDIA GPU behind PCI")
    return Report("hwloc", tuple(gpus.values()), tuple(links), facts={"numa_nodes": str(numas)}, remarks=tuple(remarks))  # fmt: skip


def _nvidia(node: Node) -> bool:
    info = {one.attributes.get("name"): one.attributes.get("value", "") for one in node.all("info")}
    return (
        node.attributes.get("pci_type", "").startswith("03") and "nvidia" in info.get("PCIVendor", "").lower()
    )


def _named(gpu: Device, node: Node, match: re.Match[str]) -> Device:
    info = {one.attributes.get("name", ""): one.attributes.get("value", "") for one in node.all("info")}
    facts = dict(gpu.facts)
    facts |= {
        ours: info[name] for ours, name in (("model", "GPUModel"), ("uuid", "NVIDIAUUID")) if info.get(name)
    }
    values = dict(gpu.values)
    memory = info.get("CUDAGlobalMemorySize", "").removesuffix("KiB").strip()
    if memory.isdecimal() and len(memory) < 16:
        values["gpu_memory_total_bytes"] = float(int(memory) * 1024)
    name = f"GPU{match[2]}" if match[1] == "nvml" or "uuid" not in gpu.facts else gpu.name
    return Device(name, values, facts)


def _bandwidths(root: Node, names: dict[str, str]) -> tuple[list[Link], list[str]]:
    links: list[Link] = []
    for matrix in root.all("distances2hetero"):
        if matrix.attributes.get("name") != "NVLinkBandwidth":
            continue
        ends = [word for node in matrix.all("indexes") for word in node.text.split()]
        cells = [word for node in matrix.all("u64values") for word in node.text.split()]
        if len(ends) > DISTANCES_MAX or len(cells) != len(ends) ** 2 or not all(
            cell.isdecimal() and len(cell) < 16 for cell in cells
        ):  # fmt: skip
            return [], [
                f"the matrix of NVLink bandwidths has {len(cells)} cells for {len(ends)} devices: left out"
            ]
        for i, a in enumerate(ends):
            for j in range(i + 1, len(ends)):
                rate = int(cells[i * len(ends) + j])
                if rate and ends[j] not in names and a not in names:
                    continue
                if rate:
                    links.append(Link(names.get(a, a), names.get(ends[j], ends[j]), "NVLink", rate * 1e6))
    return links, []
