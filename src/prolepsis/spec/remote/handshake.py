"""The handshake of an engine and a propose server: each proves that it has the key, before any token travels.

A challenge and its answer by HMAC-SHA256, in both directions: the engine proves itself first, so that a stranger who
connects learns nothing that depends on the key. The engine's proof covers its vocabulary, the server's its terms.
After it the connection itself is trusted; where others are on the network, TLS keeps them out (decision 0031).
Replicas of Ray Serve, whose secrets are random and live as long as they, have a shorter one (`ray.connection`).
"""

import hmac
import struct
from dataclasses import astuple
from pathlib import Path

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import read_text
from prolepsis.spec.remote.wire import SCOPE_BYTES, VERSION, Challenge, Hello, Proof, Terms, Welcome

LEAST_KEY = 32
"""Characters."""


class SharedKey:
    """The key that engines and their propose servers share. Each use of it has a label of its own."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def read(cls, file: Path, param: str) -> "SharedKey":
        """Read the key in a file; raises `ConfigError` for a short one."""
        text = read_text(file, "key file").strip()
        if len(text) < LEAST_KEY:
            made_by = "openssl rand -hex 32"
            message = (
                f"key file {file} holds {len(text)} characters; allowed: at least {LEAST_KEY}, as `{made_by}` makes"
            )
            raise ConfigError(message, param=param)
        return cls(text.encode())

    def scope(self, cache_salt: str) -> bytes:
        """Return what stands for a cache salt outside the engine."""
        return self._mac(b"scope", cache_salt.encode("utf-8", "surrogatepass"))[:SCOPE_BYTES]

    def proof(self, hello: Hello, challenge: Challenge, vocabulary: bytes) -> Proof:
        """Return the engine's proof."""
        return Proof(vocabulary, self._mac(b"engine", hello.nonce + challenge.nonce + vocabulary))

    def welcome(self, hello: Hello, challenge: Challenge, terms: Terms) -> Welcome:
        """Return the server's proof."""
        facts = struct.pack("<3I", *astuple(terms))
        return Welcome(terms, self._mac(b"server", hello.nonce + challenge.nonce + facts))

    def proves(self, hello: Hello, challenge: Challenge, given: Proof | Welcome) -> bool:
        """Return whether the other side has this key."""
        if isinstance(given, Proof):
            expected = self.proof(hello, challenge, given.vocabulary).mac
        else:
            expected = self.welcome(hello, challenge, given.terms).mac
        return hmac.compare_digest(given.mac, expected)

    def _mac(self, label: bytes, message: bytes) -> bytes:
        return hmac.digest(self._secret, b"prolepsis propose %d %b\0" % (VERSION, label) + message, "sha256")
