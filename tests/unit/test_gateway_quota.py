"""Quotas on the live path: what a request is charged however it ends, what a refusal says, and the service behind it."""

import asyncio

import msgspec
import orjson
import pytest
from test_gateway_pipeline import TOKENS, Answer, Script

from sits.core.errors import CapacityError, ConfigError, EngineError
from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.fleet_quota import EmbeddedLedger, Quota, QuotaWeights, RedisLedger
from sits.core.request import Chunk, Request
from sits.core.timeline import Timeline
from sits.core.units import SECOND
from sits.gateway.ledger.messages import LeaseAsk, LeaseDown, LeaseGrant, decode_answer, encode
from sits.gateway.ledger.service import FOLDER, LedgerService
from sits.gateway.metrics import FAMILIES
from sits.gateway.pipeline import Gateway
from sits.policy.lease import AskLine
from sits.sim.loop import run_virtual
from sits.testing.loop import MemoryRecorder
from sits.world import RealWorld

HOUR = Quota(name="hour", tokens=1000, per="1h", weights=QuotaWeights(cached=0.5))


def fleet_of(*quotas, ledger=None, engines=("e",)):
    return Fleet(
        name="t",
        quotas=quotas,
        ledger=ledger or EmbeddedLedger(),
        engines=tuple(OpenAIEngine(name=name, models=("m",)) for name in engines),
    )


class House:
    """A gateway with quotas, scripted engines and a keeper of its own."""

    def __init__(self, world, tmp_path, *engines, quotas=(HOUR,)):
        self.world = world
        self.engines = {engine.name: engine for engine in engines}
        for engine in engines:
            engine.world = world
        self.fleet = fleet_of(*quotas, engines=self.engines)
        ledger = EmbeddedLedger(sync=False)  # a virtual loop has no threads
        self.service = LedgerService(msgspec.structs.replace(self.fleet, ledger=ledger), world, tmp_path)
        self.away = False
        self.gateway = Gateway(world, self.fleet, self.engines, MemoryRecorder(), ask=self.carry)
        self.gateway.start()
        self.requests = 0

    async def carry(self, kind, body):
        assert kind == "lease"
        await asyncio.sleep(0.001)
        if self.away:
            raise CapacityError("the keeper is gone", code="keeper_gone")
        return await self.service.answer(0, body)

    async def ask(self, gateway=None, **fields):
        self.requests += 1
        wanted = {
            "id": f"r{self.requests}",
            "model": "m",
            "prompt_tokens": 100,
            "output_tokens_max": 50,
            **fields,
        }
        answer, timeline = Answer(), Timeline()
        exchange = await (gateway or self.gateway).handle(Request(**wanted), timeline, answer)
        return answer, exchange

    async def balance(self):
        await asyncio.sleep(0.5)
        (row,) = self.service.rows()
        return row.balance


def play(tmp_path, scene, *engines, **more):
    async def main(world):
        house = House(world, tmp_path, *engines, **more)
        await scene(house)
        assert len(house.gateway.quotas.book) == 0, "every reservation has ended"
        await house.gateway.close([])
        b = house.service.rows()[0].balance
        assert b.reserved == b.leased == 0
        await house.service.close()
        return b

    return run_virtual(main)


def test_an_answer_is_charged_by_what_the_engine_says(tmp_path):
    async def scene(house):
        answer, exchange = await house.ask()
        assert exchange.outcome == "completed"
        assert answer.headers[b"x-ratelimit-limit-tokens"] == b"1000"
        assert answer.headers[b"x-ratelimit-remaining-tokens"] == b"850"

    assert (
        play(tmp_path, scene, Script("e", *TOKENS)).settled == 3 + 2 + 3
    )  # 7 in, 4 of them cached at half, 3 out


def test_a_used_up_quota_is_a_429_that_reaches_no_engine(tmp_path):
    engine = Script("e", 60_000, *TOKENS)

    async def scene(house):
        running = asyncio.ensure_future(house.ask(output_tokens_max=800))
        await asyncio.sleep(1)
        answer, exchange = await house.ask()
        assert (answer.status, exchange.outcome, exchange.detail) == (429, "refused", "quota_exceeded")
        assert orjson.loads(answer.data)["error"]["code"] == "quota_exceeded"
        assert "the quota 'hour' grants 1,000 tokens per 1h" in orjson.loads(answer.data)["error"]["message"]
        assert 0 < int(answer.headers[b"retry-after"]) <= 3600
        assert answer.headers[b"x-ratelimit-remaining-tokens"] == b"100"
        assert len(engine.seen) == 1
        await running
        assert (await house.ask())[1].outcome == "completed", "what was not used is free again"

    play(tmp_path, scene, engine)


def test_a_request_too_large_is_a_400(tmp_path):
    async def scene(house):
        answer, _ = await house.ask(prompt_tokens=2000)
        assert (answer.status, answer.error["code"]) == (400, "quota_too_small")
        assert b"retry-after" not in answer.headers

    play(tmp_path, scene, Script("e", *TOKENS))


@pytest.mark.parametrize(
    "steps",
    [
        (EngineError("dead"),),
        (5, EngineError("dead")),
        (Chunk(data=b"{}", status=429, content_type=b"application/json", last=True),),
        (Chunk(data=b"{}", status=400, content_type=b"application/json", last=True),),
        (Chunk(data=b"{}", status=500, content_type=b"application/json", last=True),),
    ],
)
def test_what_an_engine_did_not_answer_is_not_charged(tmp_path, steps):
    async def scene(house):
        _, exchange = await house.ask()
        assert exchange.outcome in ("failed", "refused")

    assert play(tmp_path, scene, Script("e", *steps)).settled == 0


def test_a_failover_is_one_reservation(tmp_path):
    async def scene(house):
        for _ in range(2):  # whichever engine is asked first
            await house.ask()

    assert play(tmp_path, scene, Script("a", EngineError("dead")), Script("b", *TOKENS)).settled == 16


def test_an_answer_that_breaks_off_is_charged_as_far_as_it_came(tmp_path):
    async def scene(house):
        _, exchange = await house.ask()
        assert exchange.outcome == "failed"

    assert play(tmp_path, scene, Script("e", *TOKENS[:4], EngineError("dead"))).settled == 100 + 3


@pytest.mark.parametrize(
    ("after_s", "charged"),
    [(0.0005, 0), (0.003, 100), (0.020, 101), (0.200, 103)],
    ids=["while waiting for a lease", "before the first byte", "after one token", "after three tokens"],
)
def test_a_client_that_leaves_is_charged_for_the_work_done(tmp_path, after_s, charged):
    steps = (10, TOKENS[1], 100, TOKENS[3], 1000, TOKENS[4])

    async def scene(house):
        task = asyncio.ensure_future(house.ask())
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not charged:
            await house.ask(output_tokens_max=1, prompt_tokens=10**6)  # so that there is a row to look at
            await asyncio.sleep(0.5)

    assert play(tmp_path, scene, Script("e", *steps)).settled == charged


def test_a_keeper_that_is_away_is_a_503_when_the_lease_is_over(tmp_path):
    async def scene(house):
        await house.ask()
        await asyncio.sleep(0.3)
        house.away = True
        assert (await house.ask())[1].outcome == "completed", "there is a lease"
        await asyncio.sleep(20)
        answer, _ = await house.ask()
        assert (answer.status, answer.error["code"]) == (503, "quota_ledger_unavailable")
        assert answer.headers[b"retry-after"] == b"1"
        assert house.gateway.vitals()["sits_ledger_down"] == {"": 1}
        house.away = False
        await asyncio.sleep(3)
        assert (await house.ask())[1].outcome == "completed"

    assert play(tmp_path, scene, Script("e", *TOKENS)).settled == 3 * 8


def test_a_new_generation_goes_on_with_the_balances(tmp_path):
    engine = Script("e", 1000, *TOKENS)

    async def scene(house):
        old = house.gateway
        running = asyncio.ensure_future(house.ask(output_tokens_max=700))
        await asyncio.sleep(0.1)
        more = fleet_of(msgspec.structs.replace(HOUR, tokens=900))
        house.gateway = new = Gateway(
            house.world, more, house.engines, MemoryRecorder(), before=old, ask=house.carry
        )
        new.start()
        answer, _ = await house.ask(gateway=new)
        assert (answer.status, answer.headers[b"x-ratelimit-limit-tokens"]) == (429, b"900")
        await running
        await old.close([])
        assert (await house.ask(gateway=new))[1].outcome == "completed", (
            "the old one closed nothing that is used"
        )

    assert play(tmp_path, scene, engine).settled == 16


def test_without_quotas_there_is_no_stage_and_no_ledger(tmp_path):
    gateway = Gateway(RealWorld(), fleet_of(), {}, MemoryRecorder())
    assert gateway.quotas is None
    assert "reserve_quota" not in [stage.__name__ for stage in gateway.stages]
    LedgerService(fleet_of(), RealWorld(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_names_that_callers_invent_take_no_memory(tmp_path):
    each = Quota(name="model", tokens=10**6, per="1h", each=("model",))

    async def scene(house):
        for i in range(300):
            await house.ask(model=f"invented-{i}" * 50)
        await house.ask()
        quotas = house.gateway.quotas
        assert len(quotas.book.lines) == len(quotas._slots) == 2
        accounts = [row.account for row in house.service.rows()]
        assert accounts == ["model|tokens|1h|model=", "model|tokens|1h|model=m"]

    play(tmp_path, scene, Script("e", *TOKENS), quotas=(each,))


def test_what_is_counted_is_on_the_page(tmp_path):
    gateway = Gateway(RealWorld(), fleet_of(HOUR), {}, MemoryRecorder())
    service = LedgerService(fleet_of(), RealWorld(), tmp_path)
    told = {name for name in gateway.vitals() | service.vitals() if name.startswith("sits_ledger")}
    assert told == {name for name in FAMILIES if name.startswith("sits_ledger")}


# ---- the service


def question(holder="gw", seq=1, need=10, used=0):
    line = AskLine("q|tokens|total", 0, 0, 1000, 1, seq, 0, used, 0, 0, need, need)
    return encode(LeaseAsk(holder, seq, (line,)))


def asks(service, worker, body):
    async def main():
        return decode_answer(await service.answer(worker, body))

    return main()


def test_a_dead_worker_gives_back_at_once(tmp_path):
    async def main():
        service = LedgerService(fleet_of(HOUR), RealWorld(), tmp_path)
        await asks(service, 0, question("a", need=300))
        await asks(service, 1, question("b", need=300))
        await service.lost(0)
        await service.lost(0)
        await service.lost(7)
        b = service.rows()[0].balance
        assert (b.leased, b.expired) == (300, 300)
        await service.close()

    asyncio.run(main())


def test_another_ledger_learns_from_the_holders(tmp_path):
    async def main():
        service = LedgerService(fleet_of(HOUR), RealWorld(), tmp_path)
        assert (await asks(service, 0, question(need=100))).lines[0].granted == 100
        service.swap(fleet_of(HOUR, ledger=EmbeddedLedger(dir=str(tmp_path / "other"))))
        line = AskLine("q|tokens|total", 0, 0, 1000, 1, 2, 100, 60, 0, 0, 0, 0)
        told = await asks(service, 0, encode(LeaseAsk("gw", 2, (line,))))
        assert (told.lines[0].granted, told.lines[0].used) == (100, 60)
        assert service.rows()[0].balance.settled == 60
        service.swap(fleet_of(HOUR, ledger=EmbeddedLedger(dir=str(tmp_path / "other"), lease=20 * SECOND)))
        assert (await asks(service, 0, question(seq=3, need=0))).ttl_ns == 20 * SECOND
        assert service.rows()[0].balance.settled == 60
        await service.close()

    asyncio.run(main())


def test_a_ledger_that_cannot_be_opened_later_is_an_outage_that_says_why(tmp_path, monkeypatch):
    monkeypatch.delenv("REDIS_PASSWORD", raising=False)

    async def main():
        service = LedgerService(fleet_of(HOUR), RealWorld(), tmp_path)
        service.swap(
            fleet_of(HOUR, ledger=RedisLedger(url="redis://127.0.0.1:1", password_env="REDIS_PASSWORD"))
        )
        told = await asks(service, 0, question())
        assert isinstance(told, LeaseDown)
        assert "REDIS_PASSWORD is not set" in told.why
        service.swap(fleet_of(HOUR))
        assert isinstance(await asks(service, 0, question()), LeaseGrant)
        assert service.vitals()["sits_ledger_down_total"] == {"": 1}
        await service.close()

    asyncio.run(main())


def test_a_ledger_that_cannot_be_opened_at_first_is_a_configuration_error(tmp_path, monkeypatch):
    monkeypatch.delenv("REDIS_PASSWORD", raising=False)
    with pytest.raises(ConfigError, match="REDIS_PASSWORD"):
        LedgerService(
            fleet_of(HOUR, ledger=RedisLedger(url="redis://x", password_env="REDIS_PASSWORD")),
            RealWorld(),
            tmp_path,
        )
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use") as caught:
        LedgerService(
            fleet_of(HOUR, ledger=EmbeddedLedger(dir=str(tmp_path / "file"))), RealWorld(), tmp_path
        )
    assert caught.value.field == "ledger.dir"
    assert not (tmp_path / FOLDER).exists()
