"""The ledger as a gateway uses it: waiting, refusing, outages, windows, closing; on a virtual clock."""

import asyncio

import pytest

from gateway_heads import head_lines
from sits.core.caller import Caller
from sits.core.errors import CallerError, CapacityError, RateLimitError
from sits.core.fleet_quota import Quota, QuotaMatch, QuotaWeights
from sits.core.recorded import each_reserved
from sits.core.units import MS, SECOND
from sits.gateway.ledger.book import HELD_MAX_NS, Book
from sits.gateway.ledger.client import WAITING_MAX, Client
from sits.gateway.ledger.embedded import Embedded
from sits.gateway.ledger.lines import Lines
from sits.gateway.ledger.messages import LeaseAsk, LeaseDown, decode_answer, decode_ask, encode
from sits.gateway.ledger.quotas import Quotas, refusal
from sits.policy.lease import FORGET_NS
from sits.testing.loop import run_virtual

ACME = Caller(tenant="acme", team="web", key_id="ci")
DAY = Quota(name="day", match=QuotaMatch(tenant="acme"), tokens=10_000, per="1d")
LEASE_NS, REPORT_NS, WAIT_NS = 10 * SECOND, 100 * MS, 250 * MS


class Gateways:
    """Some gateway processes and their authority; the line between them can be slow or cut."""

    def __init__(self, world):
        self.world = world
        self.authority = Embedded(world, LEASE_NS, None)
        self.delay_ns = MS
        self.down = ""
        self.asked = []
        self.clients = []

    async def carry(self, ask):
        await asyncio.sleep(self.delay_ns / 1e9)
        if self.down == "raises":
            raise ConnectionResetError(104, "Connection reset by peer")
        if self.down:
            return LeaseDown(ask.sent_ns, self.down)
        self.asked.append(ask)
        return decode_answer(encode(await self.authority.answer(decode_ask(encode(ask)))))

    def quotas(self, *quotas, on_outage="refuse", wall_error_ns=0):
        offset_ns = self.world.wall_ns() - self.world.now_ns() + wall_error_ns
        book = Book(Lines(f"gw{len(self.clients)}", offset_ns), on_outage)
        client = Client(self.world, book, self.carry, report_ns=REPORT_NS, wait_ns=WAIT_NS)
        client.start()
        self.clients.append(client)
        return Quotas(quotas, client)

    def balance(self, account):
        """The only window of an account, or its last one."""
        return [row for row in self.authority.rows() if row.account == account][-1].balance

    async def close(self):
        for client in self.clients:
            await client.close()


def play(scene):
    """Run `scene(gateways, world)` on a virtual loop, and close everything."""

    async def main(world):
        gateways = Gateways(world)
        try:
            return await scene(gateways, world)
        finally:
            await gateways.close()

    return run_virtual(main)


def held(quotas, request):
    return list(each_reserved(quotas.book.held(request)))


async def ask(quotas, world, request, tokens_in, tokens_out, caller=ACME, model="m"):
    told = quotas.reserve(request, caller, model, tokens_in, tokens_out, world.now_ns())
    if told.outcome == "short":
        told = await quotas.wait(told, request, caller, model, tokens_in, tokens_out)
    return told


def test_a_request_is_reserved_settled_and_reported():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY)
        assert quotas.reserve("r1", ACME, "m", 100, 50, world.now_ns()).outcome == "short"
        assert (await ask(quotas, world, "r1", 100, 50)).outcome == "reserved"
        assert held(quotas, "r1")[0][2] == 150
        await asyncio.sleep(0.3)
        b = gateways.balance("day|tokens|1d")
        assert (b.settled, b.reserved, b.granted) == (0, 150, 10_000)
        assert quotas.settle("r1", 100, 20) == "settled"
        await asyncio.sleep(0.3)
        assert gateways.balance("day|tokens|1d").settled == 120
        await gateways.close()
        b = gateways.balance("day|tokens|1d")
        assert (b.settled, b.reserved, b.leased, b.free) == (120, 0, 0, 9_880)

    play(scene)


def test_ids_end_once():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY)
        for request in ("a", "b"):
            assert (await ask(quotas, world, request, 10, 10)).outcome == "reserved"
            assert (await ask(quotas, world, request, 10, 10)).outcome == "reserved"
        assert quotas.settle("a", 10, 1) == "settled"
        assert [quotas.settle("a", 10, 9), quotas.void("a")] == ["duplicate", "settled_before"]
        assert quotas.void("b") == "voided"
        assert [quotas.void("b"), quotas.settle("b", 10, 9)] == ["duplicate", "voided_before"]
        assert [quotas.void("c"), quotas.settle("c", 1, 1)] == ["unknown", "unknown"]
        again = await ask(quotas, world, "a", 10, 10)
        assert again.outcome == "refused_duplicate"
        assert isinstance(refusal(again), CallerError)
        await gateways.close()
        assert gateways.balance("day|tokens|1d").settled == 11

    play(scene)


def test_who_matches_no_quota_is_not_counted():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY)
        told = quotas.reserve("r", Caller(tenant="other"), "m", 10**9, 10**9, world.now_ns())
        assert told.outcome == "unlimited"
        assert len(quotas.book) == 0

    play(scene)


def test_all_balances_or_none():
    small = Quota(name="small", match=QuotaMatch(model="big"), tokens=500, per="1h")

    async def scene(gateways, world):
        quotas = gateways.quotas(DAY, small)
        assert (await ask(quotas, world, "r0", 300, 0, model="big")).outcome == "reserved"
        told = await ask(quotas, world, "r1", 300, 0, model="big")
        assert (told.outcome, told.choice) == ("refused_quota", "small")
        quotas.settle("r0", 300, 0)
        await gateways.close()
        assert gateways.balance("day|tokens|1d").settled == 300, (
            "what one quota refused, the other does not charge"
        )

    play(scene)


def test_a_used_up_quota_says_which_how_much_and_until_when():
    hour = Quota(name="hour", tokens=1000, per="1h")

    async def scene(gateways, world):
        quotas = gateways.quotas(hour)
        assert (await ask(quotas, world, "r0", 900, 0)).outcome == "reserved"
        await asyncio.sleep(600)
        error = refusal(await ask(quotas, world, "r1", 200, 0))
        assert isinstance(error, RateLimitError)
        assert (error.status, error.code, error.field) == (429, "quota_exceeded", "hour")
        left_s = 3600 - world.wall_ns() % (3600 * SECOND) / SECOND
        assert error.retry_after_s == pytest.approx(left_s, abs=1)
        assert "1,000 tokens per 1h; 900 are used or reserved, 100 are left, this request needs 200" in str(
            error
        )
        assert (await ask(quotas, world, "r2", 100, 0)).outcome == "reserved", "what fits is still let in"

    play(scene)


def test_a_request_larger_than_the_quota_is_not_sent_to_wait():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY)
        began_ns = world.now_ns()
        error = refusal(await ask(quotas, world, "r0", 9_000, 1_001))
        assert world.now_ns() == began_ns
        assert (error.status, error.code, error.retry_after_s) == (400, "quota_too_small", None)
        assert "max_tokens" in str(error)

    play(scene)


def test_the_total_quota_offers_no_time_to_retry():
    async def scene(gateways, world):
        quotas = gateways.quotas(Quota(name="trial", tokens=100, per="total"))
        assert (await ask(quotas, world, "r0", 100, 0)).outcome == "reserved"
        error = refusal(await ask(quotas, world, "r1", 1, 0))
        assert error.retry_after_s is None
        assert "it does not begin anew" in str(error)

    play(scene)


def test_weights_and_requests_have_meters_of_their_own():
    weights = QuotaWeights(input=1, output=4, cached=0.1)
    quota = Quota(name="q", tokens=1000, requests=3, per="1h", weights=weights)

    async def scene(gateways, world):
        quotas = gateways.quotas(quota)
        assert (await ask(quotas, world, "r0", 100, 100)).outcome == "reserved"
        assert sorted(cost for _, _, cost, _ in held(quotas, "r0")) == [1, 500]
        quotas.settle("r0", 100, 10, 50)
        await asyncio.sleep(0.3)
        assert gateways.balance("q|tokens|1h").settled == 50 + 5 + 40
        for request in ("r1", "r2"):
            assert (await ask(quotas, world, request, 1, 1)).outcome == "reserved"
        told = await ask(quotas, world, "r3", 1, 1)
        assert (told.outcome, told.reasons["unit"]) == ("refused_quota", "requests")
        quotas.void("r2")
        assert (await ask(quotas, world, "r4", 1, 1)).outcome == "reserved", "a void request is not counted"

    play(scene)


def test_over_use_is_debt_and_nothing_is_granted_on_it():
    async def scene(gateways, world):
        quotas = gateways.quotas(Quota(name="q", tokens=1000, per="total"))
        assert (await ask(quotas, world, "r0", 500, 100)).outcome == "reserved"
        quotas.settle("r0", 500, 700)  # the engine did not care for max_tokens
        assert quotas.book.counts["over"] == 600
        assert (await ask(quotas, world, "r1", 1, 0)).outcome == "refused_quota"
        b = gateways.balance("q|tokens|total")
        assert (b.settled, b.debt, b.free) == (1200, 200, 0)
        assert b.granted + b.debt == b.settled + b.reserved + b.leased + b.free

    play(scene)


def test_two_gateways_together_get_one_limit_and_all_of_it():
    async def scene(gateways, world):
        one, two = gateways.quotas(DAY), gateways.quotas(DAY)
        let_in = 0
        for i in range(200):
            for j, quotas in enumerate((one, two)):
                told = await ask(quotas, world, f"r{i}-{j}", 60, 40)
                if told.outcome == "reserved":
                    let_in += 1
                    quotas.settle(f"r{i}-{j}", 60, 40)
            await asyncio.sleep(0.02)
        assert let_in == 100, "10,000 tokens are 100 requests of 100, whoever asks"
        await gateways.close()
        assert gateways.balance("day|tokens|1d").settled == 10_000

    play(scene)


def test_what_one_process_keeps_in_hand_comes_back_when_another_needs_it():
    async def scene(gateways, world):
        one, two = gateways.quotas(DAY), gateways.quotas(DAY)
        for i in range(40):
            assert (await ask(one, world, f"a{i}", 100, 0)).outcome == "reserved"
            one.settle(f"a{i}", 100, 0)
        await asyncio.sleep(0.15)
        assert gateways.balance("day|tokens|1d").leased > 0
        await asyncio.sleep(2)  # nobody asks `one` any more
        assert gateways.balance("day|tokens|1d").leased == 0
        assert (await ask(two, world, "b", 6000, 0)).outcome == "reserved"

    play(scene)


def test_many_requests_that_wait_share_one_question():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY)
        told = await asyncio.gather(*(ask(quotas, world, f"r{i}", 10, 10) for i in range(100)))
        assert {one.outcome for one in told} == {"reserved"}
        assert len(gateways.asked) <= 3

    play(scene)


def test_the_hot_path_does_not_wait_again_under_steady_load():
    async def scene(gateways, world):
        quotas = gateways.quotas(Quota(name="q", tokens=10**7, per="1h"))
        for i in range(2000):
            assert (await ask(quotas, world, f"r{i}", 50, 50)).outcome == "reserved"
            await asyncio.sleep(0.001)
            quotas.settle(f"r{i}", 50, 20)
        assert quotas.client.counts["waited"] <= 3
        assert quotas.client.counts["questions"] < 60

    play(scene)


def test_a_new_window_begins_without_a_wait():
    async def scene(gateways, world):
        quotas = gateways.quotas(Quota(name="q", tokens=100_000, per="1m"))
        windows = set()
        for i in range(700):
            assert (await ask(quotas, world, f"r{i}", 50, 50)).outcome == "reserved"
            windows.add(held(quotas, f"r{i}")[0][1])
            await asyncio.sleep(0.2)
            quotas.settle(f"r{i}", 50, 20)
        assert len(windows) >= 3
        assert quotas.client.counts["waited"] <= 2
        assert len(quotas.book.lines) <= 2, "windows that are over are forgotten"

    play(scene)


def test_windows_of_callers_who_come_now_and_then_are_forgotten():
    async def scene(gateways, world):
        quotas = gateways.quotas(Quota(name="q", each=("key",), tokens=100_000, per="10s"))
        for i in range(60):
            caller = Caller(tenant="acme", key_id=f"k{i % 20}")
            assert (await ask(quotas, world, f"r{i}", 50, 50, caller=caller)).outcome == "reserved"
            quotas.settle(f"r{i}", 50, 20)
            await asyncio.sleep(7)
        assert len(quotas.book.lines) <= 3, "one for each key and window were 60"

    play(scene)


def test_a_limit_is_fresh_in_the_next_window():
    async def scene(gateways, world):
        quotas = gateways.quotas(Quota(name="q", tokens=100, per="1m"))
        assert (await ask(quotas, world, "r0", 100, 0)).outcome == "reserved"
        refused = await ask(quotas, world, "r1", 1, 0)
        assert refused.outcome == "refused_quota"
        await asyncio.sleep(refused.reasons["reset_ns"] / 1e9)
        assert (await ask(quotas, world, "r2", 100, 0)).outcome == "reserved"
        quotas.settle("r0", 100, 0)  # begun in the old window, and charged there
        await asyncio.sleep(0.3)
        first, second = [row.balance for row in gateways.authority.rows()]
        assert (first.settled, first.free) == (100, 0)
        assert (second.settled, second.reserved) == (0, 100)

    play(scene)


def test_a_gateway_whose_clock_is_wrong_charges_the_same_window():
    async def scene(gateways, world):
        right = gateways.quotas(Quota(name="q", tokens=1000, per="1m"))
        wrong = gateways.quotas(Quota(name="q", tokens=1000, per="1m"), wall_error_ns=-50 * SECOND)
        for i, quotas in enumerate((right, wrong, wrong)):
            told = await ask(quotas, world, f"r{i}", 10, 0)
        assert told.outcome == "reserved"
        assert held(wrong, "r2")[0][1] == held(right, "r0")[0][1]

    play(scene)


@pytest.mark.parametrize("down", ["raises", "the disk is full"])
def test_an_outage_is_refused_when_the_lease_runs_out(down):
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY)
        assert (await ask(quotas, world, "r0", 10, 0)).outcome == "reserved"
        await asyncio.sleep(0.5)
        gateways.down = down
        assert (await ask(quotas, world, "r1", 10, 0)).outcome == "reserved", "the lease still holds"
        await asyncio.sleep(11)
        assert quotas.book.down
        began_ns = world.now_ns()
        error = refusal(await ask(quotas, world, "r2", 10, 0))
        assert world.now_ns() == began_ns, "nobody waits for what is known to be down"
        assert isinstance(error, CapacityError)
        assert (error.status, error.code) == (503, "quota_ledger_unavailable")
        assert quotas.client.why_down
        gateways.down = ""
        await asyncio.sleep(2.5)
        assert (await ask(quotas, world, "r3", 10, 0)).outcome == "reserved"
        assert quotas.client.counts["outages"] == 1

    play(scene)


def test_spend_lease_goes_on_until_the_lease_is_empty():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY, on_outage="spend_lease")
        assert (await ask(quotas, world, "r0", 100, 0)).outcome == "reserved"
        gateways.down = "gone"
        await asyncio.sleep(15)
        told = [(await ask(quotas, world, f"s{i}", 100, 0)).outcome for i in range(10)]
        let_in = told.count("reserved")
        assert 1 <= let_in <= 8
        assert told == ["reserved"] * let_in + ["refused_ledger"] * (10 - let_in)

    play(scene)


def test_open_lets_everything_in_and_reports_it_later():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY, on_outage="open")
        gateways.down = "gone"
        await ask(quotas, world, "first", 1, 0)
        await asyncio.sleep(0.5)
        for i in range(20):
            assert (await ask(quotas, world, f"r{i}", 1000, 0)).outcome == "reserved"
            quotas.settle(f"r{i}", 1000, 0)
        assert quotas.book.counts["opened"] >= 19
        gateways.down = ""
        await asyncio.sleep(3)
        b = gateways.balance("day|tokens|1d")
        assert (b.settled, b.debt) == (
            20_000 + held(quotas, "first")[0][2] * 0,
            10_000,
        )
        assert (await ask(quotas, world, "after", 1, 0)).outcome == "refused_quota"

    play(scene)


def test_a_slow_authority_makes_requests_wait_so_long_and_no_longer():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY)
        gateways.delay_ns = SECOND
        began_ns = world.now_ns()
        told = await ask(quotas, world, "r0", 10, 0)
        assert (told.outcome, told.reasons["why"]) == ("refused_ledger", "slow")
        assert world.now_ns() - began_ns == 2 * WAIT_NS
        await asyncio.sleep(0.6)  # the answer has come
        assert (await ask(quotas, world, "r1", 10, 0)).outcome == "reserved"

    play(scene)


def test_the_number_that_waits_is_bounded_and_a_client_that_leaves_is_forgotten():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY)
        gateways.delay_ns = SECOND
        waiting = [asyncio.ensure_future(ask(quotas, world, f"r{i}", 1, 0)) for i in range(WAITING_MAX)]
        await asyncio.sleep(0.01)
        assert (await ask(quotas, world, "more", 1, 0)).reasons["why"] == "too_many_waiting"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        gateways.delay_ns = MS
        await asyncio.sleep(1)
        assert (await ask(quotas, world, "next", 1, 0)).outcome == "reserved"
        line = next(iter(quotas.book.lines._lines.values()))
        assert line.waits == []

    play(scene)


def test_a_reservation_that_nobody_ends_is_voided_and_still_settles():
    async def scene(gateways, world):
        quotas = gateways.quotas(Quota(name="q", tokens=100, per="total"))
        assert (await ask(quotas, world, "leaked", 100, 0)).outcome == "reserved"
        await asyncio.sleep(HELD_MAX_NS / 1e9 + 2)
        assert quotas.book.counts["expired"] == 1
        assert (await ask(quotas, world, "r1", 60, 0)).outcome == "reserved"
        assert quotas.settle("leaked", 90, 0) == "settled"
        assert quotas.settle("leaked", 90, 0) == "duplicate"
        assert quotas.settle("r1", 60, 0) == "settled"
        await asyncio.sleep(0.5)
        b = gateways.balance("q|tokens|total")
        assert (b.settled, b.debt) == (150, 50)

    play(scene)


def test_a_holder_that_slept_for_long_begins_a_new_life_and_counts_once():
    async def scene(gateways, world):
        quotas = gateways.quotas(Quota(name="q", tokens=1000, per="total"))
        assert (await ask(quotas, world, "r0", 100, 0)).outcome == "reserved"
        quotas.settle("r0", 100, 0)
        await asyncio.sleep(FORGET_NS / 1e9 + 60)
        gateways.authority._accounts._line("nobody", _empty_line("q|tokens|total"), world.wall_ns())
        assert gateways.balance("q|tokens|total").settled == 100
        assert (await ask(quotas, world, "r1", 50, 0)).outcome == "reserved"
        quotas.settle("r1", 50, 0)
        await asyncio.sleep(0.5)
        assert gateways.balance("q|tokens|total").settled == 150

    play(scene)


def _empty_line(account):
    from sits.policy.lease import AskLine

    return AskLine(account, 0, 0, 1000, 1, 1, 0, 0, 0, 0, 0, 0)


def test_an_authority_that_forgot_everything_learns_it_from_its_holders():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY)
        for i in range(5):
            assert (await ask(quotas, world, f"r{i}", 100, 0)).outcome == "reserved"
            quotas.settle(f"r{i}", 100, 0)
        assert (await ask(quotas, world, "open", 100, 0)).outcome == "reserved"
        await asyncio.sleep(0.3)
        gateways.authority = Embedded(world, LEASE_NS, None)
        quotas.settle("open", 70, 0)
        await asyncio.sleep(0.5)
        assert gateways.balance("day|tokens|1d").settled == 570

    play(scene)


def test_new_limits_count_at_once_and_old_requests_settle():
    async def scene(gateways, world):
        old = gateways.quotas(Quota(name="q", tokens=1000, per="1h"))
        assert (await ask(old, world, "r0", 900, 0)).outcome == "reserved"
        new = Quotas((Quota(name="q", tokens=2000, per="1h"),), old.client)
        assert (await ask(new, world, "r1", 900, 0)).outcome == "reserved"
        less = Quotas((Quota(name="q", tokens=1500, per="1h"),), old.client)
        told = await ask(less, world, "r2", 400, 0)
        assert (told.outcome, told.reasons["limit"]) == ("refused_quota", 1500)
        old.settle("r0", 100, 0)
        assert (await ask(less, world, "r3", 400, 0)).outcome == "reserved"
        await asyncio.sleep(0.3)
        b = gateways.balance("q|tokens|1h")
        assert (b.granted, b.settled, b.reserved) == (1500, 100, 1300)

    play(scene)


def test_headers_tell_the_tightest_balance():
    hour = Quota(name="hour", tokens=1000, requests=5, per="1h")

    async def scene(gateways, world):
        quotas = gateways.quotas(DAY, hour)
        await ask(quotas, world, "r0", 300, 0)
        found = head_lines(quotas.slots(ACME, "m").told(world.now_ns()))
        assert found[b"x-ratelimit-limit-tokens"] == b"1000"
        assert found[b"x-ratelimit-remaining-tokens"] == b"700"
        assert found[b"x-ratelimit-remaining-requests"] == b"4"
        left_s = 3600 - world.wall_ns() // SECOND % 3600
        assert abs(int(found[b"x-ratelimit-reset-tokens"].rstrip(b"s")) - left_s) <= 1
        assert quotas.slots(Caller(tenant="x"), "m").told(world.now_ns()) == b"", "nothing is known of it yet"

    play(scene)


def test_a_bug_in_the_client_is_told_and_reporting_goes_on():
    async def scene(gateways, world):
        quotas = gateways.quotas(DAY)
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        lines = quotas.book.lines
        real, lines.ask = lines.ask, None
        await asyncio.sleep(0.5)
        lines.ask = real
        await asyncio.sleep(1)
        assert (await ask(quotas, world, "r", 10, 0)).outcome == "reserved"
        assert [type(context["exception"]) for context in told] == [TypeError]

    play(scene)


def test_messages_survive_their_bytes():
    question = LeaseAsk("gw", 5, (_empty_line("a|b"),))
    assert decode_ask(encode(question)) == question
