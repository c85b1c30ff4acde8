"""`sitsctl plan queue` and `plan network`: what is printed, drawn and refused, through the command line itself."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from sits.app.cli import cli, run_command
from sits.world import stream_generator

EMULATED = Path(__file__).resolve().parents[2] / "examples" / "emulated.yaml"
POINTS = "load,p99_ms,requests\n2,158,5000\n5,164,5000\n8,186,5000\n11,211,5000\n14,270,5000\n16,345,5000\n18,610,5000\n"


@pytest.fixture
def plan(capsys):
    def run(*arguments):
        words = ["plan", *map(str, arguments)]
        code = run_command(lambda: cli.main(args=words, prog_name="sitsctl", standalone_mode=False))
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def trace(tmp_path):
    """Arrivals with lengths in the Azure format: Poisson, four a second."""
    dice = stream_generator(1, "trace")
    times = np.cumsum(dice.exponential(0.25, 3000))
    rows = ["t_s,input_tokens,output_tokens"]
    rows += [
        f"{t:.6f},{p},{o}"
        for t, p, o in zip(times, dice.integers(50, 2000, 3000), dice.integers(20, 400, 3000), strict=True)
    ]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_one_server_is_exact_and_the_published_formula_stands_beside_it(plan):
    code, out, _ = plan("queue", "--service", "50ms", "--cv", "1", "--rate", "16")
    assert code == 0
    assert "p99 1,151 ms" in out
    assert "exact for these assumptions" in out
    assert "the published L99 formula says 450 ms, -61%" in out
    assert "no arrivals given: Poisson" in out
    for definition in ("busy: ", "wait: ", "p50, p99: "):
        assert definition in out
    assert "capacity: " not in out


def test_json_has_no_infinities_and_says_what_was_assumed(plan):
    code, out, _ = plan("queue", "--service", "50ms", "--rate", "25", "--json")
    found = json.loads(out)
    assert code == 1
    assert found["steady"] is False
    assert found["prediction"]["p99_ns"] is None
    code, out, _ = plan("queue", "--service", "50ms", "--rate", "10", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["prediction"]["p99_ns"] == pytest.approx(0.4605e9, rel=1e-2)
    assert "Poisson arrivals" in found["prediction"]["assumed"]
    assert found["l99_reference_error"] < -0.6


def test_several_servers_and_bursts_are_an_approximation(plan):
    calm = json.loads(plan("queue", "--service", "100ms", "--servers", "8", "--rate", "64", "--json")[1])
    burst = json.loads(
        plan("queue", "--service", "100ms", "--servers", "8", "--rate", "64", "--arrival-cv", "2", "--json")[
            1
        ]
    )
    assert not calm["exact"]
    assert burst["prediction"]["p99_ns"] > calm["prediction"]["p99_ns"]
    even = json.loads(
        plan("queue", "--service", "100ms", "--servers", "8", "--rate", "64", "--arrival-cv", "0", "--json")[
            1
        ]
    )
    assert even["prediction"]["p99_ns"] < calm["prediction"]["p99_ns"]
    code, _, err = plan("queue", "--service", "100ms", "--rate", "8", "--arrival-cv", "4")
    assert code == 2
    assert "simulate" in err


def test_real_arrivals_are_looked_at_first(plan, trace):
    code, out, _ = plan("queue", "--service", "150ms", "--trace", trace)
    assert code == 0
    assert out.startswith("arrivals  3,000 in")
    assert "verdict   poisson" in out
    assert out.index("verdict") < out.index("busy")


def test_bursty_arrivals_are_shown_even_when_they_are_refused(plan, tmp_path):
    gaps = stream_generator(2, "burst").gamma(0.02, 12.5, 6000)
    path = tmp_path / "bursty.csv"
    path.write_text("t_s,input_tokens,output_tokens\n" + "".join(f"{t:.6f},10,10\n" for t in np.cumsum(gaps)))
    code, out, err = plan("queue", "--service", "150ms", "--trace", path)
    assert code == 2
    assert "verdict   bursty" in out
    assert "simulate" in err


def test_an_engine_is_processor_sharing_with_its_assumptions(plan, trace):
    code, out, _ = plan("queue", EMULATED, "--rate", "3", "--trace", trace)
    assert code == 0
    assert "processor sharing" in out
    assert "assumed: step times" in out
    found = json.loads(plan("queue", EMULATED, "--rate", "3", "--json")[1])
    more = json.loads(plan("queue", EMULATED, "--rate", "4", "--json")[1])
    assert found["way"] == "engine"
    assert more["prediction"]["e2e_p99_ns"] > found["prediction"]["e2e_p99_ns"]
    full = found["prediction"]["capacity_per_s"]
    assert plan("queue", EMULATED, "--rate", 1.1 * full)[0] == 1
    assert "may be far too low" in plan("queue", EMULATED, "--rate", 0.8 * full)[1]
    assert "there are:" in plan("queue", EMULATED, "--rate", "1", "--engine", "nobody")[2]


def test_points_give_a_knee_with_an_interval_and_a_drawing(plan, tmp_path):
    path, svg = tmp_path / "points.csv", tmp_path / "knee.svg"
    path.write_text(POINTS)
    code, out, _ = plan("queue", "--points", path, "--svg", svg)
    assert code == 0
    value, low, high = map(
        float, re.search(r"knee at load (\S+), 95 % interval (\S+) \.\. (\S+)", out).groups()
    )
    assert low < value < high
    assert 14 < value < 16
    root = ET.fromstring(svg.read_text())
    kinds = [one.get("class") for one in root.iter() if one.get("class")]
    assert kinds.count("dot") == 7
    assert {"band", "curve", "knee", "kneeline"} <= set(kinds)


def test_three_points_give_none(plan, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("4,124\n8,286\n16,753\n")
    code, out, _ = plan("queue", "--points", path)
    assert code == 1
    assert "no knee: not enough loads" in out


def test_predictions_are_drawn_as_far_as_they_go(plan, tmp_path):
    for words in (("--service", "50ms", "--rate", "16"), (str(EMULATED), "--rate", "3")):
        svg = tmp_path / "curve.svg"
        assert plan("queue", *words, "--svg", svg)[0] == 0
        root = ET.fromstring(svg.read_text())
        assert any(one.get("class") == "mark" for one in root.iter())
        assert "NaN" not in svg.read_text()


def test_service_times_can_be_measured(plan, tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("20\n" * 9 + "200\n")
    found = json.loads(plan("queue", "--service-times", path, "--rate", 0.8 / 0.038, "--json")[1])
    assert found["service_cv"] == pytest.approx(1.42, abs=0.01)
    assert found["prediction"]["p99_ns"] == pytest.approx(1.309e9, rel=1e-3)
    path.write_text("20\nabc\n")
    code, _, err = plan("queue", "--service-times", path, "--rate", "1")
    assert code == 2
    assert "times.txt:2" in err


def test_what_is_asked_must_be_one_thing(plan, tmp_path):
    assert plan("queue", "--rate", "1")[0] == 2
    assert plan("queue", EMULATED, "--service", "1ms", "--rate", "1")[0] == 2
    assert plan("queue", "--service", "1ms")[0] == 2
    path = tmp_path / "points.csv"
    path.write_text("1,2\n3\n")
    assert "points.csv:2" in plan("queue", "--points", path)[2]


def test_network_shows_kernels_and_what_is_assumed_between_nodes(plan):
    code, out, _ = plan("network", "--gpu", "H100", "--nodes", "2")
    assert code == 0
    assert "160 in a step of 80 layers" in out
    assert "start-up: " in out
    assert "between nodes, assumed" in out
    found = json.loads(plan("network", "--gpu", "H100", "--nodes", "2", "--json")[1])
    took = {row["way"]: row["all_reduce_ns"] for row in found["rows"]}
    assert took["custom graph"] < took["nccl"] < took["RDMA"] < took["TCP"]
    assert took["nccl"] == pytest.approx(25e3, rel=0.1)


def test_two_measured_nodes_stand_beside_the_assumed_links(plan):
    found = json.loads(plan("network", "--gpu", "A100", "--nodes", "2", "--size", "64MiB", "--json")[1])
    took = {row["way"]: row["all_reduce_ns"] for row in found["rows"]}
    assert (
        "custom graph" not in took
    )  # engines use NCCL for large messages, and its line must not be drawn on
    assert 5e6 < took["measured"] < 9e6
    assert took["measured"] / took["nccl"] > 8
    assert took["RDMA"] < took["TCP"] < took["measured"]
    assert "measured" not in plan("network", "--gpu", "H100", "--nodes", "2")[1].split("start-up: ")[
        0
    ].replace("as measured", "")


def test_network_names_the_gpus_it_knows(plan):
    code, _, err = plan("network", "--gpu", "B200")
    assert code == 2
    assert "known: A100-SXM4-80GB, H100-SXM5-80GB, H200-SXM" in err


def test_network_wants_units(plan):
    code, _, err = plan("network", "--nodes", "2", "--card", "400")
    assert code == 2
    assert "no unit" in err
    bits, whole = (
        json.loads(plan("network", "--nodes", "2", "--card", card, "--json")[1])["rows"]
        for card in ("400Gb/s", "50GB/s")
    )
    assert bits == whole
    assert plan("network", "--size", "1024")[0] == 2


def test_scaling_over_nodes(plan, tmp_path):
    path = tmp_path / "nodes.csv"
    path.write_text("nodes,throughput\n1,100\n2,190\n4,350\n8,560\n16,700\n32,600\n")
    code, out, _ = plan("network", "--scaling", path)
    assert code == 0
    assert re.search(r"peak at 1[5-9](\.\d)? nodes, 95 % interval", out)
    path.write_text("4,1520\n8,1465\n")
    code, out, _ = plan("network", "--scaling", path, "--json")
    assert code == 1
    assert "not enough node counts" in json.loads(out)["refusal"]


ROOT = Path(__file__).resolve().parents[2]


def test_the_figures_of_the_guide_are_those_of_the_predictors():
    """docs/queueing.md, table of one server: P99, error of the tail, error of the published formula."""
    from sits.predict.queue import predict_queue
    from sits.predict.queue_reference import l99_reference_ns
    from sits.predict.queue_service import constant, gamma, two_kinds

    services = {
        "constant 50 ms": constant(50e6),
        "gamma 50 ms, CV 0.5": gamma(50e6, 0.5),
        "gamma 50 ms, CV 1": gamma(50e6, 1.0),
        "20 ms, one in ten 200 ms": two_kinds(20e6, 200e6, 0.1),
        "gamma 50 ms, CV 3": gamma(50e6, 3.0),
    }
    text = (ROOT / "docs" / "queueing.md").read_text(encoding="utf-8")
    for name, service in services.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
        for cell, busy in zip(row.split("|")[2:5], (0.5, 0.8, 0.95), strict=True):
            p99, tail, formula = (float(re.match(r"\s*([-+.\d]+)", part)[1]) for part in cell.split(";"))
            rate = busy / service.mean_ns * 1e9
            exact = predict_queue(rate, service).p99_ns
            assert p99 == pytest.approx(exact / 1e6, abs=0.6)
            about = predict_queue(rate, service, method="tail").p99_ns / exact - 1
            assert tail / 100 == pytest.approx(about, abs=6e-4)
            published = l99_reference_ns(rate, service.mean_ns, service.cv)
            assert formula / 100 == pytest.approx(published / exact - 1, abs=6e-3)


def test_the_points_of_the_guide_have_the_knee_that_is_drawn(plan):
    code, out, _ = plan("queue", "--points", ROOT / "examples" / "p99-points.csv")
    assert code == 0
    shown = re.search(r"knee at load (\S+), 95 % interval (\S+) \.\. (\S+)", out).groups()
    drawn = (ROOT / "docs" / "knee.svg").read_text(encoding="utf-8")
    assert f"P99 x2 at {float(shown[0]):.3g}" in drawn
