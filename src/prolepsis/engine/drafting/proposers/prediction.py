"""The caller's predicted output as a draft: follows it from the first token, finds its place again after a mismatch.

Predictions are not bound to positions: a match may resume after any amount of new text (`followed`), and anywhere.
"""

from collections.abc import Sequence

from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.expected_text import ExpectedText, kernel_for, propose

MOST_AT_ONCE = 4096
"""Tokens indexed in one step, which the steps of all requests wait for."""


class PredictionProposer(Proposer):
    """Proposes trees of where the prediction may go on."""

    name = "prediction"
    free = True

    def __init__(self, *, native: bool = True) -> None:
        self._kernel = kernel_for(native=native)
        self._texts: dict[str, ExpectedText] = {}

    def serves(self, sequence: SequenceView) -> bool:
        """Only sequences with a prediction."""
        return bool(sequence.prediction)

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return propose(self._kernel, self.name, [self._text(sequence) for sequence in sequences], sequences, limits)

    def forget(self, sequence: SequenceView) -> None:
        self._texts.pop(sequence.key, None)

    def _text(self, sequence: SequenceView) -> ExpectedText | None:
        if not sequence.prediction:
            return None
        text = self._texts.get(sequence.key)
        if text is None:
            text = self._texts[sequence.key] = ExpectedText(self._kernel, sequence.num_prompt_tokens)
        if text.num_given < len(sequence.prediction):
            text.give(sequence.prediction[text.num_given : text.num_given + MOST_AT_ONCE])
        return text
