"""Scores every draft against what was committed later, verified or not: full information at no verification cost.

After HedgeSpec (ICLR 2026): once a continuation is known, every proposer can be judged on it. A draft stays pending
until a committed token leaves it, it is used up, or its sequence ends; it is judged token by token as they come, so
what other drafts had accepted in the meantime does not select the trials.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.spec.acceptance import AcceptanceEstimator, Tilt
from prolepsis.spec.draft import ROOT, Draft
from prolepsis.spec.ledger import Ledger
from prolepsis.spec.proposer import SequenceView

_MAX_PENDING = 64  # drafts of one sequence


@dataclass(slots=True)
class _Pending:
    draft: Draft
    rates: Sequence[float]  # what was expected of each node
    tilt: Tilt
    traffic_class: str
    next_index: int  # of the sequence's token that decides next
    node: int = ROOT
    depth: int = 0


class Scoreboard:
    """Drafts of live sequences that are still being judged, and each request's tilt per proposer."""

    def __init__(self, acceptance: AcceptanceEstimator, ledger: Ledger | None = None) -> None:
        self._acceptance = acceptance
        self._ledger = ledger or Ledger(())
        self._pending: dict[str, list[_Pending]] = {}
        self._tilts: dict[str, dict[str, Tilt]] = {}  # by sequence, by proposer

    def tilt(self, sequence: SequenceView, proposer: str) -> Tilt:
        """Return the sequence's tilt for one proposer; it lives until `drop`."""
        tilts = self._tilts.setdefault(sequence.key, {})
        tilt = tilts.get(proposer)
        if tilt is None:
            tilt = tilts[proposer] = Tilt()
        return tilt

    def add(self, sequence: SequenceView, draft: Draft, rates: Sequence[float]) -> None:
        """Judge `draft`, made for the sequence as it stands now, by the tokens to come; `rates` were expected of it."""
        pending = self._pending.setdefault(sequence.key, [])
        tilt = self.tilt(sequence, draft.proposer)
        pending.append(_Pending(draft, rates, tilt, sequence.traffic_class, len(sequence.tokens)))
        del pending[:-_MAX_PENDING]

    def commit(self, sequence: SequenceView) -> None:
        """Judge the sequence's pending drafts by the tokens that were committed since."""
        pending = self._pending.get(sequence.key)
        if pending:
            self._pending[sequence.key] = [entry for entry in pending if self._judge(entry, sequence.tokens)]

    def drop(self, sequence: SequenceView) -> None:
        """Forget a sequence that ended; what is undecided stays uncounted."""
        self._pending.pop(sequence.key, None)
        self._tilts.pop(sequence.key, None)

    def forget(self, proposer: str) -> None:
        """Forget the drafts of a proposer that was exchanged, and how requests fared with it."""
        for key, pending in self._pending.items():
            self._pending[key] = [entry for entry in pending if entry.draft.proposer != proposer]
        for tilts in self._tilts.values():
            tilts.pop(proposer, None)

    def _judge(self, entry: _Pending, tokens: Sequence[int]) -> bool:
        """Advance one draft over the known tokens; return whether it is still undecided."""
        parents = entry.draft.parents
        while entry.next_index < len(tokens):
            follower = self._trials(entry, tokens[entry.next_index])
            if follower is None or follower not in parents:
                return False
            entry.node, entry.depth, entry.next_index = follower, entry.depth + 1, entry.next_index + 1
        return True

    def _trials(self, entry: _Pending, token: int) -> int | None:
        """Record a trial for each child of the entry's node; return the child that was committed."""
        draft, parents, at, follower = entry.draft, entry.draft.parents, entry.node, None
        first = True
        for node in range(at + 1, len(parents)):
            if parents[node] == at:
                hit = draft.tokens[node] == token
                self._acceptance.record(draft, node, entry.depth, hit=hit, first=first)
                first = False
                entry.tilt.record(hit, entry.rates[node])
                if hit:
                    follower = node
        if entry.depth == 0:
            right = follower is not None
            self._ledger.judge(draft.proposer, entry.traffic_class, right=right, estimate=draft.first_chance)
        return follower
