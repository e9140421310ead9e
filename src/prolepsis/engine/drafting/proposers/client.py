"""The draft that a sequence's client sent while it is answered: its part after the output so far.

A draft arrives at any time and is never waited for. The output may have gone on meanwhile: what it has confirmed of the
draft is skipped, and one that it has left, or passed, drafts nothing.
"""

from collections.abc import Sequence
from zlib import crc32

from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView

_MOST_CONFIRMED = 8  # more confirmed tokens share a bucket
_NUM_SCOPES = 32  # groups of tenants


class ClientProposer(Proposer):
    """Proposes a chain. The bucket is the number of its tokens that the output has confirmed, apart by tenant."""

    name = "client"
    free = True

    def serves(self, sequence: SequenceView) -> bool:
        """Only sequences whose client has sent a draft."""
        return sequence.client_draft is not None

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [_propose(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]


def scope_of(sequence: SequenceView) -> int:
    """Return a number of its tenant for buckets: bad drafts of one client make few others seem bad."""
    return crc32(sequence.tenant.encode()) % _NUM_SCOPES


def _propose(sequence: SequenceView, limit: int) -> Draft | None:
    draft = sequence.client_draft
    if draft is None:
        return None
    tokens = draft.next_tokens(sequence.tokens, sequence.num_prompt_tokens)
    if not tokens:
        return None
    num_confirmed = min(len(draft.token_ids) - len(tokens), _MOST_CONFIRMED)
    bucket = (_MOST_CONFIRMED + 1) * scope_of(sequence) + num_confirmed
    return chain(tokens[:limit], ClientProposer.name, bucket=bucket)
