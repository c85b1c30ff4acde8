"""The shared ledger: many gateways' balances in one Redis or Valkey.

Every line of a question is one call of the script in `redis_script`, all of them in one round trip.  Nothing of a line depends
on another one, and a line that was done twice changes nothing, so a question is simply repeated where Redis had lost the script.

Rules: one hash a balance, `PREFIX:quota:{ACCOUNT}:WINDOW`, which goes an hour after its window ends.  A Redis that does not
answer makes a `LeaseDown`, and the next question tries again.  What Redis itself forgets (a failover, a power cut without
`appendfsync always`) is told by holders again, as far as they live: no use is lost by a gateway that runs, but what was lent
may be lent again.

Deliberately absent: clusters of shards (a balance is one key, so `--cluster` would do; nobody has needed it yet).
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from sits.core.errors import ConfigError
from sits.core.fleet_quota import RedisLedger
from sits.gateway.ledger.authority import Row
from sits.gateway.ledger.gifts import Gift
from sits.gateway.ledger.messages import Answer, LeaseAsk, LeaseDown, LeaseGrant
from sits.gateway.ledger.redis_script import ASK, GIVE, LUA, RELEASE
from sits.policy.lease import Account, AskLine, GrantLine, Lease, balance

KEEP_MS = 3_600_000
TIMEOUT_S = 1.0
US = 1000
"""Nanoseconds of the script's unit of time."""

HOLDERS_MAX, KEYS_MAX = 1024, 16_384
"""What is remembered to release dead holders by name, at most; other leases end by themselves."""


class Redis:
    """The authority of many gateways.

    Args:
        config: where it is; password: from the environment variable the configuration names.
        now_us: a fixed clock for tests; 0 = Redis's own.

    Raises:
        ConfigError: redis-py is not installed.

    """

    def __init__(self, config: RedisLedger, password: str = "", now_us: int = 0) -> None:
        try:
            from redis import asyncio as client  # noqa: PLC0415  # only where a configuration asks for it
            from redis.asyncio.retry import Retry  # noqa: PLC0415
            from redis.backoff import NoBackoff  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "a shared ledger needs redis-py", field="ledger.kind", hint="pip install 'sitsctl[redis]'"
            ) from error
        self.now_us = now_us
        self._prefix = config.prefix
        self._ttl_ns = config.lease
        self._sha = ""
        self._keys: dict[str, dict[str, str]] = {}
        self._redis = client.Redis.from_url(
            config.url,
            password=password or None,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 1),
        )

    async def answer(self, ask: LeaseAsk) -> Answer:
        """Settle and lend; a Redis in trouble is a `LeaseDown`."""
        calls = [self._call(ask.holder, line) for line in ask.lines]
        try:
            told = await self._run(calls)
            now_us = told[-1][0] if told else await self._now_us()
        except errors() as error:
            return LeaseDown(ask.sent_ns, f"Redis: {error or type(error).__name__}")
        self._remember(ask.holder, calls)
        lines = tuple(_told(line, reply) for line, reply in zip(ask.lines, told, strict=True))
        return LeaseGrant(ask.sent_ns, now_us * US, self._ttl_ns, lines)

    async def release(self, holder: str) -> None:
        """Take back what a dead process of this gateway held; if Redis is away, the end of its leases does that."""
        keys = self._keys.pop(holder, {})
        calls = [(key, RELEASE, self.now_us, 0, per, 0, holder) for key, per in keys.items()]
        try:
            await self._run(calls)
        except errors():
            self._keys[holder] = keys

    async def give(self, gift: Gift) -> None:
        """Add to a balance, once for each name of a gift.

        Raises:
            RedisError, OSError: it may have been added or not; give it again, by the same name.

        """
        key = self._key(gift.account, gift.window)
        keep = _keep_ms(gift.per_ns, gift.window)
        per = str(gift.per_ns // US)
        await self._run([(key, GIVE, self.now_us, keep, per, gift.limit, gift.name, gift.amount)])

    async def rows(self) -> list[Row]:
        """Every balance there is."""
        found = []
        now_ns = await self._now_us() * US
        start = f"{self._prefix}:quota:{{"
        async for key in self._redis.scan_iter(match=f"{start}*", count=500):
            account, _, window = _text(key)[len(start) :].rpartition("}:")
            stored = await self._redis.hgetall(key)
            fields = {_text(name): _text(value) for name, value in stored.items()}
            if fields:
                per_ns = int(fields["per"]) * US
                found.append(Row(account, int(window), per_ns, balance(read_account(fields), now_ns)))
        return sorted(found, key=lambda row: (row.account, row.window))

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _call(self, holder: str, line: AskLine) -> tuple[Any, ...]:
        begins_us, per_us = line.window * line.per_ns // US, line.per_ns // US
        return (
            self._key(line.account, line.window),
            ASK,
            self.now_us,
            _keep_ms(line.per_ns, line.window),
            str(per_us),
            line.limit,
            f"{holder}.{line.life}",
            self._ttl_ns // US,
            line.seq,
            line.granted,
            line.used,
            line.returned,
            line.reserved,
            line.need,
            line.want,
            begins_us,
            begins_us + per_us if per_us else 0,
        )

    async def _run(self, calls: list[tuple[Any, ...]]) -> list[Any]:
        from redis import exceptions  # noqa: PLC0415

        if not calls:
            return []
        for _ in range(2):
            if not self._sha:
                self._sha = await self._redis.script_load(LUA)
            async with self._redis.pipeline(transaction=False) as pipe:
                for key, *arguments in calls:
                    pipe.evalsha(self._sha, 1, key, *arguments)
                told: list[Any] = await pipe.execute(raise_on_error=False)
            errors = [reply for reply in told if isinstance(reply, Exception)]
            if not errors:
                return told
            if not isinstance(errors[0], exceptions.NoScriptError):
                raise errors[0]
            self._sha = ""
        raise errors[0]

    async def _now_us(self) -> int:
        if self.now_us:
            return self.now_us
        seconds, us = await self._redis.time()
        return int(seconds) * 1_000_000 + int(us)

    def _key(self, account: str, window: int) -> str:
        return f"{self._prefix}:quota:{{{account}}}:{window}"

    def _remember(self, holder: str, calls: list[tuple[Any, ...]]) -> None:
        if holder not in self._keys and len(self._keys) >= HOLDERS_MAX:
            return
        keys = self._keys.setdefault(holder, {})
        keys.update((call[0], call[4]) for call in calls)
        if len(keys) > KEYS_MAX:
            self._keys[holder] = dict(islice(keys.items(), KEYS_MAX // 2, None))


def errors() -> tuple[type[Exception], ...]:
    """What redis-py raises when Redis is in trouble."""
    from redis import exceptions  # noqa: PLC0415

    return (exceptions.RedisError, OSError)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def read_account(fields: Mapping[str, str]) -> Account:
    """The account that a hash holds."""
    return Account(
        limit=int(fields["limit"]),
        folded=int(fields["folded"]),
        expired=int(fields["expired"]),
        scarce_ns=int(fields["scarce"]) * US,
        gifts={name[2:]: int(value) for name, value in fields.items() if name.startswith("g:")},
        leases=dict(_leases(fields)),
    )


def _leases(fields: Mapping[str, str]) -> Iterator[tuple[str, Lease]]:
    for name, value in fields.items():
        if name.startswith("l:"):
            granted, used, returned, reserved, seq, until_us = map(int, value.split())
            yield name[2:], Lease(granted, used, returned, reserved, seq, until_us * US)


def _told(line: AskLine, reply: list[int]) -> GrantLine:
    _, granted, used, returned, total, free, elsewhere, scarce = reply
    return GrantLine(
        line.account,
        line.window,
        line.life,
        line.seq,
        granted,
        used,
        returned,
        total,
        free,
        elsewhere,
        bool(scarce),
    )


def _keep_ms(per_ns: int, window: int) -> int:
    return (window + 1) * per_ns // 1_000_000 + KEEP_MS if per_ns else 0
