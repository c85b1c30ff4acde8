"""Every file of the collected GPU outputs is read or refused with a reason, with the facts a person reads in it; and what they do not show."""

from pathlib import Path

import pytest

from sits.core.errors import CallerError
from sits.telemetry.gpu.dcgm import FIELDS, read_exporter, value_of
from sits.telemetry.gpu.recognise import read_gpu_text
from sits.telemetry.gpu.report import UNITS, quantity, sane
from sits.telemetry.gpu.safe_xml import read_xml
from sits.telemetry.gpu.smi import ITEMS
from sits.telemetry.gpu.topology import read_topology
from sits.telemetry.prometheus_text import parse

SAMPLES = Path(__file__).parents[3] / "shared/data/gpu-samples"
MIB, GIB = 2**20, 2**30


def link(report, a, b):
    return next((one.kind for one in report.links if {one.a, one.b} == {a, b}), None)


def gpus(report):
    return [device for device in report.devices if device.name.startswith("GPU") and "/" not in device.name]


def check_a100_xml(report):
    whole, *parts = report.devices
    assert whole.values["gpu_memory_used_bytes"] == 50 * MIB
    assert whole.values["gpu_memory_total_bytes"] == 81920 * MIB
    assert "gpu_busy_share" not in whole.values, "MIG: the tool says N/A"
    assert [part.values["gpu_memory_total_bytes"] for part in parts] == [19968 * MIB] * 4
    assert report.remarks == ("it says 4 GPUs are attached and shows 1: it was cut",)


def check_ada_xml(report):
    values = report.devices[0].values
    assert (values["gpu_memory_busy_share"], values["gpu_busy_share"]) == (0.37, 0.0)
    assert values["gpu_power_w"] == 8.44, "instantaneous, not the average"
    assert values["gpu_pcie_sent_bytes_per_s"] == 830_000
    assert "gpu_ecc_uncorrectable_total" not in values
    assert report.facts == {"driver": "595.84", "cuda": "13.2"}


def check_a10g(report):
    values = report.devices[0].values
    assert (values["gpu_power_w"], values["gpu_temperature_c"], values["gpu_sm_clock_mhz"]) == (
        25.58,
        17,
        210,
    )
    assert (values["gpu_pcie_generation"], values["gpu_pcie_lanes"]) == (1, 8)


def check_t4(report):
    assert report.devices[0].values["gpu_memory_used_bytes"] == 1032 * MIB
    assert report.devices[0].facts["model"] == "Tesla T4"


def check_a100_text(report):
    assert report.devices[0].values == {
        "gpu_memory_total_bytes": 40960 * MIB,
        "gpu_memory_reserved_bytes": 520 * MIB,
        "gpu_memory_used_bytes": 0,
        "gpu_memory_free_bytes": 40441 * MIB,
    }, "of the frame buffer, not of BAR1 or of protected memory"


def check_k80(report):
    assert report.devices[0].values == {}
    assert report.devices[0].facts == {"model": "Tesla K80", "bus": "0000:00:1E.0"}


def check_partial_na(report):
    assert report.devices[0].values == {
        "gpu_engine_active_share": 0.888,
        "gpu_tensor_active_share": 0.178,
        "gpu_fp16_active_share": 0.001,
    }
    assert report.devices[1].values["gpu_fp64_active_share"] == 0.0, "a measured 0 is a 0"
    assert all(device.values == {} for device in report.devices[2:])
    assert len(report.remarks) == 6


def check_first_na(report):
    assert report.devices[0].values == {
        "gpu_engine_active_share": 0,
        "gpu_sm_active_share": 0,
        "gpu_dram_active_share": 0,
    }


def check_rtx6000(report):
    assert [device.name for device in report.devices] == ["GPU0", "GPU1", "GPU2"]
    assert [device.values["gpu_dram_active_share"] for device in report.devices] == [0.881, 0.869, 0.252]


def check_dgx2(report):
    assert {device.facts["model"] for device in report.devices} == {"Tesla V100-SXM3-32GB-H"}
    assert {device.facts["numa_node"] for device in report.devices} == {"0", "1"}
    assert {one.bytes_per_s for one in report.links} == {25e9}
    assert len(report.links) == 16 * 6, "each GPU to six of the switches"


def check_power8(report):
    assert link(report, "GPU0", "GPU1") == "NVLink"
    assert link(report, "GPU0", "GPU2") is None
    assert {one.bytes_per_s for one in report.links} == {40e9}
    assert report.devices[0].values["gpu_memory_total_bytes"] == 16671616 * 1024


def check_xid(report):
    assert [event.code for event in report.events] == [119] * 5
    assert report.events[0].when == "Sun Feb 23 16:24:18 2025"
    assert report.events[3].text.startswith("pid=1263500, name=cache_mgr_main, Timeout after 6s")
    assert report.devices[0].facts["bus"] == "0000:9b:00"


def check_lspci(report):
    assert report.facts == {"nvswitches": "6", "network_cards": "9"}
    assert report.devices[0].facts == {"bus": "0001:00:00.0", "model": "GA100 [A100 SXM4 80GB]"}


def check_nvlink(report):
    for device in report.devices:
        assert device.values == {"gpu_nvlink_links": 12, "gpu_nvlink_capacity_bytes_per_s": 300e9}


def check_ncv4(report):
    assert report.links == (), "its NVLinks go from each GPU to itself"
    assert len(report.remarks) == 4
    assert [device.facts["numa_node"] for device in report.devices] == ["0", "1", "2", "3"]


def check_nd(report):
    assert all(device.values == {"gpu_pcie_lanes": 16} for device in report.devices)


def check_graph(report):
    assert report.facts["graph 1"] == "4 channels, 12 GB/s inside, 12 GB/s between, over SYS"


def check_spaces(report):
    assert link(report, "GPU0", "GPU1") == "NV12"
    assert link(report, "GPU1", "NIC7") == "PXB"
    assert all(device.facts == {} for device in report.devices), "whose the one N/A is, nobody knows"
    assert report.remarks == ()


def check_pairs(report):
    assert [link(report, "GPU0", f"GPU{i}") for i in (1, 2, 3)] == ["NV12", "SYS", "SYS"]
    assert [device.facts["numa_node"] for device in report.devices] == ["0", "1", "2", "3"]
    assert report.devices[3].facts["cpus"] == "72-95"


def check_pix(report):
    assert link(report, "GPU0", "GPU1") == "PIX"


def check_ansi(report):
    assert link(report, "GPU0", "GPU7") == "NV18"
    assert [link(report, "GPU4", f"NIC{i}") for i in (4, 5, 0)] == ["PXB", "NODE", "SYS"]
    assert report.devices[7].facts == {"cpus": "64-127,192-255", "numa_node": "1"}
    assert "no readable row of NIC0" in report.remarks[0]


def check_gb10(report):
    assert link(report, "GPU0", "NIC3") == "NODE"


def check_dgx(report):
    assert link(report, "GPU2", "NIC4") == "PXB"
    assert link(report, "NIC1", "NIC2") == "PIX"
    assert link(report, "GPU7", "NIC11") == "PXB"


def check_lost_tabs(report):
    assert link(report, "GPU4", "NIC6") == "PXB"
    assert [link(report, "GPU4", f"NIC{i}") for i in (8, 9, 10)] == ["NODE", "NODE", "NODE"]
    assert [link(report, "GPU5", f"NIC{i}") for i in (8, 9, 10)] == ["NODE", "PXB", "NODE"]
    assert any("'NIC8NIC9'" in remark for remark in report.remarks)
    assert sum("had lost tabs" in remark for remark in report.remarks) == 2
    assert link(report, "GPU6", "NIC0") is None


def check_rtx4090(report):
    assert [link(report, "GPU6", f"NIC{i}") for i in (0, 1)] == ["PHB", "PHB"]
    assert report.devices[6].facts["numa_node"] == "1"


FACTS = {
    # file: kind, GPUs, links, what else
    "nvidia-smi-xml/a100-sxm4-v12.xml": ("nvidia-smi -q -x", 1, 0, check_a100_xml),
    "nvidia-smi-xml/a10g.xml": ("nvidia-smi -q -x", 1, 0, check_a10g),
    "nvidia-smi-xml/rtx-4000-sff-ada-v13.xml": ("nvidia-smi -q -x", 1, 0, check_ada_xml),
    "nvidia-smi-xml/tesla-t4.xml": ("nvidia-smi -q -x", 1, 0, check_t4),
    "nvidia-smi-q/a100-40gb-q-d-memory.txt": ("nvidia-smi -q", 1, 0, check_a100_text),
    "nvidia-smi-q/k80-q-head-driver367.txt": ("nvidia-smi -q", 1, 0, check_k80),
    "dcgmi-dmon/dcgm-issue-244-partial-na.txt": ("dcgmi dmon", 8, 0, check_partial_na),
    "dcgmi-dmon/h100nvl-vm-dcgm3.3.9-first-sample-na.txt": ("dcgmi dmon", 1, 0, check_first_na),
    "dcgmi-dmon/rtx6000ada-1001-1002-1004-1005.txt": ("dcgmi dmon", 3, 0, check_rtx6000),
    "hwloc/24em64t-2n6c2t-pci.xml": ("hwloc", 3, 0, None),
    "hwloc/nvidia-dgx-gb10.xml": ("hwloc", 0, 0, None),
    "hwloc/nvidiaDGX2.xml": ("hwloc", 16, 96, check_dgx2),
    "hwloc/power8gpudistances.xml": ("hwloc", 4, 6, check_power8),
    "misc/dmesg-xid-119.log": ("dmesg", 0, 0, check_xid),
    "misc/lspci-nn.a100.txt": ("lspci -nn", 8, 0, check_lspci),
    "misc/nvidia-smi-nvlink-status.a100.txt": ("nvidia-smi nvlink --status", 8, 0, check_nvlink),
    "nccl-topo/azure-ncv4-graph.xml": ("NCCL graph", 4, 0, check_graph),
    "nccl-topo/azure-ncv4-topo.xml": ("NCCL topology", 4, 0, check_ncv4),
    "nccl-topo/azure-ndv2-topo.xml": ("NCCL topology", 8, 0, check_nd),
    "nccl-topo/azure-ndv4-topo.xml": ("NCCL topology", 8, 0, check_nd),
    "nccl-topo/azure-ndv5-topo.xml": ("NCCL topology", 8, 0, check_nd),
    "topo-m/a100x2-vllm-issue-19607-spaces-empty-affinity.txt": ("nvidia-smi topo -m", 2, 45, check_spaces),
    "topo-m/a100x4-nvl-pairs-4numa.txt": ("nvidia-smi topo -m", 4, 6, check_pairs),
    "topo-m/aws-2gpu-pix.txt": ("nvidia-smi topo -m", 2, 1, check_pix),
    "topo-m/b300-sglang-checkenv-ansi-underline.txt": ("nvidia-smi topo -m", 8, 100, check_ansi),
    "topo-m/gb10-dgx-spark.txt": ("nvidia-smi topo -m", 1, 4, check_gb10),
    "topo-m/h100-dgx-8gpu-12nic-truncated.txt": ("nvidia-smi topo -m", 8, 175, check_dgx),
    "topo-m/h100-vllm-issue-13855-lost-tabs.txt": ("nvidia-smi topo -m", 8, 54, check_lost_tabs),
    "topo-m/rtx4090x8-pcie-gpuallocator-issue-17.txt": ("nvidia-smi topo -m", 8, 45, check_rtx4090),
}
REFUSED = {
    "hwloc/nvidiagpunumanodes.console": "lstopo --of xml",
    "misc/nccl-allreduce-h100x8-nvlink.csv": "measured bandwidths",
}
FOUND = (
    sorted(path.relative_to(SAMPLES).as_posix() for path in SAMPLES.glob("*/*")) if SAMPLES.is_dir() else []
)
needs_samples = pytest.mark.skipif(
    not FOUND, reason="the collected GPU outputs are not beside the repository"
)


@needs_samples
@pytest.mark.parametrize("name", FOUND)
def test_every_collected_output_is_read_or_refused_with_a_reason(name):
    text = (SAMPLES / name).read_text(encoding="utf-8")
    if name in REFUSED:
        with pytest.raises(CallerError, match=REFUSED[name]):
            read_gpu_text(text)
        return
    kind, count, links, check = FACTS[name]
    report = read_gpu_text(text)
    assert (report.kind, len(gpus(report)), len(report.links)) == (kind, count, links)
    for device in report.devices:
        for value_name, value in device.values.items():
            assert sane(UNITS[value_name], value) == value
    if check is not None:
        check(report)


@needs_samples
def test_the_list_of_collected_outputs_is_whole():
    assert set(FOUND) == FACTS.keys() | REFUSED.keys()


TOPOLOGY = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\tPXB\t0-7\t0\nGPU1\tNV4\t X \tSYS\t8-15\t1\nNIC0\tPXB\tSYS\t X \n"


def test_a_row_that_slipped_is_left_out_and_said_so():
    slipped = TOPOLOGY.replace("GPU1\tNV4\t X \tSYS", "GPU1\t X \tSYS\tNV4")
    report = read_topology(slipped)
    assert "row GPU1 is left out: its X is not in its own column" in report.remarks
    assert link(report, "GPU0", "GPU1") == "NV4", "the other row tells it"
    assert link(report, "GPU1", "NIC0") == "SYS"


def test_a_row_that_lacks_a_cell_is_left_out():
    report = read_topology(TOPOLOGY.replace("GPU1\tNV4\t X \tSYS\t8-15", "GPU1\tNV4\t X \t8-15"))
    assert "row GPU1 is left out: its cells do not fit the columns" in report.remarks


def test_two_rows_that_disagree_about_a_pair_leave_it_out():
    report = read_topology(TOPOLOGY.replace("GPU1\tNV4", "GPU1\tPHB"))
    assert link(report, "GPU0", "GPU1") is None
    assert "GPU0 and GPU1 are left out: one row says NV4 and the other PHB" in report.remarks


def test_columns_that_are_nobodys_are_refused():
    with pytest.raises(CallerError, match="names a device twice"):
        read_topology(TOPOLOGY.replace("\tGPU1\tNIC0\tCPU", "\tGPU0\tNIC0\tCPU"))


def test_tabs_that_became_spaces_change_nothing_of_the_matrix():
    spaced = read_topology(TOPOLOGY.replace("\t", "   "))
    assert spaced.links == read_topology(TOPOLOGY).links
    assert spaced.devices[0].facts == {"cpus": "0-7", "numa_node": "0"}


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("81920 MiB", "bytes", 81920 * MIB),
        ("1.5 GiB", "bytes", 1.5 * GIB),
        ("100 %", "share", 1.0),
        ("101 %", "share", None),
        ("[N/A]", "W", None),
        ("[Not Supported]", "W", None),
        ("Requested functionality has been deprecated", "MHz", None),
        ("-7 C", "°C", -7.0),
        ("-7 W", "W", None),
        ("16x", "lanes", 16.0),
        ("4", "generation", 4.0),
        ("4", "bytes", None),
        ("12 MHz", "W", None),
        ("Not Active", "0 or 1", 0.0),
        ("Active", "0 or 1", 1.0),
        ("0", "0 or 1", None),
        ("9" * 400, "errors", None),
        ("1e400 W", "W", None),
    ],
)
def test_a_quantity_is_of_its_unit_or_absent(text, unit, value):
    assert quantity(text, unit) == value


def test_an_xml_that_declares_entities_is_refused_before_they_cost_anything():
    bomb = '<!DOCTYPE a [<!ENTITY a "xxxxxxxxxx">' + "".join(
        f'<!ENTITY {chr(98 + i)} "{"&" + chr(97 + i) + ";" * 10}">' for i in range(9)
    )
    with pytest.raises(CallerError, match="declares entities"):
        read_gpu_text(bomb + "]><nvidia_smi_log>&i;</nvidia_smi_log>")
    with pytest.raises(CallerError, match="declares entities"):
        read_xml('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><a>&x;</a>')


def test_an_xml_without_bottom_is_refused():
    with pytest.raises(CallerError, match="deeper than"):
        read_xml("<a>" * 5000)
    assert read_xml("<a>" * 150 + "</a>" * 150).walk()[-1].tag == "a"


def test_a_document_type_elsewhere_is_not_fetched():
    assert read_xml('<!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd"><a>x</a>').text == "x"


EXPORTER = """# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100",Hostname="n1",pod="vllm-0"} 70112
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="NVIDIA H100"} 97
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a"} 0.41
DCGM_FI_PROF_NVLINK_RX_BYTES{gpu="0",UUID="GPU-a"} 3.1e10
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a"} 79
DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="GPU-a"} 2147483632
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b"} NaN
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b"} 140737488355328
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="1",GPU_I_ID="7",UUID="GPU-b"} 0.5
"""


def test_the_exporters_page_blanks_and_nans_are_absent():
    report = read_gpu_text(EXPORTER)
    assert report == read_exporter(parse(EXPORTER))
    assert [device.name for device in report.devices] == ["GPU0", "GPU1", "GPU1/MIG7"]
    assert report.devices[0].values == {
        "gpu_memory_used_bytes": 70112 * MIB,
        "gpu_busy_share": 0.97,
        "gpu_dram_active_share": 0.41,
        "gpu_nvlink_received_bytes_per_s": 3.1e10,
        "gpu_last_xid": 79,
    }
    assert report.devices[0].facts["pod"] == "vllm-0"
    assert report.devices[1].values == {}
    assert report.devices[2].values == {"gpu_engine_active_share": 0.5}


def test_dcgms_field_numbers_are_the_ones_of_its_header():
    numbers = {field.number: field.name for field in FIELDS}
    assert numbers[203] == "gpu_busy_share"
    assert numbers[252] == "gpu_memory_used_bytes"
    assert (numbers[1001], numbers[1005]) == ("gpu_engine_active_share", "gpu_dram_active_share")
    assert (numbers[1009], numbers[1010]) == ("gpu_pcie_sent_bytes_per_s", "gpu_pcie_received_bytes_per_s")
    assert (numbers[1011], numbers[1012]) == (
        "gpu_nvlink_sent_bytes_per_s",
        "gpu_nvlink_received_bytes_per_s",
    )
    assert len({field.tag for field in FIELDS}) == len({field.exported for field in FIELDS}) == len(FIELDS)


def test_a_dmon_of_utilization_and_memory_with_heads_that_repeat():
    text = "# Entity  GPUTL  FBUSD\n ID\nGPU 0  97  70112\n#Entity GPUTL FBUSD\nGPU 0  55  70113\nGPU 1 101 5\nGPU 1 7\n"
    report = read_gpu_text(text)
    assert report.devices[0].values == {"gpu_busy_share": 0.55, "gpu_memory_used_bytes": 70113 * MIB}
    assert report.devices[1].values == {"gpu_memory_used_bytes": 5 * MIB}, "101 % cannot be"
    assert report.remarks == ("2 cells or rows do not fit their columns or cannot be; they are left out",)


def test_a_share_above_one_is_no_percent_in_disguise():
    field = next(field for field in FIELDS if field.number == 1005)
    assert value_of(field, 88.1) is None
    assert value_of(field, 1.0) == 1.0


def test_names_and_units_fit():
    assert {field.name for field in FIELDS} | ITEMS.keys() <= UNITS.keys()
    assert all(name.startswith("gpu_") for name in UNITS)
    for name, unit in UNITS.items():
        assert not name.endswith("_share") or unit == "share"
        assert not name.endswith("_bytes") or unit == "bytes"


def test_an_inactive_link_is_not_counted():
    report = read_gpu_text(
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\nGPU 1: NVIDIA H100 (UUID: GPU-2)\n"
    )
    assert report.devices[0].values == {"gpu_nvlink_links": 1, "gpu_nvlink_capacity_bytes_per_s": 26.562e9}
    assert report.remarks == ("GPU1 has no link that is up",)


@pytest.mark.parametrize(
    "text", ["", "hello", "\0\1\2", "<a/>", "<a", "x" * 100_000, "GPU", "#", "DCGM_FI_ and more\n"]
)
def test_what_is_nobodys_output_is_refused(text):
    with pytest.raises(CallerError):
        read_gpu_text(text)
