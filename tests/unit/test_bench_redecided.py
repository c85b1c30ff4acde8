"""`sitsctl explain` and `sitsctl replay` on a store that a gateway on a virtual loop has filled."""

import asyncio
import json

import numpy as np
import pytest
from click.testing import CliRunner

from sits.app.cli import cli
from sits.bench.redecided import LEAST, History, _p99, replay
from sits.core.breakpoints import API_RECV, PARSED
from sits.core.config import digest, dump_fleet, load_fleet
from sits.core.errors import UnknownError
from sits.core.request import Chunk, Request, Usage
from sits.core.timeline import Timeline
from sits.core.units import SECOND
from sits.gateway.pipeline import Gateway
from sits.sim.loop import run_virtual
from sits.telemetry.recorder import Recorder
from sits.telemetry.rows import plain_columns
from sits.telemetry.store import DuckStore
from sits.world import RealWorld, stream_generator

FLEET = """
name: t
objective: {metric: ttft, p99: 300ms}
policy:
  release: {arms: [{name: stable, weight: 1}, {name: next, weight: 0, model: big}]}
engines:
  - {kind: openai, name: quick, url: "http://a", models: [m]}
  - {kind: openai, name: slow, url: "http://b", models: [big]}
"""
HALF = FLEET.replace("weight: 0", "weight: 1")
GONE = FLEET.replace("name: slow, url", "name: other, url").replace("weight: 0", "weight: 1")
STRICT = FLEET + "  - {kind: openai, name: extra, url: 'http://c', models: [m], weight: 0}\n"
TAKES_MS = {"quick": 100, "slow": 900}
SSE = b"text/event-stream"


class Timed:
    """Its first token takes its time, a little more for longer prompts."""

    def __init__(self, name):
        self.name = name

    async def generate(self, request, timeline):
        await asyncio.sleep((TAKES_MS[self.name] + request.prompt_tokens / 10) / 1000)
        yield Chunk(data=b"data: x\n\n", tokens=1, content_type=SSE)
        yield Chunk(data=b"data: [DONE]\n\n", last=True, usage=Usage(input=9, output=1))

    async def close(self):
        pass


class Quiet:
    def start(self, status, content_type, lines=b""):
        pass

    def write(self, data):
        pass

    def finish(self):
        pass


def filled(path, requests=80):
    """A store with so many requests for `m` and a few for `big`."""
    fleet = load_fleet(FLEET, "f.yaml")
    name = digest(fleet)[:12]
    rows = {"decisions": [], "facts": []}

    async def main(world):
        recorder = Recorder(10_000, RealWorld(), f"t-1-{name}")
        gateway = Gateway(
            world,
            fleet,
            {one.name: Timed(one.name) for one in fleet.engines},
            recorder,
            generation=name,
            record=lambda table, row: rows[table].append(row),
        )

        async def ask(i):
            timeline = Timeline()
            await asyncio.sleep(i / 50)
            timeline.mark(API_RECV, world.now_ns())
            timeline.mark(PARSED, world.now_ns())
            model = "big" if i % 2 else "m"
            request = Request(
                id=f"r{i}", model=model, unit=f"u{i}", prompt_tokens=10 * i, body=b'{"model":"m","x":1}'
            )
            await gateway.handle(request, timeline, Quiet())

        await asyncio.gather(*(ask(i) for i in range(requests)))
        return recorder.drain()

    world = RealWorld()
    taken = run_virtual(main)
    path.mkdir()
    with DuckStore(path, world=world) as store:
        run = f"t-1-{name}"
        store.append("requests", taken)
        for table, found in rows.items():
            store.append(table, plain_columns(table, [(run, found)]))
        store.flush()
    (path / f"fleet-{name}.yaml").write_text(dump_fleet(fleet))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("replay") / "store")


def history(store):
    return History(store, 10**6 * SECOND, RealWorld())


def test_all_come_out_as_they_were(store):
    found = replay(history(store), None, RealWorld())
    assert (found.records, found.identical, found.different, found.unknown) == (80, 80, (), 0)


def test_a_candidate_moves_who_its_arms_move_and_p99_follows_the_slower_engine(store):
    found = replay(history(store), load_fleet(HALF, "h.yaml"), RealWorld(1))
    assert found.stay + sum(move.requests for move in found.moves) == 80
    moved = {(move.before, move.after) for move in found.moves}
    assert ("stable on quick", "next on slow") in moved
    assert found.now.low_ms <= found.now.ms <= found.now.high_ms
    assert found.now.requests == found.candidate.requests == 80
    assert 900 <= found.candidate.low_ms <= found.candidate.ms <= found.candidate.high_ms <= 1_000


def test_nothing_is_predicted_of_an_engine_nobody_knows(store):
    found = replay(history(store), load_fleet(GONE, "g.yaml"), RealWorld(1))
    assert found.candidate is None
    assert "other (0)" in found.why_not


def test_the_same_policies_under_another_name_move_nobody(store):
    found = replay(history(store), load_fleet(STRICT, "s.yaml"), RealWorld(1))
    assert (found.stay, found.moves, found.refused) == (80, (), ())
    assert found.candidate.ms == found.now.ms


def test_few_requests_prove_nothing(tmp_path):
    few = filled(tmp_path / "few", LEAST - 1)
    found = replay(history(few), load_fleet(HALF, "h.yaml"), RealWorld(1))
    assert found.now is None
    assert str(LEAST) in found.why_not


def test_a_record_that_was_tampered_with_is_found(store):
    past = history(store)
    past.past[3].record.arm = "next"
    found = replay(past, None, RealWorld())
    assert (found.identical, found.different) == (79, (past.past[3].record.id,))


def test_without_its_configuration_a_record_is_unknown_not_wrong(tmp_path):
    path = filled(tmp_path / "lost", 40)
    for file in path.glob("fleet-*.yaml"):
        file.unlink()
    found = replay(history(path), None, RealWorld())
    assert (found.records, found.unknown) == (0, 40)


def run(*words):
    return CliRunner().invoke(cli, list(map(str, words)), standalone_mode=False)


def test_explain_on_the_command_line(store):
    told = run("explain", "r4", "--store", store)
    assert told.return_value == 0, told.output
    for text in ("completed 200", "u4", "route  chosen  quick", "decided again: the same", "first_token"):
        assert text in told.output
    card = json.loads(run("explain", "r5", "--store", store, "--json").output)
    assert card["identical"] is True
    assert [d["policy"] for d in card["decisions"]] == ["release", "route", "admit"]


def test_explain_of_nobody(store):
    told = run("explain", "nobody", "--store", store)
    assert isinstance(told.exception, UnknownError)
    assert "x-sits-decision-id" in str(told.exception)


def test_replay_on_the_command_line(store, tmp_path):
    candidate = tmp_path / "c.yaml"
    candidate.write_text(HALF)
    told = run("replay", "--since", "99999h", "--store", store, "--candidate", candidate, "-q")
    assert told.return_value == 1  # the candidate's P99 is over its objective
    assert "80 of 80 decisions come out as they were" in told.output
    assert "next on slow" in told.output
    same = run("replay", "--since", "99999h", "--store", store, "-q", "--json")
    assert (same.return_value, json.loads(same.output)["identical"]) == (0, 80)


def test_rows_that_stand_for_several_requests_count_for_so_many():
    """A tenth of the ordinary rows and all slow ones give the P99 that all rows give."""
    dice = stream_generator(5, "rows")
    every = dice.lognormal(3.0, 1.0, size=20_000)
    slow = every > np.quantile(every, 0.98)
    kept = slow | (dice.random(len(every)) < 0.1)
    weights = np.where(slow, 1.0, 10.0)[kept]
    whole = _p99(stream_generator(1, "p99"), every[None, :], np.ones(len(every)))
    thinned = _p99(stream_generator(1, "p99"), every[kept][None, :], weights)
    plain = _p99(stream_generator(1, "p99"), every[kept][None, :], np.ones(int(kept.sum())))
    assert thinned.ms == pytest.approx(whole.ms, rel=0.03)
    assert thinned.requests == pytest.approx(20_000, rel=0.1)
    assert whole.requests == 20_000
    assert plain.ms > 1.2 * whole.ms, "without weights the slow are over-represented"
