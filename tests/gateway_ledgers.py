"""A ledger, its holders, and a network between them that loses, repeats and reorders; with the truth kept beside.

`Town` has one authority whose file is a byte array, and any number of holders (books).  Every step is one method, so that a
hypothesis machine and a random walk play the same game; `check` holds after each step.
"""

from collections import defaultdict

from sits.core.caller import Caller
from sits.core.fleet_quota import Quota, QuotaMatch
from sits.core.recorded import each_reserved
from sits.core.units import SECOND
from sits.gateway.ledger.authority import Accounts
from sits.gateway.ledger.book import HELD_MAX_NS, Book
from sits.gateway.ledger.journal import frame, parse
from sits.gateway.ledger.lines import Lines
from sits.gateway.ledger.messages import decode_answer, decode_ask, encode
from sits.policy.quota import compile_quotas

TTL_NS = 10 * SECOND
QUOTAS = (
    Quota(name="acme", match=QuotaMatch(tenant="acme"), tokens=3000, per="total"),
    Quota(name="key", parent="acme", each=("key",), tokens=700, requests=12, per="20s"),
    Quota(name="big", match=QuotaMatch(model="big"), tokens=900, per="30s"),
)
CALLERS = (Caller(tenant="acme", key_id="k0"), Caller(tenant="acme", key_id="k1"), Caller(tenant="other"))
MODELS = ("big", "small")


class Holder:
    """One gateway process: a book, and the requests it believes to run."""

    def __init__(self, name, offset_ns, on_outage):
        self.name = name
        self.book = Book(Lines(name, offset_ns), on_outage)
        self.open = {}
        self.ended = []
        self.slots = {}

    def slots_of(self, quotas, caller, model):
        key = (quotas, caller, model)
        if key not in self.slots:
            self.slots[key] = self.book.lines.slots(compile_quotas(quotas), caller, model)
        return self.slots[key]


class Town:
    """All of it.  `clock_ns` is the authority's wall clock; a holder's own clock is behind it by its `lag`."""

    def __init__(self):
        self.clock_ns = 1_000_000 * SECOND
        self.quotas = QUOTAS
        self.accounts = Accounts(TTL_NS)
        self.disk = bytearray()
        self.safe = 0
        self.holders = {}
        self.lags = {}
        self.questions = []
        self.answers = []
        self.true_used = defaultdict(int)  # by (account, window): what engines really took
        self.slack = defaultdict(int)  # what may be exceeded by: over-use, and requests let in by `open`
        self.most = defaultdict(int)  # the largest grant a window ever had
        self.crashed = set()  # balances some holder died with
        self.dropped = set()
        self.births = 0
        self.requests = 0
        self.steps = defaultdict(int)

    # ---- holders

    def join(self, skew_ns=0, on_outage="refuse"):
        self.births += 1
        name = f"gw{self.births}"
        lag_ns = self.births * 777 * SECOND
        self.lags[name] = lag_ns
        self.holders[name] = Holder(name, lag_ns + skew_ns, on_outage)
        return name

    def now(self, name):
        return self.clock_ns - self.lags[name]

    def reserve(self, name, caller, model, input_tokens, output_tokens):
        holder = self.holders[name]
        self.requests += 1
        request = f"r{self.requests}"
        book = holder.book
        slots = holder.slots_of(self.quotas, caller, model)
        opened = book.counts["opened"]
        told = book.reserve(request, slots, input_tokens, output_tokens, self.now(name))
        self.steps[told.outcome] += 1
        if told.outcome == "reserved":
            holder.open[request] = list(each_reserved(book.held(request)))
            if book.counts["opened"] > opened:
                for account, window, cost, _ in holder.open[request]:
                    self.slack[account, window] += cost
            assert (
                book.reserve(request, slots, input_tokens, output_tokens, self.now(name)).outcome
                == "reserved"
            )
        elif told.outcome == "short":
            for slot in slots:
                slot.line.waits[:] = [slot.line.meter.cost(input_tokens, output_tokens)]
        assert len(holder.open.get(request, slots)) == len(slots)
        return told.outcome

    def settle(self, name, request, input_tokens, output_tokens):
        holder = self.holders[name]
        held = holder.open.pop(request, None)
        told = holder.book.settle(request, input_tokens, output_tokens)
        assert told == ("settled" if held is not None else told)
        if told == "settled":
            self._took(held, input_tokens, output_tokens)
            holder.ended.append(request)
        return told

    def void(self, name, request):
        holder = self.holders[name]
        held = holder.open.pop(request, None)
        told = holder.book.void(request)
        assert told == ("voided" if held is not None else told)
        if told == "voided":
            holder.ended.append(request)
        return told

    def repeat_an_end(self, name, which, settle):
        ended = self.holders[name].ended
        if ended:
            request = ended[which % len(ended)]
            told = self.settle(name, request, 9, 9) if settle else self.void(name, request)
            assert told in ("duplicate", "voided_before", "settled_before"), told

    def _took(self, held, input_tokens, output_tokens, reserved=True):
        meters = {f"{meter.quota}|{meter.unit}": meter for meter in compile_quotas(QUOTAS)}
        for account, window, cost, _ in held:
            meter = meters["|".join(account.split("|")[:2])]
            took = meter.cost(input_tokens, output_tokens)
            self.true_used[account, window] += took
            self.slack[account, window] += max(0, took - cost * reserved)

    def crash(self, name, noticed):
        holder = self.holders.pop(name)
        for line in holder.book.lines._lines.values():
            self.crashed.add((line.account, line.window))
        if noticed:
            self.accounts.release(name, self.clock_ns)
            self._write()

    def outage(self, name, down):
        self.holders[name].book.down = down

    # ---- the network

    def ask(self, name):
        question = self.holders[name].book.lines.ask(self.now(name))
        if question is not None:
            self.questions.append(encode(question))

    def exchange(self, name):
        """A question and its answer, without delay."""
        self.ask(name)
        self.deliver_question(-1)
        self.deliver_answer(-1)

    def deliver_question(self, which, keep=False):
        if self.questions:
            index = which % len(self.questions)
            data = self.questions[index] if keep else self.questions.pop(index)
            before = set(self.accounts._accounts)
            self.accounts.sweep(self.clock_ns)
            self.dropped |= before - set(self.accounts._accounts)
            answer, grew = self.accounts.answer(decode_ask(data), self.clock_ns)
            self._write()
            if grew:
                self.safe = len(self.disk)
            self.answers.append((decode_ask(data).holder, encode(answer)))

    def deliver_answer(self, which, keep=False):
        if self.answers:
            index = which % len(self.answers)
            name, data = self.answers[index] if keep else self.answers.pop(index)
            if name in self.holders:
                self.holders[name].book.lines.hear(decode_answer(data), self.now(name))
                for line in self.holders[name].book.lines._lines.values():
                    line.waits.clear()

    def lose(self, which, answers):
        pile = self.answers if answers else self.questions
        if pile:
            pile.pop(which % len(pile))

    # ---- time, configuration, the authority's machine

    def advance(self, ns):
        self.clock_ns += ns
        for name, holder in self.holders.items():
            holder.book.expire(self.now(name))

    def leak(self, name):
        """Time passes until open reservations count as leaked; then their requests end after all."""
        holder = self.holders[name]
        leaked = dict(holder.open)
        self.advance(HELD_MAX_NS)
        for request, held in leaked.items():
            if holder.book.settle(request, 5, 5) == "settled":
                self._took(held, 5, 5, reserved=False)
        holder.open.clear()
        for other in self.holders.values():
            other.open.clear()

    def gift(self, amount, name):
        account, window = "acme|tokens|total", 0
        self.accounts.give(account, window, 0, 3000, name, amount)
        self._write()

    def reload(self, factor):
        """A new configuration: other limits."""
        self.quotas = tuple(
            Quota(
                name=q.name,
                match=q.match,
                parent=q.parent,
                each=q.each,
                per=q.per,
                tokens=max(1, int(q.tokens * factor)),
                requests=int(q.requests * factor),
            )
            for q in QUOTAS
        )

    def kill_authority(self, torn=0, power=False):
        """`kill -9` leaves all that was written; a power cut what was synced, and any part of the rest."""
        if power:
            tail = len(self.disk) - self.safe
            del self.disk[self.safe + (torn % (tail + 1)) :]
        before = {
            (line.account, line.window, f"{name}.{line.life}"): line.granted
            for name, holder in self.holders.items()
            for line in holder.book.lines._lines.values()
        }
        records, good = parse(bytes(self.disk), "town")
        del self.disk[good:]
        self.accounts = Accounts(TTL_NS)
        self.accounts.load(records)
        self.disk = bytearray(frame(list(self.accounts.dump()), 0))
        self.safe = len(self.disk)
        for (account, window, name), granted in before.items():
            found = self.accounts._accounts.get((account, window))
            lease = found.leases.get(name) if found else None
            if lease is not None:
                assert lease.granted >= granted, "a grant was used that the file does not know"

    def _write(self):
        records = self.accounts.drain()
        if records:
            self.disk += frame(records, self.safe)

    # ---- laws

    def check(self):
        spoken_for = defaultdict(int)
        for holder in self.holders.values():
            mine = defaultdict(int)
            for held in holder.open.values():
                for account, window, cost, _ in held:
                    mine[account, window] += cost
            for key, line in holder.book.lines._lines.items():
                assert line.reserved == mine.pop(key, 0), "reserved is what open requests hold"
                assert line.granted == line.used + line.returned + line.left + line.reserved
                spoken_for[key] += line.reserved
            assert not mine, "every open reservation has its line"
        for row in self.accounts.rows(self.clock_ns):
            b, key = row.balance, (row.account, row.window)
            assert b.granted + b.debt == b.settled + b.reserved + b.leased + b.free
            assert min(b.reserved, b.leased, b.free, b.debt, b.settled, b.expired) >= 0
            assert not (b.free and b.debt)
            self.most[key] = max(self.most[key], b.granted)
            assert b.settled <= self.true_used[key], "nobody is charged what was not used"
            spent = self.true_used[key] + spoken_for[key]
            bound = self.most[key] + b.expired + self.slack[key]
            assert spent <= bound, f"{key}: {spent} > {self.most[key]} + {b.expired} + {self.slack[key]}"

    def come_to_rest(self):
        """Nothing is lost any more, every request ends, and everybody goes home."""
        for name, holder in self.holders.items():
            for i, request in enumerate(list(holder.open)):
                self.void(name, request) if i % 2 else self.settle(name, request, 3, 4)
            holder.book.lines.give_all_back()
        for _ in range(50):
            self.questions.clear()
            self.answers.clear()
            for name in self.holders:
                self.ask(name)
            if not self.questions:
                break
            while self.questions:
                self.deliver_question(0)
            while self.answers:
                self.deliver_answer(0)
        else:
            raise AssertionError("holders never come to rest")
        for row in self.accounts.rows(self.clock_ns):
            b, key = row.balance, (row.account, row.window)
            if key not in self.crashed | self.dropped:
                assert b.settled == self.true_used[key], "what was used is settled, to the token"
                assert b.reserved == b.leased == 0, "what was not used is back"
                assert b.free - b.debt == b.granted - b.settled
        self.check()
