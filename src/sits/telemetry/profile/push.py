"""Profiles to a Pyroscope server: `POST /ingest`, one pprof a process and window, from a thread of its own.

```
POST /ingest?name=APP{k=v,...}&from=UNIX_S&until=UNIX_S&format=pprof&sampleRate=HZ&spyName=sitsctl
multipart/form-data: profile = gzipped pprof, sample_type_config = {"samples": {...}, "cpu": {...}}
```
Source: Pyroscope's documentation of its HTTP API ("Ingestion", "The pprof format", "Sample type configuration") and its handler
(pkg/ingester/pyroscope/ingest_handler.go, version 1.x).

Rules: `add` never waits: `WAITING_MAX` profiles may wait, then the oldest is dropped and counted.  A server that does not answer, or answers
429 or 5xx, is asked again `TRIES` times in all with growing pauses; any other refusal is final, for the same bytes will not be
liked better.  `close` gives what waits one last try each, `CLOSE_S` in all.  Traces are not sent: a label with a value for each request
is what such a server breaks at.

Deliberately absent: Pyroscope's gRPC, and reading back.
"""

import hashlib
import threading
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from sits.core.units import SECOND
from sits.telemetry.posting import post
from sits.telemetry.profile import pprof
from sits.telemetry.profile.profile import Profile, merged

WAITING_MAX = 64
TRIES = 3
PAUSES_S = (1.0, 4.0)
TIMEOUT_S = 5.0
CLOSE_S = 3.0

TYPES = {
    "samples": {"units": "samples", "aggregation": "sum", "display-name": "samples", "sampled": True},
    "cpu": {"units": "samples", "aggregation": "sum", "display-name": "cpu", "sampled": True},
}
"""What the two values of a sample are: nanoseconds of `cpu` Pyroscope shows as time."""

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class Target(msgspec.Struct, frozen=True):
    """Where to: base URL, application, its labels, headers of every request."""

    url: str
    name: str
    labels: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}


class Pusher:
    """Sends from `start` to `close`.

    Attributes:
        sent, dropped, refused: profiles the server took; that found no room or no server; that it did not like.
        trouble: what went wrong last, in words.

    """

    def __init__(self, target: Target, pauses_s: tuple[float, ...] = PAUSES_S) -> None:
        self.target = target
        self.sent = self.dropped = self.refused = 0
        self.trouble = ""
        self._pauses_s = pauses_s
        self._waiting: deque[Profile] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profiles", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def add(self, profile: Profile) -> None:
        """Have it sent."""
        with self._changed:
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(profile)
            self._changed.notify()

    def end(self) -> None:
        """Send what waits, once each, and end; waits for nothing."""
        self._closing.set()
        with self._changed:
            self._changed.notify()

    @property
    def ended(self) -> bool:
        """Whether the counts are the last."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Send what waits, and end; what is not sent in `CLOSE_S` is dropped."""
        self.end()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing.is_set():
                        return
                    self._changed.wait()
                profile = self._waiting.popleft()
            try:
                self._deliver(profile)
            except Exception as error:  # noqa: BLE001  (the last fence: a profile is lost and told, the thread goes on)
                self.dropped += 1
                self.trouble = f"a profile cannot be sent: {type(error).__name__}: {error}"

    def _deliver(self, profile: Profile) -> None:
        path, headers, body = request_of(self.target, profile)
        for number in range(TRIES):
            answer = post(urljoin(self.target.url, path), body, headers, TIMEOUT_S)
            if 200 <= answer.status < 300:
                self.sent += 1
                self.trouble = ""
                return
            said = f" answers {answer.status}" if answer.status else ""
            self.trouble = f"{self.target.url}{said}: {answer.text[:300]}"
            if answer.status and answer.status not in AGAIN:
                self.refused += 1
                return
            if self._closing.is_set() or number == TRIES - 1:
                break
            self._closing.wait(self._pauses_s[min(number, len(self._pauses_s) - 1)])
        self.dropped += 1


def request_of(target: Target, profile: Profile) -> tuple[str, dict[str, str], bytes]:
    """Path with query, headers and body of the request for a profile."""
    labels = dict(target.labels) | ({"process": profile.process} if profile.process else {})
    name = target.name + "{" + ",".join(f"{key}={value}" for key, value in sorted(labels.items())) + "}"
    query = {
        "name": name,
        "from": profile.wall_ns // SECOND,
        "until": max(profile.wall_ns // SECOND + 1, -(-profile.end_wall_ns // SECOND)),
        "format": "pprof",
        "sampleRate": round(SECOND / profile.period_ns),
        "spyName": "sitsctl",
    }
    untraced = merged([_without_traces(profile)])
    parts = (
        ("profile", "profile.pb.gz", pprof.encode(untraced)),
        ("sample_type_config", "config.json", msgspec.json.encode(TYPES)),
    )
    mark = hashlib.blake2b(
        b"".join(data for _, _, data in parts), digest_size=12
    ).hexdigest()  # stands in none of them
    body = b"".join(
        f'--{mark}\r\nContent-Disposition: form-data; name="{field}"; filename="{file}"\r\n'
        f"Content-Type: application/octet-stream\r\n\r\n".encode()
        + data
        + b"\r\n"
        for field, file, data in parts
    )
    body += f"--{mark}--\r\n".encode()
    path = urlsplit(target.url).path.rstrip("/") + "/ingest?" + urlencode(query)
    return path, {"Content-Type": f"multipart/form-data; boundary={mark}", **target.headers}, body


def _without_traces(profile: Profile) -> Profile:
    return msgspec.structs.replace(
        profile,
        samples=tuple(
            msgspec.structs.replace(sample, labels=msgspec.structs.replace(sample.labels, trace=""))
            for sample in profile.samples
        ),
    )
