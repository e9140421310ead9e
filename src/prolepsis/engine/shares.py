"""The share of the places that one request may hold against others, and which sequences take part in a pass.

A request for many samples holds an eighth of the places. Its further samples are **spare**: they run where places are
free, rank `SPARE` lower than the request, so that anything gets a place from them, and the next one is spare no longer
when a sample of the request ends. While a request of another tenant is there that has a better rank and keeps within
its share, no spare sample starts or takes part in a pass: the pass would take several times as long for it. Those that
run wait with their pages.

A request of the priority `BACKGROUND` or above waits likewise while any better one is there (`BackgroundTurns`).
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prolepsis.core.requests import BACKGROUND

if TYPE_CHECKING:
    from prolepsis.engine.request import Request, SequenceState

_PART = 8
_TURN_S = 1.0
_EXPECTED_S = 10.0
SPARE = 2
"""Added to the priority of spare samples; what is lower by one only is displaced once, spare samples always."""


def share_of(num_places: int) -> int:
    """Return how many of an engine's places the samples of one request may hold against others."""
    return max(1, num_places // _PART)


def mark_spare(request: "Request", num_places: int) -> None:
    """Rank the samples of a request that just came, beyond its share, lower."""
    spare = request.live[share_of(num_places) :]
    request.is_large = bool(spare)
    for sequence in spare:
        priority, arrival, serial, index = sequence.rank
        sequence.is_spare = True
        sequence.rank = (priority + SPARE, arrival, serial, index)


class BackgroundTurns:
    """When background work takes part in passes: while nothing else is there, and else once in `_TURN_S` seconds.

    So it goes on under a steady load. For `_EXPECTED_S` seconds after other work its passes are short: who comes next
    waits for the one that runs.
    """

    def __init__(self) -> None:
        self.waits = False  # background work skips the next pass
        self.is_short = False
        self._others_at = self._ran_at = -math.inf

    def begin(self, requests: Iterable["Request"], now: float) -> None:
        """Decide about the next pass, with these requests."""
        is_alone = all(request.source.priority >= BACKGROUND for request in requests)
        if not is_alone:
            self._others_at = now
        self.waits = not is_alone and now - self._ran_at < _TURN_S
        self.is_short = now - self._others_at < _EXPECTED_S

    def ran(self, now: float) -> None:
        """Note that background work has a part in the pass that begins now."""
        self._ran_at = now


class LargeRequestGate:
    """Holds spare samples of large requests, and background work, back while requests within their share are there."""

    def __init__(self, requests: Iterable["Request"], *, holds_background: bool = False) -> None:
        live = list(requests)
        self._holds_background = holds_background
        self._left_out: set[str] = set()
        self._within_share: set[tuple[str, int]] = set()
        """Tenants and priorities of the requests that large ones wait for."""
        if any(request.is_large for request in live):
            small = (request for request in live if not request.is_large)
            self._within_share = {(request.sequences[0].tenant, request.source.priority) for request in small}

    def leave_out(self, sequence: "SequenceState") -> None:
        """Let a sequence wait for a pass."""
        self._left_out.add(sequence.key)

    def holds(self, sequence: "SequenceState") -> bool:
        """Return whether a sequence waits for other requests: background work, a spare sample, or what was left out."""
        if sequence.key in self._left_out or (self._holds_background and sequence.is_background):
            return True
        better = (tenant for tenant, priority in self._within_share if priority < sequence.rank[0])
        return sequence.is_spare and any(tenant != sequence.tenant for tenant in better)
