"""Shares of requests, drawn by a key: the same key falls on the same side every time, whoever asks."""

from hashlib import blake2b

_BITS = 64


def position(salt: str, key: str) -> float:
    """Return where `key` lies, in [0, 100): evenly spread over keys, and apart for each `salt`.

    A share of p percent are the keys below p, so a share that grows keeps those it had.
    """
    digest = blake2b(key.encode(), salt=blake2b(salt.encode(), digest_size=16).digest(), digest_size=_BITS // 8)
    return 100.0 * (int.from_bytes(digest.digest()) >> 11) / 2.0 ** (_BITS - 11)
