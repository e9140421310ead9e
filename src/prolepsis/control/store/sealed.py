"""Texts that only owners of the audit key can read: those of a store whose chains are signed."""

import os
import zlib
from base64 import b64decode, b64encode

from prolepsis.control.store.signing import AuditKeys

PREFIX = "sealed:"  # other texts are as they were given
_NONCE_BYTES = 12
_PURPOSE = "sealed texts"


def sealed(text: str, keys: AuditKeys | None, place: str) -> str:
    """Return a text, compressed, for the one place where it can be opened (AES-256-GCM); without keys as it is."""
    if keys is None:
        return text
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    content = AESGCM(keys.derived(_PURPOSE)).encrypt(nonce, zlib.compress(text.encode()), place.encode())
    return PREFIX + b64encode(nonce + content).decode()


def unsealed(stored: str, keys: AuditKeys | None, place: str) -> str | None:
    """Return the text of a place; None if it was sealed with another key, for another place, or was changed."""
    if not stored.startswith(PREFIX):
        return stored
    if keys is None:
        return None
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        content = b64decode(stored.removeprefix(PREFIX), validate=True)
        nonce = content[:_NONCE_BYTES]
        packed = AESGCM(keys.derived(_PURPOSE)).decrypt(nonce, content[_NONCE_BYTES:], place.encode())
        return zlib.decompress(packed).decode()
    except (InvalidTag, ValueError, zlib.error):
        return None
