"""How many tokens that a head's levels draft the target would accept, measured as `acceptance` measures heads."""

from collections import defaultdict
from collections.abc import Iterable

import torch

from prolepsis.models.draft_head import SHORTLIST
from prolepsis.models.head_layer import HeadLayer
from prolepsis.models.head_levels import HeadLevels
from prolepsis.train.acceptance import Counts
from prolepsis.train.batches import Batch, TargetEnds, lay_flat
from prolepsis.train.documents import Document
from prolepsis.train.unroll import unroll


@torch.no_grad()
def measure_levels(
    head: HeadLayer, levels: HeadLevels, documents: Iterable[Document], ends: TargetEnds, num_taps: int
) -> dict[str, Counts]:
    """Draft greedily from every anchor of greedy documents; return counts by prompt kind and, under "all", of all."""
    counts: dict[str, Counts] = defaultdict(Counts)
    for document in documents:
        if document.greedy:
            batch = lay_flat([document], ends, num_taps)
            _count(head, levels, batch, [counts["all"], counts[document.kind]])
    return dict(counts)


def _count(head: HeadLayer, levels: HeadLevels, batch: Batch, into: list[Counts]) -> None:
    target_ids, lm_head = head.weights.target_ids, head.weights.lm_head
    [step] = unroll(head, batch.flat, 1)
    ahead = levels.ahead(step.hidden)
    alive = torch.ones(len(step.slots), dtype=torch.bool)
    for j in range(1 + len(ahead)):
        known = step.slots + j < len(batch.tokens) - 1  # after the last slot nobody knows what the target said
        rows = (alive & known).nonzero()[:, 0]
        slots = step.slots[rows] + j
        if j == 0:
            guesses = (step.out[rows] @ lm_head.t()).argmax(-1)
        else:
            p = ahead[j - 1, rows]
            shortlist = (levels.normed(p) @ lm_head.t()).topk(min(SHORTLIST, len(lm_head))).indices
            told = levels.told(p, levels.entered(p), levels.of_tokens(batch.flat.embeddings[slots]))
            scores = torch.matmul(lm_head[shortlist], levels.normed(told)[..., None])[..., 0]
            guesses = shortlist.gather(1, scores.argmax(-1, keepdim=True))[:, 0]
        right = rows[target_ids[guesses] == batch.tokens[slots + 1]]
        for counts in into:
            counts.trials[j] += len(rows)
            counts.hits[j] += len(right)
        alive = torch.zeros_like(alive)
        alive[right] = True
