"""Sealed bundles: files of age (age-encryption.org) for a recipient's key or with a passphrase; any age opens them.

Needs the extra `age`; imported where it is used.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import AGE

if TYPE_CHECKING:
    from pyrage.x25519 import Identity, Recipient

_BEGINNINGS = (b"-----BEGIN AGE ENCRYPTED FILE-----", b"age-encryption.org/v1\n")
_PUBLIC, _PRIVATE = "age1", "AGE-SECRET-KEY-1"
_HOW = "made by `age-keygen -o key.txt` and `age-keygen -y key.txt`"


def seal_for(content: bytes, recipient: "Recipient") -> bytes:
    """Return the content so that only the recipient's private key opens it; text in ASCII."""
    import pyrage

    return bytes(pyrage.encrypt(content, [recipient], armored=True))


def seal_with(content: bytes, passphrase: str) -> bytes:
    """Return the content so that only the passphrase opens it; text in ASCII. Each guess takes about a second."""
    AGE.require("a sealed bundle", param="passphrase_file")
    from pyrage import passphrase as scrypt

    return bytes(scrypt.encrypt(content, passphrase, armored=True))


def is_sealed(text: bytes) -> bool:
    return text.startswith(_BEGINNINGS)


def opened(text: bytes, name: str, key: "Identity | None", passphrase: str | None) -> bytes:
    """Return the content of the sealed file `name`; raises `ConfigError` that says what opens it."""
    if key is None and passphrase is None:
        needed = "its private key (--open-with) or its passphrase (--passphrase-file)"
        raise ConfigError(f"{name} is sealed; it opens with {needed}", param="bundle")
    AGE.require("a sealed bundle", param="bundle")
    import pyrage
    from pyrage import passphrase as scrypt

    try:
        return bytes(pyrage.decrypt(text, [key]) if key is not None else scrypt.decrypt(text, passphrase))
    except pyrage.DecryptError:
        given = "key" if key is not None else "passphrase"
        raise ConfigError(f"{name} does not open with this {given}, or was changed", param="bundle") from None


def public_key(path: Path) -> "Recipient":
    """Read a recipient's key; raises `ConfigError`."""
    AGE.require("a sealed bundle", param="seal_for")
    from pyrage import RecipientError
    from pyrage.x25519 import Recipient

    try:
        return Recipient.from_str(_line(path, _PUBLIC))
    except RecipientError:
        raise ConfigError(f"{path} holds no public key of age, {_HOW}", param="seal_for") from None


def private_key(path: Path) -> "Identity":
    """Read the key that opens; raises `ConfigError`."""
    AGE.require("a sealed bundle", param="open_with")
    from pyrage import IdentityError
    from pyrage.x25519 import Identity

    try:
        return Identity.from_str(_line(path, _PRIVATE))
    except IdentityError:
        raise ConfigError(f"{path} holds no private key of age, {_HOW}", param="open_with") from None


def _line(path: Path, beginning: str) -> str:
    """Return the line with a key, "" without one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((line.strip() for line in lines if line.startswith(beginning)), "")
