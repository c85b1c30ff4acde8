"""Access on real sockets, with the clients of the field: keys in both headers, tokens, rotation, policies, the list of models."""

import hashlib

import anthropic
import openai
import pytest

from access_tokens import jwk, jwks, published, token
from gateway_upstream import CHAT, House, live, post
from sits.core.access_names import ENDPOINTS
from sits.core.fleet_access import Access, Issuer, Key, Tenant
from sits.gateway.openai_api import PARSERS
from sits.world import RealWorld

MESSAGES = [{"role": "user", "content": "hi"}]
KEYS = tuple(
    Key(id=name, tenant=tenant, sha256=hashlib.sha256(name.encode()).hexdigest())
    for name, tenant in (("alpha", "acme"), ("beta", "beta"))
)
POLICIES = (
    '@id("acme") permit(principal in Tenant::"acme", action in Action::"use", resource in Model::"m");',
    '@id("no-adapter") forbid(principal, action, resource == Adapter::"lora-x") unless { principal is User };',
    '@id("look") permit(principal in Tenant::"beta", action == Action::"list_models", resource == Model::"m");',
)


def client(house, key, **more):
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{house.port}/v1", api_key=key, **{"max_retries": 0, **more}
    )


async def ask(sdk, model="m"):
    return await sdk.chat.completions.create(model=model, messages=MESSAGES)


async def listed(sdk):
    return [model.id async for model in sdk.models.list()]


@live
async def test_a_caller_may_do_what_policies_permit_and_sees_no_more():
    async with House(access=Access(keys=KEYS, policies=POLICIES)) as house:
        async with client(house, "alpha") as acme, client(house, "beta") as beta:
            await ask(acme)
            assert await listed(acme) == ["m"]
            assert await listed(beta) == ["m"]
            for sdk, model in ((acme, "lora-x"), (beta, "m"), (beta, "made-up"), (acme, "made-up")):
                with pytest.raises(openai.PermissionDeniedError) as caught:
                    await ask(sdk, model)
                assert caught.value.body["code"] == "access_denied"
                assert caught.value.body["message"].startswith(f"infer of '{model}' is not allowed")
                assert "no-adapter" not in caught.value.response.text
            with pytest.raises(openai.PermissionDeniedError, match="embed of 'm'"):
                await beta.embeddings.create(model="m", input="hi")
        assert [hit.path for hit in house.up.hits] == ["/v1/chat/completions"]
        assert [(row["tenant"], row["status"], row["detail"]) for row in house.rows[:2]] == [
            ("acme", 200, ""),
            ("acme", 403, "access_denied"),
        ]


@live
async def test_anthropics_header_and_both_at_once():
    async with House(access=Access(keys=KEYS)) as house:
        sdk = anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{house.port}", api_key="alpha", max_retries=0
        )
        async with sdk:
            await sdk.messages.create(model="m", max_tokens=9, messages=MESSAGES)
        assert house.rows[0]["tenant"] == "acme"
        wrong = anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{house.port}", api_key="no", max_retries=0
        )
        async with wrong:
            with pytest.raises(anthropic.AuthenticationError):
                await wrong.messages.create(model="m", max_tokens=9, messages=MESSAGES)
        got = await house.raw(post(CHAT, authorization="Bearer alpha", x_api_key="beta"), until=b"}}")
        assert b" 401 " in got.partition(b"\r\n")[0]
        assert b"conflicting_credentials" in got
        assert b"\r\nwww-authenticate: Bearer\r\n" in got
        twice = b"Authorization: Bearer alpha\r\nAuthorization: Bearer beta\r\n"
        got = await house.raw(post(CHAT).replace(b"Host: h\r\n", b"Host: h\r\n" + twice), until=b"}}")
        assert b"invalid_api_key" in got
        got = await house.raw(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n", until=b"}}")
        assert b"missing_api_key" in got
        assert b"\r\nwww-authenticate: Bearer\r\n" in got


@live
async def test_a_token_of_a_key_just_rotated_is_answered_after_a_retry_of_the_clients_own():
    with published(jwk("ES256", "k1")) as server:
        issuer = Issuer(
            name="corp",
            issuer="https://id.example",
            audience=("sits",),
            jwks=server.url,
            algorithms=("ES256",),
            tenant="acme",
        )
        tenants = (Tenant(name="acme"), Tenant(name="beta"))
        async with House(access=Access(jwt=(issuer,), tenants=tenants, policies=POLICIES)) as house:
            now_s = RealWorld().wall_ns() // 10**9
            times = {"iat": now_s, "exp": now_s + 60}
            (keys,) = house.gateway.access._signing.sets.values()
            async with client(house, token(**times).decode(), max_retries=3) as ann:
                await ask(ann)
                await ask(ann, "lora-x")
            keys._next_ns = 0  # long after the last fetch
            server.body = jwks(jwk("ES256", "k2", 2))
            async with client(house, token(kid="k2", which=2, **times).decode(), max_retries=3) as ann:
                await ask(ann)
            async with client(house, token(**times).decode(), max_retries=0) as ann:
                with pytest.raises(openai.AuthenticationError) as caught:
                    await ask(ann)
                assert caught.value.body["code"] == "unknown_signing_key"
            assert {row["tenant"] for row in house.rows if row["status"] == 200} == {"acme"}
            assert house.rows[-1]["detail"] == "unknown_signing_key"


def test_every_endpoint_can_be_named_in_a_policy():
    assert {path.decode() for path in PARSERS} <= set(ENDPOINTS)
