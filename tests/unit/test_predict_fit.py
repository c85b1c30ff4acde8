"""The stored kernel figures are what the fit gives on the published measurements."""

import importlib.util
from pathlib import Path

import msgspec
import pytest

from sits.predict.gpu import GpuFigures
from sits.predict.gpu_figures import GPUS

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "measurements"


@pytest.fixture(scope="module")
def refitted():
    if not (DATA / "aic_kernel_profiles").is_dir():
        pytest.skip(f"published measurements are not at {DATA}")
    pytest.importorskip("pyarrow")
    spec = importlib.util.spec_from_file_location("fit_steptime", ROOT / "tools" / "fit_steptime.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool, *tool.fit_all(DATA)


def numbers(value):
    """All numbers of nested figures, in order."""
    value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        return [n for key in sorted(value, key=str) for n in numbers(value[key])]
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in numbers(v)]
    return [value] if isinstance(value, (int, float)) else []


def test_stored_figures_come_from_the_data(refitted):
    _, cards, _ = refitted
    assert cards.keys() == GPUS.keys()
    for name, fresh in cards.items():
        for field in GpuFigures.__struct_fields__:
            stored, now = numbers(getattr(GPUS[name], field)), numbers(getattr(fresh, field))
            assert stored == pytest.approx(now, rel=1e-3, abs=1e-9), (
                f"{name}.{field}: rerun tools/fit_steptime.py"
            )


def test_stored_report_comes_from_the_data(refitted):
    tool, cards, residuals = refitted
    stored = (ROOT / "docs" / "accuracy-steptime.md").read_text()
    fresh = tool.render_report(DATA, cards, residuals)
    assert [line.split("|")[1:4] for line in fresh.splitlines()] == [
        line.split("|")[1:4] for line in stored.splitlines()
    ]
    assert fresh.count("\n") > 100


def test_fits_are_as_good_as_the_source_text_says(refitted):
    _, cards, _ = refitted
    for figures in cards.values():
        assert figures.mape["gemm"] < 0.10
        assert figures.mape["all_reduce"] < 0.05
        assert figures.mape["prefill"] < 0.13
        assert figures.mape["decode"] < 0.13


def test_whole_models_are_compared_and_not_flattered(refitted):
    """The known shortfall: nobody may quote the derived figures as absolute without seeing this change."""
    tool, cards, _ = refitted
    rows = [r for r in tool.check_whole_model(DATA, cards) if r[0].startswith("A100") and tool.is_plain(r)]
    assert len(rows) == 15
    for _, tp, prompt, _, predicted, measured, *_ in rows:
        if prompt >= 512:
            assert -0.20 < predicted / measured - 1.0 < 0.0, (tp, prompt)
