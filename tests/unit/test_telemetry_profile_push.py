"""Profiles reach a Pyroscope server as it wants them, are tried again within bounds, and never held up."""

import email
import gzip
import http.server
import json
import threading
from contextlib import contextmanager
from email.policy import HTTP
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from profile_programs import PROFILE, pprof_class
from sits.telemetry.profile.push import TRIES, WAITING_MAX, Pusher, Target, request_of


@contextmanager
def recording(answers=()):
    """A server that writes down requests; `answers`: statuses of the first ones, then 200."""
    told, left, changed = [], list(answers), threading.Condition()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            with changed:
                told.append((self.path, dict(self.headers), body))
                status = left.pop(0) if left else 200
                changed.notify_all()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"because")

        def log_message(self, *_):
            pass

    def wait(count):
        with changed:
            assert changed.wait_for(lambda: len(told) >= count, 20)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", told, wait
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def parts_of(headers, body):
    message = email.message_from_bytes(
        b"content-type: " + headers["Content-Type"].encode() + b"\r\n\r\n" + body, policy=HTTP
    )
    return {
        part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
        for part in message.iter_parts()
    }


def test_the_request_is_pyroscopes():
    with recording() as (url, told, wait):
        target = Target(
            url + "/base/",
            "chat",
            {"env": "prod", "region": "eu-1"},
            {"X-Scope-OrgID": "team", "Authorization": "Basic eDp5"},
        )
        pusher = Pusher(target)
        pusher.start()
        pusher.add(PROFILE)
        wait(1)
        pusher.close()
    ((path, headers, body),) = told
    assert urlsplit(path).path == "/base/ingest"
    assert parse_qs(urlsplit(path).query) == {
        "name": ["chat{env=prod,process=worker-0,region=eu-1}"],
        "from": ["1700000000"],
        "until": ["1700000010"],
        "format": ["pprof"],
        "sampleRate": ["100"],
        "spyName": ["sitsctl"],
    }
    assert headers["Content-Type"].startswith("multipart/form-data; boundary=")
    assert (headers["X-Scope-OrgID"], headers["Authorization"]) == ("team", "Basic eDp5")
    parts = parts_of(headers, body)
    assert set(parts) == {"profile", "sample_type_config"}
    assert set(json.loads(parts["sample_type_config"])) == {"samples", "cpu"}
    message = pprof_class()()
    message.ParseFromString(gzip.decompress(parts["profile"]))
    assert sum(sample.value[1] for sample in message.sample) == PROFILE.ns + PROFILE.elsewhere_ns
    assert "trace" not in message.string_table  # a label with a value a request
    assert "layer" in message.string_table
    assert (pusher.sent, pusher.dropped, pusher.refused, pusher.trouble) == (1, 0, 0, "")


@pytest.mark.parametrize(
    ("answers", "requests", "outcome"),
    [
        ([503, 429], 3, (1, 0, 0)),
        ([500] * TRIES, TRIES, (0, 1, 0)),
        ([400], 1, (0, 0, 1)),
        ([401], 1, (0, 0, 1)),
    ],
)
def test_tries_are_bounded_and_only_what_may_pass_is_tried_again(answers, requests, outcome):
    with recording(answers) as (url, told, wait):
        pusher = Pusher(Target(url, "chat"), pauses_s=(0.0,))
        pusher.start()
        pusher.add(PROFILE)
        wait(requests)
        pusher.close()
        assert len(told) == requests
    assert (pusher.sent, pusher.dropped, pusher.refused) == outcome
    assert bool(pusher.trouble) == (outcome[0] == 0)


def test_a_server_that_is_not_there_holds_nothing_up():
    pusher = Pusher(Target("http://127.0.0.1:9", "chat"), pauses_s=(0.0,))
    for _ in range(WAITING_MAX + 5):
        pusher.add(PROFILE)
    assert pusher.dropped == 5  # nothing was sent yet: the thread is not started
    pusher.start()
    pusher.close()
    assert pusher.sent == 0
    assert "127.0.0.1:9" in pusher.trouble


def test_a_window_of_less_than_a_second_has_an_end_after_its_beginning():
    short = msgspec.structs.replace(PROFILE, duration_ns=1)
    path, _, _ = request_of(Target("http://x", "chat"), short)
    query = parse_qs(urlsplit(path).query)
    assert (query["from"], query["until"]) == (["1700000000"], ["1700000001"])


@pytest.mark.parametrize("secret", ["a\r\nb: c", "ü😀"])
def test_a_key_that_is_no_header_costs_the_profiles_and_not_the_thread(secret):
    with recording() as (url, told, _):
        pusher = Pusher(Target(url, "x", {}, {"Authorization": secret}), pauses_s=(0.0,))
        pusher.start()
        pusher.add(PROFILE)
        pusher.add(PROFILE)
        pusher.close()
    assert (pusher.sent, pusher.dropped, told) == (0, 2, [])
    assert pusher.trouble
    assert "cannot be sent" in pusher.trouble
    assert "b: c" not in pusher.trouble


def test_a_profile_that_cannot_be_written_costs_itself_and_not_the_thread():
    broken = msgspec.structs.replace(PROFILE, period_ns=0)
    with recording() as (url, told, wait):
        pusher = Pusher(Target(url, "x"), pauses_s=(0.0,))
        pusher.start()
        pusher.add(broken)
        pusher.add(PROFILE)
        wait(1)
        pusher.close()
    assert (pusher.sent, pusher.dropped, len(told)) == (1, 1, 1)
    assert pusher.ended
