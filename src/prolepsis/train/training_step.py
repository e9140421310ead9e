"""Loss and gradients of one batch, shared among threads that each take some of the documents.

Threads of one operation would wait for each other many times a millisecond, which costs dearly where other work shares
the cores; documents are independent.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from prolepsis.models.head_layer import HeadLayer
from prolepsis.train.batches import Batch, TargetEnds, lay_flat
from prolepsis.train.documents import Document
from prolepsis.train.fused_losses import fused_soft_cross_entropy
from prolepsis.train.losses import feature_distance
from prolepsis.train.unroll import FlatBatch, unroll


@dataclass(frozen=True, slots=True)
class Objective:
    """What is summed up over the steps of the training-time test."""

    num_steps: int = 3
    warm_up: float = 0.3
    """For this share of the training only the first step: it is learnt several times faster alone."""
    step_decay: float = 0.8
    """Weight of step j is step_decay ** j."""
    feature_weight: float = 0.0
    """Of the distance to the target's own states, beside the cross entropy."""
    noise: float = 0.0
    """Standard deviation of the factor on each hidden state and embedding: makes few texts do for longer."""

    def at(self, progress: float) -> "Objective":
        """Return what counts at `progress` (0 to 1) of the training."""
        return replace(self, num_steps=1) if progress < self.warm_up else self


@dataclass(slots=True)
class Result:
    """Sums over a batch; `right[j]` of `rows[j]` guesses of step j are the target's likeliest in the vocabulary."""

    loss: float
    right: list[int]
    rows: list[int]
    gradients: list[Tensor]


def trained_tensors(head: HeadLayer, *, frozen: Sequence[str] = ()) -> list[Tensor]:
    """Return the tensors that training changes, in the order of the fields of `HeadWeights`."""
    values = [(f.name, getattr(head.weights, f.name)) for f in fields(head.weights) if f.name not in frozen]
    return [value for _, value in values if isinstance(value, Tensor) and value.is_floating_point()]


class GradientWorkers:
    """Computes gradients of a batch on `num_workers` threads."""

    def __init__(self, num_workers: int, ends: TargetEnds, dtype: torch.dtype) -> None:
        self._pool = ThreadPoolExecutor(num_workers, "gradients", lambda: torch.set_num_threads(1))
        self._num_workers = num_workers
        self._ends = ends
        self._dtype = dtype

    def run(
        self, head: HeadLayer, trained: Sequence[Tensor], documents: Sequence[Document], objective: Objective
    ) -> Result:
        """Return the sums over `documents`; the gradient is of the loss per anchor."""
        parts = spread(documents, self._num_workers)
        num_anchors = sum(anchors(document) for document in documents)
        work = [self._pool.submit(self._part, head, trained, part, objective) for part in parts]
        results = [part.result() for part in work]
        total = results[0]
        total.loss, total.gradients = total.loss / num_anchors, [g / num_anchors for g in total.gradients]
        for result in results[1:]:
            total.loss += result.loss / num_anchors
            total.right = [a + b for a, b in zip(total.right, result.right, strict=True)]
            total.rows = [a + b for a, b in zip(total.rows, result.rows, strict=True)]
            for own, other in zip(total.gradients, result.gradients, strict=True):
                own.add_(other, alpha=1 / num_anchors)
        return total

    def _part(
        self, head: HeadLayer, trained: Sequence[Tensor], documents: Sequence[Document], objective: Objective
    ) -> Result:
        batch = lay_flat(documents, self._ends, len(head.config.taps))
        with torch.autocast(batch.tokens.device.type, self._dtype, enabled=self._dtype != torch.float32):
            loss, right, rows = loss_of(head, batch, self._ends, objective)
        gradients = torch.autograd.grad(loss, list(trained))
        return Result(float(loss.detach()), right, rows, list(gradients))


def loss_of(
    head: HeadLayer, batch: Batch, ends: TargetEnds, objective: Objective
) -> tuple[Tensor, list[int], list[int]]:
    """Return the loss summed over anchors and steps, and (right guesses, rows) of each step."""
    with torch.no_grad():
        wanted = batch.probabilities(ends)
        likeliest = wanted.argmax(-1)
        counts = batch.covered(head.weights.t2d).float()
    loss = torch.zeros((), device=wanted.device)
    right, rows = [0] * objective.num_steps, [0] * objective.num_steps
    flat = blurred(batch.flat, objective.noise)
    for j, step in enumerate(unroll(head, flat, objective.num_steps)):
        at = batch.row_of[step.slots]
        weights = counts[step.slots] * objective.step_decay**j
        entropy, guesses = fused_soft_cross_entropy(step.out, head.weights.lm_head, wanted[at], weights)
        loss = loss + entropy
        if objective.feature_weight:
            loss = loss + objective.feature_weight * feature_distance(step.out, batch.states[at], weights)
        right[j] = int((guesses == likeliest[at]).sum())
        rows[j] = len(at)
    return loss, right, rows


def blurred(flat: FlatBatch, noise: float) -> FlatBatch:
    """Return `flat` with each input multiplied by 1 + noise * N(0, 1)."""
    if not noise:
        return flat

    def blur(x: Tensor) -> Tensor:
        return x * (1.0 + noise * torch.randn_like(x))

    return replace(flat, embeddings=blur(flat.embeddings), features=blur(flat.features))


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
