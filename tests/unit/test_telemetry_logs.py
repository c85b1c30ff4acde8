"""Log lines as people and machines get them, and lines of other libraries on their way into ours."""

import json
import logging
import os

import pytest
import structlog

from sits.telemetry.logs import Bridge, Log, Stderr, bridge, form_of, steps, to_stderr
from sits.telemetry.secrets import without_secrets


class StillWorld:
    """A world in which it is always the same moment."""

    def now_ns(self):
        return 5

    def wall_ns(self):
        return 1_700_000_000_123_456_789


def test_the_form_for_machines_and_the_form_for_people():
    lines = []
    log = Log(StillWorld(), lines.append, "json").of("worker-1")
    log.know(generation=3)
    log("request failed: engine_timeout", "error", trace_id="ab", engine="a b", nothing=None)
    assert lines.pop() == (
        '{"time":"2023-11-14T22:13:20.123Z","level":"error","event":"request failed: engine_timeout",'
        '"logger":"sits.worker","app":"sits","process":"worker-1","generation":3,"trace_id":"ab","engine":"a b"}'
    )
    log = Log(StillWorld(), lines.append, "text")
    log("generation 3 serves", generation=3)
    log("breaker opened", "warning", engine="a b", stack="one\ntwo")
    assert lines == ["generation 3 serves", "warning: breaker opened  engine='a b'\n  one\n  two"]


def test_who_keeps_lines_may_say_something_himself_without_end():
    said = []
    log = Log(StillWorld(), said.append, "text")
    log.keep = lambda _: log("could not keep it")
    log("first")
    log("second")
    assert said == ["first", "could not keep it", "second", "could not keep it"]


def test_a_reader_of_stderr_who_has_gone_costs_the_line_and_no_more(monkeypatch):
    class Gone:
        def write(self, _):
            raise BrokenPipeError

        def isatty(self):
            return False

    monkeypatch.setattr("sys.stderr", Gone())
    to_stderr("a line")
    assert form_of("auto") == "json"


def test_lines_of_pythons_own_logging_become_lines_of_ours():
    root, lines = logging.getLogger(), []
    before = root.handlers[:], root.level
    try:
        bridge(Log(StillWorld(), lines.append, "json"))
        logging.getLogger("asyncio").info("not serious")
        try:
            raise ValueError("Bearer abcdefghij")
        except ValueError:
            logging.getLogger("asyncio").exception("a %s broke", "thing")
    finally:
        root.handlers[:], root.level = before
    (read,) = map(json.loads, lines)
    assert (read["logger"], read["level"], read["event"]) == ("asyncio", "error", "a thing broke")
    assert "ValueError: Bearer [redacted]" in read["stack"]
    assert "Traceback" in read["stack"]


def test_structlog_gives_the_same_line():
    lines = []
    Log(StillWorld(), lines.append, "json", process="mine")("it works", "warning", key="x", n=1)
    logger = structlog.wrap_logger(
        structlog.PrintLogger(),
        processors=[
            *steps({"app": "sits", "process": "mine"}, StillWorld()),
            lambda _, __, facts: lines.append(json.dumps(facts, separators=(",", ":"))) or {"event": ""},
            structlog.processors.JSONRenderer(),
        ],
    )
    logger.warning("it works", key="x", n=1)
    assert lines[0] == lines[1]


def test_a_value_that_is_not_json_is_written_as_its_text():
    lines = []
    Log(StillWorld(), lines.append, "json")("x", path=ValueError("sk-abcdefghijkl"))
    assert json.loads(lines[0])["path"] == "[redacted]"
    assert without_secrets("n", 7) == 7


EVIL = "x\nerror: forged  engine=e0\x1b[2J\x1b]0;t\x07\u202egnp\u2028\r\x9b31m\udc80"


def test_nothing_that_others_made_up_forges_a_line_or_drives_a_terminal():
    lines = []
    Log(StillWorld(), lines.append, "text")(EVIL, "error", model=EVIL, path="a" + EVIL, stack=EVIL)
    written = lines.pop().split("\n")
    assert all(line.replace("\t", "").isprintable() for line in written)
    assert all(line.startswith("  ") for line in written[1:]), (
        "only the first line of a record begins at the edge"
    )
    Log(StillWorld(), lines.append, "json")(EVIL, "error", model=EVIL, **{"na\nme\u202e": 1})
    (line,) = lines
    assert line.isprintable()
    assert json.loads(line)["model"] == EVIL.replace("\udc80", "?"), "and yet nothing is lost"


@pytest.mark.parametrize(
    "said",
    [
        "Authorization: Bearer SECRET99",
        "authorization: Basic SECRET99",
        "Authorization: SECRET99",
        "x-api-key: SECRET99",
        "'X-Api-Key': 'SECRET99'",
        '{"error": "no", "api_key": "SECRET99"}',
        'api_key="SECRET99"',
        "OPENAI_API_KEY=SECRET99",
        "https://host/v1?key=SECRET99&a=1",
        "https://me:SECRET99@host/v1",
        "Incorrect API key provided: sk-proj-SECRET99",
        "hf_SECRET99abcdef",
        "refresh_token=SECRET99",
    ],
)
def test_no_credential_is_written_wherever_it_stands(said):
    lines = []
    log = Log(StillWorld(), lines.append, "json")
    log(said, "error")
    log("x", "error", detail=said, stack=f"a\n{said}\nb", nested={"deep": [said]})
    log("x", "error", **{"http.request.header.authorization": "SECRET99"})
    log.of("keeper")("x", body=said)
    assert "SECRET99" not in "".join(lines)
    assert (
        without_secrets("event", "512 tokens: 7000000, token 5, key a0")
        == "512 tokens: 7000000, token 5, key a0"
    )


def test_values_of_any_size_and_shape_are_looked_at_in_bounded_time():
    lines, ring = [], {}
    ring["me"] = [ring]
    log = Log(StillWorld(), lines.append, "json")
    log("x", ring=ring, long="eyJ-" * 1_000_000, urls="://a:" * 1_000_000, names="a_" * 1_000_000)
    assert len(lines[0]) < 80_000


def test_a_flood_from_one_place_in_a_library_is_some_lines_and_their_count():
    lines = []
    handler = Bridge(Log(StillWorld(), lines.append, "json"))

    def record(created, line=7):
        made = logging.LogRecord(
            "uvicorn.error", logging.WARNING, "h11_impl.py", line, "bad %s", ("x",), None
        )
        made.created = created
        handler.emit(made)

    for _ in range(1000):
        record(100.0)
    record(100.0, line=8)
    assert len(lines) == 11
    record(161.0)
    told = [json.loads(line) for line in lines[11:]]
    assert [(one["event"], one.get("suppressed")) for one in told] == [
        ("lines suppressed", 990),
        ("bad x", None),
    ]


def test_a_stderr_that_nobody_reads_stops_nobody(monkeypatch):
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", 0) as out, os.fdopen(writer, "w") as err:
        monkeypatch.setattr("sys.stderr", err)
        say = Stderr()
        for i in range(200):
            say(f"{i} " + "x" * 1000)
        assert say.lost > 100
        out.read(65_536)
        say("at last")
        assert b"lines lost: nobody read stderr\nat last\n" in out.read(65_536)
        assert say.lost == 0
