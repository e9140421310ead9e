"""The share of the places that one request may hold against others, and which sequences take part in a pass.

A request for many samples holds an eighth of the places. Its further samples are **spare**: they run where places are
free, rank `SPARE` lower than the request, so that anything gets a place from them, and the next one is spare no longer
when a sample of the request ends. A pass has no spare samples while another tenant's request of a better rank runs
that keeps within its share: the pass would take several times as long for it. Spare samples wait then with their pages.
"""

from collections.abc import Sequence

from prolepsis.engine.request import Request, SequenceState

_PART = 8
SPARE = 2
"""Added to the priority of spare samples; what is lower by one only is displaced once, spare samples always."""


def share_of(num_places: int) -> int:
    """Return how many of an engine's places the samples of one request may hold against others."""
    return max(1, num_places // _PART)


def mark_spare(request: Request, num_places: int) -> None:
    """Rank the samples of a request that just came, beyond its share, lower."""
    spare = request.live[share_of(num_places) :]
    request.is_large = bool(spare)
    for sequence in spare:
        priority, arrival, serial, index = sequence.rank
        sequence.is_spare = True
        sequence.rank = (priority + SPARE, arrival, serial, index)


def in_turn(running: Sequence[SequenceState]) -> Sequence[SequenceState]:
    """Return the running sequences without the spare samples that wait for other tenants' requests."""
    if not any(sequence.is_spare for sequence in running):
        return running
    small = {(one.tenant, one.rank[0]) for one in running if not one.request.is_large}
    return [one for one in running if not (one.is_spare and _waits(one, small))]


def _waits(spare: SequenceState, small: set[tuple[str, int]]) -> bool:
    return any(tenant != spare.tenant and priority < spare.rank[0] for tenant, priority in small)
