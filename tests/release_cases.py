"""A small world of tenants, units, releases, engines and caches in which any answer tells whose it is.

`House.request(...)` does what the gateway does with a request, and fails the moment an answer reaches somebody it was
not the answer to.  Names are chosen to run into one another when they are put together carelessly; bodies to be nearly
equal; renderings of one body to be as different as JSON allows.  The engines are honest: an answer's text is the
provenance (served name, artefact, tenant, unit, question), spelled out.
"""

import json
from hashlib import blake2b
from itertools import product

import orjson

from sits.core.fleet import Arm, Release, ResponseCache
from sits.core.request import Usage
from sits.core.units import SECOND
from sits.gateway.cached import Cached
from sits.policy.release import Assigner, fall_back

CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
NAMES = ("llama", "llama-next", "lora-0", "lora-1")
CATALOG = {"llama": ("llama", ""), "llama-next": ("llama-next", ""), "lora-0": ("llama", "lora-0"), "lora-1": ("llama", "lora-1")}  # fmt: skip
TENANTS = ("a", "b", "a,", "s1:a", "", "1", "é", "default")
USERS = ("", "1", "ann", "ann,", "s3:ann", "a", "é", "x" * 300)
SESSIONS = ("", "1", "ann", "s-9")
KEYS = ("", "key-1", "ann")
HINTS = ("", "", "", "canary", "stable", "nobody")
FORMS = ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}, {"stream": True, "stream_options": {"x": 1}})  # fmt: skip
CONTROLS = (None, None, None, None, None, b"no-cache", b"no-store", b"max-age=5")
TTL = 60 * SECOND


def _bodies():
    """(endpoint, fields) of questions that are all different, many by very little."""
    texts = ("1", "1.0", "true", "null", "a:b", "", "é", "\u2028", 'x"}', "ann")
    for text, extra in product(
        texts,
        (
            {}, {"seed": 1}, {"seed": 1.0}, {"seed": 2**64}, {"seed": 2**64 + 1}, {"seed": float(2**64)},
            {"max_tokens": 1}, {"max_tokens": 10}, {"stop": "1"}, {"stop": ["1"]}, {"stop": [1]}, {"top_p": 1}, {"top_p": 1.0},
            {"logprobs": True}, {"logprobs": 1}, {"response_format": {"type": "text"}}, {"logit_bias": {"1": 1, "2": 2}},
            {"logit_bias": {"1": 2, "2": 1}}, {"tools": [{"type": "function", "function": {"name": "f"}}]}, {"x": None}, {"X": None},
        ),
    ):  # fmt: skip
        yield CHAT, {"messages": [{"role": "user", "content": text}], "temperature": 0, **extra}
    for text in texts:
        yield CHAT, {"messages": [{"role": "system", "content": text}], "temperature": 0}
        yield CHAT, {"messages": [{"role": "user", "content": text, "name": "1"}], "temperature": 0}
        yield CHAT, {"messages": [{"role": "user", "content": text}], "temperature": 0.0}
        yield TEXT, {"prompt": text, "temperature": 0}
        yield TEXT, {"prompt": [text], "temperature": 0}
        yield EMBEDDINGS, {"input": text}
        for extra in ({}, {"seed": 1}, {"top_p": 1}):  # the same body at another endpoint
            yield EMBEDDINGS, {"messages": [{"role": "user", "content": text}], "temperature": 0, **extra}
    yield CHAT, {"messages": [{"role": "user", "content": "1"}], "temperature": 1}  # sampled: never kept
    yield CHAT, {"messages": [{"role": "user", "content": "1"}], "temperature": 0, "n": 2}


QUESTIONS = tuple(sorted(_bodies(), key=lambda question: blake2b(repr(question).encode()).digest()))
"""In no order, so that those asked most are of every kind."""


def render(fields, way):
    """The same JSON written one of eight ways: order, spacing, escapes."""
    items = list(fields.items())
    if way & 1:
        items = [(k, dict(reversed(v.items())) if isinstance(v, dict) else v) for k, v in reversed(items)]
    text = json.dumps(
        dict(items), ensure_ascii=not way & 2, separators=(", ", ": ") if way & 4 else (",", ":")
    )
    return text.encode()


class Rendered:
    """Bodies by (question, form, name, way), made when first asked for."""

    def __init__(self):
        self._made = {}

    def body(self, question, form, name, way, user):
        key = question, form, name, way
        found = self._made.get(key)
        if found is None:
            fields = {"model": name, **QUESTIONS[question][1], **FORMS[form]}
            if way & 2:
                fields["metadata"] = {"a:b": ["c:d"]}
            if user:
                fields["user"] = "u:1"
            found = self._made[key] = render(fields, way)
        return found


def release(share, *, artefacts=("v1", "v2"), salt="r1", unit="user", fallback=True, hinted=("a", "1")):
    """Two arms; `share` of the units on the canary."""
    arms = (
        Arm(name="stable", weight=1.0 - share, artefact=artefacts[0]),
        Arm(name="canary", weight=share, model="llama-next", artefact=artefacts[1], fallback="stable" if fallback else ""),
    )  # fmt: skip
    return Release(model="llama", unit=unit, salt=salt, arms=arms, honour_version_hint=hinted)


def everyone(unit="user"):
    """The release of all other names."""
    return Release(unit=unit, arms=(Arm(name="one", weight=1.0), Arm(name="two", weight=2.0)))


class House:
    """`workers` gateways behind one address; each has its own cache and its own memory of assignments."""

    def __init__(self, config=None, workers=2):
        self.config = config or ResponseCache(kind="exact", ttl=TTL, tools=True, memory=2**18, entries=300)
        self.caches = [Cached(self.config) for _ in range(workers)]
        self.now_ns = 0
        self.down = set()
        self.outcomes = {}
        self.rendered = Rendered()
        self.turn_to(release(0.01), everyone())

    def turn_to(self, *releases):
        """A new configuration generation, in all workers."""
        first, rest = releases
        self.artefacts = {arm.name: arm.artefact for arm in first.arms}
        self.assigners = [Assigner(rest, (first,), CATALOG) for _ in self.caches]
        self.seen = {}

    def request(self, worker, question, form, name, who, way=0, control=0, fate=0):
        """One request; what became of it, as a label."""
        tenant, user, session, key, hint = who
        endpoint = QUESTIONS[question][0]
        given = self.assigners[worker].assign(name, tenant, user, session, key, hint)
        twin = self.assigners[worker - 1].assign(name, tenant, user, session, key, hint)
        assert twin == given, "replicas disagree"
        assert self.seen.setdefault((name, *who), given) == given, "a unit flipped inside a generation"
        cached = self.caches[worker]
        body = self.rendered.body(question, form, name, way, bool(user))
        lookup = cached.ask(
            body, endpoint, asked=name, tenant=tenant, assignment=given, cache_control=CONTROLS[control]
        )
        label = self._answer(cached, lookup, given, question, form, fate)
        assert (cached.copying, lookup.copy) == (0, None), "a copy was left behind"
        self.outcomes[label] = self.outcomes.get(label, 0) + 1
        return label

    def _answer(self, cached, lookup, given, question, form, fate):
        target, tried = given.target, 0
        whose = (lookup.tenant, given.unit_digest if self.config.scope == "unit" else "", question)
        while True:
            answer = cached.find(lookup, target, self.now_ns)
            truth = (target.name, target.adapter, self._truth(target), *whose)
            if answer is not None:
                told = provenance(answer.data, lookup.endpoint, form)
                assert told == list(truth), f"{truth} got the answer of {told}"
                assert answer.tenant == lookup.tenant
                assert self.now_ns - answer.stored_ns < TTL
                return lookup.verdict
            if (target.name, target.arm) not in self.down:
                break
            found = fall_back(given, tried)
            if found is None:
                cached.leave(lookup)
                return "refused"
            target, decision = found
            assert decision.choice == target.arm
            tried += 1
        kept = self._engine(cached, lookup, target, truth, form, fate)
        whole = "kept" if kept else "answered"
        return f"{whole}_{'fallback' if tried else 'primary'}_{lookup.verdict}"

    def _truth(self, target):
        return self.artefacts.get(target.arm, "")

    def _engine(self, cached, lookup, target, truth, form, fate):
        """The engine answers, well (fate 0), or in one of the ways engines have."""
        data, content_type = answer_of(truth, lookup.endpoint, form)
        status = 503 if fate == 1 else 200
        if fate == 2:
            data = data[:-9]
        elif fate == 3:
            data = data.replace(b'"stop"', b'"abort"')
        for at in range(0, len(data), 97):
            cached.take(lookup, data[at : at + 97])
        if fate == 4:  # the client left, or the engine died: nothing is kept
            cached.leave(lookup)
            return False
        return cached.keep(
            lookup,
            target,
            status=status,
            content_type=content_type,
            usage=Usage(3, 5, 0),
            engine="e",
            now_ns=self.now_ns,
        )


def answer_of(truth, endpoint, form):
    """What the engine says: who was asked what, as its text."""
    text = json.dumps(truth)
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    if endpoint == EMBEDDINGS:
        return orjson.dumps({"object": "list", "data": [{"embedding": [0.5], "text": text}], "usage": usage}), b"application/json"  # fmt: skip
    chat, head = endpoint == CHAT, {"id": "x", "created": 1, "model": "m"}
    if form == 0:
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        kind = "chat.completion" if chat else "text_completion"
        body = {
            **head,
            "object": kind,
            "choices": [{"index": 0, **said, "finish_reason": "stop"}],
            "usage": usage,
        }
        return orjson.dumps(body), b"application/json"
    kind = "chat.completion.chunk" if chat else "text_completion"
    halves = text[: len(text) // 2], text[len(text) // 2 :]
    events = [
        {**head, "object": kind, "choices": [{"index": 0, **({"delta": {"content": half}} if chat else {"text": half}), "finish_reason": None}]}
        for half in halves
    ]  # fmt: skip
    end = {"delta": {}} if chat else {"text": ""}
    events.append({**head, "object": kind, "choices": [{"index": 0, **end, "finish_reason": "stop"}]})
    if form == 2:
        events.append({**head, "object": kind, "choices": [], "usage": usage})
    lines = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)
    return lines + b"data: [DONE]\n\n", b"text/event-stream"


def provenance(data, endpoint, form):
    """Whose answer it is, read as a client would, in the form that was asked for."""
    if endpoint == EMBEDDINGS:
        return json.loads(orjson.loads(data)["data"][0]["text"])
    if form == 0:
        choice = orjson.loads(data)["choices"][0]
        return json.loads(choice["message"]["content"] if endpoint == CHAT else choice["text"])
    events = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    assert events.pop() == b"[DONE]"
    chunks = [orjson.loads(event) for event in events]
    assert any("usage" in chunk for chunk in chunks) == (form == 2)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return json.loads(
        "".join((c["delta"].get("content") or "") if endpoint == CHAT else c["text"] for c in choices)
    )


EVENT_EVERY = 100
RAMP = (0.01, 0.05, 0.25, 1.0)


def live(house, rng, cases):
    """`cases` requests of a busy service, with something happening to it every `EVENT_EVERY`.

    The weights go up the ramp and back, artefacts change under unchanged names, salts and kinds of units change, engines go
    down and return, time passes, answers are purged.
    """
    block = 20_000
    while cases > 0:
        size = min(block, cases)
        cases -= size
        draw = [rng.integers(0, most, size=size).tolist() for most in (2, 4, 3, 6, 8, 8, 16)]
        skewed = [
            (rng.random(size) ** power * most).astype(int).tolist()
            for most, power in ((len(QUESTIONS), 8), (4, 3), (8, 3), (8, 2), (4, 3))
        ]
        for i, (worker, form, key, hint, way, control, fate) in enumerate(zip(*draw, strict=True)):
            question, name, tenant, user, session = (column[i] for column in skewed)
            who = TENANTS[tenant], USERS[user], SESSIONS[session], KEYS[key], HINTS[hint]
            house.request(worker, question, form, NAMES[name], who, way, control, fate)
            house.now_ns += SECOND // 200
            if i % EVENT_EVERY == 0:
                happen(house, rng)


def happen(house, rng):
    """One thing happens to the service."""
    what, step, other, unit = rng.integers(0, (12, 5, 3, 3)).tolist()
    if what <= 3:
        kinds = ("user", "session", "tenant")
        artefacts = (("v1", "v2"), ("v2", "v1"), ("v2", "v3"))[other if step == 4 else 0]
        salt = "r1" if unit else "r2"
        house.turn_to(release((*RAMP, 0.0)[step], artefacts=artefacts, salt=salt, unit=kinds[unit]), everyone(kinds[unit]))  # fmt: skip
    elif what <= 5:
        house.down ^= {("llama-next", "canary")}
    elif what == 6:
        house.down = {("llama", "stable")} if other == 0 else set()
    elif what == 7:
        house.now_ns += (1, 20, 70)[other] * SECOND
    elif other == 0:
        house.caches[0].cache.purge(tenant=TENANTS[step])
