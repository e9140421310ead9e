"""Batches: documents laid flat, and their gradients computed by threads that each take some of the documents.

Legend: N slots of a batch, d hidden size, D draft vocabulary.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.engine.models.targets.lean import rms_norm
from prolepsis.training.data import MAX_LENGTH, TrainingDocument
from prolepsis.training.settings import Dtype


@dataclass(frozen=True, slots=True)
class TargetEnds:
    """The frozen weights at both ends of the target, in float32."""

    embedding: Tensor  # [V, d]
    final_norm: Tensor  # [d]
    head: Tensor  # [D, d] rows of the output head at the draft vocabulary
    eps: float


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """One document in a batch: its slots are `start : end` of the flat tensors, its anchors begin at slot `first`."""

    start: int
    end: int
    first: int


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """Documents one after another, N slots in all."""

    embeddings: Tensor  # [N, d] of the slots' tokens
    features: Tensor  # [N, aux_layers * d] of the slots' tokens
    spans: tuple[DocumentSpan, ...]

    @property
    def num_anchors(self) -> int:
        return sum(span.end - span.first for span in self.spans)


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Documents laid flat, with the target's prediction after each slot; `row_of` maps a slot to a row of `states`."""

    flat: FlatBatch
    states: Tensor  # [S, d] the target's normed last states at the slots of all steps
    row_of: Tensor  # [N] int64
    tokens: Tensor  # [N] int64

    def probabilities(self, head: Tensor, offsets: Tensor | None = None) -> Tensor:  # [S, D]
        """Return the target's distribution over the tokens of `head` [D, d], rows of its output head.

        `offsets` ([D]) are added to its logits.
        """
        logits = F.linear(self.states, head).float()
        return torch.softmax(logits if offsets is None else logits.add_(offsets), dim=-1)

    def covered(self, t2d: Tensor) -> Tensor:  # [N] bool
        """Return for each slot whether the token after it can be drafted; True after a document's last slot."""
        known = torch.ones(len(self.tokens), dtype=torch.bool)
        known[:-1] = t2d[self.tokens[1:]]
        known[[span.end - 1 for span in self.flat.spans]] = True
        return known


def lay_flat(documents: Sequence[TrainingDocument], ends: TargetEnds, num_layers: int) -> DocumentBatch:
    """Lay `documents` one after another; features end with `num_layers` hidden states and the last layer's output.

    The first slot that predicts a response token is the last one of the prompt.
    """
    hidden = ends.embedding.shape[1]
    spans: list[DocumentSpan] = []
    start = 0
    for document in documents:
        end = start + min(len(document.tokens), MAX_LENGTH)
        spans.append(DocumentSpan(start, end, start + document.response_start - 1))
        start = end
    tokens = torch.cat([d.tokens[:MAX_LENGTH] for d in documents]).long()
    features = torch.cat([d.features[:MAX_LENGTH] for d in documents])
    slots = torch.cat([torch.arange(span.first, span.end) for span in spans])
    row_of = torch.zeros(len(tokens), dtype=torch.int64)
    row_of[slots] = torch.arange(len(slots))
    states = rms_norm(features[slots, -hidden:].float(), ends.final_norm, ends.eps)
    read = features[:, -(num_layers + 1) * hidden : -hidden].float()
    flat = FlatBatch(ends.embedding[tokens], read, tuple(spans))
    return DocumentBatch(flat, states, row_of, tokens)


def precision(dtype: Dtype, device: torch.device) -> torch.autocast:
    """Return the context in which matrix products are computed in `dtype`."""
    return torch.autocast(device.type, getattr(torch, dtype), enabled=dtype != "float32")


@dataclass(slots=True)
class BatchGradients:
    """Sums over a batch; in step j, `right[j]` of `rows[j]` guesses are the target's likeliest draft token."""

    loss: float
    right: list[int]
    rows: list[int]
    gradients: list[Tensor]


class GradientWorkers:
    """Computes the gradients of a batch on `num_workers` threads, each with some of the documents.

    Threads within one operation would wait for each other many times a millisecond, which is expensive where other
    work shares the cores; documents are independent.
    """

    def __init__(self, num_workers: int) -> None:
        self._pool = ThreadPoolExecutor(num_workers, "gradients", lambda: torch.set_num_threads(1))
        self._num_workers = num_workers

    def run(
        self, compute: Callable[[Sequence[TrainingDocument]], BatchGradients], documents: Sequence[TrainingDocument]
    ) -> BatchGradients:
        """Return the sums of `compute` over all `documents`; loss and gradients are means over anchors."""
        num_anchors = sum(document.num_anchors for document in documents)
        futures = [self._pool.submit(compute, part) for part in spread(documents, self._num_workers)]
        results = [future.result() for future in futures]
        total = results[0]
        total.loss, total.gradients = total.loss / num_anchors, [g.div_(num_anchors) for g in total.gradients]
        for result in results[1:]:
            total.loss += result.loss / num_anchors
            total.right = [a + b for a, b in zip(total.right, result.right, strict=True)]
            total.rows = [a + b for a, b in zip(total.rows, result.rows, strict=True)]
            for own, added in zip(total.gradients, result.gradients, strict=True):
                own.add_(added, alpha=1 / num_anchors)
        return total


def spread(documents: Sequence[TrainingDocument], num_parts: int) -> list[list[TrainingDocument]]:
    """Deal `documents` to parts of about the same number of anchors, the longest first; no part is empty."""
    parts: list[list[TrainingDocument]] = [[] for _ in range(min(num_parts, len(documents)))]
    loads = [0] * len(parts)
    for document in sorted(documents, key=lambda document: document.num_anchors, reverse=True):
        lightest = loads.index(min(loads))
        parts[lightest].append(document)
        loads[lightest] += document.num_anchors
    return parts
