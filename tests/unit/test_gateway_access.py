"""Who is calling: API keys, and the zoo of tokens that must not get in."""

import asyncio
import hashlib
import json
import sys

import msgspec
import pytest

from access_tokens import CLAIMS, NOW_S, b64, jwk, jwks, private, published, signature, token
from sits.core.caller import Caller
from sits.core.config import load_fleet
from sits.core.errors import AccessError, AuthError, CapacityError, ConfigError
from sits.gateway.access import Access
from sits.gateway.signing_keys import MAX_AGE_NS, SPACING_NS, parse_jwks

SECOND = 10**9
SHA = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("alpha", "beta", "old")}

FLEET = """
name: f
gateway: {keys: [plain:sesame, bare]}
access:
  keys:
    - {id: ci, tenant: acme, team: research, roles: [writer, admin], sha256: %(alpha)s}
    - {id: other, tenant: beta, sha256: %(beta)s}
    - {id: gone, tenant: acme, sha256: %(old)s, expires: 2027-01-14}
engines: [{name: e, kind: openai, url: 'http://127.0.0.1:1', models: [m], adapters: [a]}]
"""


class Clock:
    """A world whose clocks the test turns."""

    def __init__(self, wall_s=NOW_S):
        self.wall = wall_s * SECOND
        self.now = 5 * SECOND

    def wall_ns(self):
        return self.wall

    def now_ns(self):
        return self.now

    def pass_s(self, seconds):
        self.wall += round(seconds * SECOND)
        self.now += round(seconds * SECOND)


def fleet_of(jwt=None, more="", policies=()):
    access = {}
    if jwt is not None:
        access["jwt"] = jwt
    if policies:
        access["policies"] = list(policies)
    text = (
        "name: f\nengines: [{name: e, kind: openai, url: 'http://127.0.0.1:1', models: [m], adapters: [a]}]\n"
    )
    return load_fleet(text + "access: " + json.dumps(access | json.loads(more or "{}")) + "\n")


def issuer(source, **more):
    return {
        "name": "corp",
        "issuer": CLAIMS["iss"],
        "audience": ["sits"],
        "jwks": str(source),
        "algorithms": ["ES256", "RS256"],
        "tenant": "acme",
    } | more


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(jwk("ES256", "k1"), jwk("RSA", "r1")))
    return path


@pytest.fixture
def tokens(keys_file):
    return Access(fleet_of([issuer(keys_file)]), Clock())


def bearer(secret):
    return b"Bearer " + secret


def code_of(access, credential):
    with pytest.raises((AuthError, AccessError, CapacityError)) as caught:
        access.identify(bearer(credential))
    error = caught.value
    assert error.body()["error"].keys() == {"message", "type", "param", "code"}
    assert error.status == {AuthError: 401, AccessError: 403, CapacityError: 503}[type(error)]
    for part in credential.split(b"."):
        assert len(part) < 8 or part.decode(errors="replace") not in str(error.body())
    return error.code


# -- API keys ---------------------------------------------------------------------------------------------------


def test_a_key_is_known_by_its_digest_in_either_header():
    access = Access(load_fleet(FLEET % SHA), Clock())
    ci = Caller(tenant="acme", team="research", key_id="ci", kind="key", roles=("admin", "writer"))
    for _ in range(2):  # the second time from memory
        assert access.identify(b"Bearer alpha") == ci
        assert access.identify(b"bearer   alpha ") == ci
        assert access.identify(None, b"alpha") == ci
        assert access.identify(b"Bearer alpha", b"alpha") == ci
        assert access.identify(b"Bearer alpha", b"") == ci
    assert access.identify(b"Bearer sesame").tenant == "plain"
    assert access.identify(b"Bearer bare") == Caller(tenant="default", key_id="gateway.keys[1]", kind="key")


@pytest.mark.parametrize(
    ("authorization", "api_key", "code"),
    [
        (None, None, "missing_api_key"),
        (None, b"", "missing_api_key"),
        (b"", None, "unsupported_scheme"),
        (b"Basic YTpi", None, "unsupported_scheme"),
        (b"Basic YTpi", b"alpha", "unsupported_scheme"),
        (b"Bearer", None, "unsupported_scheme"),
        (b"Bearer ", None, "invalid_api_key"),
        (b"Bearer Alpha", None, "invalid_api_key"),
        (b"Bearer alphaa", None, "invalid_api_key"),
        (b"Bearer alpha, Bearer beta", None, "invalid_api_key"),
        (b"alpha", None, "unsupported_scheme"),
        (None, b"Bearer alpha", "invalid_api_key"),
        (None, b"alpha\x00", "invalid_api_key"),
        (b"Bearer " + SHA["alpha"].encode(), None, "invalid_api_key"),
        (b"Bearer alpha", b"beta", "conflicting_credentials"),
        (b"Bearer alpha", b"wrong", "invalid_api_key"),
        (b"Bearer \xff\xfe", None, "invalid_api_key"),
    ],
)
def test_what_is_not_a_key(authorization, api_key, code):
    access = Access(load_fleet(FLEET % SHA), Clock())
    access.identify(b"Bearer alpha")
    access.identify(None, b"alpha")
    for _ in range(2):
        with pytest.raises(AuthError) as caught:
            access.identify(authorization, api_key)
        assert (caught.value.code, caught.value.status) == (code, 401)


def test_a_key_ends_with_its_last_day_also_when_it_is_remembered():
    clock = Clock(wall_s=1_799_971_199)  # 2027-01-14 23:59:59 UTC
    access = Access(load_fleet(FLEET % SHA), clock)
    assert access.identify(b"Bearer old").key_id == "gone"
    assert access.identify(b"Bearer old").key_id == "gone"
    clock.pass_s(1)
    with pytest.raises(AuthError, match="'gone' has expired"):
        access.identify(b"Bearer old")
    assert access.identify(b"Bearer alpha").key_id == "ci"


def test_where_nothing_identifies_callers_everyone_is_who_the_request_says():
    access = Access(fleet_of(), Clock())
    assert access.identify(None, None, "t1") == Caller(tenant="t1")
    assert access.identify(b"Bearer anything", b"x", "t1") == Caller(tenant="t1")
    assert access.identify(None) is access.identify(None)


def test_refused_credentials_are_not_remembered_and_memory_is_bounded(keys_file):
    access = Access(load_fleet(FLEET % SHA), Clock())
    for i in range(2000):
        with pytest.raises(AuthError):
            access.identify(b"Bearer no-%d" % i)
    assert len(access._bearers) == 0
    tokens = Access(fleet_of([issuer(keys_file)]), Clock())
    tokens._bearers._half = 20_000
    for i in range(60):
        assert tokens.identify(bearer(token(sub=f"user-{i}"))).key_id == f"corp/user-{i}"
    assert 0 < len(tokens._bearers) < 40


# -- tokens -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm", ["RS256", "RS512", "PS256", "PS384", "ES256", "ES384", "ES512", "EdDSA"]
)
def test_every_algorithm(algorithm, tmp_path):
    kind = "RSA" if algorithm[1] == "S" and algorithm[0] in "RP" else algorithm
    path = tmp_path / "k"
    path.write_bytes(jwks(jwk(kind, "k1", alg=algorithm), jwk("ES256", "other", 7)))
    access = Access(fleet_of([issuer(path, algorithms=[algorithm])]), Clock())
    caller = access.identify(bearer(token(algorithm)))
    assert caller == Caller(tenant="acme", key_id="corp/ann", kind="user")
    assert access.identify(bearer(token(algorithm))) == caller
    assert access.identify(None, token(algorithm)) == caller
    assert code_of(access, token(algorithm, which=1)) == "invalid_signature"


ES = private("ES256")
ZOO = {
    "no algorithm": (lambda: token("none", header={"alg": "none"}), "algorithm_not_allowed"),
    "None with a signature": (lambda: token(header={"alg": "None"}), "algorithm_not_allowed"),
    "nOnE, unsigned": (lambda: token("none", header={"alg": "nOnE"}), "algorithm_not_allowed"),
    "HMAC keyed with the public key": (
        lambda: token("HS256", key=json.dumps(jwk("ES256", "k1")).encode()),
        "algorithm_not_allowed",
    ),
    "HMAC keyed with nothing": (lambda: token("HS256", key=b"\0"), "algorithm_not_allowed"),
    "an algorithm its issuer does not use": (lambda: token("EdDSA"), "algorithm_not_allowed"),
    "an algorithm that is a list": (lambda: token(header={"alg": ["ES256"]}), "algorithm_not_allowed"),
    "an algorithm of another key": (lambda: token("RS256", kid="k1"), "signing_key_mismatch"),
    "another's signature": (lambda: token(which=3), "invalid_signature"),
    "no signature": (lambda: token().rpartition(b".")[0] + b".", "invalid_signature"),
    "a DER signature": (
        lambda: token().rpartition(b".")[0] + b"." + b64(ES.sign(b"x", _ecdsa())),
        "invalid_signature",
    ),
    "an all-zero signature": (
        lambda: token().rpartition(b".")[0] + b"." + b64(bytes(64)),
        "invalid_signature",
    ),
    "two parts": (lambda: b".".join(token().split(b".")[:2]) + b"..", "malformed_token"),
    "five parts": (lambda: b"a.b.c.d.e", "malformed_token"),
    "not base64": (lambda: b"***." + token().partition(b".")[2], "malformed_token"),
    "standard base64": (lambda: token().replace(b".", b"+.", 1), "malformed_token"),
    "padded": (lambda: token().replace(b".", b"=.", 1), "malformed_token"),
    "not JSON": (lambda: b64(b"{") + b"." + token().partition(b".")[2], "malformed_token"),
    "a list": (lambda: b64(b"[]") + b"." + token().partition(b".")[2], "malformed_token"),
    "nested without end": (lambda: b64(b"[" * 5000) + b"." + token().partition(b".")[2], "malformed_token"),
    "too long": (lambda: token(filler="x" * 16_384), "malformed_token"),
    "critical extensions": (lambda: token(header={"crit": ["exp"], "exp": 1}), "malformed_token"),
    "an unencoded payload": (lambda: token(header={"b64": False}), "malformed_token"),
    "a key id that is a number": (lambda: token(header={"kid": 1}), "malformed_token"),
    "a key of its own": (lambda: token(which=9, header={"jwk": jwk("ES256", "k1", 9)}), "invalid_signature"),
    "a key elsewhere": (
        lambda: token(which=9, kid="evil", header={"jku": "https://evil.example/keys"}),
        "unknown_signing_key",
    ),
    "no key id, a foreign key": (lambda: token("RS256", header={"kid": None}, which=5), "invalid_signature"),
    "expired": (lambda: token(exp=NOW_S - 30), "token_expired"),
    "expired long ago": (lambda: token(exp=-(10**30)), "token_expired"),
    "without an end": (lambda: token(drop=["exp"]), "invalid_claim"),
    "an end in words": (lambda: token(exp="tomorrow"), "invalid_claim"),
    "an end that is true": (lambda: token(exp=True), "invalid_claim"),
    "not yet": (lambda: token(nbf=NOW_S + 31), "token_not_yet_valid"),
    "from the future": (lambda: token(iat=NOW_S + 31), "token_not_yet_valid"),
    "for nobody": (lambda: token(drop=["aud"]), "wrong_audience"),
    "for another": (lambda: token(aud="billing"), "wrong_audience"),
    "for others": (lambda: token(aud=["billing", "SITS"]), "wrong_audience"),
    "for something that is not text": (lambda: token(aud=[1, "sits"]), "wrong_audience"),
    "of nobody": (lambda: token(drop=["iss"]), "unknown_issuer"),
    "of another": (lambda: token(iss="https://id.example/"), "unknown_issuer"),
    "of a list": (lambda: token(iss=["https://id.example"]), "unknown_issuer"),
    "about nobody": (lambda: token(drop=["sub"]), "invalid_claim"),
    "about an empty name": (lambda: token(sub=" "), "invalid_claim"),
    "about two lines": (lambda: token(sub="ann\nadmin"), "invalid_claim"),
    "about a number": (lambda: token(sub=7), "invalid_claim"),
    "about everything": (lambda: token(sub="x" * 300), "invalid_claim"),
}


def _ecdsa():
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA(hashes.SHA256())


@pytest.mark.parametrize("what", ZOO)
def test_the_zoo(what, tokens):
    make, code = ZOO[what]
    tokens.identify(bearer(token()))
    hostile = make()
    for _ in range(2):
        assert code_of(tokens, hostile) == code
    assert len(tokens._bearers) == 1


def test_times_hold_within_the_skew_and_a_remembered_token_ends_too(keys_file):
    clock = Clock()
    access = Access(fleet_of([issuer(keys_file, clock_skew="30s")]), clock)
    access.identify(bearer(token(exp=NOW_S - 29, nbf=NOW_S + 30)))
    one = bearer(token(exp=NOW_S + 60))
    clock.pass_s(89)
    assert access.identify(one) is access.identify(one)
    clock.pass_s(1)
    with pytest.raises(AuthError) as caught:
        access.identify(one)
    assert caught.value.code == "token_expired"


def test_a_token_without_key_id_takes_the_only_key_that_fits(tokens, keys_file):
    assert tokens.identify(bearer(token(header={"kid": None}))).key_id == "corp/ann"
    keys_file.write_bytes(jwks(jwk("ES256", "k1"), jwk("ES256", "k2", 2)))
    several = Access(fleet_of([issuer(keys_file)]), Clock())
    assert code_of(several, token(header={"kid": None})) == "missing_key_id"


def test_tenant_team_roles_and_claims_come_from_where_the_configuration_says(keys_file):
    entry = issuer(
        keys_file,
        tenant_claim="https://acme.com/tenant",
        team_claim="team",
        roles_claim="realm_access.roles",
        claims=[
            {"name": "plan"},
            {"name": "groups", "kind": "list"},
            {"name": "seats"},
            {"name": "beta", "claim": "flags.beta"},
            {"name": "scope", "kind": "list"},
        ],
    )
    del entry["tenant"]
    access = Access(fleet_of([entry], more='{"roles": ["operator", "viewer"]}'), Clock())
    got = access.identify(
        bearer(
            token(
                **{"https://acme.com/tenant": "acme", "team": "research", "plan": "gold", "seats": 12},
                realm_access={"roles": ["viewer", "offline_access", "operator"]},
                groups=["b", "a", "a"],
                flags={"beta": True},
                scope="read write",
            )
        )
    )
    assert (got.tenant, got.team, got.roles) == ("acme", "research", ("operator", "viewer"))
    assert got.claims == {
        "plan": "gold",
        "seats": "12",
        "beta": "true",
        "groups": ("a", "b"),
        "scope": ("read", "write"),
    }
    assert hash(got) == hash(msgspec.structs.replace(got))
    with pytest.raises(TypeError, match="do not change"):
        got.claims["plan"] = "free"
    tenant = {"https://acme.com/tenant": "acme"}
    assert code_of(access, token()) == "invalid_claim"
    assert code_of(access, token(**tenant, team=["x"])) == "invalid_claim"
    assert code_of(access, token(**tenant, team="a/b")) == "unknown_team"
    assert code_of(access, token(**tenant, groups={"a": 1})) == "invalid_claim"
    assert code_of(access, token(**tenant, plan=["gold"])) == "invalid_claim"
    assert code_of(access, token(**tenant, realm_access={"roles": [1]})) == "invalid_claim"
    assert code_of(access, token(**{"https://acme.com/tenant": "a/b"})) == "unknown_tenant"


def test_an_issuer_speaks_only_for_its_tenants(keys_file):
    entry = issuer(keys_file, tenant_claim="tid")
    del entry["tenant"]
    assert Access(fleet_of([entry]), Clock()).identify(bearer(token(tid="anybody"))).tenant == "anybody"
    own = Access(fleet_of([entry | {"tenants": ["acme"]}]), Clock())
    assert own.identify(bearer(token(tid="acme"))).tenant == "acme"
    assert code_of(own, token(tid="beta")) == "unknown_tenant"
    listed = '{"tenants": [{"name": "acme", "teams": ["x"]}, {"name": "beta"}]}'
    served = Access(fleet_of([entry | {"team_claim": "team"}], more=listed), Clock())
    assert served.identify(bearer(token(tid="acme", team="x"))).team == "x"
    assert code_of(served, token(tid="gamma")) == "unknown_tenant"
    assert code_of(served, token(tid="beta", team="x")) == "unknown_team"


def test_two_issuers_one_subject_are_two_users(keys_file, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(jwks(jwk("ES256", "k1", 4)))
    both = [issuer(keys_file), issuer(other, name="beta", issuer="https://b.example", tenant="beta")]
    access = Access(fleet_of(both), Clock())
    assert access.identify(bearer(token())).key_id == "corp/ann"
    got = access.identify(bearer(token(which=4, iss="https://b.example")))
    assert (got.key_id, got.tenant) == ("beta/ann", "beta")
    assert code_of(access, token(iss="https://b.example")) == "invalid_signature"


def test_keys_and_tokens_together(keys_file):
    fleet = load_fleet(FLEET % SHA)
    mixed = msgspec.structs.replace(
        fleet, access=msgspec.structs.replace(fleet.access, jwt=fleet_of([issuer(keys_file)]).access.jwt)
    )
    access = Access(mixed, Clock())
    assert access.identify(b"Bearer alpha").key_id == "ci"
    assert access.identify(bearer(token())).key_id == "corp/ann"
    with pytest.raises(AuthError) as caught:
        access.identify(b"Bearer alpha", token())
    assert caught.value.code == "conflicting_credentials"


# -- signing keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "not JSON"),
        (b"[]", "no list"),
        (b'{"keys": {}}', "no list"),
        (b'{"keys": []}', "no usable key"),
        (b'{"keys": [1, {"kty": "oct", "k": "AAAA"}]}', "no usable key"),
        (jwks({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}), "broken"),
        (jwks({"kty": "EC", "crv": "P-256"}), "broken"),
        (jwks(jwk("ES256", "k1") | {"d": "AAAA"}), "private"),
        (jwks(jwk("RSA-1024", "k1")), "no usable key"),
        (jwks(jwk("ES256", "k1", use="enc")), "no usable key"),
        (jwks(jwk("ES256", "k1", key_ops=["sign"])), "no usable key"),
    ],
)
def test_key_sets_that_are_not_believed(body, what, tmp_path):
    with pytest.raises(ConfigError, match=what):
        parse_jwks(body)
    path = tmp_path / "bad"
    path.write_bytes(body)
    with pytest.raises(ConfigError, match=r"access\.jwt"):
        Access(fleet_of([issuer(path)]), Clock())


def test_a_key_set_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        Access(fleet_of([issuer(tmp_path / "none")]), Clock())


def test_an_algorithm_named_in_the_set_is_the_only_one_for_its_key(tmp_path):
    path = tmp_path / "k"
    path.write_bytes(jwks(jwk("RSA", "k1", alg="RS512")))
    access = Access(fleet_of([issuer(path, algorithms=["RS256", "RS512"])]), Clock())
    assert access.identify(bearer(token("RS512")))
    assert code_of(access, token("RS256")) == "signing_key_mismatch"


class Kept:
    """An Access whose keys are kept fresh; `fetched()` waits for the next fetch to be over, whatever came of it."""

    def __init__(self, access):
        self.access, self.signing = access, access._signing
        (self.keys,) = self.signing.sets.values()

    async def __aenter__(self):
        self._over, taken = asyncio.Event(), self.signing._taken

        def told(*what):
            taken(*what)
            self._over.set()

        self.signing._taken = told
        self.access.start()
        await self.fetched()
        return self

    async def fetched(self):
        await self._over.wait()
        self._over.clear()

    async def __aexit__(self, *_):
        self.access.close()


def test_rotation_with_a_real_server():
    async def run(server, clock):
        access = Access(fleet_of([issuer(server.url)]), clock)
        assert code_of(access, token()) == "signing_keys_unavailable"
        async with Kept(access) as kept:
            assert access.identify(bearer(token())).key_id == "corp/ann"
            # A key nobody knows, right after a fetch: refused, and nobody is asked.
            assert code_of(access, token(kid="k2", which=2)) == "unknown_signing_key"
            assert server.asked == 1
            # The issuer rotates: the new key's first token asks for the set and is told to come back.
            server.body = jwks(jwk("ES256", "k2", 2))
            clock.pass_s(SPACING_NS / SECOND)
            assert code_of(access, token(kid="k2", which=2)) == "signing_keys_unavailable"
            await kept.fetched()
            assert access.identify(bearer(token(kid="k2", which=2))).key_id == "corp/ann"
            # The old key is gone, and with it what it had signed, though it was remembered.
            assert code_of(access, token()) == "unknown_signing_key"
            assert server.asked == 2
            # Made-up key ids: one more fetch, however many come.
            clock.pass_s(SPACING_NS / SECOND)
            assert {code_of(access, token(kid=f"x{i}")) for i in range(50)} == {"signing_keys_unavailable"}
            await kept.fetched()
            assert {code_of(access, token(kid=f"x{i}")) for i in range(50)} == {"unknown_signing_key"}
            assert server.asked == 3

    with published(jwk("ES256", "k1")) as server:
        asyncio.run(run(server, Clock()))


def test_keys_are_renewed_before_they_are_missed_and_hold_while_the_issuer_fails():
    async def run(server, clock):
        access = Access(fleet_of([issuer(server.url, refresh="60s")]), clock)
        async with Kept(access) as kept:
            server.body = jwks(jwk("ES256", "k1"), jwk("ES256", "k2", 2))
            clock.pass_s(60)
            kept.signing._wake.set()  # what the timer does on a clock that runs by itself
            await kept.fetched()
            assert len(kept.keys.keys) == 2
            for status, body, location, raw in [
                (500, b"", "", b""),
                (200, b"<html>", "", b""),
                (302, b"", "http://127.0.0.1:1/evil", b""),
                (200, b" " * (2**20 + 1), "", b""),
                (0, b"", "", b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
                (0, b"", "", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"),
            ]:
                server.status, server.body, server.location, server.raw = status, body, location, raw
                clock.pass_s(60)
                kept.signing._wake.set()
                await kept.fetched()
                assert kept.keys.problem.startswith(server.url)
                assert access.identify(bearer(token(sub=f"s{clock.now}")))
                assert code_of(access, token(kid="new", which=3)) == "signing_keys_unavailable"
            assert server.asked == 8
            clock.pass_s(MAX_AGE_NS / SECOND)
            fresh = token(sub="later", iat=clock.wall // SECOND, exp=clock.wall // SECOND + 60)
            assert code_of(access, fresh) == "signing_keys_unavailable"

    with published(jwk("ES256", "k1")) as server:
        asyncio.run(run(server, Clock()))


def test_a_new_configuration_keeps_the_keys_it_shares_with_the_last_one():
    with published(jwk("ES256", "k1")) as server:
        clock = Clock()
        first = Access(fleet_of([issuer(server.url)]), clock)
        assert first.load() == []
        second = Access(fleet_of([issuer(server.url, tenant="beta")]), clock, previous=first)
        assert second.identify(bearer(token())).tenant == "beta"
        assert server.asked == 1
        # The one before still answers what it began; either may fetch, and both then know that the old key is gone.
        clock.pass_s(SPACING_NS / SECOND)
        assert first.identify(bearer(token())).tenant == "acme"
        server.body = jwks(jwk("ES256", "k2", 2))
        assert code_of(second, token(kid="k2", which=2)) == "signing_keys_unavailable"
        assert first.load() == []
        assert second.identify(bearer(token(kid="k2", which=2))).tenant == "beta"
        assert [code_of(one, token()) for one in (first, second)] == ["unknown_signing_key"] * 2
        third = Access(fleet_of([issuer("https://elsewhere.example/keys")]), clock, previous=second)
        assert code_of(third, token()) == "signing_keys_unavailable"


def test_an_issuer_that_is_not_there_is_told(tmp_path):
    with published() as server:
        url = server.url
    access = Access(fleet_of([issuer(url)]), Clock())
    (problem,) = access.load()
    assert problem.startswith(url)
    with pytest.raises(CapacityError) as caught:
        access.identify(bearer(token()))
    assert caught.value.retry_after_s >= 1


def test_without_the_packages_the_way_to_them_is_told(monkeypatch, keys_file):
    monkeypatch.setitem(sys.modules, "jwt.algorithms", None)
    with pytest.raises(ConfigError, match=r"pip install 'sitsctl\[jwt\]'"):
        Access(fleet_of([issuer(keys_file)]), Clock())


# -- what callers may do ----------------------------------------------------------------------------------------


def test_denials_say_what_was_asked_and_nothing_else():
    access = Access(fleet_of(policies=['@id("nobody") forbid(principal, action, resource);']), Clock())
    decision = access.decide(access.identify(None), "infer", "m")
    assert (decision.outcome, decision.reasons["policies"]) == ("denied_by_policy", ("nobody",))
    with pytest.raises(AccessError) as caught:
        access.refuse(decision, "infer", "m")
    assert (caught.value.status, caught.value.code) == (403, "access_denied")
    assert "nobody" not in str(caught.value.body())
    anyone = Access(fleet_of(), Clock())
    anyone.refuse(anyone.decide(Caller(), "infer", "m"), "infer", "m")


def test_made_up_names_evict_nothing_and_long_headers_stay_bounded():
    policy = 'permit(principal, action, resource) when {context.headers has "x-a"};'
    access = Access(fleet_of(policies=[policy], more='{"headers": ["x-a"]}'), Clock())
    caller = access.identify(None)
    access.decide(caller, "infer", "m", headers=("v",))
    for i in range(500):
        assert access.decide(caller, "infer", f"made-up-{i}", headers=("v",)).outcome == "allowed"
    assert (len(access._decisions), len(access._seen)) == (1, 1)
    for i in range(100):
        access.decide(caller, "infer", "m", headers=(f"{i}" + "x" * 60_000,))
    assert len(access._seen) * 60_000 < 3 * 2**20
    assert len(access._decisions) * 60_000 < 9 * 2**20


def test_policies_are_compiled_anew_only_when_they_are_others():
    policies = ["permit(principal, action, resource);"]
    first = Access(fleet_of(policies=policies), Clock())
    assert Access(fleet_of(policies=policies), Clock(), first).policy is first.policy
    assert (
        Access(fleet_of(policies=[*policies, "forbid(principal, action, resource);"]), Clock(), first).policy
        is not first.policy
    )
    assert Access(fleet_of(), Clock(), first).policy is None
    other = Access(fleet_of(policies=policies, more='{"headers": ["x-a"]}'), Clock(), first)
    assert other.policy.names.headers == ("x-a",)


def test_headers_that_policies_look_at():
    access = Access(
        fleet_of(policies=["permit(principal, action, resource);"], more='{"headers": ["x-a", "x-b"]}'),
        Clock(),
    )
    assert access.chosen({b"x-b": b"caf\xe9", b"x-c": b"no"}) == (None, "café")
    assert Access(fleet_of(), Clock()).chosen({b"x-b": b"1"}) == ()


def test_the_list_of_models_shows_what_the_caller_may_use():
    policies = [
        'permit(principal in Tenant::"acme", action == Action::"infer", resource == Model::"m");',
        'permit(principal in Tenant::"beta", action == Action::"list_models", resource == Adapter::"a");',
        'permit(principal in Tenant::"acme", action == Action::"deploy", resource);',
    ]
    fleet = fleet_of(
        policies=policies, more='{"tenants": [{"name": "acme"}, {"name": "beta"}, {"name": "c"}]}'
    )
    access = Access(fleet, Clock())
    names = {"m": ("m", ""), "a": ("m", "a")}

    def listed(tenant):
        return access.visible(Caller(tenant=tenant), names.items())

    assert [listed("acme"), listed("beta"), listed("c")] == [["m"], ["a"], []]
    assert Access(fleet_of(), Clock()).visible(Caller(), names.items()) == ["m", "a"]


def test_signatures_are_made_as_the_field_makes_them():
    """Our own signer, against the library's reader, so that the zoo cannot pass by being gibberish."""
    import jwt

    for algorithm in ("RS256", "PS256", "ES256", "EdDSA"):
        key = private("RSA" if algorithm[1] == "S" and algorithm[0] in "RP" else algorithm).public_key()
        got = jwt.decode(
            token(algorithm),
            key,
            [algorithm],
            options={"verify_aud": False, "verify_exp": False, "verify_iat": False},
        )
        assert got["sub"] == "ann"
    assert len(signature("HS256", b"k", b"data")) == 32
