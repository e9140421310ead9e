"""Sealed bundles: encrypted for a recipient's key (HPKE, RFC 9180) or with a passphrase (scrypt, ChaCha20-Poly1305)."""

import secrets
from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from pydantic import TypeAdapter, ValidationError

from prolepsis.core.errors import ConfigError

FORMAT: Literal["prolepsis sealed bundle 1"] = "prolepsis sealed bundle 1"
SCRYPT_COST = 2**17
"""With blocks of 1 KiB: 128 MiB and a few tenths of a second for each guess."""
_MOST_COST = 2**20
_SUITE = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
_NONCE_BYTES, _SALT_BYTES = 12, 16
_HOW = "made by `openssl genpkey -algorithm X25519` and `openssl pkey -pubout`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    format: Literal["prolepsis sealed bundle 1"] = FORMAT
    recipient: str
    """The first 16 digits of the SHA-256 of the recipient's public key; empty: a passphrase opens it."""
    salt: str
    cost: int
    """Cost parameter of scrypt; 0 for a recipient's key."""
    content: str
    """Base64."""


_SEALED = TypeAdapter(Sealed)


def seal_for(content: bytes, recipient: X25519PublicKey) -> bytes:
    """Return the content so that only the recipient's private key opens it."""
    sealed = _SUITE.encrypt(content, recipient, FORMAT.encode())
    return _written(Sealed(recipient=name_of(recipient), salt="", cost=0, content=b64encode(sealed).decode()))


def seal_with(content: bytes, passphrase: str, *, cost: int = SCRYPT_COST) -> bytes:
    """Return the content so that only the passphrase opens it."""
    salt, nonce = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_NONCE_BYTES)
    sealed = nonce + ChaCha20Poly1305(_derived(passphrase, salt, cost)).encrypt(nonce, content, FORMAT.encode())
    text, salted = b64encode(sealed).decode(), b64encode(salt).decode()
    return _written(Sealed(recipient="", salt=salted, cost=cost, content=text))


def is_sealed(text: bytes) -> bool:
    return FORMAT.encode() in text[:200]


def opened(text: bytes, name: str, key: X25519PrivateKey | None, passphrase: str | None) -> bytes:
    """Return the content of the sealed file `name`; raises `ConfigError` that says what opens it."""
    try:
        sealed = _SEALED.validate_json(text)
        content, salt = b64decode(sealed.content, validate=True), b64decode(sealed.salt, validate=True)
    except (ValidationError, ValueError):
        raise ConfigError(f"{name} is not a sealed bundle, or is damaged", param="bundle") from None
    try:
        if sealed.recipient and key is not None:
            return _SUITE.decrypt(content, key, FORMAT.encode())
        if not sealed.recipient and passphrase is not None and sealed.cost <= _MOST_COST:
            nonce, rest = content[:_NONCE_BYTES], content[_NONCE_BYTES:]
            return ChaCha20Poly1305(_derived(passphrase, salt, sealed.cost)).decrypt(nonce, rest, FORMAT.encode())
    except (InvalidTag, ValueError):
        given = "this key" if sealed.recipient else "this passphrase"
        raise ConfigError(f"{name} does not open with {given}, or was changed", param="bundle") from None
    needed = f"the private key of {sealed.recipient} (--open-with)" if sealed.recipient else "a passphrase"
    raise ConfigError(f"{name} is sealed; it opens with {needed}", param="bundle")


def name_of(key: X25519PublicKey) -> str:
    return sha256(key.public_bytes_raw()).hexdigest()[:16]


def public_key(path: Path) -> X25519PublicKey:
    """Read a recipient's key (PEM); raises `ConfigError`."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError):
        key = None
    if not isinstance(key, X25519PublicKey):
        raise ConfigError(f"{path} holds no X25519 public key (PEM), {_HOW}", param="seal_for")
    return key


def private_key(path: Path) -> X25519PrivateKey:
    """Read the key that opens (PEM, without a passphrase of its own); raises `ConfigError`."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, X25519PrivateKey):
        raise ConfigError(f"{path} holds no X25519 private key (PEM), {_HOW}", param="open_with")
    return key


def _derived(passphrase: str, salt: bytes, cost: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=cost, r=8, p=1).derive(passphrase.encode())


def _written(sealed: Sealed) -> bytes:
    return _SEALED.dump_json(sealed, indent=1) + b"\n"
