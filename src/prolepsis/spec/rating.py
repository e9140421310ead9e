"""What drafts are worth to a sample, and which it keeps: the best one, or two merged into one tree."""

from prolepsis.spec.acceptance import AcceptanceEstimator, survivals
from prolepsis.spec.draft import Draft
from prolepsis.spec.effort import value
from prolepsis.spec.merging import merge
from prolepsis.spec.pruning import FORCED_RATE, forced_nodes, within_grammar
from prolepsis.spec.scoring import Scoreboard
from prolepsis.spec.turn import Rated, Turn

_MARGIN = 1.05  # a later proposer must be so much better: choosing the largest of noisy estimates costs otherwise
_CERTAIN = 0.998


class Rating:
    """Rates drafts by the acceptance estimates and puts them on the scoreboard to be judged, chosen or not."""

    def __init__(self, acceptance: AcceptanceEstimator, board: Scoreboard) -> None:
        self._acceptance = acceptance
        self._board = board

    def compete(self, turn: Turn, draft: Draft, price: float) -> Rated | None:
        """Let `draft` be the sample's where it is worth more than the best so far; return it rated.

        What leaves the sample's grammar is cut off before; None where nothing is left.
        """
        kept = within_grammar(draft, turn.sample.matcher) if turn.sample.matcher is not None else draft
        if kept is None:
            return None
        rated = self._rated(turn, kept, self._board.tilt(turn.sample, kept.proposer).factor, price)
        if turn.best is None or rated.worth > _MARGIN * turn.best.worth:
            turn.best = rated
        return rated

    def join(self, turn: Turn, draft: Draft, price: float) -> None:
        """Merge `draft` with the best so far, where both say something.

        The merged tree has estimates of its own, that know whether its parts agree. Whatever one part alone would be
        worth by them is in it, so it is kept: the window cuts what is not worth its row.
        """
        other = turn.best
        rated = self.compete(turn, draft, price)
        if other is not None and rated is not None:
            union = merge(other.draft, other.rates, rated.draft, rated.rates, turn.limit)
            turn.best = self._rated(turn, union, 1.0, price)

    def _rated(self, turn: Turn, draft: Draft, tilt: float, price: float) -> Rated:
        """Rate a draft for its sample; what the grammar forces is as good as accepted."""
        matcher = turn.sample.matcher
        forced = forced_nodes(draft, matcher) if matcher is not None else ()
        expected = self._acceptance.rates(draft)
        rates = [min(_CERTAIN, tilt * rate) for rate in expected]
        for node in forced:
            expected[node] = rates[node] = FORCED_RATE
        if turn.judged:
            self._board.add(turn.sample, draft, expected)
        alive = survivals(draft, rates)
        return Rated(draft, rates, alive, value(alive, price))
