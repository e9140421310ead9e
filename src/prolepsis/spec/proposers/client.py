"""The draft that the client of a sequence sent while it is answered, as far as the output has followed it.

A draft arrives at any time and is never waited for. The output may have gone on meanwhile: what it has confirmed of the
draft is skipped, and one that it has left, or passed, drafts nothing.
"""

from collections.abc import Sequence

from prolepsis.spec.draft import Draft, chain
from prolepsis.spec.proposer import Proposer, SequenceView

_MOST_CONFIRMED = 8  # more confirmed tokens share a bucket


class ClientProposer(Proposer):
    """Proposes a chain; the bucket is the number of its tokens that the output has confirmed."""

    name = "client"
    free = True

    def serves(self, sequence: SequenceView) -> bool:
        """Only sequences whose client has sent a draft."""
        return sequence.client_draft is not None

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [_propose(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]


def _propose(sequence: SequenceView, limit: int) -> Draft | None:
    draft = sequence.client_draft
    if draft is None:
        return None
    tokens = draft.next_tokens(sequence.tokens, sequence.num_prompt_tokens)
    num_confirmed = len(draft.token_ids) - len(tokens)
    return chain(tokens[:limit], ClientProposer.name, bucket=min(num_confirmed, _MOST_CONFIRMED)) if tokens else None
