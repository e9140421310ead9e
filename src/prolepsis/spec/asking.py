"""Asks one proposer for the sequences of a step: a free one always, a costly one where and as deep as it pays."""

from collections.abc import Sequence

from prolepsis.spec.acceptance import AcceptanceEstimator
from prolepsis.spec.candidate import Rating, Turn, levels
from prolepsis.spec.containment import ContainedProposer
from prolepsis.spec.draft import Draft
from prolepsis.spec.effort import Effort, Offer, Prices, Step
from prolepsis.spec.ledger import Ledger
from prolepsis.spec.scoring import Scoreboard

_LEAST_RATE = 0.3  # below, a node's children are not expected to survive even less often


class Asking:
    """One proposer with the effort it is worth; its drafts go to the sequences' turns."""

    def __init__(
        self, proposer: ContainedProposer, acceptance: AcceptanceEstimator, board: Scoreboard, ledger: Ledger
    ) -> None:
        self.proposer = proposer
        self._ledger = ledger
        self._acceptance = acceptance
        self._board = board
        self._rating = Rating(acceptance, board)
        self._effort = None if proposer.free else Effort(one_pass=proposer.one_pass)

    def ask(self, turns: Sequence[Turn], prices: Prices | None) -> float:
        """Let it compete for the sequences that allow it; return the milliseconds that a costly one took.

        `prices` None: the depth is fixed, and drafts are neither weighed against their cost nor merged.
        """
        name, serves = self.proposer.name, self.proposer.serves
        asked = [turn for turn in turns if turn.allows(name) and serves(turn.sequence)]
        if not asked:
            return 0.0
        if self._effort is not None and prices is not None:
            step = Step(prices, len(turns), sum(turn.worth for turn in turns))
            return self._ask_where_it_pays(self._effort, asked, step)
        drafts, ms = self._draft(asked, [turn.limit for turn in asked], prices)
        for turn, draft in zip(asked, drafts, strict=True):
            if draft is not None:
                self._rating.compete(turn, draft, prices.row if prices else 0.0)
        return ms

    def _ask_where_it_pays(self, effort: Effort, turns: Sequence[Turn], step: Step) -> float:
        prices = step.prices
        longest = max(turn.limit for turn in turns)
        alive = self._acceptance.survival(self.proposer.name, max(2, longest))
        offers = [self._offer(turn, alive, prices.row) for turn in turns]
        decision = effort.decide(alive[:longest], offers, step)
        asked = [turn for turn, does in zip(turns, decision.asked, strict=True) if does]
        for turn, does in zip(turns, decision.asked, strict=True):
            turn.spared |= not does
        if not asked:
            return 0.0
        threshold = effort.threshold(len(asked), prices) / max(_LEAST_RATE, alive[1] / alive[0])
        drafts, ms = self._draft(asked, [min(decision.depth, turn.limit) for turn in asked], prices, threshold)
        gained = 0.0
        for turn, draft in zip(asked, drafts, strict=True):
            if draft is not None:
                gained += self._rating.join(turn, draft, prices.row)
        effort.learn(decision.gain, gained)
        return ms

    def _draft(
        self, turns: Sequence[Turn], depths: Sequence[int], prices: Prices | None, threshold: float = 0.0
    ) -> tuple[Sequence[Draft | None], float]:
        """Return the drafts and, of a costly proposer, the milliseconds they took."""
        for turn in turns:
            turn.asked = True
        before = self.proposer.seconds
        drafts = self.proposer.propose([t.sequence for t in turns], depths, [t.limit for t in turns], threshold)
        seconds = self.proposer.seconds - before
        weighed = None if any(t.shadow or t.forced for t in turns) else prices
        self._ledger.ask(self.proposer.name, [t.sequence.traffic_class for t in turns], seconds, weighed)
        if self._effort is None:
            return drafts, 0.0
        ms = 1000.0 * seconds
        deepest = max((max(draft.depths()) for draft in drafts if draft is not None), default=0)
        self._effort.cost.learn(len(turns), self._effort.paid(deepest), ms)
        return drafts, ms

    def _offer(self, turn: Turn, alive: Sequence[float], price: float) -> Offer:
        """Return what it should bring the sequence: what it brings all sequences, tilted as this one fares."""
        tilt = self._board.tilt(turn.sequence, self.proposer.name).factor
        expected: list[float] = []
        factor = tilt
        for chance in alive[: turn.limit]:
            if factor * chance <= price:
                break
            expected.append(min(1.0, factor * chance))
            factor *= tilt
        return Offer(expected, levels(turn.best.draft, turn.best.survivals) if turn.best else ())
