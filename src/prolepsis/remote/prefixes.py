"""Which engine a request goes to first: one that holds its prefix, unless that one has far more to do.

A replica holds the pages of the requests that it was sent, as far as its cache reaches. A request of which none holds
enough goes to the replica with the least to do; among equals by rendezvous hashing of scope and first pages, on which
several front ends agree.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.kv.pages import extend_hashes, root_hash

PREFIX_PAGES = 8
"""By which a request goes that no replica holds; the system prompt of a route is in the first pages."""
WORTH_HOLDING = 0.25
"""Of the prompt's pages: replicas that hold less are chosen by their load. A system prompt is soon held by all."""
LOAD_FACTOR = 1.25
"""A replica with more than this many times the mean load is passed over (consistent hashing with bounded loads)."""
HELD_PAGES = 2**17  # pages that a router knows the replicas of, some 30 MB of them; the ones used last are kept


def page_hashes(request: GenerateRequest) -> Sequence[bytes]:
    """Return the hashes of a prompt's whole pages, by which caches of its scope find them.

    The last token of a prompt is always computed, so its page counts only where more follow.
    """
    return _page_hashes(request.prompt_token_ids, request.cache_salt)


@lru_cache(maxsize=64)  # of requests that are ranked and not yet sent: a long prompt takes half a millisecond
def _page_hashes(tokens: tuple[int, ...], scope: str) -> Sequence[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, tokens, PAGE_SIZE, scope, (len(tokens) - 1) // PAGE_SIZE)
    return tuple(hashes)


class ReplicaRouter(Protocol):
    def ranked(self, request: GenerateRequest, loads: Mapping[str, int]) -> Sequence[str]:
        """Return the replicas by preference, from their requests in flight."""

    def sent(self, request: GenerateRequest, replica: str) -> None:
        """Take note of where a request went."""


class PrefixRouter:
    """Ranks replicas for requests, from what it sent them before and from their loads."""

    def __init__(self, held_pages: int = HELD_PAGES) -> None:
        self._held_pages = held_pages
        self._holders: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def ranked(self, request: GenerateRequest, loads: Mapping[str, int]) -> Sequence[str]:
        """Return the replicas by preference, from their requests in flight.

        Replicas above the bound on load come last. Among the others those that hold more of the prompt come first, then
        those that have less to do. Rendezvous hashing orders equals: one that comes or goes moves no other's prompts.
        """
        hashes = page_hashes(request)
        held = self._held(hashes)
        key = hashes[min(len(hashes), PREFIX_PAGES) - 1] if hashes else root_hash(request.cache_salt)
        bound = math.ceil(LOAD_FACTOR * (sum(loads.values()) + 1) / max(1, len(loads)))
        scores = {name: blake2b(name.encode(), key=key, digest_size=8).digest() for name in loads}
        return sorted(loads, key=lambda name: (loads[name] >= bound, -held.get(name, 0), loads[name], scores[name]))

    def sent(self, request: GenerateRequest, replica: str) -> None:
        """Take note of where a request went: that replica will hold its pages."""
        for key in reversed(page_hashes(request)):  # the first pages, which others share, are forgotten last
            holders = self._holders.pop(key, ())
            self._holders[key] = (replica, *(name for name in holders if name != replica))
        while len(self._holders) > self._held_pages:
            self._holders.popitem(last=False)

    def _held(self, hashes: Sequence[bytes]) -> dict[str, int]:
        """Return how many of a prompt's pages each replica holds, where they are worth it."""
        held: dict[str, int] = {}
        least = max(1, math.ceil(WORTH_HOLDING * len(hashes)))
        for depth in range(len(hashes), least - 1, -1):
            for name in self._holders.get(hashes[depth - 1], ()):
                held.setdefault(name, depth)
        return held
