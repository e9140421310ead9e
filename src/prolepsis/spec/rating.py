"""What drafts are worth to a sample, and which it keeps: the best one, or two merged into one tree."""

from collections.abc import Sequence

from prolepsis.spec.acceptance import AcceptanceEstimator, survivals
from prolepsis.spec.draft import Draft
from prolepsis.spec.effort import value
from prolepsis.spec.merging import merge
from prolepsis.spec.pruning import FORCED_RATE, forced_nodes, within_grammar
from prolepsis.spec.scoring import Scoreboard
from prolepsis.spec.turn import Rated, Turn

_MARGIN = 1.05  # a later proposer must be so much better: choosing the largest of noisy estimates costs otherwise


_FLOOR = 0.5  # of the price: nodes that are not worth their row are not merged


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

    def join(self, turn: Turn, draft: Draft, price: float) -> float:
        """Merge `draft` with the best so far, where both say something; return what its own nodes are worth then.

        The merged tree has estimates of its own, that know whether its parts agree. Whatever one part alone would be
        worth by them is in it, so it is kept: the window cuts what is not worth its row.
        """
        other = turn.best
        rated = self.compete(turn, draft, price)
        if rated is None:
            return 0.0
        if other is not None:
            union = merge(other, rated, turn.limit, 0.0 if turn.forced else _FLOOR * price)
            if union.tokens:
                turn.best = merged = self._rated(turn, union, 1.0, price)
                own = zip(merged.survivals, union.sources, strict=True)
                return value([alive for alive, source in own if source == draft.proposer], price)
        return rated.worth

    def _rated(self, turn: Turn, draft: Draft, tilt: float, price: float) -> Rated:
        """Rate a draft for its sample; what the grammar forces is as good as accepted."""
        matcher = turn.sample.matcher
        expected = self._acceptance.rates(draft)
        if matcher is None:
            alive = survivals(draft, expected, tilt)
        else:
            rates = [tilt * rate for rate in expected]
            for node in forced_nodes(draft, matcher):
                expected[node] = rates[node] = FORCED_RATE
            alive = survivals(draft, rates)
        if turn.judged:
            self._board.add(turn.sample, draft, expected)
        return Rated(draft, alive, value(alive, price))


def levels(draft: Draft, alive: Sequence[float]) -> tuple[float, ...]:
    """Return for each depth the chance that some node there is accepted; of a node's children at most one is."""
    chances: list[float] = []
    for depth, chance in zip(draft.depths(), alive, strict=True):
        if depth > len(chances):
            chances.append(0.0)
        chances[depth - 1] += chance
    return tuple(min(1.0, chance) for chance in chances)
