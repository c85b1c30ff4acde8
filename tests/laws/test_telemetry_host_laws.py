"""Whatever the kernel's files, a struct or an engine's page hold: possible values or nothing, and never a crash."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from sits.core.engine_names import SIGNALS
from sits.core.errors import CallerError, EngineError
from sits.telemetry.host.machine import read_meminfo, read_pressure, read_stat
from sits.telemetry.host.numa import local_share, read_list, read_numa_maps
from sits.telemetry.host.retransmits import missing
from sits.telemetry.host.tcp import TcpInfo, decode
from sits.telemetry.prometheus_text import parse
from sits.telemetry.signals import rows, view
from sits.telemetry.slots import read_slots

NAMES = sorted({row.name for signal in SIGNALS for row in signal.names})
WORDS = st.sampled_from(
    [
        "cpu",
        "some",
        "full",
        "total=12",
        "total=x",
        "MemTotal:",
        "kB",
        "7",
        "-3",
        "N0=4",
        "N1=9",
        "kernelpagesize_kB=4",
        "x",
        "0",
    ]
)
LINES = st.lists(st.lists(WORDS, max_size=12).map(" ".join), max_size=8).map("\n".join) | st.text(
    max_size=200
)


@given(LINES)
def test_files_of_the_kernel(text):
    ticks = read_stat(text)
    assert ticks is None or (min(ticks) >= 0 and ticks[0] + ticks[2] <= ticks[3])
    assert all(value >= 0 for value in read_meminfo(text).values())
    assert all(value >= 0 for value in read_pressure(text).values())
    pages = read_numa_maps(text)
    share = local_share(pages, {0, 1})
    assert share is None or 0 <= share <= 1
    assert all(0 <= number <= 65_535 for number in read_list(text))
    assert isinstance(missing(text, "x86_64"), str)


@given(st.binary(max_size=300))
def test_any_bytes_as_tcp_info(data):
    info = decode(data)
    assert (info is None) == (len(data) < 104)
    if info is not None:
        assert all(
            getattr(info, name) is None or getattr(info, name) >= 0 for name in TcpInfo.__struct_fields__
        )


@given(st.binary(min_size=232, max_size=232), st.integers(0, 232))
def test_a_struct_cut_short_tells_the_same_as_far_as_it_goes(data, size):
    whole, cut = decode(data), decode(data[:size])
    if cut is not None:
        for name in TcpInfo.__struct_fields__:
            assert getattr(cut, name) in (getattr(whole, name), None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.sampled_from(["", "_bucket", "_count", "_sum"]),
            st.dictionaries(
                st.sampled_from(["le", "engine", "reason", "stage", "max_lora"]),
                st.sampled_from(["1", "+Inf", "capacity", "x"]),
            ),
            st.sampled_from(["0", "1", "7.5", "NaN", "+Inf", "-1", "1e308"]),
        ),
        max_size=12,
    )
)
def test_pages_of_known_names_in_any_order(series):
    text = "".join(
        f"{name}{suffix}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}} {value}\n"
        for name, suffix, labels, value in series
    )
    try:
        seen = view(parse(text))
    except EngineError:
        return
    assert seen.used.keys() == seen.values.keys() | seen.histograms.keys()
    assert not any(math.isnan(value) for value in seen.values.values())
    assert len(rows(seen, "e", 1)) == len(seen.values) + 2 * len(seen.histograms)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["is_processing", "n_ctx", "n_prompt_tokens", "next_token", "n_decoded"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON.map(json.dumps) | st.text(max_size=100))
def test_any_json_as_slots(text):
    try:
        found = read_slots(text)
    except CallerError:
        return
    assert found["requests_running"] <= found["slots_total"]
    assert all(value >= 0 and math.isfinite(value) for value in found.values())
