"""The draft that a sequence's client sent while it is answered: its part after the output so far.

A draft arrives at any time and is never waited for. The output may have gone on meanwhile, and may leave the draft: it
is followed as an edited text is (`followed`). One that the output has not come to drafts nothing.
"""

from collections.abc import Sequence

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.config import CLIENT
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.expected_text import ExpectedText, kernel_for, propose


class ClientProposer(Proposer):
    """Proposes trees of where the draft may go on."""

    name = CLIENT
    free = True

    def __init__(self, *, native: bool = True) -> None:
        self._kernel = kernel_for(native=native)
        self._texts: dict[str, tuple[ClientDraft, ExpectedText]] = {}

    def serves(self, sequence: SequenceView) -> bool:
        """Only sequences whose client has sent a draft."""
        return sequence.client_draft is not None

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return propose(self._kernel, self.name, [self._text(sequence) for sequence in sequences], sequences, limits)

    def forget(self, sequence: SequenceView) -> None:
        self._texts.pop(sequence.key, None)

    def _text(self, sequence: SequenceView) -> ExpectedText | None:
        draft = sequence.client_draft
        if draft is None or len(sequence.tokens) < sequence.num_prompt_tokens + draft.position:
            return None
        known = self._texts.get(sequence.key)
        if known is not None and known[0] is draft:
            return known[1]
        text = ExpectedText(self._kernel, sequence.num_prompt_tokens + draft.position)
        text.give(draft.token_ids)
        self._texts[sequence.key] = draft, text
        return text
