"""What a level of drafting costs, by how many sequences share the call: a line, learnt online."""

from collections.abc import Sequence
from dataclasses import dataclass

_LEVEL_DECAY = 0.95  # per call
_RIDGE = 4.0  # weight of the prior slope, in (sequences of difference)^2
_PRIOR_SLOPE = 0.05  # of the mean: a further sequence reads no weights again
_OUTLIER = 2.0


class LevelCost:
    """Milliseconds of a level = `fixed_ms` + sequences * `sequence_ms`; 0 until the first call is known."""

    def __init__(self) -> None:
        self.fixed_ms = 0.0
        self.sequence_ms = 0.0
        self._weight = self._n = self._nn = self._ms = self._nms = 0.0  # decayed sums

    @property
    def is_known(self) -> bool:
        return self._weight > 0.0

    def learn(self, num_sequences: int, num_levels: int, ms: float) -> None:
        """Learn that a call for so many sequences that drafted `num_levels` deep took `ms`."""
        if num_levels <= 0 or ms <= 0.0:
            return
        ms /= num_levels
        known = self.fixed_ms + num_sequences * self.sequence_ms
        if ms < known / _OUTLIER:  # what was learnt before was a start (a compile, cold pages): begin anew
            self._weight = self._n = self._nn = self._ms = self._nms = 0.0
        elif known > 0.0:
            ms = min(ms, _OUTLIER * known)
        self._weight = _LEVEL_DECAY * self._weight + 1.0
        self._n = _LEVEL_DECAY * self._n + num_sequences
        self._nn = _LEVEL_DECAY * self._nn + num_sequences * num_sequences
        self._ms = _LEVEL_DECAY * self._ms + ms
        self._nms = _LEVEL_DECAY * self._nms + num_sequences * ms
        self._fit()

    def _fit(self) -> None:
        """Least squares with a ridge towards the prior slope; neither part below 0."""
        mean_n, mean_ms = self._n / self._weight, self._ms / self._weight
        spread = self._nn - self._n * mean_n
        together = self._nms - self._n * mean_ms
        slope = (together + _RIDGE * _PRIOR_SLOPE * mean_ms) / (spread + _RIDGE)
        self.sequence_ms = min(max(0.0, slope), mean_ms / mean_n)
        self.fixed_ms = mean_ms - self.sequence_ms * mean_n


_GAIN = 0.045  # share of a step's tokens that a switch must gain, either way
_DECISIONS = 8  # in a row
_HOLD = 32  # decisions that it stays on at least


class Switch:
    """Starts on; `decide` is asked once a step."""

    def __init__(self) -> None:
        self.on = True
        self._streak = 0
        self._held = 0

    def decide(self, gain: float) -> bool:
        """Return whether it is on; `gain`: what being on would gain now, as share of the tokens without."""
        self._held += 1
        against = gain < -_GAIN if self.on else gain > _GAIN
        self._streak = self._streak + 1 if against else 0
        if self._streak >= _DECISIONS and (not self.on or self._held >= _HOLD):
            self.on = not self.on
            self._streak = self._held = 0
        return self.on


_FIRST_BACKOFF = 16  # steps between two probes
_LONGEST_BACKOFF = 512
_DRIFT = 1.25  # promise over that at the last probe from which on waiting starts anew
_NOISE = 0.02  # tokens


class Probes:
    """Grants a probe after 16 steps unasked, then after twice as many, up to 512; anew when the promise has risen."""

    def __init__(self) -> None:
        self._waited = 0
        self._backoff = _FIRST_BACKOFF
        self._promise: float | None = None

    def due(self, promise: float) -> bool:
        """Count a step unasked; return whether to probe. `promise`: tokens a sequence that a probe may bring."""
        if self._promise is None:
            self._promise = promise
        elif promise > _DRIFT * self._promise + _NOISE:  # other requests, another load
            self._promise, self._backoff = promise, _FIRST_BACKOFF
        self._waited += 1
        if self._waited < self._backoff:
            return False
        self._waited, self._backoff, self._promise = 0, min(_LONGEST_BACKOFF, 2 * self._backoff), promise
        return True

    def restart(self) -> None:
        """It was asked because it pays."""
        self._waited, self._backoff, self._promise = 0, _FIRST_BACKOFF, None


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
    num_sequences: int
    """Decoding sequences, each of which emits a token in any case."""
    worth: float = 0.0
    """Of their free drafts (tokens, less the price of the rows)."""

    @property
    def tokens(self) -> float:
        return self.num_sequences + self.worth

    @property
    def prices(self) -> Prices:
        """With the free drafts: G = (sequences + sum of (S - b * G)) / ms without drafts."""
        return self.plain.times(self.tokens / self.num_sequences)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a proposer would bring one sequence, by depth up to where it has use for it."""

    survivals: Sequence[float]
    """Chance that its likeliest node there is accepted."""
    free: Sequence[float] = ()
    """Chance that some node of the sequence's free draft is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How deep to draft (0: not at all), for which sequences, and what it should gain (tokens)."""

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
        """Return for which sequences to draft, and how deep: once a step.

        `alone`: what it brings a sequence, taking all together, that has no free draft; by this it is switched.
        """
        gains = _gains(Offer(alone), step.plain.row, max(1.0, self._factor))  # below 1 for what free drafts bring too
        _, net = self._best([gains] * len(offers), step.plain.ms)
        on, row = self._switch.decide(net / step.num_sequences), step.prices.row
        if on:
            decision = self._fastest([_gains(offer, row, self._factor) for offer in offers], step)
            if decision.depth:
                self._probes.restart()
                return decision
        if self._probes.due(_at(gains, _PROBE_DEPTH)):
            beside = [_gains(offer, row, self._factor) for offer in offers]
            return Decision(_PROBE_DEPTH, (True,) * len(offers), sum(_at(known, _PROBE_DEPTH) for known in beside))
        return Decision(0, (False,) * len(offers))

    def threshold(self, num_sequences: int, prices: Prices) -> float:
        """Return the survival at which a node of the next level pays its row and its share of the level."""
        if self._one_pass:
            return prices.row
        return prices.row + prices.ms * (self.cost.fixed_ms / num_sequences + self.cost.sequence_ms)

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
        fixed, each = tokens_per_ms * self.cost.fixed_ms, tokens_per_ms * self.cost.sequence_ms
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
            ms = self.paid(decision.depth) * self.cost.fixed_ms + self.cost.sequence_ms * sum(
                self.paid(min(decision.depth, len(known)))
                for known, does in zip(gains, decision.asked, strict=True)
                if does
            )
            pace = (step.tokens + decision.gain) / (step.tokens / step.prices.ms + ms)
        return decision

    def _decision(self, gains: Sequence[Sequence[float]], depth: int, tokens_per_ms: float) -> Decision:
        each = tokens_per_ms * self.cost.sequence_ms
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
    """Return the gain of drafting `depth` deep, or as deep as the sequence's limit lets."""
    return gains[min(depth, len(gains)) - 1] if gains else 0.0


def value(survivals: Sequence[float], price: float) -> float:
    """Return the expected accepted tokens of the nodes worth their row, less the price of the rows."""
    return sum(alive - price for alive in survivals if alive > price)
