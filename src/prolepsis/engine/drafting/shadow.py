"""Shadow drafts: compared with the tokens that plain decoding emits, never verified, to count what they would gain."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prolepsis.engine.drafting.draft import ROOT, Draft


@dataclass(slots=True)
class ShadowDraft:
    """The one draft of a sequence in shadow that is still compared, and how far the emitted tokens followed it.

    The token that leaves it, or comes after its last one, still belongs to it: the step that verified it would have
    emitted that token too. So drafts made one after another are those that verification would have seen.
    """

    draft: Draft
    path: list[int] = field(default_factory=list)  # its nodes whose tokens were emitted, from the root down

    def follow(self, tokens: Sequence[int]) -> bool:
        """Process the tokens just emitted; return whether the draft is decided: by the first token that leaves it."""
        for token in tokens:
            child = self.draft.child(self.path[-1] if self.path else ROOT, token)
            if child is None:
                return True
            self.path.append(child)
        return False


_LONGEST_S = 0.002  # of credit: after a quiet time, not more than this is spent at once
_WEIGHT = 0.05  # of the last step in the means
_SAMPLE_EVERY_S = 2.0  # at most: often enough for a verdict on a rollout, which takes some sixty requests, in minutes


class ShadowBudget:
    """Lets drafts that are only compared have `share` of the passes' time: passes fill a bucket, drafts empty it.

    It is for whole requests to draft or not. Were single drafts left out, those made would begin at tokens that time
    chose, where verification would have begun behind the last draft: long stretches of right drafts would be met too
    often. Which requests draft depends on when they begin, never on their content or drafts.
    """

    def __init__(self, share: float) -> None:
        """`share` 1: no bound."""
        self.share = share
        self._credit_s = _LONGEST_S if share > 0.0 else 0.0
        self._pass_s = 0.0
        self._each_s = 0.0  # of a step, for a request that drafts
        self._spent_s = 0.0  # since the last pass
        self._active: set[str] = set()
        self._next_sample_s: float | None = None  # the first comes when the clock has run for so long

    def admit(self, request_id: str) -> bool:
        """Return whether a request that begins may draft until it ends."""
        # the first request shows what one takes
        one_more_fits = 0.0 < (len(self._active) + 1) * self._each_s <= self.share * self._pass_s
        if self.share < 1.0 and (self._credit_s <= 0.0 or (self._active and not one_more_fits)):
            return False
        self._active.add(request_id)
        return True

    def admit_sample(self, now_s: float) -> bool:
        """Return whether a request that begins may have its first drafts compared, though it is not in shadow."""
        is_due = self._next_sample_s is not None and now_s >= self._next_sample_s
        if is_due and self._credit_s <= 0.0:
            return False
        if is_due or self._next_sample_s is None:
            self._next_sample_s = now_s + _SAMPLE_EVERY_S
        return is_due

    def end(self, request_id: str) -> None:
        """Count the end of a request, admitted or not."""
        self._active.discard(request_id)

    def spend(self, seconds: float) -> None:
        """Count the time of drafts that are compared."""
        self._spent_s += seconds

    def passed(self, pass_s: float) -> None:
        """Learn the time of a pass, after the drafts made for it."""
        self._pass_s = _mean(self._pass_s, pass_s)
        if self._active and (self._each_s or self._spent_s):
            self._each_s = _mean(self._each_s, self._spent_s / len(self._active))
        limit = max(_LONGEST_S, self.share * pass_s)
        self._credit_s = min(limit, self._credit_s + self.share * pass_s - self._spent_s)
        self._spent_s = 0.0


def _mean(before: float, now: float) -> float:
    return now if before == 0.0 else (1.0 - _WEIGHT) * before + _WEIGHT * now
