"""Whether and how deep a proposer that costs time is asked: draft a level deeper iff that gains more than it costs.

A level costs G (tokens per ms) times its milliseconds, which a call shares over its samples, and the rows of what it
brings: ALGORITHMS 4.1, sum of S > (samples * b + c_d) * G. G is that of this step, found together with the depth: a
token gained where text is hard saves the time that hard text takes, whatever the pace before. What the proposer brings
is merged with the free draft, so a depth gains where the free draft fails: survival there times the chance that no node
of the free draft is accepted, as if both failed independently. How far real gains are from that is learnt as a factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.spec.level_cost import LevelCost
from prolepsis.spec.probing import Probes
from prolepsis.spec.switch import Switch

_PROBE_DEPTH = 3
_DECAY = 0.9  # of gains, per call: they are estimates, so a few calls tell enough
_ROUNDS = 4
_CONVERGED = 1e-4  # of a step's tokens
_PRIOR_TOKENS = 1.0  # weight of "gains are what was expected"


@dataclass(frozen=True, slots=True)
class Prices:
    """What time is worth in a step, in tokens."""

    row: float
    """Of one more row of the pass: the survival at which it just pays."""
    ms: float
    """Of a millisecond: tokens that the step emits in one."""

    def times(self, factor: float) -> "Prices":
        return Prices(self.row * factor, self.ms * factor)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is before a costly proposer is asked."""

    plain: Prices
    """Were all of it decoded plainly."""
    num_samples: int
    """Decoding samples, each of which emits a token in any case."""
    worth: float = 0.0
    """Of their free drafts (tokens, less the price of the rows)."""

    @property
    def tokens(self) -> float:
        return self.num_samples + self.worth

    @property
    def prices(self) -> Prices:
        """With the free drafts: G = (samples + sum of (S - b * G)) / ms without drafts."""
        return self.plain.times(self.tokens / self.num_samples)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a proposer would bring one sample, by depth up to where it has use for it."""

    survivals: Sequence[float]
    """Chance that its likeliest node there is accepted."""
    free: Sequence[float] = ()
    """Chance that some node of the sample's free draft is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How deep to draft (0: not at all), for which samples, and what it should gain (tokens)."""

    depth: int
    asked: tuple[bool, ...]
    gain: float = 0.0


class Effort:
    """Decides for one proposer, switches it with hysteresis and probes it while it does not pay."""

    def __init__(self, *, one_pass: bool = False) -> None:
        """`one_pass`: all depths cost the same (`spec.proposer.TreeProposer`)."""
        self.cost = LevelCost()
        self._one_pass = one_pass
        self._switch = Switch()
        self._probes = Probes()
        self._gained = self._expected = _PRIOR_TOKENS

    def decide(self, alone: Sequence[float], offers: Sequence[Offer], step: Step) -> Decision:
        """Return for which samples to draft, and how deep: once a step.

        `alone`: what it brings a sample, taking all together, that has no free draft; by this it is switched.
        """
        gains = _gains(Offer(alone), step.plain.row, max(1.0, self._factor))  # below 1 for what free drafts bring too
        _, net = self._best([gains] * len(offers), step.plain.ms)
        on, row = self._switch.decide(net / step.num_samples), step.prices.row
        if on:
            decision = self._fastest([_gains(offer, row, self._factor) for offer in offers], step)
            if decision.depth:
                self._probes.restart()
                return decision
        if self._probes.due(_at(gains, _PROBE_DEPTH)):
            beside = [_gains(offer, row, self._factor) for offer in offers]
            return Decision(_PROBE_DEPTH, (True,) * len(offers), sum(_at(known, _PROBE_DEPTH) for known in beside))
        return Decision(0, (False,) * len(offers))

    def threshold(self, num_samples: int, prices: Prices) -> float:
        """Return the survival at which a node of the next level pays its row and its share of the level."""
        if self._one_pass:
            return prices.row
        return prices.row + prices.ms * (self.cost.fixed_ms / num_samples + self.cost.sample_ms)

    def paid(self, depth: int) -> int:
        """Return the levels that a draft of `depth` is paid for."""
        return min(depth, 1) if self._one_pass else depth

    def learn(self, expected: float, gained: float) -> None:
        """Learn that a call that should have gained `expected` tokens was worth `gained` by its drafts' estimates."""
        self._expected = _DECAY * (self._expected - _PRIOR_TOKENS) + expected / self._factor + _PRIOR_TOKENS
        self._gained = _DECAY * (self._gained - _PRIOR_TOKENS) + gained + _PRIOR_TOKENS

    @property
    def _factor(self) -> float:
        return min(4.0, max(0.25, self._gained / self._expected))

    def _best(self, gains: Sequence[Sequence[float]], tokens_per_ms: float) -> tuple[int, float]:
        """Return the depth with the largest gain over cost, and that; 0 and at most 0 where none has."""
        fixed, each = tokens_per_ms * self.cost.fixed_ms, tokens_per_ms * self.cost.sample_ms
        nets = [-fixed * self.paid(k) for k in range(1, max(map(len, gains), default=0) + 1)]
        for known in gains:
            net = 0.0
            for k in range(len(nets)):
                if k < len(known):
                    net = known[k] - each * self.paid(k + 1)
                if net > 0.0:
                    nets[k] += net
        best = max(nets, default=0.0)
        return (nets.index(best) + 1, best) if best > 0.0 else (0, best)

    def _fastest(self, gains: Sequence[Sequence[float]], step: Step) -> Decision:
        """Return the choice with the most tokens per millisecond: the best at its own pace (Dinkelbach 1967)."""
        pace = step.prices.ms
        decision = Decision(0, (False,) * len(gains))
        for _ in range(_ROUNDS):
            depth, net = self._best(gains, pace)
            if depth == 0 or net < _CONVERGED * step.tokens or (depth == decision.depth and len(gains) == 1):
                break
            decision = self._decision(gains, depth if self.cost.is_known else min(depth, _PROBE_DEPTH), pace)
            ms = self.paid(decision.depth) * self.cost.fixed_ms + self.cost.sample_ms * sum(
                self.paid(min(decision.depth, len(known)))
                for known, does in zip(gains, decision.asked, strict=True)
                if does
            )
            pace = (step.tokens + decision.gain) / (step.tokens / step.prices.ms + ms)
        return decision

    def _decision(self, gains: Sequence[Sequence[float]], depth: int, tokens_per_ms: float) -> Decision:
        each = tokens_per_ms * self.cost.sample_ms
        asked = tuple(_at(known, depth) > each * self.paid(min(depth, len(known))) for known in gains)
        return Decision(depth, asked, sum(_at(known, depth) for known, does in zip(gains, asked, strict=True) if does))


def _gains(offer: Offer, price: float, factor: float) -> list[float]:
    """Return the tokens gained by depth, all levels above included, down to where none gains any more."""
    total, gains, free = 0.0, list[float](), offer.free
    for depth, alive in enumerate(offer.survivals):
        if alive <= price:
            break
        left = alive * (1.0 - free[depth]) if depth < len(free) else alive
        if left > price:
            total += left - price
        gains.append(factor * total)
    return gains


def _at(gains: Sequence[float], depth: int) -> float:
    """Return the gain of drafting `depth` deep, or as deep as the sample's limit lets."""
    return gains[min(depth, len(gains)) - 1] if gains else 0.0


def value(survivals: Sequence[float], price: float) -> float:
    """Return the expected accepted tokens of the nodes worth their row, less the price of the rows."""
    return sum(alive - price for alive in survivals if alive > price)
