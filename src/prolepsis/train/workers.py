"""A batch shared among threads that each take some of its documents.

Threads of one operation would wait for each other many times a millisecond, which costs dearly where other work shares
the cores; documents are independent.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from prolepsis.train.synthesis import Document


@dataclass(slots=True)
class Result:
    """Sums over a batch; `right[j]` of `rows[j]` guesses of step j are the target's likeliest in the vocabulary."""

    loss: float
    right: list[int]
    rows: list[int]
    gradients: list[Tensor]


class GradientWorkers:
    """Computes gradients of a batch on `num_workers` threads."""

    def __init__(self, num_workers: int) -> None:
        self._pool = ThreadPoolExecutor(num_workers, "gradients", lambda: torch.set_num_threads(1))
        self._num_workers = num_workers

    def run(self, part: Callable[[Sequence[Document]], Result], documents: Sequence[Document]) -> Result:
        """Return the sums of `part` over all `documents`; loss and gradients are those of one anchor."""
        num_anchors = sum(anchors(document) for document in documents)
        work = [self._pool.submit(part, some) for some in spread(documents, self._num_workers)]
        results = [done.result() for done in work]
        total = results[0]
        total.loss, total.gradients = total.loss / num_anchors, [g / num_anchors for g in total.gradients]
        for result in results[1:]:
            total.loss += result.loss / num_anchors
            total.right = [a + b for a, b in zip(total.right, result.right, strict=True)]
            total.rows = [a + b for a, b in zip(total.rows, result.rows, strict=True)]
            for own, other in zip(total.gradients, result.gradients, strict=True):
                own.add_(other, alpha=1 / num_anchors)
        return total


def spread(documents: Sequence[Document], num_parts: int) -> list[list[Document]]:
    """Deal `documents` to parts of about the same number of anchors, the longest first; no part is empty."""
    parts: list[list[Document]] = [[] for _ in range(min(num_parts, len(documents)))]
    loads = [0] * len(parts)
    for document in sorted(documents, key=anchors, reverse=True):
        lightest = loads.index(min(loads))
        parts[lightest].append(document)
        loads[lightest] += anchors(document)
    return parts


def anchors(document: Document) -> int:
    """Return the slots of a document that guess a token of the response."""
    return len(document.tokens) - document.response_start + 1
