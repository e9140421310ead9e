"""Expected output as a draft: follows it from the first token, finds its place again after a mismatch.

It is the caller's prediction, or what calls of the request's tools look like. It is not bound to positions: a match may
resume after any amount of new text (`followed`), and anywhere.
"""

from collections.abc import Sequence

from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.drafting.proposers.expected_text import ExpectedTextProposer


class PredictionProposer(ExpectedTextProposer):
    """Proposes trees of where the prediction may go on."""

    name = "prediction"

    def serves(self, sequence: SequenceView) -> bool:
        """Only sequences with a prediction."""
        return bool(sequence.prediction)

    def expected(self, sequence: SequenceView) -> tuple[Sequence[int], int] | None:
        return (sequence.prediction, sequence.num_prompt_tokens) if sequence.prediction else None
