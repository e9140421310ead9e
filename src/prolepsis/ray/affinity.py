"""Which replica a request goes to first: the one that holds its prefix, unless that one has far more to do."""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest

PREFIX_PAGES = 8
"""Longer prefixes seldom tell more about who has them; the system prompt of a route is in the first pages."""
LOAD_FACTOR = 1.25
"""A replica with more than this many times the mean load is passed over (consistent hashing with bounded loads)."""


def prefix_key(request: GenerateRequest) -> bytes:
    """Return what requests with the same scope and the same whole pages at their beginning have in common.

    The last token of a prompt is always computed, so its page counts only where more follow; a prompt of less than a
    page goes by its scope.
    """
    num_pages = min((len(request.prompt_token_ids) - 1) // PAGE_SIZE, PREFIX_PAGES)
    tokens = request.prompt_token_ids[: num_pages * PAGE_SIZE]
    digest = blake2b(request.cache_salt.encode(), digest_size=16)
    digest.update(b"".join(token.to_bytes(4) for token in tokens))
    return digest.digest()


def ranked(key: bytes, loads: Mapping[str, int]) -> Sequence[str]:
    """Return the replicas by preference, from their requests in flight.

    Rendezvous hashing: each replica has a score for the key, and one that comes or goes moves no other key. Replicas
    above the bound on load come last, in the same order.
    """
    bound = math.ceil(LOAD_FACTOR * (sum(loads.values()) + 1) / max(1, len(loads)))
    return sorted(loads, key=lambda name: (loads[name] >= bound, _score(key, name)))


def _score(key: bytes, name: str) -> bytes:
    return blake2b(name.encode(), key=key, digest_size=8).digest()
