"""Decides when and how deep a costly proposer drafts: one level deeper if that gains more than it costs.

A level costs G (tokens per ms) times its milliseconds, which a call shares over its sequences, and the pass's time for
the tokens it adds. A level pays while the sum of survivals is larger than (sequences * b + c) * G, with b the ms of a
token in the pass and c those of the level. G is that of plain decoding.
The drafts are merged with the free draft, so a depth gains where the free draft fails: survival there times the chance
that no node of the free draft is accepted, as if both failed independently.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.engine.drafting.explore import Explore

_LEVEL_DECAY = 0.95  # per call
_OUTLIER = 2.0


class LevelCost:
    """Milliseconds of a level, for any number of sequences; 0 until the first call is known."""

    def __init__(self) -> None:
        self._weight = self._ms = 0.0  # decayed sums over calls

    @property
    def is_known(self) -> bool:
        return self._weight > 0.0

    @property
    def ms(self) -> float:
        return self._ms / self._weight if self._weight else 0.0

    def learn(self, num_levels: int, ms: float) -> None:
        """Learn that a call that drafted `num_levels` deep took `ms`."""
        if num_levels <= 0 or ms <= 0.0:
            return
        ms /= num_levels
        known = self.ms
        if ms < known / _OUTLIER:  # the estimate was of a start (a compile, cold pages): start over
            self._weight = self._ms = 0.0
        elif known > 0.0:
            ms = min(ms, _OUTLIER * known)
        self._weight = _LEVEL_DECAY * self._weight + 1.0
        self._ms = _LEVEL_DECAY * self._ms + ms


RETRY_DEPTH = 3  # levels of a draft whose gain is not known to pay
_RETRIED = 4  # sequences at most: a head reads the whole prompt of each that it never drafted for


@dataclass(frozen=True, slots=True)
class MarginalCost:
    """Cost of a step's time, in emitted tokens."""

    token: float  # one more token in the pass: the survival at which verifying it just pays
    ms: float  # one millisecond: the tokens that the step emits in it


@dataclass(frozen=True, slots=True)
class ExpectedDraft:
    """Expected draft of a proposer for one sequence, by depth, up to its limit."""

    survivals: Sequence[float]  # chance that the likeliest node at a depth is accepted
    free: Sequence[float] = ()  # chance that some node of the sequence's free draft is accepted there


@dataclass(frozen=True, slots=True)
class DepthDecision:
    """The depth to draft (0: not at all), and the sequences to draft for."""

    depth: int
    asked: tuple[bool, ...]


class Effort:
    """Decides for one proposer, and retries it while it does not pay."""

    def __init__(self, explore: Explore, *, one_pass: bool = False) -> None:
        """`one_pass`: all depths cost the same (`engine.drafting.proposer.Proposer`)."""
        self.cost = LevelCost()
        self._one_pass = one_pass
        self._explore = explore
        self._num_retries = 0

    def decide(self, expected: Sequence[ExpectedDraft], costs: MarginalCost) -> DepthDecision:
        """Return for which sequences to draft, and how deep: once a step."""
        gains = [_gains(each, costs.token) for each in expected]
        deepest = max(map(len, gains), default=0)
        deepest = deepest if self.cost.is_known else min(deepest, RETRY_DEPTH)
        depths = range(deepest if self._one_pass else 1, deepest + 1) if deepest else ()
        nets = [(sum(_at(each, depth) for each in gains) - self._tokens(depth, costs), -depth) for depth in depths]
        net, depth = max(nets, default=(0.0, 0))
        if net <= 0.0:
            num_sequences = len(expected)
            if not self._explore.grant("retry", self._tokens(RETRY_DEPTH, costs)):
                return DepthDecision(0, (False,) * num_sequences)
            first, number = self._num_retries * _RETRIED, min(_RETRIED, num_sequences)
            self._num_retries += 1
            retried = {(first + i) % num_sequences for i in range(number)}
            return DepthDecision(RETRY_DEPTH, tuple(i in retried for i in range(num_sequences)))
        return DepthDecision(-depth, tuple(_at(each, -depth) > 0.0 for each in gains))

    def threshold(self, num_sequences: int, costs: MarginalCost) -> float:
        """Return the survival at which a node of the next level pays its verification and its share of the level."""
        return costs.token if self._one_pass else costs.token + costs.ms * self.cost.ms / num_sequences

    def paid(self, depth: int) -> int:
        """Return the levels that a draft of `depth` is paid for."""
        return min(depth, 1) if self._one_pass else depth

    def _tokens(self, depth: int, costs: MarginalCost) -> float:
        return self.paid(depth) * self.cost.ms * costs.ms


def _gains(expected: ExpectedDraft, token_cost: float) -> list[float]:
    """Return the tokens gained by depth, all levels above included, down to the last that gains."""
    total, gains, free = 0.0, list[float](), expected.free
    for depth, alive in enumerate(expected.survivals):
        if alive <= token_cost:
            break
        left = alive * (1.0 - free[depth]) if depth < len(free) else alive
        if left > token_cost:
            total += left - token_cost
        gains.append(total)
    return gains


def _at(gains: Sequence[float], depth: int) -> float:
    """Return the gain of drafting `depth` deep, or as deep as the sequence's limit lets."""
    return gains[min(depth, len(gains)) - 1] if gains else 0.0


def value(survivals: Sequence[float], token_cost: float) -> float:
    """Return the expected accepted tokens of the nodes that pay, less the cost of verifying them."""
    return sum(alive - token_cost for alive in survivals if alive > token_cost)
