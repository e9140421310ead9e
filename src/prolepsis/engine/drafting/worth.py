"""What steps with drafts are worth: how much they differ from what was predicted, by load.

Steps without drafts show what a plain step takes, over its prediction. What a step with drafts takes beyond that, less
what making the drafts took, is the cost of verifying them, wherever it arises. Both are learned, so the predictions may
be off: the step is right. Loads are compared each for itself, as what a row costs depends on how many there are.

Where drafts take longer than predicted, each token does by as much: a machine whose memory was busy when it was
profiled, or whose cores are now, computes rows that seemed to be free, and the rows that were not free cost it little
more. Where they take less, all take so much less in proportion.

The machine may change its speed, as others use it: a step without drafts that differs much from those before counts as
much as all of them.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from prolepsis.engine.drafting.explore import Explore

_PLAIN_DECAY = 0.94  # per step without drafts
_DECAY = 0.98  # per step with drafts, and per step that verified none of those it might have
_PRIOR, _PRIOR_TOKENS = 0.1, 2.0  # plain steps of predicted cost, and draft tokens, that stand for what is known before
_FIRST = 0.4  # ratio of the cost of verifying where nothing is known, so that it becomes known
_OUTLIER = 2.0  # a step counts at most so much longer than expected, or shorter: a compile, a page fault
_FEW = 4.0  # plain steps
_CHANGED = 0.15  # of the logarithm of a plain step's time: it counts as much as all before
_SHORTEST = 8  # steps with drafts between two references


@dataclass(frozen=True, slots=True)
class StepCost:
    num_sequences: int
    num_tokens: int
    num_draft_tokens: int  # verified; 0: a step without drafts
    ms: float
    plain_ms: float  # predicted for the same sequences without drafts
    drafting_ms: float  # part of `ms` that was measured for proposing and for learning of proposers
    verifying_ms: float = 0.0  # predicted for the drafts' tokens

    @property
    def is_sound(self) -> bool:
        """Whether it can be compared: it emitted tokens, and took time besides drafting."""
        times = (self.ms, self.plain_ms, self.drafting_ms, self.verifying_ms)
        is_measured = all(math.isfinite(ms) and ms >= 0.0 for ms in times)
        return is_measured and self.ms > self.drafting_ms and self.plain_ms > 0.0 and self.num_tokens > 0


@dataclass(frozen=True, slots=True)
class CostCorrection:
    """How measured steps differ from predicted ones, at one load."""

    plain: float = 1.0  # ratio for a step without drafts
    verifying: float = 1.0  # ratio for what drafts add to a step, apart from making them: at most `plain`
    token_ms: float = 0.0  # what each draft token adds beyond the prediction

    def of_drafts(self, predicted_ms: float, num_tokens: int) -> float:
        """Return the milliseconds that so many draft tokens add, of which `predicted_ms` were predicted."""
        return self.verifying * predicted_ms + num_tokens * self.token_ms


AS_PREDICTED = CostCorrection()


class StepComparison:
    """All loads. A load is the number of decoding sequences, up to a power of two."""

    def __init__(self, explore: Explore) -> None:
        self._explore = explore
        self._loads: defaultdict[int, _Load] = defaultdict(_Load)

    def correction(self, num_sequences: int) -> CostCorrection:
        return self._of(num_sequences).correction

    def wants_reference(self, num_sequences: int) -> bool:
        """Count a step that would have drafts; return whether it shall have none, to be compared with."""
        load = self._of(num_sequences)
        load.num_waited += 1
        if load.num_waited < _SHORTEST:
            return False
        return self._explore.grant("doubt" if load.is_in_doubt else "reference", num_sequences * load.gain)

    def observe(self, step: StepCost, *, is_idle: bool = False) -> None:
        """Learn from a step; one that is not sound, as where its requests failed, shows nothing.

        `is_idle`: sequences might have drafted, and no draft was worth verifying. What verifying costs fades then: a
        cost that is too high would stay so, as nothing else corrects it.
        """
        if not step.is_sound:
            return
        load = self._of(step.num_sequences)
        if step.num_draft_tokens:
            load.observe_drafts(step)
        else:
            load.observe_plain(step)
            if is_idle:
                load.fade()

    def _of(self, num_sequences: int) -> "_Load":
        return self._loads[load_band(num_sequences)]


def load_band(num_sequences: int) -> int:
    """Return the band of a load: 1, 2, 3 to 4, 5 to 8, and so on."""
    return (num_sequences - 1).bit_length()


class _Load:
    """One load: a measured plain step over the predicted one, and decayed sums over steps with drafts."""

    def __init__(self) -> None:
        self._plain = self._weight = 0.0
        self.plain_ms = 0.0  # of the last step without its drafts, as measured
        self._excess = self._predicted = 0.0  # in plain steps: measured less predicted, and predicted
        self._num_drafted = 0.0  # draft tokens
        self._tokens = self._time = 0.0  # of steps with drafts, in units of plain steps
        self.num_waited = 0  # steps since the last one without drafts
        self.is_in_doubt = True  # the last plain steps were few, or may no longer show the cost of one

    @property
    def plain_ratio(self) -> float:
        return self._plain / self._weight if self._weight else 0.0

    @property
    def gain(self) -> float:
        """Tokens that steps with drafts bring a sequence beyond plain ones, in the time of a plain step."""
        return self._tokens / self._time - 1.0 if self._time else 0.0

    @property
    def verifying(self) -> tuple[float, float]:
        """Cost of verifying: a ratio to what is predicted, and plain steps for each draft token.

        In plain steps, so that the machine's speed does not change it.
        """
        excess = self._excess + _PRIOR * (_FIRST - 1.0)
        if excess > 0.0:
            return 1.0, excess / (self._num_drafted + _PRIOR_TOKENS)
        return max(0.0, 1.0 + excess / (self._predicted + _PRIOR)), 0.0

    @property
    def correction(self) -> CostCorrection:
        plain, (ratio, token) = self.plain_ratio or 1.0, self.verifying
        return CostCorrection(plain, plain * ratio, self.plain_ms * token)

    def observe_plain(self, step: StepCost) -> None:
        ratio, known = (step.ms - step.drafting_ms) / step.plain_ms, self.plain_ratio
        if _OUTLIER * ratio < known:  # nothing makes a step faster than it is: those before were disturbed
            self._plain = self._weight = 0.0
            self._excess = self._predicted = self._num_drafted = self._tokens = self._time = 0.0
        elif known and abs(math.log(ratio / known)) > _CHANGED:
            ratio = min(ratio, _OUTLIER * known)
            self._plain, self._weight = known, 1.0
        self._plain = _PLAIN_DECAY * self._plain + ratio
        self._weight = _PLAIN_DECAY * self._weight + 1.0
        self.plain_ms = self.plain_ratio * step.plain_ms
        self.num_waited = 0
        self.is_in_doubt = self._weight < _FEW

    def observe_drafts(self, step: StepCost) -> None:
        if not self._weight:
            return
        plain_ms = self.plain_ratio * step.plain_ms
        predicted, drafting = step.verifying_ms / step.plain_ms, step.drafting_ms / plain_ms
        ratio, token = self.verifying
        expected = 1.0 + drafting + ratio * predicted + token * step.num_draft_tokens
        time = min(_OUTLIER * expected, max(expected / _OUTLIER, step.ms / plain_ms))
        self.fade()
        self._excess += time - 1.0 - drafting - predicted
        self._predicted += predicted
        self._num_drafted += step.num_draft_tokens
        self.plain_ms = plain_ms
        self._time += time
        self._tokens += step.num_tokens / step.num_sequences

    def fade(self) -> None:
        """Let what is known of steps with drafts count less."""
        self._excess *= _DECAY
        self._predicted *= _DECAY
        self._num_drafted *= _DECAY
        self._time *= _DECAY
        self._tokens *= _DECAY
