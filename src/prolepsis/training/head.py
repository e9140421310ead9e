"""How a draft head (EAGLE-3) learns: training-time test, loss and gradients, and its held-out acceptance."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.engine.models.heads.format import HeadWeights, load_head, offsets
from prolepsis.engine.models.heads.lean import HeadLayer
from prolepsis.engine.models.targets.lean_weights import output_rows
from prolepsis.training.acceptance import AcceptedCounts, DraftedPosition, compared, measure
from prolepsis.training.batches import BatchGradients, DocumentBatch, FlatBatch, TargetEnds, lay_flat, precision
from prolepsis.training.data import TrainingDocument
from prolepsis.training.losses import (
    LossVocabulary,
    acceptance_loss,
    fused_soft_cross_entropy,
)
from prolepsis.training.settings import Dtype, LossSettings
from prolepsis.training.target import Target
from prolepsis.training.trainer import TrainingProgress, TrainTask
from prolepsis.training.unroll import unroll


@dataclass(frozen=True, slots=True)
class LossRows:
    """The S tokens in the loss of a step, by their rows of the output heads."""

    target: Tensor  # [S, d]
    head: Tensor  # [S, d]
    offsets: Tensor | None = None  # [S], added to the logits of both

    @classmethod
    def of(cls, head: HeadLayer, ends: TargetEnds, dtype: torch.dtype = torch.float32) -> "LossRows":
        """Return the rows of the whole draft vocabulary, in `dtype`."""
        target, own = ends.head.to(dtype), head.weights.lm_head
        return cls(target, target if torch.equal(own, ends.head) else own.to(dtype))

    def at(self, ids: Tensor) -> "LossRows":
        """Return the rows of some draft ids ([n] int64)."""
        target = self.target.index_select(0, ids)
        return LossRows(target, target if self.head is self.target else self.head.index_select(0, ids))

    def joined(self, sample: "LossRows", offsets: Tensor) -> "LossRows":
        """Return these rows, and behind them those of a sample."""
        target = torch.cat([self.target, sample.target])
        own = target if self.head is self.target else torch.cat([self.head, sample.head])
        return LossRows(target, own, offsets)


class HeadTask(TrainTask):
    """A head's weights while they are trained."""

    def __init__(
        self,
        head: HeadLayer,
        ends: TargetEnds,
        objective: LossSettings,
        *,
        vocabulary: LossVocabulary | None = None,
        workers: int = 1,
        dtype: Dtype = "float32",
    ) -> None:
        """`vocabulary`: the draft ids in the loss, where it does not cover all of them."""
        super().__init__(trained_tensors(head), ends, workers, dtype)
        self._head = head
        self._objective = objective
        self._vocabulary = vocabulary
        self._rows = LossRows.of(head, ends, getattr(torch, dtype))
        self._frequent = self._rows if vocabulary is None else self._rows.at(vocabulary.frequent)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        values = {f.name: getattr(self._head.weights, f.name) for f in fields(self._head.weights)}
        return {name: value for name, value in values.items() if value is not None}

    def compute(self, progress: TrainingProgress) -> Callable[[Sequence[TrainingDocument]], BatchGradients]:
        rows = self._frequent
        if self._vocabulary is not None:
            step = self._vocabulary.at(progress.step)
            rows = rows.joined(self._rows.at(step.ids[len(rows.target) :]), step.offsets)
        return partial(self._part, self._objective.at(progress.fraction), rows)

    def measure(self, documents: Iterable[TrainingDocument]) -> dict[str, AcceptedCounts]:
        return measure(documents, lambda document: drafted(self._head, document, self._ends))

    def _part(self, objective: LossSettings, of: LossRows, documents: Sequence[TrainingDocument]) -> BatchGradients:
        batch = lay_flat(documents, self._ends, len(self._head.config.aux_layers))
        with precision(self._dtype, batch.tokens.device):
            loss, right, rows = loss_of(self._head, batch, of, objective)
        gradients = torch.autograd.grad(loss, list(self.trained))
        return BatchGradients(float(loss.detach()), right, rows, list(gradients))


def drafted(head: HeadLayer, document: TrainingDocument, ends: TargetEnds) -> Iterator[DraftedPosition]:
    """Yield, position by position, which greedy drafts of a head are the document's."""
    batch = lay_flat([document], ends, len(head.config.aux_layers))
    for step in unroll(head, batch.flat, len(batch.tokens)):
        guesses = head.weights.target_ids[(step.out @ head.weights.lm_head.t()).argmax(-1)]
        yield compared(guesses, batch.tokens, step.slots)


def trained_tensors(head: HeadLayer) -> list[Tensor]:
    """Return the tensors that training changes, in the order of the fields of `HeadWeights`.

    The output head stays the target's own: little text would damage it more than improve it.
    """
    values = [getattr(head.weights, f.name) for f in fields(head.weights) if f.name != "lm_head"]
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]


def loss_of(
    head: HeadLayer, batch: DocumentBatch, of: LossRows, objective: LossSettings
) -> tuple[Tensor, list[int], list[int]]:
    """Return the loss summed over anchors and steps, and (right guesses, rows) of each step."""
    with torch.no_grad():
        target = batch.probabilities(of.target, of.offsets)
        likeliest = target.argmax(-1)
        counts = batch.covered(head.weights.t2d).float()
    loss = torch.zeros((), device=target.device)
    right, rows = [0] * objective.num_steps, [0] * objective.num_steps
    flat = blurred(batch.flat, objective.noise)
    for j, step in enumerate(unroll(head, flat, objective.num_steps)):
        at = batch.row_of[step.slots]
        weights = counts[step.slots] * objective.step_decay**j
        if share := objective.acceptance_share:
            how = {"share": share, "temperature": objective.temperature}
            part, guesses = acceptance_loss(step.out, of.head, target[at], weights, **how)
        else:
            part, guesses = fused_soft_cross_entropy(step.out, of.head, target[at], weights, of.offsets)
        loss = loss + part
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


def with_vocabulary(head: HeadLayer, ids: Tensor, rows: Tensor) -> HeadLayer:
    """Return a head with another draft vocabulary, the rising `ids` [D] int64.

    Tokens that it had keep their row of the output head, others get the target's: `rows` [D, d].
    """
    weights, place = head.weights, torch.full((head.config.shape.vocab,), -1)
    place[weights.target_ids] = torch.arange(len(weights.d2t))
    known = place[ids] >= 0
    rows[known] = weights.lm_head[place[ids][known]]
    d2t, t2d = offsets(ids, head.config.shape.vocab)
    config = replace(head.config, draft_vocab=len(ids))
    return HeadLayer(config, replace(weights, lm_head=rows, d2t=d2t, t2d=t2d))


def read_head(folder: Path, target: Target) -> HeadLayer:
    """Read a head in float32; raises `ConfigError` if it is not of `target`, `ModelLoadError` for a damaged one."""
    config, stored = load_head(folder, partial(output_rows, target.ends))
    for name in ("hidden", "vocab", "rope"):
        if getattr(config.shape, name) != getattr(target.shape, name):
            raise ConfigError(f"{folder} is a head of another target: its {name} differs", param="init")
    if config.aux_layers != target.aux_layers[-len(config.aux_layers) :]:
        raise ConfigError(
            f"{folder} reads layers {config.aux_layers}; the data holds layers {target.aux_layers}", param="init"
        )
    values = {f.name: getattr(stored, f.name) for f in fields(HeadWeights)}
    wide = {n: v.float() if v is not None and v.is_floating_point() else v for n, v in values.items()}
    return HeadLayer(config, HeadWeights(**wide))
