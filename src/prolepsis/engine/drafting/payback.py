"""Decides from measured steps whether drafts pay: what drafts cost, and which sequences draft.

Everything a draft adds to a step counts as its cost, the wait of the other sequences included: the milliseconds of
making and verifying it, as steps show them (`engine.drafting.worth`), at the tokens that all sequences of the step
emit in that time without drafts. A sequence whose drafts bring less pauses (`engine.drafting.pauses`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from prolepsis.engine.drafting.explore import Explore
from prolepsis.engine.drafting.pauses import Pauses
from prolepsis.engine.drafting.worth import CostCorrection, StepComparison, StepCost

_OUTLIER = 2.0  # times the longest recent time of making drafts; more than that is a hiccup
_OBSERVED = 4  # observe one of four steps in which all sequences pause: observing costs 1 % of a step
_LONGEST_DECAY = 0.998  # per step in which sequences might draft


class Payback:
    """Of one engine. A step: `begin`, `correction`, `observe` if it only decoded and `is_due`. `forget` what ended."""

    def __init__(self, explore: Explore | None = None) -> None:
        self.explore = explore or Explore()
        self.start_over()

    def start_over(self) -> None:
        self.explore.start_over()
        self._comparison = StepComparison(self.explore)
        self._pauses = Pauses(self.explore)
        self._longest_ms = 0.0
        self._num_paused_steps = 0  # steps in a row in which all sequences paused

    def begin(self, keys: Sequence[str], num_sequences: int, *, only_decodes: bool = True) -> frozenset[str]:
        """Return which of the sequences `keys`, of `num_sequences` that decode, may draft in this step.

        `only_decodes`: else the step is not observed, so nothing is left out to compare it with.
        """
        active = self._pauses.begin(keys, num_sequences)
        self._num_paused_steps = 0 if active else self._num_paused_steps + 1
        if not active or (only_decodes and self._comparison.wants_reference(num_sequences)):
            return frozenset()
        return frozenset(active)

    @property
    def is_due(self) -> bool:
        """Whether the step that began is to be observed, if it only decodes."""
        return self._num_paused_steps % _OBSERVED == 0

    def correction(self, num_sequences: int) -> CostCorrection:
        """Return the correction of predicted costs by which to choose drafts in this step."""
        return self._comparison.correction(num_sequences)

    def drops_states(self, key: str) -> bool:
        return self._pauses.drops_states(key)

    def observe(self, step: StepCost, drafts: Mapping[str, tuple[int, int]]) -> None:
        """Learn from a step; `drafts`: of each sequence that might draft, nodes verified and tokens gained."""
        if not step.is_sound:
            return
        if drafts:  # leave out what making them took beyond all calls before
            longest = _OUTLIER * self._longest_ms if self._longest_ms else step.plain_ms
            excess = max(0.0, step.drafting_ms - longest)
            self._longest_ms = max(step.drafting_ms - excess, _LONGEST_DECAY * self._longest_ms)
            step = replace(step, ms=step.ms - excess, drafting_ms=longest) if excess else step
        self._comparison.observe(step, is_idle=bool(drafts))
        if not drafts:
            return
        number = step.num_sequences
        correction = self._comparison.correction(number)
        pace = number / (correction.plain * step.plain_ms)
        each = pace * step.drafting_ms / len(drafts)
        per_node = pace * correction.of_drafts(step.verifying_ms, step.num_draft_tokens) / max(1, step.num_draft_tokens)
        for key, (nodes, gained) in drafts.items():
            self._pauses.record(key, nodes, gained - each - nodes * per_node, number)

    def forget(self, key: str) -> None:
        self._pauses.forget(key)
