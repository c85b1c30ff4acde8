"""Laws of identity: no change to a credential makes its bearer somebody else, and memory changes no answer.

With SITS_SOAK=1 the number of cases grows fifty-fold.
"""

import base64
import hashlib
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from access_tokens import NOW_S, jwk, jwks, private, token
from sits.core.config import load_fleet
from sits.core.errors import AccessError, AuthError
from sits.gateway.access import Access

SOAK = 50 if os.environ.get("SITS_SOAK") == "1" else 1
SECOND = 10**9
SECRETS = {name: f"sits-{name}-{'x' * 40}".encode() for name in ("acme", "beta")}


class Clock:
    def __init__(self):
        self.s = NOW_S

    def wall_ns(self):
        return self.s * SECOND

    def now_ns(self):
        return self.s * SECOND


@pytest.fixture(scope="module")
def configuration(tmp_path_factory):
    """Two tenants, each with a key and an issuer of its own; both issuers use the key id `k1`."""
    folder = tmp_path_factory.mktemp("keys")
    issuers, keys = [], []
    for which, tenant in enumerate(SECRETS):
        path = folder / tenant
        path.write_bytes(jwks(jwk("ES256", "k1", which), jwk("EdDSA", "e1", which)))
        issuers.append(
            {
                "name": tenant,
                "issuer": f"https://{tenant}.example",
                "audience": ["sits"],
                "jwks": str(path),
                "algorithms": ["ES256", "EdDSA"],
                "tenant": tenant,
                "roles_claim": "roles",
            }
        )
        digest = hashlib.sha256(SECRETS[tenant]).hexdigest()
        keys.append({"id": f"{tenant}-key", "tenant": tenant, "sha256": digest})
    access = json.dumps({"keys": keys, "jwt": issuers, "roles": ["admin", "user"]})
    engine = "engines: [{name: e, kind: openai, url: 'http://127.0.0.1:1', models: [m]}]"
    return load_fleet(f"name: f\n{engine}\naccess: {access}\n")


def minted(of, algorithm="ES256", header=None, **claims):
    """A token signed by the issuer of the tenant `of`, whatever it says."""
    kid = "k1" if algorithm == "ES256" else "e1"
    said = {"iss": f"https://{of}.example", **claims}
    return token(algorithm, kid, which=list(SECRETS).index(of), header=header, **said)


def who(access, authorization, api_key=None):
    """The caller, or None for somebody refused."""
    try:
        return access.identify(authorization, api_key)
    except (AuthError, AccessError):
        return None


edits = st.lists(
    st.tuples(st.sampled_from(["flip", "drop", "insert", "double", "swap"]), st.integers(0, 10**6), st.binary(min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)  # fmt: skip


def edited(value, how):
    data = bytearray(value)
    for what, where, more in how:
        at = where % max(len(data), 1)
        if what == "flip" and data:
            data[at] ^= more[0] or 1
        elif what == "drop":
            del data[at : at + len(more)]
        elif what == "insert":
            data[at:at] = more
        elif what == "double":
            data[at:at] = data[at : at + 4 * len(more)]
        elif len(data) > 1:
            other = (at * 7 + more[0]) % len(data)
            data[at], data[other] = data[other], data[at]
    return bytes(data)


@settings(max_examples=100 * SOAK)
@given(tenant=st.sampled_from(sorted(SECRETS)), how=edits, header=st.booleans())
def test_an_edited_key_is_nobodys(configuration, tenant, how, header):
    access = Access(configuration, Clock())
    good = who(access, b"Bearer " + SECRETS[tenant])
    assert good.tenant == tenant
    secret = edited(SECRETS[tenant], how)
    got = who(access, None, secret) if header else who(access, b"Bearer " + secret)
    assert got is None or (got == good and secret.strip() == SECRETS[tenant])


def signed_part(value):
    return value.rpartition(b".")[0]


@settings(max_examples=100 * SOAK)
@given(tenant=st.sampled_from(sorted(SECRETS)), algorithm=st.sampled_from(["ES256", "EdDSA"]), how=edits)
def test_an_edited_token_is_its_own_bearers_or_nobodys(configuration, tenant, algorithm, how):
    access = Access(configuration, Clock())
    whole = minted(tenant, algorithm, sub="ann", roles=["user"])
    good = who(access, b"Bearer " + whole)
    assert (good.tenant, good.roles) == (tenant, ("user",))
    changed = edited(whole, how)
    got = who(access, b"Bearer " + changed)
    # Whoever gets in with it was signed for, byte by byte: a signature may be written in two ways, what it signs may not.
    assert got is None or (got == good and signed_part(changed.strip()) == signed_part(whole))


claim_changes = st.dictionaries(
    st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "roles", "tenant", "jti"]),
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=12),
        st.sampled_from(["https://acme.example", "https://beta.example", "sits", "admin", ["admin"], ["sits"]]),
        st.lists(st.text(max_size=4), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    ),
    min_size=1,
)  # fmt: skip
header_changes = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "crit", "jwk", "jku", "x5c", "b64", "zip"]),
    st.one_of(
        st.none(), st.text(max_size=6),
        st.sampled_from(["none", "HS256", "ES256", "EdDSA", "RS256", "k1", "e1", jwk("ES256", "k1", 1)]),
    ),
)  # fmt: skip


@settings(max_examples=100 * SOAK)
@given(
    tenant=st.sampled_from(sorted(SECRETS)), claims=claim_changes, header=header_changes, resign=st.booleans()
)
def test_whatever_a_token_says_it_is_its_issuers_word(configuration, tenant, claims, header, resign):
    """Any claims, any header: signed by a tenant's own issuer it speaks for that tenant or nobody; unsigned, for nobody."""
    access = Access(configuration, Clock())
    whole = minted(tenant, header=header, **({"sub": "ann"} | claims))
    if not resign:
        honest = minted(tenant, sub="ann")
        if signed_part(whole) == signed_part(honest):
            return
        whole = signed_part(whole) + b"." + honest.rpartition(b".")[2]
    got = who(access, b"Bearer " + whole)
    assert got is None or (resign and got.tenant == tenant and got.key_id.startswith(f"{tenant}/"))


class Remembering(RuleBasedStateMachine):
    """One Access that remembers, against one made anew for each question; time passes, callers come and go."""

    fleet = None

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.access = Access(self.fleet, self.clock)
        self.access._bearers._half = self.access._bare._half = 5000
        self.tokens = [minted("acme"), minted("beta", sub="bob")]

    @rule(tenant=st.sampled_from(sorted(SECRETS)), life=st.integers(1, 100), ahead=st.integers(0, 60))
    def mint(self, tenant, life, ahead):
        start = self.clock.s + ahead
        self.tokens.append(
            minted(tenant, sub=f"user-{len(self.tokens)}", nbf=start, iat=self.clock.s, exp=start + life)
        )

    @rule(seconds=st.integers(0, 90))
    def wait(self, seconds):
        self.clock.s += seconds

    @rule()
    def forget(self):
        self.access.forget()

    @rule(
        data=st.data(),
        how=st.one_of(st.just([]), edits),
        both=st.sampled_from(["bearer", "x-api-key", "both"]),
    )
    def ask(self, data, how, both):
        credentials = [*SECRETS.values(), *self.tokens, b"wrong"]
        one = edited(data.draw(st.sampled_from(credentials)), how)
        other = data.draw(st.sampled_from(credentials))
        headers = {
            "bearer": (b"Bearer " + one, None),
            "x-api-key": (None, one),
            "both": (b"Bearer " + one, other),
        }[both]
        for _ in range(2):
            assert who(self.access, *headers) == who(Access(self.fleet, self.clock), *headers)

    @invariant()
    def bounded(self):
        assert len(self.access._bearers) * 800 <= 10_000
        assert len(self.access._bare) * 800 <= 10_000


def test_memory_changes_no_answer(configuration):
    Remembering.fleet = configuration
    Remembering.TestCase.settings = settings(max_examples=12 * SOAK, stateful_step_count=25, deadline=None)
    Remembering.TestCase().runTest()


@settings(max_examples=80 * SOAK)
@given(st.binary(max_size=80), st.one_of(st.none(), st.binary(max_size=80)))
def test_any_bytes_are_answered(configuration, authorization, api_key):
    access = Access(configuration, Clock())
    for head in (
        authorization,
        b"Bearer " + authorization,
        b"Bearer " + base64.urlsafe_b64encode(authorization),
    ):
        assert who(access, head, api_key) is None


def test_no_private_key_is_made_twice():
    """What the laws lean on: the two issuers really have different keys."""
    assert private("ES256", 0).private_numbers() != private("ES256", 1).private_numbers()
