"""Issuers for tests: key pairs, tokens signed with them, and a real HTTP server that publishes a key set.

Signing is done with `cryptography` and our own few lines, so that a token may be wrong in any way we like.
"""

import base64
import json
import threading
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

NOW_S = 1_800_000_000
HASHES = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def number(value, size=None):
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big")).decode()


def private(kind, which=0):
    """A key pair of a kind (`RSA`, `RSA-1024`, `ES256`.., `EdDSA`); another `which` is another pair."""
    return _pair(kind, which)


@cache
def _pair(kind, which):
    if kind == "EdDSA":
        return ed25519.Ed25519PrivateKey.from_private_bytes(bytes([which]) * 32)
    if kind in CURVES:
        return ec.derive_private_key(0xACCE55 + which, CURVES[kind]())
    return rsa.generate_private_key(public_exponent=65537, key_size=1024 if kind == "RSA-1024" else 2048)


def kind_of(algorithm):
    return algorithm if algorithm in CURVES or algorithm == "EdDSA" else "RSA"


def jwk(kind, kid, which=0, **more):
    """The public half as a JWK."""
    public = private(kind, which).public_key()
    if kind == "EdDSA":
        body = {"kty": "OKP", "crv": "Ed25519", "x": b64(public.public_bytes_raw()).decode()}
    elif kind in CURVES:
        size, point = (public.key_size + 7) // 8, public.public_numbers()
        name = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[kind]
        body = {"kty": "EC", "crv": name, "x": number(point.x, size), "y": number(point.y, size)}
    else:
        numbers = public.public_numbers()
        body = {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
    return {"kid": kid, **body, **more}


def jwks(*keys):
    return json.dumps({"keys": keys}).encode()


def signature(algorithm, key, data):
    if algorithm == "none":
        return b""
    if algorithm.startswith("HS"):
        mac = hmac.HMAC(key, HASHES[algorithm[2:]]())
        mac.update(data)
        return mac.finalize()
    if algorithm == "EdDSA":
        return key.sign(data)
    digest = HASHES[algorithm[2:]]()
    if algorithm.startswith("ES"):
        size = (key.key_size + 7) // 8
        r, s = utils.decode_dss_signature(key.sign(data, ec.ECDSA(digest)))
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")
    if algorithm.startswith("PS"):
        pad = padding.PSS(mgf=padding.MGF1(digest), salt_length=digest.digest_size)
        return key.sign(data, pad, digest)
    return key.sign(data, padding.PKCS1v15(), digest)


CLAIMS = {"iss": "https://id.example", "aud": "sits", "sub": "ann", "exp": NOW_S + 600, "iat": NOW_S - 5}


def token(algorithm="ES256", kid="k1", *, key=None, which=0, header=None, drop=(), **claims):
    """A token; `header` adds to or overrides its header, `drop` leaves claims out."""
    head = {"alg": algorithm, "typ": "JWT", "kid": kid} | (header or {})
    head = {name: value for name, value in head.items() if value is not None}
    body = {name: value for name, value in (CLAIMS | claims).items() if name not in drop}
    signed = b64(json.dumps(head).encode()) + b"." + b64(json.dumps(body).encode())
    return signed + b"." + b64(signature(algorithm, key or private(kind_of(algorithm), which), signed))


class Publisher(ThreadingHTTPServer):
    """Publishes `body` with `status`, or answers `raw`; counts the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body, self.status, self.location, self.asked = b"", 200, "", 0
        self.raw = b""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/keys"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked += 1
        if self.server.raw:
            self.wfile.write(self.server.raw)
            return
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("location", self.server.location)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_):
        """Quiet."""


@contextmanager
def published(*keys):
    """A running Publisher of these keys."""
    server = Publisher()
    server.body = jwks(*keys)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
