"""The draft that a sequence's client sent while it is answered: its part after the output so far.

A draft arrives at any time and is never waited for. The output may have gone on meanwhile, and may leave the draft: it
is followed as an edited text is (`followed`). One that the output has not come to drafts nothing.
"""

from collections.abc import Sequence

from prolepsis.core.config import CLIENT
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.drafting.proposers.expected_text import ExpectedTextProposer


class ClientProposer(ExpectedTextProposer):
    """Proposes trees of where the draft may go on."""

    name = CLIENT

    def serves(self, sequence: SequenceView) -> bool:
        """Only sequences whose client has sent a draft."""
        return sequence.client_draft is not None

    def expected(self, sequence: SequenceView) -> tuple[Sequence[int], int] | None:
        draft = sequence.client_draft
        if draft is None or len(sequence.tokens) < sequence.num_prompt_tokens + draft.position:
            return None
        return draft.token_ids, sequence.num_prompt_tokens + draft.position
