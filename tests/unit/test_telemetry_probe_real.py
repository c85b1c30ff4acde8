"""The plug-in in a real vLLM behind a real gateway: client, `sitsctl up`, vLLM's three processes, and the joined row of each request.

Skipped where there is none (`tests/real_vllm.py` says how to name one).  The plug-in gets in the way `pip install` would get it in: as a
distribution with entry points on vLLM's path, here one that is written beside the sources.  The small vLLM of the other tests is
compared with the real one here.
"""

import ast
import concurrent.futures
import json
import re
import time
from typing import NamedTuple

import httpx2 as httpx
import numpy as np
import pytest

import vllm_fake
from app_processes import serving
from real_vllm import VENV, RealVllm, installed, missing
from sits.core.breakpoints import BREAKPOINT_COUNT, ENGINE_RECV, KERNEL_LAUNCH, NAMES
from sits.diagnose.decompose import decompose
from sits.telemetry.joining import Joined, completed
from sits.telemetry.probe.known import VERSIONS
from sits.telemetry.probe.reading import differences, file_of, version_of
from sits.telemetry.store import DuckStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(900),
]

FLEET = """\
name: probed
gateway: {{listen: "127.0.0.1:0", store: "{store}"}}
admin: {{listen: "127.0.0.1:0"}}
engines:
  - {{kind: openai, name: v, url: "{url}", models: [tiny]}}
"""
REQUESTS, USERS = 40, 8
SPANS = 4
"""Of a request: one of each kind of process, and the one of its end."""
BOARD = r"board on (http://127\.0\.0\.1:\d+)/"


@pytest.fixture(scope="module")
def package():
    return next(VENV.glob("lib/python3*/site-packages/vllm"))


@pytest.fixture(scope="module")
def plugged(tmp_path_factory):
    return installed(tmp_path_factory.mktemp("installed"))


def test_the_real_one_is_known_and_the_small_one_is_like_it(package, tmp_path):
    assert version_of(package) == vllm_fake.VERSION
    about = VERSIONS["0.32"]
    assert differences(package, about) == []
    small = vllm_fake.write(tmp_path)

    def parameters(of, site):
        tree = ast.parse(file_of(of, site.module).read_text())
        holder = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == site.owner)
        found = next(n for n in holder.body if getattr(n, "name", "") == site.name)
        return [a.arg for a in found.args.args], [ast.unparse(d) for d in found.decorator_list], type(found)

    for site in about.sites:
        real, fake = parameters(package, site), parameters(small, site)
        assert (fake[0], fake[2]) == (real[0][: len(fake[0])], real[2]), site
        assert ("staticmethod" in fake[1]) == ("staticmethod" in real[1]), site


class Told(NamedTuple):
    """What became of `REQUESTS` requests: attributes of vLLM's spans by name and trace, our rows, the joined rows, vLLM's log."""

    spans: dict[str, dict[str, dict]]
    requests: dict
    joined: Joined
    log: str


@pytest.fixture(scope="module")
def told(tmp_path_factory, plugged):
    """Requests through a gateway to a probed vLLM, whose spans go to the gateway's admin process and from there into its store."""
    folder = tmp_path_factory.mktemp("probed")
    vllm = RealVllm(folder / "log", PYTHONPATH=plugged)
    with serving(folder, FLEET, url=vllm.url) as up:
        admin = vllm.environment["SITS_PROBE_ENDPOINT"] = re.search(BOARD, up.hear(BOARD))[1]

        def ask(number):
            words = " ".join(str(number * 31 + i) for i in range(1 + number * 3 % 60))
            asked = {"prompt": f"{number}: {words}", "max_tokens": 4 + number % 5}
            return list(up.sdk.completions.create(model="tiny", stream=True, **asked))

        with vllm:
            ask(0)  # the first one warms up
            with concurrent.futures.ThreadPoolExecutor(USERS) as users:
                assert all(users.map(ask, range(1, REQUESTS)))
            while httpx.get(f"{admin}/otlp.json").json()["receive"]["spans"] < SPANS * REQUESTS:
                time.sleep(
                    0.1
                )  # processes send once a second; what does not come ends in the test's own time-out
        up.stop()
    spans = {}
    with DuckStore(folder / "store") as store:
        [run] = store.scan("runs")
        requests, sightings = (
            store.columns(query, run_id=run["run_id"], since_wall_ns=0)
            for query in ("requests_window", "sightings_window")
        )
        for trace_id in requests["trace_id"]:
            for row in store.scan("trace_spans", trace_id=trace_id):
                spans.setdefault(row["name"], {})[trace_id] = json.loads(row["attributes"])
    return Told(spans, requests, completed(requests, sightings), vllm.log.read_text())


def test_every_point_of_every_request_is_there_in_order(told):
    requests, joined = told.requests, told.joined
    rows = joined.requests
    assert len(rows["id"]) == REQUESTS
    assert all(digits[ENGINE_RECV : KERNEL_LAUNCH + 1] == "0" * 12 for digits in requests["exactness"])
    how = np.array([[int(digit) for digit in digits] for digits in rows["exactness"]])
    seen = (how[:, :BREAKPOINT_COUNT] > 0).sum(axis=1)
    assert seen.min() >= 14
    assert np.median(seen) == BREAKPOINT_COUNT
    at = np.stack([rows[name] for name in NAMES], axis=1)
    for times, grades in zip(at, how, strict=True):
        known = times[grades > 0]
        assert (np.diff(known) >= 0).all()
        assert all(grades[point] == 3 for point in range(5))
    (source,) = joined.sources
    assert source.comparable
    assert source.shift_ns == 0, "one machine, one clock"
    assert (source.impossible, joined.strays) == (0, 0)
    assert {grade for grades in how for grade in grades[ENGINE_RECV : KERNEL_LAUNCH + 1]} <= {0, 2, 3}


def test_stages_and_what_none_explains_add_up_to_the_whole(told):
    rows = told.joined.requests
    for metric in ("ttft", "e2e"):
        cut = decompose(rows, metric)
        assert len(cut.total_ns) == REQUESTS
        assert (cut.stage_ns.sum(axis=1) == cut.total_ns).all()
        assert (cut.stage_ns >= 0).all()


def test_its_times_are_those_of_vllms_own_events(told):
    """vLLM times queue and prefill of each request itself; what the probe saw must say the same."""
    core, finished = told.spans["vllm.core"], told.spans["vllm.finished"]
    assert len(core) == len(finished) == REQUESTS
    off_ms = []
    for trace_id, own in finished.items():
        points = core[trace_id]
        queue_s = (points["sits.bp.scheduled"] - points["sits.bp.queued"]) / 1e9
        prefill_s = (points["sits.bp.first_token"] - points["sits.bp.scheduled"]) / 1e9
        off_ms.append(1e3 * abs(queue_s - own["gen_ai.latency.time_in_queue"]))
        off_ms.append(1e3 * abs(prefill_s - own["gen_ai.latency.time_in_model_prefill"]))
    assert np.median(off_ms) < 0.2
    assert max(off_ms) < 50, "one reading apart, whatever else the machine does between"


def test_queue_and_prefill_are_not_the_time_to_first_token(told):
    """The rest lies before the engine core's own clock starts, and the probe names it."""
    rows = told.joined.requests
    ttft = rows["first_token"] - rows["api_recv"]
    inside = rows["first_token"] - rows["queued"]
    outside = rows["queued"] - rows["api_recv"]
    assert (inside < ttft).all()
    assert (outside == ttft - inside).all()
    named = sum(decompose(rows, "ttft").stage(name) for name in ("to_engine", "tokenize", "enqueue"))
    assert (named > 0).all()


def test_nothing_was_said_in_vllms_log(told):
    assert "stands down" not in told.log
    assert "sits_probe" in told.log, "vLLM names the plug-ins it found"


def test_an_unknown_version_is_told_once_and_vllm_serves(tmp_path, plugged, package):
    """The real vLLM under the name of a version to come: the probe's own look is made to see another number."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import sits.telemetry.probe.plugin as p\np.version_of = lambda package: '0.77.0'\n"
    )
    file = tmp_path / "sightings.jsonl"
    with RealVllm(tmp_path / "log", PYTHONPATH=f"{hook}:{plugged}", SITS_PROBE_FILE=str(file)) as vllm:
        told = httpx.post(
            f"{vllm.url}/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 2}
        )
        assert told.status_code == 200
    log = (tmp_path / "log").read_text()
    assert 1 <= log.count("stands down") <= 3, "once in each process that loads plug-ins"
    assert "vLLM 0.77.0 is not one the probe knows" in log
    assert not file.exists()
