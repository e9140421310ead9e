"""The share of the places that one request may hold against others, and which sequences take part in a pass.

A request for many samples holds an eighth of the places. Its further samples are **spare**: they run where places are
free, rank `SPARE` lower than the request, so that anything gets a place from them, and the next one is spare no longer
when a sample of the request ends. While a request of another tenant is there that has a better rank and keeps within
its share, no spare sample starts or takes part in a pass: the pass would take several times as long for it. Those that
run wait with their pages.

A request of the priority `BACKGROUND` or above waits likewise while any better one is there, except in every
`_TURN`th pass, so that it goes on under a steady load.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prolepsis.core.requests import BACKGROUND

if TYPE_CHECKING:
    from prolepsis.engine.request import Request, SequenceState

_PART = 8
_TURN = 16
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


class Small:
    """The requests that keep within their share, as far as large ones and background work have to wait for them."""

    def __init__(self, requests: Iterable["Request"], number: int = 0) -> None:
        """`number`: that of the pass."""
        live = list(requests)
        self._holds_background = number % _TURN != 0 and any(one.source.priority < BACKGROUND for one in live)
        self._there: set[tuple[str, int]] = set()
        if any(request.is_large for request in live):
            self._there = {
                (request.sequences[0].tenant, request.source.priority) for request in live if not request.is_large
            }

    def holds(self, sequence: "SequenceState") -> bool:
        """Return whether a sequence is background work, or a spare sample, that waits for other requests."""
        if self._holds_background and sequence.request.source.priority >= BACKGROUND:
            return True
        return sequence.is_spare and any(
            tenant != sequence.tenant and priority < sequence.rank[0] for tenant, priority in self._there
        )
