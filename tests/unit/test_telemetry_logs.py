"""Log lines as people and machines get them, and lines of other libraries on their way into ours."""

import json
import logging

import structlog

from sits.telemetry.logs import Log, bridge, form_of, steps, to_stderr
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
    assert lines == ["generation 3 serves", "warning: breaker opened  engine='a b'\none\ntwo"]


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
