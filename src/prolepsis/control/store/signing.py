"""Signatures of the ends of chains: one Ed25519 key signs, public keys check.

The private key is a file next to the public ones, which may belong to several replicas. A writer of the store
without the private key cannot sign a chain of its own.
"""

import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog
from sqlalchemy import Connection

from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import config_directory, exclusive, write_whole
from prolepsis.core.json_value import canonical

if TYPE_CHECKING:  # imported where a key is used: commands that read no log start without it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

OPTION = "prolepsis_audit_keys"  # execution option of connections whose appends are signed: their `AuditKeys`
FILE_NAME = "audit-key.pem"
_BEGIN = "-----BEGIN PUBLIC KEY-----"
_OTHERS = 0o077
_SERVERS_KEY = (
    "the first start of a server makes it: run the command as the server's user, or name its key (PROLEPSIS_AUDIT_KEY)"
)

log = structlog.get_logger(__name__)

ChainName = Literal["audit", "requests"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHead:
    """The end of a chain when it was written."""

    chain: ChainName
    seq: int
    digest: str
    at: str  # UTC, ISO 8601 with microseconds
    key_id: str
    signature: str  # signature of the other fields except `key_id`; base64

    def statement(self) -> bytes:
        signed = {"prolepsis": "head", "chain": self.chain, "seq": self.seq, "digest": self.digest, "at": self.at}
        return canonical(signed).encode()

    def plain(self) -> dict[str, object]:
        return asdict(self)


class PublicKeys:
    """The keys whose signatures count."""

    def __init__(self, keys: "Mapping[str, Ed25519PublicKey]") -> None:
        self._keys = keys

    @classmethod
    def read(cls, path: Path) -> "PublicKeys":
        """Read one or more keys (PEM, one after another); raises `ConfigError` for a file without one."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"public key {path} cannot be read: {error}", param="public_key") from None
        keys = [_public_key(_BEGIN + part, path) for part in text.split(_BEGIN)[1:]]
        if not keys:
            raise ConfigError(f"public key {path} has no {_BEGIN}", param="public_key")
        return cls({key_id(key): key for key in keys})

    def knows(self, head: SignedHead) -> bool:
        """Return whether a head names one of these keys."""
        return head.key_id in self._keys

    def fault(self, head: SignedHead) -> str | None:
        """Return why a signed head proves nothing, None for one that does."""
        from cryptography.exceptions import InvalidSignature

        known = self._keys.get(head.key_id)
        if known is None:
            return f"is signed with the unknown key {head.key_id}"
        try:
            known.verify(b64decode(head.signature, validate=True), head.statement())
        except (InvalidSignature, ValueError):
            return "has a signature that is not its own"
        return None


class AuditKeys:
    """The key of this process and the public keys next to it; they are read, or made, when they are first used."""

    def __init__(self, path: Path, *, makes: bool = True) -> None:
        """`path`: of the private key; the public ones are in the file of the same name that ends in .pub.

        `makes`: a missing key is made. Servers do that; a command that did it for another user would sign with a key
        that no server knows.
        """
        self.path = path
        self._makes = makes

    @property
    def public_path(self) -> Path:
        return self.path.with_suffix(".pub")

    @cached_property
    def public(self) -> PublicKeys:
        """The keys of the public file and this one; raises `ConfigError`."""
        own = self._private.public_key()
        others = PublicKeys.read(self.public_path)._keys if self.public_path.exists() else {}
        return PublicKeys({**others, key_id(own): own})

    def sign(self, chain: ChainName, seq: int, digest: str) -> SignedHead:
        """Return the signed end of a chain; raises `ConfigError` for a key that cannot be used."""
        at = datetime.now(UTC).isoformat(timespec="microseconds")
        own = key_id(self._private.public_key())
        head = SignedHead(chain=chain, seq=seq, digest=digest, at=at, key_id=own, signature="")
        return replace(head, signature=b64encode(self._private.sign(head.statement())).decode())

    def derived(self, purpose: str) -> bytes:
        """Return 32 bytes for one purpose, which only owners of the private key know; raises `ConfigError`."""
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        secret = self._private.private_bytes_raw()
        return HKDF(SHA256(), length=32, salt=None, info=f"prolepsis {purpose}".encode()).derive(secret)

    @cached_property
    def _private(self) -> "Ed25519PrivateKey":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        path = self.path
        try:
            if not path.exists():
                if not self._makes:
                    raise ConfigError(f"audit key {path} does not exist; {_SERVERS_KEY}", param="audit_key")
                self._make()
            if path.stat().st_mode & _OTHERS and os.name == "posix":
                raise ConfigError(f"audit key {path} can be read by others; allowed: mode 600", param="audit_key")
            key = load_pem_private_key(path.read_bytes(), password=None)
        except OSError as error:
            needed = "name another with --audit-key" if self._makes else _SERVERS_KEY
            message = f"audit key {path} cannot be used: {error.strerror}; {needed}"
            raise ConfigError(message, param="audit_key") from None
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"audit key {path} holds no Ed25519 private key (PEM)", param="audit_key")
        return key

    def _make(self) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with exclusive(self.path.with_name(f"{self.path.name}.lock")):
            if self.path.exists():  # another process was first
                return
            key, pem = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
            public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
            plain = serialization.NoEncryption()
            write_whole(self.public_path, public)
            write_whole(self.path, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def key_file(config: ServerConfig) -> Path:
    """Return the file of the private key: the configured one, else next to the file of API keys."""
    folder = config.keys_file.parent if config.keys_file is not None else config_directory()
    return config.audit_key or folder / FILE_NAME


def usable_keys(config: ServerConfig) -> AuditKeys | None:
    """Return the keys of a server, made if they are missing; None, with an error in the log, if there can be none.

    Raises `ConfigError` if a key that was named cannot be used.
    """
    keys = AuditKeys(key_file(config))
    try:
        _ = keys.public
    except ConfigError as error:
        if config.audit_key is not None:
            raise
        log.error("audit_log_not_signed", error=str(error))
        return None
    return keys


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """The keys that a command may sign with."""

    keys: AuditKeys | None
    fault: str = ""  # reason why there are none, and what to do

    @property
    def options(self) -> dict[str, object]:
        """Return the options of a database whose appends they sign."""
        return {} if self.keys is None else {OPTION: self.keys}


def found_keys(config: ServerConfig) -> FoundKeys:
    """Return the keys of the configured server, if this user may read them."""
    keys = AuditKeys(key_file(config), makes=False)
    try:
        _ = keys.public
    except ConfigError as error:
        return FoundKeys(None, str(error))
    return FoundKeys(keys)


def keys_of(connection: Connection) -> AuditKeys | None:
    """Return the keys that sign what is appended through a connection; None: nothing is signed."""
    keys = connection.get_execution_options().get(OPTION)
    return keys if isinstance(keys, AuditKeys) else None


def key_id(key: "Ed25519PublicKey") -> str:
    """Return the name of a key: the first 16 digits of its SHA-256."""
    return sha256(key.public_bytes_raw()).hexdigest()[:16]


def _public_key(pem: str, path: Path) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"public key {path} holds a key that is not Ed25519", param="public_key")
    return key
