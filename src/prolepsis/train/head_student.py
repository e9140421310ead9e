"""A draft head as student: the training-time test, its loss and its gradients."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from prolepsis.models.heads.lean import HeadLayer
from prolepsis.train.acceptance import Counts, Drafted, compared, measure
from prolepsis.train.batches import Batch, TargetEnds, lay_flat
from prolepsis.train.losses import feature_distance, fused_soft_cross_entropy
from prolepsis.train.synthesis import Document
from prolepsis.train.trainer import Moment
from prolepsis.train.unroll import FlatBatch, unroll
from prolepsis.train.workers import GradientWorkers, Result


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
    train_output_head: bool = False
    """Else the output head stays what the target has: few tokens would spoil it more than they improve it."""

    def at(self, progress: float) -> "Objective":
        """Return what counts at `progress` (0 to 1) of the training."""
        return replace(self, num_steps=1) if progress < self.warm_up else self


class HeadStudent:
    """Owns a head's weights while they are trained (`student.Student`)."""

    def __init__(
        self,
        head: HeadLayer,
        ends: TargetEnds,
        objective: Objective,
        *,
        workers: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._head = head
        self._ends = ends
        self._objective = objective
        self._workers = GradientWorkers(workers)
        self._dtype = dtype
        self._trained = trained_tensors(head, frozen=() if objective.train_output_head else ("lm_head",))
        for tensor in self._trained:
            tensor.requires_grad_(True)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        values = {f.name: getattr(self._head.weights, f.name) for f in fields(self._head.weights)}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def trained(self) -> Sequence[Tensor]:
        return self._trained

    @property
    def token_rows(self) -> Tensor:
        return self._head.weights.lm_head

    def learn(self, documents: Sequence[Document], moment: Moment) -> Result:
        return self._workers.run(partial(self._part, self._objective.at(moment.progress)), documents)

    def measure(self, documents: Iterable[Document]) -> dict[str, Counts]:
        return measure(documents, lambda document: drafted(self._head, document, self._ends))

    def _part(self, objective: Objective, documents: Sequence[Document]) -> Result:
        batch = lay_flat(documents, self._ends, len(self._head.config.taps))
        with torch.autocast(batch.tokens.device.type, self._dtype, enabled=self._dtype != torch.float32):
            loss, right, rows = loss_of(self._head, batch, self._ends, objective)
        gradients = torch.autograd.grad(loss, list(self._trained))
        return Result(float(loss.detach()), right, rows, list(gradients))


def drafted(head: HeadLayer, document: Document, ends: TargetEnds) -> Iterator[Drafted]:
    """Yield, position by position, which greedy drafts of a head are the document's."""
    batch = lay_flat([document], ends, len(head.config.taps))
    for step in unroll(head, batch.flat, len(batch.tokens)):
        guesses = head.weights.target_ids[(step.out @ head.weights.lm_head.t()).argmax(-1)]
        yield compared(guesses, batch.tokens, step.slots)


def trained_tensors(head: HeadLayer, *, frozen: Sequence[str] = ()) -> list[Tensor]:
    """Return the tensors that training changes, in the order of the fields of `HeadWeights`."""
    values = [(f.name, getattr(head.weights, f.name)) for f in fields(head.weights) if f.name not in frozen]
    return [value for _, value in values if isinstance(value, Tensor) and value.is_floating_point()]


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
