"""Held-out acceptance: how many drafted tokens the target would accept, on documents that are never trained on."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from prolepsis.engine.models.provenance import expected_tokens
from prolepsis.training.data import TrainingDocument

DEPTH = 5


@dataclass(slots=True)
class AcceptedCounts:
    """Drafts whose first j tokens were right, for j = 0 .. `DEPTH`, and drafts that had a token j + 1 to compare."""

    hits: list[int] = field(default_factory=lambda: [0] * DEPTH)
    trials: list[int] = field(default_factory=lambda: [0] * DEPTH)

    @property
    def rates(self) -> list[float]:
        """Acceptance rate of each drafted position, given that all before it were accepted."""
        return [hit / trial if trial else 0.0 for hit, trial in zip(self.hits, self.trials, strict=True)]

    def length(self, depth: int = 3) -> float:
        """Return the expected tokens of a step with a chain of `depth`."""
        return expected_tokens(self.rates[:depth])


@dataclass(frozen=True, slots=True)
class DraftedPosition:
    """One drafted position of all anchors that reach it: row i belongs to the i-th anchor of the document.

    An anchor's token at this position is drafted after the document's own tokens.
    """

    right: Tensor  # [r] bool: the token is the document's
    known: Tensor  # [r] bool: the document has a token there


def compared(guesses: Tensor, tokens: Tensor, slots: Tensor) -> DraftedPosition:
    """Compare `guesses` [r] of what follows `slots` [r], both int64, with the document's `tokens` [n]."""
    known = slots < len(tokens) - 1  # the token after the last slot is unknown
    right = torch.zeros_like(known)
    right[known] = guesses[known] == tokens[slots[known] + 1]
    return DraftedPosition(right, known)


@torch.no_grad()
def measure(
    documents: Iterable[TrainingDocument], draft: Callable[[TrainingDocument], Iterable[DraftedPosition]]
) -> dict[str, AcceptedCounts]:
    """Draft greedily from every anchor of greedy documents; return counts by prompt kind and, under "all", of all.

    The document is the target's own greedy text, so a drafted token is accepted if it is the document's. As long as
    drafts are right, drafting along the document is the same as drafting after earlier drafts. `draft` yields the
    drafted positions in order; each has at most as many rows as the one before it.
    """
    counts: dict[str, AcceptedCounts] = defaultdict(AcceptedCounts)
    for document in documents:
        if document.greedy:
            _count(draft(document), [counts["all"], counts[document.kind]])
    return dict(counts)


def _count(positions: Iterable[DraftedPosition], into: Sequence[AcceptedCounts]) -> None:
    alive = torch.ones(0, dtype=torch.bool)
    for j, drafted in enumerate(islice(positions, DEPTH)):
        alive = alive[: len(drafted.right)] if j else torch.ones_like(drafted.right)
        for counts in into:
            counts.trials[j] += int((alive & drafted.known).sum())
            counts.hits[j] += int((alive & drafted.right).sum())
        alive = alive & drafted.right
