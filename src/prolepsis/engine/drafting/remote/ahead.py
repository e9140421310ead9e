"""The drafts of one sequence that were made ahead: kept while they agree with what is committed, used piece by piece.

A draft arrives behind an older prefix. What was committed since is followed down its tree: what lies below is a draft
for now. Each draft has one outcome, counted where it is decided.
"""

from collections import Counter
from collections.abc import Sequence

from prolepsis.core.rounds import RemoteOutcome
from prolepsis.engine.drafting.draft import Draft


class DraftsAhead:
    """One sequence's. `outcomes` takes the outcomes of its drafts."""

    def __init__(self, outcomes: Counter[RemoteOutcome]) -> None:
        self._outcomes = outcomes
        self._arrived: list[tuple[int, Draft]] = []
        self._draft: Draft | None = None
        self._prefix = 0
        self._is_used = False

    def put(self, prefix: int, draft: Draft) -> None:
        """Take a draft behind the first `prefix` tokens."""
        self._arrived.append((prefix, draft))

    def get(self, tokens: Sequence[int]) -> Draft | None:
        """Return the newest draft that follows all `tokens`, or None. It stays here."""
        number = len(tokens)
        if self._draft is not None and self._prefix < number:
            self._keep(self._draft.after(tokens[self._prefix :]), number)
        for prefix, draft in self._arrived:
            left = draft.after(tokens[prefix:])
            if left is None:
                self._outcomes["stale"] += 1
            elif not left.tokens:
                self._outcomes["late"] += 1
            else:
                self.drop()
                self._draft, self._prefix, self._is_used = left, number, False
        self._arrived.clear()
        return self._draft

    def use(self) -> None:
        """The draft is proposed."""
        if not self._is_used:
            self._is_used = True
            self._outcomes["used"] += 1

    def drop(self) -> None:
        """Stop using the draft."""
        if self._draft is not None and not self._is_used:
            self._outcomes["late"] += 1
        self._draft = None

    def end(self) -> None:
        """The sequence ended, or the server is lost."""
        self._outcomes["late"] += len(self._arrived)
        self._arrived.clear()
        self.drop()

    def _keep(self, left: Draft | None, number: int) -> None:
        """Keep what is left of the draft behind `number` tokens."""
        if left is not None and left.tokens:
            self._draft, self._prefix = left, number
            return
        if left is None and not self._is_used:
            self._outcomes["stale"] += 1
            self._is_used = True  # it is counted
        self.drop()
