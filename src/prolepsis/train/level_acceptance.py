"""What a head's levels draft along a document, for `acceptance.measure`."""

from collections.abc import Iterator

from torch import Tensor

from prolepsis.models.draft_head import SHORTLIST
from prolepsis.models.head_layer import HeadLayer
from prolepsis.models.head_levels import HeadLevels
from prolepsis.train.acceptance import Drafted, compared
from prolepsis.train.batches import TargetEnds, lay_flat
from prolepsis.train.documents import Document
from prolepsis.train.unroll import unroll


def drafted_ahead(head: HeadLayer, levels: HeadLevels, document: Document, ends: TargetEnds) -> Iterator[Drafted]:
    """Yield, position by position, which greedy drafts of the first pass and of the levels are the document's."""
    batch = lay_flat([document], ends, len(head.config.taps))
    target_ids, tokens = head.weights.target_ids, batch.tokens
    [step] = unroll(head, batch.flat, 1)
    yield compared(target_ids[(step.out @ head.weights.lm_head.t()).argmax(-1)], tokens, step.slots)
    for j, p in enumerate(levels.ahead(step.hidden), 1):
        slots = step.slots[step.slots + j < len(tokens)] + j
        guesses = _likeliest(head.weights.lm_head, levels, p[: len(slots)], batch.flat.embeddings[slots])
        yield compared(target_ids[guesses], tokens, slots)


def _likeliest(lm_head: Tensor, levels: HeadLevels, p: Tensor, embeddings: Tensor) -> Tensor:
    """Return the draft ids [r] that a level with state `p` [r, d] expects after the tokens of `embeddings` [r, d]."""
    shortlist = (levels.normed(p) @ lm_head.t()).topk(min(SHORTLIST, len(lm_head))).indices
    told = levels.told(p, levels.entered(p), levels.of_tokens(embeddings))
    scores = (lm_head[shortlist] @ levels.normed(told)[..., None])[..., 0]
    return shortlist.gather(1, scores.argmax(-1, keepdim=True))[:, 0]
