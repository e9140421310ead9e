"""How many drafted tokens the target would accept, measured on documents that were never trained on."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from prolepsis.models.head_layer import HeadLayer
from prolepsis.train.batches import Batch, TargetEnds, lay_flat
from prolepsis.train.documents import Document
from prolepsis.train.unroll import unroll

DEPTH = 5


@dataclass(slots=True)
class Counts:
    """Drafts whose first j tokens were right, for j = 0 .. `DEPTH`, and drafts that had a token j + 1 to compare."""

    hits: list[int] = field(default_factory=lambda: [0] * DEPTH)
    trials: list[int] = field(default_factory=lambda: [0] * DEPTH)

    @property
    def rates(self) -> list[float]:
        """Acceptance rate of each drafted position, given that all before it were accepted."""
        return [hit / trial if trial else 0.0 for hit, trial in zip(self.hits, self.trials, strict=True)]

    def length(self, depth: int = 3) -> float:
        """Return the expected tokens of a step with a chain of `depth`: 1 + sum of products of the rates."""
        expected, survival = 1.0, 1.0
        for rate in self.rates[:depth]:
            survival *= rate
            expected += survival
        return expected


@torch.no_grad()
def measure(head: HeadLayer, documents: Iterable[Document], ends: TargetEnds, num_taps: int) -> dict[str, Counts]:
    """Draft greedily from every anchor of greedy documents; return counts by prompt kind and, under "all", of all.

    The document is what the target says greedily, so a drafted token is accepted where it is the document's. As long
    as drafts are right, unrolling along the document is the same as drafting from the head's own tokens.
    """
    counts: dict[str, Counts] = defaultdict(Counts)
    for document in documents:
        if document.greedy:
            batch = lay_flat([document], ends, num_taps)
            _count(head, batch, [counts["all"], counts[document.kind]])
    return dict(counts)


def _count(head: HeadLayer, batch: Batch, into: list[Counts]) -> None:
    target_ids = head.weights.target_ids
    alive = torch.ones(batch.flat.num_anchors, dtype=torch.bool)
    for j, step in enumerate(unroll(head, batch.flat, DEPTH)):
        known = step.slots < len(batch.tokens) - 1  # after the last slot nobody knows what the target said
        guesses = target_ids[(step.out @ head.weights.lm_head.t()).argmax(-1)]
        right = torch.zeros_like(known)
        right[known] = guesses[known] == batch.tokens[step.slots[known] + 1]
        alive = alive[: len(step.slots)]
        for counts in into:
            counts.trials[j] += int((alive & known).sum())
            counts.hits[j] += int((alive & right).sum())
        alive = alive & right
