"""Whether and how deep a proposer that costs time is asked: draft a level deeper iff that gains more than it costs.

Gain of depth k over the samples: expected accepted tokens beyond what the free drafts bring. Cost: G (tokens per ms)
times the proposer's own milliseconds per level, which one drafting call shares over its samples (ALGORITHMS 4.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

_FIRST_BACKOFF = 16  # steps between two probes of a proposer that does not pay
_LONGEST_BACKOFF = 512
_PROBE_DEPTH = 3
_DECAY = 0.9


@dataclass(frozen=True, slots=True)
class Offer:
    """What a proposer would bring one sample: survivals by depth, up to the sample's limit; value of its free draft."""

    survivals: tuple[float, ...]
    free_value: float


class Effort:
    """Decides the depth for one proposer, and probes with back-off so that a bad estimate can recover."""

    def __init__(self) -> None:
        self._ms_per_level = 0.0
        self._waited = 0
        self._backoff = _FIRST_BACKOFF

    def depth(self, offers: Sequence[Offer], price: float, tokens_per_ms: float) -> int:
        """Return how deep to draft for the samples that gain, 0 for not at all.

        `price` is the survival at which a row pays. A probe is granted now and then where nothing gains.
        """
        longest = max((len(offer.survivals) for offer in offers), default=0)
        level_cost = self.level_cost(tokens_per_ms)
        best, best_net = 0, 0.0
        for k in range(1, longest + 1):
            net = sum(max(0.0, gain(offer, k, price)) for offer in offers) - k * level_cost
            if net > best_net:
                best, best_net = k, net
        if best:
            self._waited, self._backoff = 0, _FIRST_BACKOFF
            return best
        return min(_PROBE_DEPTH, longest) if self._probe_due() else 0

    def level_cost(self, tokens_per_ms: float) -> float:
        """Return what one level costs, in tokens."""
        return self._ms_per_level * tokens_per_ms

    def learn(self, num_levels: int, ms: float) -> None:
        """Learn that a call that drafted `num_levels` deep took `ms`."""
        if num_levels:
            per_level = ms / num_levels
            known = self._ms_per_level
            self._ms_per_level = per_level if known == 0.0 else _DECAY * known + (1.0 - _DECAY) * per_level

    def _probe_due(self) -> bool:
        self._waited += 1
        if self._waited < self._backoff:
            return False
        self._waited, self._backoff = 0, min(_LONGEST_BACKOFF, 2 * self._backoff)
        return True


def gain(offer: Offer, depth: int, price: float) -> float:
    """Return the expected tokens, less the price of their rows, that a draft of `depth` brings beyond the free one."""
    return value(offer.survivals[:depth], price) - offer.free_value


def value(survivals: Sequence[float], price: float) -> float:
    """Return the expected accepted tokens of the nodes worth their row, less the price of the rows."""
    return sum(alive - price for alive in survivals if alive > price)
