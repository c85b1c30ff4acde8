"""The style sheet: enough contrast in both colour schemes, computed from its own variables."""

import re
from importlib import resources

import pytest

from sits.app.report.matrix import STRONGEST_TINT

CSS = (resources.files("sits.app.report") / "templates" / "style.css").read_text(encoding="utf-8")
LIGHT, DARK = re.findall(r":root\{(.*?)\}", CSS, re.DOTALL)[:2]
TEXTS = ("ink", "muted", "before", "after", "warn", "changed", "good")
FILLS = ("before", "after", "http", "scheduler", "device", "result", "heat")


def colours(block):
    return {
        name: tuple(int(value[i : i + 2], 16) for i in (0, 2, 4))
        for name, short in re.findall(r"--([\w-]+):#([0-9a-f]{3,6})\b", block)
        for value in [short if len(short) == 6 else "".join(2 * c for c in short)]
    }


def luminance(colour):
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, two):
    """Contrast ratio after WCAG 2: 1 (same) to 21 (black on white)."""
    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def mixed(top, bottom, share):
    return tuple(a * share + b * (1 - share) for a, b in zip(top, bottom, strict=True))


SCHEMES = {"light": colours(LIGHT), "dark": {**colours(LIGHT), **colours(DARK)}}


def test_contrast_is_that_of_the_standard():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", ["bg", "panel"])
@pytest.mark.parametrize("text", TEXTS)
def test_text_is_readable(scheme, ground, text):
    known = SCHEMES[scheme]
    assert contrast(known[text], known[ground]) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("fill", FILLS)
def test_bars_stand_out_from_the_page(scheme, fill):
    known = SCHEMES[scheme]
    assert contrast(known[fill], known["bg"]) >= 3


@pytest.mark.parametrize("scheme", SCHEMES)
def test_figures_in_the_strongest_cell_are_readable(scheme):
    known = SCHEMES[scheme]
    cell = mixed(known["before"], known["bg"], STRONGEST_TINT)
    assert contrast(known["ink"], cell) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("text", "ground"), [("ink", "device-soft"), ("ink", "http-soft"), ("changed", "device-soft"), ("changed", "http-soft"), ("muted", "device-soft")])  # fmt: skip
def test_text_on_tinted_boxes_is_readable(scheme, text, ground):
    known = SCHEMES[scheme]
    assert contrast(known[text], known[ground]) >= 4.5


def test_every_variable_that_is_used_is_defined_and_the_other_way_round():
    from sits.app.topology import CSS as TOPOLOGY

    used = set(re.findall(r"var\(--([\w-]+)", CSS + TOPOLOGY))
    defined = set(re.findall(r"--([\w-]+):", LIGHT))
    computed = {"tint", "figures", "planes", "column"}
    assert used - computed == defined
