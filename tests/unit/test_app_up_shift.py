"""A shift carried out by a running gateway: ordered, watched, seen on its board, gone on with after a restart, taken back."""

import json
import socket
import subprocess
from contextlib import closing

import pytest

from app_processes import GatedEngine, serving, sitsctl

FLEET = """\
name: shifting
gateway: {{listen: "127.0.0.1:0", workers: 2, store: "{store}"}}
policy:
  release: {{unit: user, arms: [{{name: stable, weight: 1.0, model: blue}}, {{name: canary, weight: 0.0, model: green}}]}}
shift: {{arm: canary, steps: [50%, 100%], hold: 1s, min_requests: 10}}
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m, blue]}}
  - {{kind: openai, name: e1, url: "{green}", models: [m, green]}}
"""
ROUNDS = 4_000
"""Requests after which a shift that has not ended never will."""


def board(up):
    head, _, body = up.get("/board/shift.json").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return json.loads(body)


def order(up, verb):
    return subprocess.run(
        sitsctl("shift", verb, up.file), capture_output=True, text=True, timeout=60, check=False
    )


def answers(up, user):
    """The model that answered a user; empty when none did."""
    import openai

    try:
        hello = [{"role": "user", "content": "hello"}]
        return up.sdk.chat.completions.create(model="m", messages=hello, user=user).model
    except openai.APIStatusError:
        return ""


def traffic_until(up, ended):
    """Users come and ask until the board says so; who was answered by what, in order."""
    seen = []
    for i in range(ROUNDS):
        seen.append((f"u{i % 40}", answers(up, f"u{i % 40}")))
        if i % 20 == 0 and board(up)["status"] in ended:
            return seen
    raise AssertionError(board(up))


@pytest.fixture
def engine():
    with GatedEngine().serving() as found:
        yield found


def test_a_shift_goes_through_its_steps_and_a_restart_goes_on_with_it(tmp_path, engine):
    urls = {"url": engine.url, "green": engine.url}
    with serving(tmp_path, FLEET, **urls) as up:
        assert {answers(up, f"u{i}") for i in range(10)} == {"blue"}
        assert board(up)["status"] == "none"
        assert b"<title>Shift board</title>" in up.get("/board/shift")
        started = order(up, "start")
        assert (started.returncode, started.stdout) == (0, "started: by order; the arm's share is 0.5\n"), (
            started
        )
        up.hear("generation 2 .* serves")
        seen = traffic_until(up, ("complete",))
        models = dict.fromkeys(("blue", "green"), 0)
        for _, model in seen:
            models[model] += 1
        assert min(models.values()) > 0
        for user in {user for user, _ in seen}:  # a step moves a user forward, and never back
            told = "".join(model[0] for one, model in seen if one == user)
            assert "gb" not in told, (user, told)
        up.hear("generation 3 .* serves")
        assert {answers(up, f"u{i}") for i in range(20)} == {"green"}
        told = board(up)
        assert [arm["share"] for arm in told["arms"]] == [0.0, 1.0]
        assert [event["what"] for event in told["history"]] == ["completed", "advanced", "started"]
        assert order(up, "halt").returncode == 1, "a complete shift cannot be halted"
        up.stop()
    with serving(tmp_path, FLEET, **urls) as up:
        assert {answers(up, f"u{i}") for i in range(20)} == {"green"}
        back = order(up, "rollback")
        assert back.returncode == 0, back
        up.hear("generation 2 .* serves")
        assert {answers(up, f"u{i}") for i in range(20)} == {"blue"}


def test_an_arm_that_fails_is_taken_back_without_anybody_looking(tmp_path, engine):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # an address where nobody listens
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with serving(tmp_path, FLEET, url=engine.url, green=dead) as up:
            assert order(up, "start").returncode == 0
            up.hear("generation 2 .* serves")
            traffic_until(up, ("rolled_back",))
            up.hear("generation 3 .* serves")
            assert {answers(up, f"u{i}") for i in range(20)} == {"blue"}
            told = board(up)
            assert told["history"][0]["what"] == "rolled back"
            assert told["detail"] == "Because: fails more often than the others."
            status = subprocess.run(
                sitsctl("shift", "status", up.file), capture_output=True, text=True, timeout=60, check=False
            )
            assert status.returncode == 1
            assert "canary was taken back" in status.stdout
