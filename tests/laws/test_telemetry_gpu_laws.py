"""Whatever is put in front of the GPU readers: a report of possible values or a clear refusal, in time that grows with the text."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.errors import CallerError
from sits.telemetry.gpu.recognise import read_gpu_text
from sits.telemetry.gpu.report import UNITS, sane
from sits.telemetry.gpu.topology import read_topology

SAMPLES = Path(__file__).parents[3] / "shared/data/gpu-samples"
OWN = [
    "==============NVSMI LOG==============\n\nAttached GPUs : 1\nGPU 00000000:00:04.0\n    FB Memory Usage\n        Total : 40960 MiB\n        Used : N/A\n",
    "<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id='0'><fb_memory_usage><used>5 MiB</used></fb_memory_usage></gpu></nvidia_smi_log>",
    "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-3\nGPU1\tNV4\t X \t4-7\n",
    "#Entity GRACT FBUSD\nID\nGPU 0 0.5 100\nGPU 1 N/A 5\n",
    'DCGM_FI_DEV_FB_USED{gpu="0"} 5\n',
    "<system version='1'><cpu numaid='0'><pci busid='1' class='0x030200'><gpu dev='0'><nvlink target='2' count='4'/></gpu></pci></cpu></system>",
    "[1.0] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n",
    "GPU 0: H100 (UUID: GPU-1)\n\t Link 0: 25 GB/s\n",
]
TEXTS = OWN + [
    path.read_text(encoding="utf-8") for path in sorted(SAMPLES.glob("*/*")) if path.stat().st_size < 6000
]


def sound(text):
    """Read, and hold what came out to what can be."""
    try:
        report = read_gpu_text(text)
    except CallerError:
        return None
    for device in report.devices:
        for name, value in device.values.items():
            assert sane(UNITS[name], value) == value
    return report


@given(st.text(max_size=400))
def test_any_text(text):
    sound(text)


@given(st.binary(max_size=400))
def test_any_bytes(data):
    sound(data.decode("utf-8", "replace"))


@settings(max_examples=300)
@given(st.sampled_from(TEXTS), st.data())
def test_cut_anywhere_it_makes_up_no_number(text, data):
    whole = read_or_none(text)
    cut = sound(text[: data.draw(st.integers(0, len(text)))])
    if whole is None or cut is None or cut.kind != whole.kind:
        return
    pairs = {frozenset((one.a, one.b)): one.kind for one in whole.links}
    for one in cut.links:
        assert pairs.get(frozenset((one.a, one.b))) in (one.kind, None) or one.kind.startswith("NV")


def read_or_none(text):
    try:
        return read_gpu_text(text)
    except CallerError:
        return None


@settings(max_examples=300)
@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.randoms(use_true_random=False))
def test_lines_of_two_mixed(one, other, dice):
    lines = one.splitlines(keepends=True) + other.splitlines(keepends=True)
    dice.shuffle(lines)
    sound("".join(lines))


@settings(max_examples=300)
@given(st.sampled_from(TEXTS), st.lists(st.tuples(st.floats(0, 1), st.characters()), max_size=8))
def test_characters_changed(text, changes):
    letters = list(text)
    for where, letter in changes:
        letters[min(len(letters) - 1, int(where * len(letters)))] = letter
    sound("".join(letters))


@given(st.integers(1, 12), st.integers(0, 6), st.data())
def test_a_matrix_that_lost_tabs_is_read_as_it_was_or_not_at_all(gpus, cards, data):
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(cards)]
    kinds = st.sampled_from(["SYS", "NODE", "PHB", "PXB", "PIX", "NV1", "NV18"])
    matrix = {frozenset((a, b)): data.draw(kinds) for a in names for b in names if a < b}
    rows = [["", *names, "CPU Affinity", "NUMA Affinity"]]
    for a in names:
        cells = [" X " if a == b else matrix[frozenset((a, b))] for b in names]
        rows.append([a, *cells, "0-3", "0"])
    if len(names) < 2:
        return
    lost = data.draw(st.sets(st.tuples(st.integers(1, len(names)), st.integers(2, len(names))), max_size=6))
    text = ""
    for i, row in enumerate(rows):
        text += row[0]
        for j, cell in enumerate(row[1:], 1):
            text += ("" if (i, j) in lost else "\t") + cell
        text += "\n"
    report = read_topology(text)
    for one in report.links:
        assert one.kind == matrix[frozenset((one.a, one.b))]
    if not lost:
        assert len(report.links) == len(matrix)


def test_thirty_thousand_lines_of_what_could_be_worst_are_read_within_the_tests_own_limit():
    """Work that grew with the square of the text would take hours here."""
    makers = (
        lambda n: (
            "==============NVSMI LOG==============\nGPU 00000000:00:04.0\n"
            + "    Section\n        a : b\n" * n
        ),
        lambda n: "\tGPU0\tGPU1\nGPU0\t X \tNV4\n" * n,
        lambda n: "#Entity GRACT\n" + "GPU 0 0.5\n" * n,
        lambda n: "<system>" + "<cpu><pci class='0x0302'/></cpu>" * n + "</system>",
        lambda n: "[1.0] NVRM: Xid (PCI:0000:9b:00): 79, x\n" * n,
        lambda n: " " * (10 * n) + "\n" + "\n" * n + "GPU0",
        lambda n: "0001:00:00.0 " + "[0302]: " * n,
        lambda n: (
            "==============NVSMI LOG==============\n" + "".join(f"{' ' * (i % 60)}s{i}\n" for i in range(n))
        ),
    )
    for maker in makers:
        sound(maker(30_000))
