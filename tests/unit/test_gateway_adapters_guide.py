"""The guide to runtime adapters says what is there: its example loads, its words exist."""

import re
from pathlib import Path

from sits.core.config import load_fleet
from sits.core.fleet_adapters import RuntimeAdapters
from sits.gateway.metrics import FAMILIES
from sits.policy.adapters import REASONS

GUIDE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()


def test_the_example_is_a_fleet():
    [example] = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    fleet = load_fleet("name: guide\n" + example)
    assert [adapter.name for adapter in fleet.runtime_adapters.adapters] == ["sql", "legal", "house"]


def test_reasons_and_metrics_exist():
    told = set(re.findall(r"\| `([a-z_`, ]+)` \|", GUIDE))
    words = {word for row in told for word in row.replace("`", "").split(", ")}
    assert words
    assert words <= set(REASONS)
    families = set(re.findall(r"`(sits_adapter_\w+)`", GUIDE))
    assert families == {name for name in FAMILIES if name.startswith("sits_adapter_")}
    for reason in ("no_room", "path_reused"):
        assert f"`{reason}`" in GUIDE
        assert reason in REASONS


def test_every_field_of_the_section_is_in_the_guide():
    for field in RuntimeAdapters.__struct_fields__:
        assert f"{field}:" in GUIDE or f"`{field}`" in GUIDE, field
