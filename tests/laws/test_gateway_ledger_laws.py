"""Laws of the ledger: whatever is lost, repeated, reordered or killed, every token is in exactly one place.

The same game twice: as a hypothesis machine, which shrinks what it finds, and as a long random walk.  With SITS_SOAK=1 their
steps grow fifty-fold, to 6 * 10^5.
"""

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway_ledgers import CALLERS, MODELS, Town
from sits.core.units import MS, SECOND
from sits.world import stream_generator

SOAK = 50 if os.environ.get("SITS_SOAK") else 1
pytestmark = pytest.mark.timeout(3600 if SOAK > 1 else 120)
NUMBER = st.integers(0, 10**6)
SKEWS = (0, 7 * SECOND, -40 * SECOND)
OUTAGES = ("refuse", "spend_lease", "open")


class LedgerMachine(RuleBasedStateMachine):
    @initialize(skew=st.sampled_from(SKEWS), policy=st.sampled_from(OUTAGES))
    def begin(self, skew, policy):
        self.town = Town()
        self.town.join()
        self.town.join(skew, policy)

    def pick(self, which):
        names = list(self.town.holders)
        return names[which % len(names)]

    @precondition(lambda self: len(self.town.holders) < 4)
    @rule(skew=st.sampled_from(SKEWS), policy=st.sampled_from(OUTAGES))
    def join(self, skew, policy):
        self.town.join(skew, policy)

    @rule(
        who=NUMBER,
        caller=st.sampled_from(CALLERS),
        model=st.sampled_from(MODELS),
        prompt=st.integers(0, 300),
        output=st.integers(0, 200),
    )
    def reserve(self, who, caller, model, prompt, output):
        self.town.reserve(self.pick(who), caller, model, prompt, output)

    @rule(who=NUMBER, which=NUMBER, prompt=st.integers(0, 300), output=st.integers(0, 400))
    def settle(self, who, which, prompt, output):
        name = self.pick(who)
        running = list(self.town.holders[name].open)
        if running:
            self.town.settle(name, running[which % len(running)], prompt, output)

    @rule(who=NUMBER, which=NUMBER)
    def void(self, who, which):
        name = self.pick(who)
        running = list(self.town.holders[name].open)
        if running:
            self.town.void(name, running[which % len(running)])

    @rule(who=NUMBER, which=NUMBER, settle=st.booleans())
    def repeat(self, who, which, settle):
        self.town.repeat_an_end(self.pick(who), which, settle)

    @rule(who=NUMBER)
    def ask(self, who):
        self.town.ask(self.pick(who))

    @rule(which=NUMBER, keep=st.booleans())
    def deliver_question(self, which, keep):
        self.town.deliver_question(which, keep)

    @rule(which=NUMBER, keep=st.booleans())
    def deliver_answer(self, which, keep):
        self.town.deliver_answer(which, keep)

    @rule(which=NUMBER, answers=st.booleans())
    def lose(self, which, answers):
        self.town.lose(which, answers)

    @rule(ns=st.sampled_from((5 * MS, 300 * MS, 2 * SECOND, 11 * SECOND)))
    def advance(self, ns):
        self.town.advance(ns)

    @precondition(lambda self: len(self.town.holders) > 1)
    @rule(who=NUMBER, noticed=st.booleans())
    def crash(self, who, noticed):
        self.town.crash(self.pick(who), noticed)

    @rule(who=NUMBER, down=st.booleans())
    def outage(self, who, down):
        self.town.outage(self.pick(who), down)

    @rule(torn=NUMBER, power=st.booleans())
    def kill_authority(self, torn, power):
        self.town.kill_authority(torn, power)

    @rule(amount=st.integers(1, 500), name=st.sampled_from("abc"))
    def gift(self, amount, name):
        self.town.gift(amount, name)

    @rule(factor=st.sampled_from((0.5, 1.0, 1.5)))
    def reload(self, factor):
        self.town.reload(factor)

    @rule(who=NUMBER)
    def leak(self, who):
        self.town.leak(self.pick(who))

    @invariant()
    def every_token_is_somewhere(self):
        if hasattr(self, "town"):
            self.town.check()

    def teardown(self):
        if hasattr(self, "town"):
            self.town.come_to_rest()


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=40 * SOAK, stateful_step_count=60)


class Walker:
    """Mostly behaves, so that leases are really used, and now and then does not."""

    MOVES = (
        (250, "reserve"),
        (200, "settle"),
        (50, "void"),
        (120, "ask"),
        (130, "question"),
        (130, "answer"),
        (20, "lose"),
        (70, "tick"),
        (5, "repeat"),
        (5, "kill"),
        (3, "crash"),
        (7, "join"),
        (3, "outage"),
        (2, "reload"),
        (1, "gift"),
        (2, "sleep"),
    )

    def __init__(self, seed):
        self.dice = stream_generator(seed, "walk")
        self.town = Town()
        self.town.join()
        self.town.join(7 * SECOND, "spend_lease")
        self.gifts = 0

    def walk(self, steps):
        weights = [weight for weight, _ in self.MOVES]
        moves = self.dice.choice(len(self.MOVES), size=steps, p=[w / sum(weights) for w in weights])
        for move in moves:
            name = self.one(list(self.town.holders))
            getattr(self, self.MOVES[move][1])(name)
            self.town.check()
        self.town.come_to_rest()
        return self.town.steps

    def one(self, items):
        return items[self.number(len(items))]

    def number(self, end):
        return int(self.dice.integers(end))

    def chance(self, share):
        return self.dice.random() < share

    def reserve(self, name):
        wish = (self.one(CALLERS), self.one(MODELS), 12 + self.number(50), 12 + self.number(50))
        if self.town.reserve(name, *wish) == "short" and self.chance(0.8):
            self.town.exchange(name)
            self.town.reserve(name, *wish)

    def settle(self, name):
        most = 60 if self.chance(0.05) else 12  # now and then an engine ignores max_tokens
        if running := list(self.town.holders[name].open):
            self.town.settle(name, self.one(running), self.number(most), self.number(most))

    def void(self, name):
        if running := list(self.town.holders[name].open):
            self.town.void(name, self.one(running))

    def ask(self, name):
        self.town.ask(name)

    def question(self, _name):
        self.town.deliver_question(self.number(99), self.chance(0.05))

    def answer(self, _name):
        self.town.deliver_answer(self.number(99), self.chance(0.05))

    def lose(self, _name):
        self.town.lose(self.number(99), self.chance(0.5))

    def tick(self, _name):
        self.town.advance(self.one((5 * MS, 100 * MS, 700 * MS)))

    def sleep(self, _name):
        self.town.advance(11 * SECOND)

    def repeat(self, name):
        self.town.repeat_an_end(name, self.number(99), self.chance(0.5))

    def kill(self, _name):
        self.town.kill_authority(self.number(9999), self.chance(0.5))

    def crash(self, name):
        if len(self.town.holders) > 1:
            self.town.crash(name, self.chance(0.5))

    def join(self, _name):
        if len(self.town.holders) < 4:
            self.town.join(self.one(SKEWS), self.one(OUTAGES))

    def outage(self, name):
        self.town.outage(name, self.chance(0.5))

    def reload(self, _name):
        self.town.reload(self.one((0.5, 1.0, 1.5)))

    def gift(self, _name):
        self.gifts += 1
        self.town.gift(1 + self.number(500), f"g{self.gifts}")


@pytest.mark.parametrize("seed", range(4))
def test_a_long_walk_keeps_every_token(seed):
    told = Walker(seed).walk(2500 * SOAK)
    assert told["reserved"] > 100 * SOAK, dict(told)
    assert told["refused_quota"] > 10 * SOAK, dict(told)
