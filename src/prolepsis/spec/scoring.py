"""Scores every draft against what was committed later, verified or not: full information at no verification cost.

After HedgeSpec (ICLR 2026): once a continuation is known, every proposer can be judged on it. A draft stays pending
until a committed token leaves it, it is used up, or its sample ends; it is judged token by token as they come, so what
other drafts had accepted in the meantime does not select the trials.
"""

from dataclasses import dataclass

from prolepsis.spec.acceptance import AcceptanceEstimator, Tilt
from prolepsis.spec.draft import ROOT, Draft
from prolepsis.spec.proposer import SampleView

_MAX_PENDING = 64  # drafts of one sample


@dataclass(slots=True)
class _Pending:
    draft: Draft
    next_index: int  # of the sample's token that decides next
    node: int = ROOT
    depth: int = 0


class Scoreboard:
    """Drafts of live samples that are still being judged, and each request's tilt per proposer."""

    def __init__(self, acceptance: AcceptanceEstimator) -> None:
        self._acceptance = acceptance
        self._pending: dict[str, list[_Pending]] = {}
        self._tilts: dict[tuple[str, str], Tilt] = {}
        self._proposers: set[str] = set()

    def tilt(self, sample: SampleView, proposer: str) -> Tilt:
        """Return the sample's tilt for one proposer; it lives until `drop`."""
        self._proposers.add(proposer)
        return self._tilts.setdefault((sample.key, proposer), Tilt())

    def add(self, sample: SampleView, draft: Draft) -> None:
        """Judge `draft`, made for the sample as it stands now, by the tokens to come."""
        pending = self._pending.setdefault(sample.key, [])
        pending.append(_Pending(draft, len(sample.tokens)))
        del pending[:-_MAX_PENDING]

    def commit(self, sample: SampleView) -> None:
        """Judge the sample's pending drafts by the tokens that were committed since."""
        pending = self._pending.get(sample.key)
        if pending:
            self._pending[sample.key] = [entry for entry in pending if self._judge(entry, sample)]

    def drop(self, sample: SampleView) -> None:
        """Forget a sample that ended; what is undecided stays uncounted."""
        self._pending.pop(sample.key, None)
        for proposer in self._proposers:
            self._tilts.pop((sample.key, proposer), None)

    def _judge(self, entry: _Pending, sample: SampleView) -> bool:
        """Advance one draft over the known tokens; return whether it is still undecided."""
        tokens, draft = sample.tokens, entry.draft
        tilt = self.tilt(sample, draft.proposer)
        while entry.next_index < len(tokens):
            follower = self._trials(entry, tokens[entry.next_index], tilt)
            if follower is None:
                return False
            entry.node, entry.depth, entry.next_index = follower, entry.depth + 1, entry.next_index + 1
            if follower not in draft.parents:
                return False
        return True

    def _trials(self, entry: _Pending, token: int, tilt: Tilt) -> int | None:
        """Record a trial for each child of the entry's node; return the child that was committed."""
        draft, follower = entry.draft, None
        for node in range(entry.node + 1, len(draft.tokens)):
            if draft.parents[node] == entry.node:
                hit = draft.tokens[node] == token
                self._acceptance.record(draft, node, entry.depth, hit=hit, tilt=tilt)
                if hit:
                    follower = node
        return follower
