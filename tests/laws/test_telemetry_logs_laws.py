"""Laws of log lines: each is one line and valid JSON with its fields first; no secret survives; what is written and what is suppressed add up."""

import json

from hypothesis import given
from hypothesis import strategies as st

from sits.telemetry.log_bounds import KINDS_MAX, Bounds
from sits.telemetry.logs import ALWAYS, Log
from sits.telemetry.secrets import NAMES, REDACTED, without_secrets
from sits.world import RealWorld

TEXT = st.text(max_size=40)
VALUES = st.one_of(TEXT, st.integers(), st.floats(), st.booleans(), st.none(), st.lists(TEXT, max_size=3))
FACTS = st.dictionaries(
    st.text(alphabet="abcdefgh_", min_size=1).filter(lambda name: name not in ("level", "event")),
    VALUES,
    max_size=5,
)
SECRET = st.text("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789", min_size=12, max_size=40).map(
    "Zq7{}".format
)


@given(event=TEXT, facts=FACTS, surrogate=st.sampled_from(["", "\ud800", "\n", "\r\n\u2028"]))
def test_a_line_is_one_line_of_json_with_its_own_fields_first(event, facts, surrogate):
    lines, rows = [], []
    log = Log(RealWorld(), lines.append, "json", process="keeper")
    log.keep = rows.append
    log(event + surrogate, "warning", **facts)
    (line,) = lines
    assert "\n" not in line
    assert "\r" not in line
    read = json.loads(line)
    own = [name for name in read if name in ALWAYS]
    assert list(read)[: len(own)] == [name for name in ALWAYS if name in own]
    assert (read["level"], read["app"], read["process"]) == ("warning", "sits", "keeper")
    assert rows == [(rows[0][0], "warning", "keeper", "", "", *rows[0][5:6], line)]


@given(
    secret=SECRET,
    form=st.sampled_from(
        [
            "Bearer {}",
            "authorization: bearer {}",
            "sk-{}",
            "sk-proj-{}",
            "hf_{}",
            "http://me:{}@host/x",
            "https://host/v1?api_key={}",
            "/x?a=1&token={}&b=2",
            "eyJ{0}.{0}.{0}",
        ]
    ),
    around=st.sampled_from([("", ""), ("it said '", "'"), ("(", ")"), ("a ", " b")]),
)
def test_what_looks_like_a_credential_is_in_no_line(secret, form, around):
    lines = []
    said = around[0] + form.format(secret) + around[1]
    for kind in ("json", "text"):
        log = Log(RealWorld(), lines.append, kind)
        log(said, stack=said, more=[said], deep={"x": said})
    for line in lines:
        assert secret not in line
        assert REDACTED in line


@given(name=st.sampled_from(sorted(NAMES)), value=VALUES)
def test_fields_named_as_secrets_are_cut_whatever_they_hold(name, value):
    assert without_secrets(name.upper(), value) == REDACTED


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz ,.:/=", max_size=60))
def test_ordinary_text_stays_as_it_is(text):
    ordinary = text.replace("bearer", "").replace("basic", "").replace("://", "")
    assert without_secrets("event", ordinary) == ordinary


@given(
    lines=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 20)), max_size=1500),
    burst=st.integers(1, 5),
)
def test_written_and_suppressed_add_up_to_what_was_said(lines, burst):
    bounds, now_ns, written, suppressed = Bounds(burst, 100), 0, 0, 0
    for kind, step_ns in lines:
        now_ns += step_ns
        suppressed += sum(one.lines for one in bounds.over(now_ns))
        written += bounds.allows((str(kind),), now_ns)
        assert len(bounds._kinds) <= KINDS_MAX + 1
    suppressed += sum(one.lines for one in bounds.rest())
    assert written + suppressed == len(lines)
