"""Decides when and how deep a costly proposer drafts: one level deeper if that gains more than it costs.

A level costs G (tokens per ms) times its milliseconds, which a call shares over its sequences, and the pass's time for
the tokens it adds. A level pays while the sum of survivals is larger than (sequences * b + c) * G, with b the ms of a
token in the pass and c those of the level. G is that of this step, found together with the depth: a token gained in
hard text saves the time that hard text takes. The drafts are merged with the free draft, so a depth gains where the
free draft fails: survival there times the chance that no node of the free draft is accepted, as if both failed
independently. The ratio of real to expected gains is learned as a factor.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.spec.comparison import load_band

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
        if ms < known / _OUTLIER:  # the estimate was of a start (a compile, cold pages): start over
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
_DRIFT = 1.25  # ratio of a promise to that at the last probe, from which waiting starts over
_NOISE = 0.02  # tokens


class Probes:
    """Grants a probe after 16 steps without a call, then after twice as many, up to 512.

    It starts over when the promise has risen.
    """

    def __init__(self) -> None:
        self._waited = 0
        self._backoff = _FIRST_BACKOFF
        self._promise: float | None = None

    def due(self, promise: float) -> bool:
        """Count a step without a call; return whether to probe. `promise`: tokens a sequence that a probe may bring."""
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
        """It drafts because it pays."""
        self._waited, self._backoff, self._promise = 0, _FIRST_BACKOFF, None


PROBE_DEPTH = 3
"""Levels of a draft whose gain is not known to pay."""
_PROBED = 4  # sequences at most: a head reads the whole prompt of each that it never drafted for
_DECAY = 0.9  # of gains, per call: they are estimates, so a few calls tell enough
_ROUNDS = 4
_CONVERGED = 1e-4  # of a step's tokens
_PRIOR_TOKENS = 1.0  # weight of "gains are as expected"


@dataclass(frozen=True, slots=True)
class MarginalCost:
    """Cost of a step's time, in emitted tokens."""

    token: float
    """One more token in the pass: the survival at which verifying it just pays."""
    ms: float
    """One millisecond: the tokens that the step emits in it."""


@dataclass(frozen=True, slots=True)
class StepBaseline:
    """Yield of a step before a costly proposer drafts."""

    plain: MarginalCost
    """Marginal cost of plain decoding."""
    num_sequences: int
    """Decoding sequences, each of which emits a token in any case."""
    gain: float = 0.0
    """Gain of their free drafts: accepted tokens, less the cost of verifying them."""

    @property
    def tokens(self) -> float:
        return self.num_sequences + self.gain

    @property
    def costs(self) -> MarginalCost:
        """With the free drafts: G = (sequences + sum of (S - b * G)) / ms without drafts."""
        factor = self.tokens / self.num_sequences
        return MarginalCost(self.plain.token * factor, self.plain.ms * factor)


@dataclass(frozen=True, slots=True)
class ExpectedDraft:
    """Expected draft of a proposer for one sequence, by depth, up to its limit."""

    survivals: Sequence[float]
    """Chance that the likeliest node at a depth is accepted."""
    free: Sequence[float] = ()
    """Chance that some node of the sequence's free draft is accepted there."""


@dataclass(frozen=True, slots=True)
class DepthDecision:
    """The depth to draft (0: not at all), the sequences to draft for, and the expected gain in tokens."""

    depth: int
    asked: tuple[bool, ...]
    gain: float = 0.0


class Effort:
    """Decides for one proposer, switches it with hysteresis and probes it while it does not pay."""

    def __init__(self, *, one_pass: bool = False) -> None:
        """`one_pass`: all depths cost the same (`spec.proposer.Proposer`)."""
        self.cost = LevelCost()
        self._one_pass = one_pass
        self._switch = Switch()
        self._probes: defaultdict[int, Probes] = defaultdict(Probes)
        """By load: a promise that comes and goes with the load tells nothing new."""
        self._gained = self._expected = _PRIOR_TOKENS
        self._num_probes = 0

    def decide(self, alone: Sequence[float], expected: Sequence[ExpectedDraft], step: StepBaseline) -> DepthDecision:
        """Return for which sequences to draft, and how deep: once a step.

        `alone`: what to expect for a sequence without a free draft; this switches the proposer on and off.
        """
        factor = max(1.0, self._factor)  # below 1 because free drafts gain the same tokens
        gains = _gains(ExpectedDraft(alone), step.plain.token, factor)
        _, net = self._best([gains], step.plain.ms, len(expected))
        is_on, token_cost = self._switch.decide(net / step.num_sequences), step.costs.token
        probes = self._probes[load_band(step.num_sequences)]
        if is_on:
            decision = self._fastest([_gains(each, token_cost, self._factor) for each in expected], step)
            if decision.depth:
                probes.restart()
                return decision
        if probes.due(_at(gains, PROBE_DEPTH)):
            return self._probe(expected, token_cost)
        return DepthDecision(0, (False,) * len(expected))

    def _probe(self, expected: Sequence[ExpectedDraft], token_cost: float) -> DepthDecision:
        """Return a probe of a few sequences, others each time."""
        first, number = self._num_probes * _PROBED, len(expected)
        self._num_probes += 1
        probed = {(first + i) % number for i in range(min(_PROBED, number))}
        gain = sum(_at(_gains(expected[i], token_cost, self._factor), PROBE_DEPTH) for i in probed)
        return DepthDecision(PROBE_DEPTH, tuple(i in probed for i in range(number)), gain)

    def threshold(self, num_sequences: int, costs: MarginalCost) -> float:
        """Return the survival at which a node of the next level pays its verification and its share of the level."""
        if self._one_pass:
            return costs.token
        return costs.token + costs.ms * (self.cost.fixed_ms / num_sequences + self.cost.sequence_ms)

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

    def _best(self, gains: Sequence[Sequence[float]], tokens_per_ms: float, times: int = 1) -> tuple[int, float]:
        """Return the depth with the largest gain over cost, and that; 0 and at most 0 if none gains.

        `times`: so many sequences gain each of `gains`.
        """
        deepest = max(map(len, gains), default=0)
        paid = [self.paid(k) for k in range(1, deepest + 1)]
        fixed, each = tokens_per_ms * self.cost.fixed_ms, tokens_per_ms * self.cost.sequence_ms
        nets = [-fixed * levels for levels in paid]
        for known in gains:
            net = 0.0
            for k, gain in enumerate(known):
                net = gain - each * paid[k]
                if net > 0.0:
                    nets[k] += times * net
            if net > 0.0:  # its limit is reached
                for k in range(len(known), deepest):
                    nets[k] += times * net
        best = max(nets, default=0.0)
        return (nets.index(best) + 1, best) if best > 0.0 else (0, best)

    def _fastest(self, gains: Sequence[Sequence[float]], step: StepBaseline) -> DepthDecision:
        """Return the choice with the most tokens per millisecond: the best at its own pace (Dinkelbach 1967)."""
        pace = step.costs.ms
        decision = DepthDecision(0, (False,) * len(gains))
        for _ in range(_ROUNDS):
            depth, net = self._best(gains, pace)
            if depth == 0 or net < _CONVERGED * step.tokens or (depth == decision.depth and len(gains) == 1):
                break
            decision = self._decision(gains, depth if self.cost.is_known else min(depth, PROBE_DEPTH), pace)
            ms = self.paid(decision.depth) * self.cost.fixed_ms + self.cost.sequence_ms * sum(
                self.paid(min(decision.depth, len(known)))
                for known, is_asked in zip(gains, decision.asked, strict=True)
                if is_asked
            )
            pace = (step.tokens + decision.gain) / (step.tokens / step.costs.ms + ms)
        return decision

    def _decision(self, gains: Sequence[Sequence[float]], depth: int, tokens_per_ms: float) -> DepthDecision:
        each = tokens_per_ms * self.cost.sequence_ms
        asked = tuple(_at(known, depth) > each * self.paid(min(depth, len(known))) for known in gains)
        gain = sum(_at(known, depth) for known, is_asked in zip(gains, asked, strict=True) if is_asked)
        return DepthDecision(depth, asked, gain)


def _gains(expected: ExpectedDraft, token_cost: float, factor: float) -> list[float]:
    """Return the tokens gained by depth, all levels above included, down to the last that gains."""
    total, gains, free = 0.0, list[float](), expected.free
    for depth, alive in enumerate(expected.survivals):
        if alive <= token_cost:
            break
        left = alive * (1.0 - free[depth]) if depth < len(free) else alive
        if left > token_cost:
            total += left - token_cost
        gains.append(factor * total)
    return gains


def _at(gains: Sequence[float], depth: int) -> float:
    """Return the gain of drafting `depth` deep, or as deep as the sequence's limit lets."""
    return gains[min(depth, len(gains)) - 1] if gains else 0.0


def value(survivals: Sequence[float], token_cost: float) -> float:
    """Return the expected accepted tokens of the nodes that pay, less the cost of verifying them."""
    return sum(alive - token_cost for alive in survivals if alive > token_cost)
