"""What a gateway does when things go wrong: each case on two engines that misbehave on request.

    python -m gateway.behave [--only sits,nginx] [--cases NAME,...] [--json FILE]        (in the folder `benchmarks`)

A case says what happened in words and whether that is what this project asks of itself.  Gateways are started as for
the cost figures; a case that hurts an engine's standing gets a gateway of its own.  The program ends with 1 when ours
fails a case.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.load import free_ports
from gateway.measure import Running
from gateway.peers import BY_NAME, CACHE, KEY, PEERS, Peer, install
from gateway.wire_client import Reply, ask, connect, read_reply, request
from gateway.wire_mock import Engines

Outcome = tuple[str, bool | None]
"""What happened, and whether that is what we ask; None = told only, both ways are right."""
SLOW_S = 65.0
"""How long a hung engine and a dribbling client are watched: just past the most common time-out."""


@dataclass
class Bench:
    """What a case works with."""

    peer: Peer
    running: Running
    engines: Engines

    @property
    def port(self) -> int:
        """The gateway's port."""
        return self.running.port

    def body(self, do: str = "ok", *, stream: bool = False, model: str = "", pad: int = 0) -> bytes:
        """A chat request that makes the engine do something."""
        text = f"#do={do}# " + "x" * pad
        fields = {"model": model or self.peer.model, "stream": stream, "user": "u1"}
        return json.dumps({**fields, "messages": [{"role": "user", "content": text}]}).encode()

    def ask(self, do: str = "ok", *fields: str, seconds: float = 8.0, key: str = KEY, **how) -> Reply:
        """One request."""
        return ask(self.port, self.body(do, **how), self.peer.path, *fields, seconds=seconds, key=key)

    def until_ok(self, limit: float, **how) -> float | None:
        """Seconds until a request is answered well; None when the limit came first."""
        began = time.monotonic()
        while time.monotonic() - began < limit:
            if self.ask(seconds=2.0, **how).status == 200:
                return time.monotonic() - began
            time.sleep(0.02)
        return None

    def said(self, reply: Reply) -> str:
        """A reply in words, with how often each engine was asked."""
        what = (
            f"{reply.status}"
            if reply.status
            else {"cut": "closed without answer"}.get(reply.end, "no answer")
        )
        if reply.status >= 400:
            what += "" if reply.shaped else ", not OpenAI's error object"
        tries = self.engines.tries
        return f"{what}; engines asked {tries[0]}+{tries[1]}, {reply.seconds:.1f} s"

    def not_twice(self) -> bool:
        """No engine was asked twice for one request."""
        return max(self.engines.tries) <= 1


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    what: str
    run: Callable[[Bench], Outcome]
    fresh: bool


CASES: list[Case] = []


def case(what: str, *, fresh: bool = False):
    """Add a case to the table."""

    def add(run: Callable[[Bench], Outcome]):
        CASES.append(Case(run.__name__.strip("_"), what, run, fresh))
        return run

    return add


@case("engine dies in mid-stream", fresh=True)
def _dies(b: Bench) -> Outcome:
    reply = b.ask("die", stream=True)
    told, done = b'"error"' in reply.body, b"[DONE]" in reply.body
    ended = {"proper": "body ended properly", "cut": "connection cut"}.get(reply.end, reply.end)
    text = f"{'error event' if told else 'no error event'}{' + [DONE]' if done else ''}; {ended}"
    return text, told and not done and reply.end == "proper"


@case("engine says 500", fresh=True)
def _says_500(b: Bench) -> Outcome:
    reply = b.ask("status-500", seconds=20)
    return b.said(reply), reply.status in {500, 502} and reply.shaped and b.not_twice()


@case("engine says 503", fresh=True)
def _says_503(b: Bench) -> Outcome:
    reply = b.ask("status-503", seconds=20)
    return b.said(reply), reply.status in {502, 503} and reply.shaped and b.not_twice()


@case("engine says 429, Retry-After 7", fresh=True)
def _says_429(b: Bench) -> Outcome:
    reply = b.ask("status-429", seconds=20)
    kept = reply.header("retry-after") == "7"
    text = f"{b.said(reply)}{', Retry-After kept' if kept else ', Retry-After lost'}"
    return text, reply.status == 429 and reply.shaped and b.not_twice() and kept


@case("engine says 400", fresh=True)
def _says_400(b: Bench) -> Outcome:
    reply = b.ask("status-400", seconds=20)
    return b.said(reply), reply.status == 400 and reply.shaped and sum(b.engines.tries) == 1


@case("engines cut before any byte", fresh=True)
def _cuts(b: Bench) -> Outcome:
    reply = b.ask("cut", seconds=20)
    return b.said(reply), reply.status in {502, 503} and reply.shaped and sum(b.engines.tries) <= 3


@case("engine answers what is no HTTP", fresh=True)
def _garbage(b: Bench) -> Outcome:
    reply = b.ask("garbage", seconds=20)
    return b.said(reply), reply.status in {502, 503} and reply.shaped


@case("engine ends before its declared length", fresh=True)
def _short(b: Bench) -> Outcome:
    reply = b.ask("short", seconds=20)
    ended = "told as complete" if reply.end == "proper" and reply.status == 200 else reply.end
    return f"{reply.status}, {ended}", reply.end == "cut" or reply.status >= 500


@case("one of two engines closed, 40 requests", fresh=True)
def _one_closed(b: Bench) -> Outcome:
    b.engines.call(b.engines.mocks[1].shut())
    replies = [b.ask(seconds=20) for _ in range(40)]
    good = sum(r.status == 200 for r in replies)
    slowest = max(r.seconds for r in replies)
    b.engines.call(b.engines.mocks[1].open())
    return f"{good} of 40 answered, slowest {slowest:.1f} s", good == 40


@case("one of two engines cuts each request, 40 requests", fresh=True)
def _one_cuts(b: Bench) -> Outcome:
    b.engines.mocks[1].override = "cut"
    replies = [b.ask(seconds=20) for _ in range(40)]
    good = sum(r.status == 200 for r in replies)
    return f"{good} of 40 answered; engines asked {b.engines.tries[0]}+{b.engines.tries[1]}", good == 40


@case("both engines closed, then back", fresh=True)
def _both_closed(b: Bench) -> Outcome:
    for mock in b.engines.mocks:
        b.engines.call(mock.shut())
    replies = [b.ask(seconds=20) for _ in range(5)]
    for mock in b.engines.mocks:
        b.engines.call(mock.open())
    back = b.until_ok(90)
    said = f"{replies[0].status or 'no answer'} in {max(r.seconds for r in replies):.1f} s; "
    said += f"ok {back:.1f} s after they are back" if back is not None else "not ok 90 s after they are back"
    good = all(r.status in {502, 503} and r.shaped for r in replies)
    return said, good and back is not None and back <= 5


def _poison(b: Bench, do: str) -> Outcome:
    for _ in range(15):
        b.ask(do, seconds=20)
    asked = sum(b.engines.tries)
    first = b.ask(key=b.peer.other_key or KEY)
    back = b.until_ok(90, key=b.peer.other_key or KEY)
    said = f"engines asked {asked} times; another's good request: {first.status or first.end}"
    if first.status != 200:
        said += f", ok after {back:.1f} s" if back is not None else ", not ok for 90 s"
    return said, first.status == 200


@case("one caller's 15 requests get 500, then another's good one", fresh=True)
def _poison_500(b: Bench) -> Outcome:
    return _poison(b, "status-500")


@case("one caller's 15 requests cut the connection, then another's good one", fresh=True)
def _poison_cut(b: Bench) -> Outcome:
    return _poison(b, "cut")


@case("wrong key")
def _wrong_key(b: Bench) -> Outcome:
    reply = b.ask(key="sk-nobody")
    return b.said(reply), reply.status == 401 and reply.shaped and not sum(b.engines.tries)


@case("invalid JSON")
def _invalid(b: Bench) -> Outcome:
    reply = ask(b.port, b'{"model": "m", "messages": [', b.peer.path)
    return b.said(reply), reply.status == 400 and reply.shaped and not sum(b.engines.tries)


@case("no messages")
def _no_messages(b: Bench) -> Outcome:
    reply = ask(b.port, json.dumps({"model": b.peer.model}).encode(), b.peer.path)
    return b.said(reply), reply.status == 400 and reply.shaped and not sum(b.engines.tries)


@case("unknown model")
def _unknown_model(b: Bench) -> Outcome:
    reply = b.ask(model="no-such-model")
    return b.said(reply), reply.status == 404 and reply.shaped and not sum(b.engines.tries)


@case("unknown path")
def _unknown_path(b: Bench) -> Outcome:
    reply = ask(b.port, b.body(), "/v1/no/such/path")
    return b.said(reply), reply.status == 404 and reply.shaped and not sum(b.engines.tries)


@case("Content-Length and Transfer-Encoding both")
def _both_lengths(b: Bench) -> Outcome:
    with connect(b.port) as link:
        body = b.body()
        link.sendall(request(b.port, body, b.peer.path, "Transfer-Encoding: chunked")[: -len(body)])
        link.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        reply, _ = read_reply(link, 5)
    refused = reply.status == 400 or (not reply.status and reply.end == "cut")
    return b.said(reply), refused and not sum(b.engines.tries)


@case("a body of 1 GB is declared")
def _declared(b: Bench) -> Outcome:
    with connect(b.port) as link:
        link.sendall(request(b.port, b"", b.peer.path, length=10**9))
        reply, _ = read_reply(link, 5)
    return b.said(reply), reply.status == 413 and reply.shaped


@case("Expect: 100-continue")
def _expect(b: Bench) -> Outcome:
    with connect(b.port) as link:
        body = b.body()
        link.sendall(request(b.port, body, b.peer.path, "Expect: 100-continue")[: -len(body)])
        link.settimeout(2)
        try:
            early = link.recv(100)
        except TimeoutError:
            early = b""
        link.sendall(body)
        reply, _ = read_reply(link, 5, b"" if b" 100 " in early else early)
    text = f"{'100, then' if b' 100 ' in early else 'no 100 in 2 s, then'} {reply.status}"
    return text, b" 100 " in early and reply.status == 200


@case("two requests at once on one connection")
def _pipelined(b: Bench) -> Outcome:
    with connect(b.port) as link:
        link.sendall(request(b.port, b.body(), b.peer.path) * 2)
        first, rest = read_reply(link, 5)
        second, _ = read_reply(link, 5, rest)
    return f"{first.status} {second.status or second.end}", (first.status, second.status) == (200, 200)


@case("client half-closes after its request")
def _half(b: Bench) -> Outcome:
    with connect(b.port) as link:
        link.sendall(request(b.port, b.body("slow"), b.peer.path))
        link.shutdown(1)
        reply, _ = read_reply(link, 5)
    return f"{reply.status or reply.end}", None


@case("engine sees the client's key")
def _key(b: Bench) -> Outcome:
    b.ask()
    seen = any(KEY.encode() in head for mock in b.engines.mocks for head in mock.heads)
    return "yes" if seen else "no", not seen


def _settled_mb(b: Bench) -> float:
    """Memory after a first request and what it loads in the background."""
    b.ask()
    time.sleep(2.0)
    b.engines.reset()
    return b.running.rss_mb()


@case("20 MB body", fresh=True)
def _body_20(b: Bench) -> Outcome:
    before = _settled_mb(b)
    reply = b.ask(pad=20_000_000, seconds=60)
    grown = b.running.rss_mb() - before
    return f"{b.said(reply)}, RSS {grown:+.0f} MB", reply.status == 200


def _unread(b: Bench, do: str, clients: int) -> Outcome:
    before = _settled_mb(b)
    links = []
    for _ in range(clients):
        link = connect(b.port, 4096)
        link.sendall(request(b.port, b.body(do, stream=do == "flood"), b.peer.path))
        links.append(link)
    most = 0.0
    for _ in range(30):
        time.sleep(0.1)
        most = max(most, b.running.rss_mb() - before)
    taken = sum(mock.taken for mock in b.engines.mocks) / 1e6
    for link in links:
        link.close()
    return f"took {taken:.0f} MB from the engine, RSS {most:+.0f} MB", most <= 10 + 2 * clients


@case("200 MB answer, client reads nothing for 3 s", fresh=True)
def _unread_big(b: Bench) -> Outcome:
    return _unread(b, "big", 1)


@case("50 flooding streams, clients read nothing for 3 s", fresh=True)
def _unread_flood(b: Bench) -> Outcome:
    return _unread(b, "flood", 50)


@case("told to stop in mid-stream", fresh=True)
def _drain(b: Bench) -> Outcome:
    b.ask()
    with connect(b.port) as link:
        link.sendall(request(b.port, b.body("slow", stream=True), b.peer.path))
        time.sleep(1.3)
        b.running.process.send_signal(b.peer.drain_signal)
        reply, _ = read_reply(link, 8)
    whole = b"[DONE]" in reply.body
    late = ask(b.port, b.body(), b.peer.path, seconds=2)
    return f"stream {'finished' if whole else 'lost'}; new request: {late.status or late.end}", whole


@case(f"engine hangs (watched {SLOW_S:.0f} s)", fresh=True)
def _hangs(b: Bench) -> Outcome:
    reply = b.ask("hang", seconds=SLOW_S)
    return b.said(reply), reply.status in {502, 503, 504} and reply.shaped


@case(f"client sends its head a byte a second (watched {SLOW_S:.0f} s)")
def _dribble(b: Bench) -> Outcome:
    began, data = time.monotonic(), request(b.port, b.body(), b.peer.path)
    with connect(b.port) as link:
        for byte in data:
            try:
                link.sendall(bytes([byte]))
                link.settimeout(1.0)
                got = link.recv(1000)
                said = got[9:12].decode() if got else "closed"
                return f"{said} after {time.monotonic() - began:.0f} s", True
            except TimeoutError:
                pass
            except OSError:
                return f"closed after {time.monotonic() - began:.0f} s", True
            if time.monotonic() - began > SLOW_S:
                break
    return "kept open", False


def behave(peer: Peer, home: Path, names: set[str], say=print) -> dict:
    """Every case of one gateway: what happened, and whether that is what we ask."""
    ports = free_ports(2)
    engines = Engines(ports)
    outcomes: dict = {}
    running = None
    try:
        for one in CASES:
            if one.name not in names:
                continue
            if running is None or one.fresh:
                if running:
                    running.stop()
                running = Running(peer, home, ports)
                running.first_ok()
            engines.reset()
            try:
                text, good = one.run(Bench(peer, running, engines))
            except OSError as error:
                text, good = f"{type(error).__name__}", False
            outcomes[one.name] = {"text": text, "good": good}
            say(
                f"{peer.name:18}{one.what:64}{'    ' if good is None else 'ok  ' if good else 'no  '}{text}",
                flush=True,
            )
            if one.fresh:
                running.stop()
                running = None
    finally:
        if running:
            running.stop()
        engines.close()
    return outcomes


def main() -> int:
    """Run the cases and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="gateways, by name: " + ", ".join(BY_NAME))
    parser.add_argument("--cases", help="cases, by name: " + ", ".join(c.name for c in CASES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", type=Path, default=CACHE)
    args = parser.parse_args()
    peers = [BY_NAME[name] for name in args.only.split(",")] if args.only else list(PEERS)
    names = set(args.cases.split(",")) if args.cases else {c.name for c in CASES}
    table = {peer.name: behave(peer, install(peer, args.dir), names) for peer in peers}
    if args.json:
        args.json.write_text(json.dumps(table, indent=1))
    failed = [name for name, outcome in table.get("sits", {}).items() if outcome["good"] is False]
    if failed:
        print("ours fails: " + ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
