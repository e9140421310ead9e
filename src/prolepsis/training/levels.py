"""The training of a head's levels (`engine.models.heads.levels`); the head itself does not change.

Level i of anchor a sees the head's state at slot a and the document's token at slot a + i, and learns the target's
distribution over the token after that.

Legend: r anchors, d hidden size.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.engine.models.heads.base import SHORTLIST
from prolepsis.engine.models.heads.lean import HeadLayer
from prolepsis.engine.models.heads.levels import HeadLevels, LevelWeights, load_levels, save_levels
from prolepsis.training.acceptance import AcceptedCounts, DraftedPosition, compared, measure
from prolepsis.training.batches import BatchGradients, DocumentBatch, TargetEnds, lay_flat, precision
from prolepsis.training.data import Dataset, TrainingDocument
from prolepsis.training.head import read_head
from prolepsis.training.losses import SampledSoftmax
from prolepsis.training.settings import LevelSettings
from prolepsis.training.target import Target
from prolepsis.training.trainer import Trainer, TrainingProgress, TrainingStep, TrainTask
from prolepsis.training.training import check_data
from prolepsis.training.unroll import unroll


class LevelTask(TrainTask):
    """The weights of the levels while they are trained."""

    def __init__(self, head: HeadLayer, ends: TargetEnds, settings: LevelSettings) -> None:
        hidden = head.config.shape.hidden
        stored = load_levels(settings.init, hidden) if settings.init else None
        weights = stored.to(torch.float32) if stored else initial_levels(settings, hidden)
        super().__init__(list(weights.tensors().values()), ends, settings.workers, settings.dtype)
        self.settings = replace(settings, count=weights.count, width=weights.width)
        self.levels = HeadLevels(weights, head.weights.norm, head.config.shape.eps)
        self._head = head

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.levels.weights.tensors()

    def compute(self, progress: TrainingProgress) -> Callable[[Sequence[TrainingDocument]], BatchGradients]:
        return self._part

    def measure(self, documents: Iterable[TrainingDocument]) -> dict[str, AcceptedCounts]:
        levels = HeadLevels(self.levels.weights.to(torch.float32), self.levels.norm, self.levels.eps)
        return measure(documents, lambda document: drafted_ahead(self._head, levels, document, self._ends))

    def _part(self, documents: Sequence[TrainingDocument]) -> BatchGradients:
        batch = lay_flat(documents, self._ends, len(self._head.config.aux_layers))
        with precision(self._dtype, batch.tokens.device):
            loss = level_loss(self._head, self.levels, batch, self._ends, self.settings)
        return BatchGradients(float(loss.detach()), [], [], list(torch.autograd.grad(loss, self.trained)))


def level_loss(
    head: HeadLayer, levels: HeadLevels, batch: DocumentBatch, ends: TargetEnds, settings: LevelSettings
) -> Tensor:
    """Return the loss summed over anchors and levels."""
    with torch.no_grad():
        [first] = unroll(head, batch.flat, 1)
        softmax = SampledSoftmax.of(batch.probabilities(ends.head), head.weights.lm_head, settings.num_sampled)
        t2d = head.weights.t2d
        counts = (batch.covered(t2d) & t2d[batch.tokens]).float()
    end_of = torch.cat([torch.full((p.end - p.first,), p.end) for p in batch.flat.spans])
    loss = torch.zeros(())
    for i, p in enumerate(levels.ahead(first.hidden), 1):
        inside = (first.slots + i < end_of).nonzero()[:, 0]
        slots = first.slots[inside] + i
        weights, rows = counts[slots] * settings.level_decay ** (i - 1), batch.row_of[slots]
        before = p[inside]
        conditioned = levels.conditioned(before, levels.entered(before), levels.of_tokens(batch.flat.embeddings[slots]))
        loss = loss + softmax.loss(levels.normed(conditioned), rows, weights)
        loss = loss + settings.unconditioned_weight * softmax.loss(levels.normed(before), rows, weights)
    return loss


def initial_levels(settings: LevelSettings, hidden: int) -> LevelWeights:
    """Return weights with which every level predicts the same as the head for the first drafted token."""
    n, w, generator = settings.count, settings.width, torch.Generator().manual_seed(settings.seed)

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator) / math.sqrt(hidden)

    return LevelWeights(
        enter=noise(n, w, hidden),
        leave=torch.zeros(n, hidden, w),
        state=noise(w, hidden),
        token=noise(w, hidden),
        out=torch.zeros(hidden, w),
    )


def drafted_ahead(
    head: HeadLayer, levels: HeadLevels, document: TrainingDocument, ends: TargetEnds
) -> Iterator[DraftedPosition]:
    """Yield, position by position, which greedy drafts of the first pass and of the levels are the document's."""
    batch = lay_flat([document], ends, len(head.config.aux_layers))
    target_ids, tokens = head.weights.target_ids, batch.tokens
    [step] = unroll(head, batch.flat, 1)
    yield compared(target_ids[(step.out @ head.weights.lm_head.t()).argmax(-1)], tokens, step.slots)
    for j, p in enumerate(levels.ahead(step.hidden), 1):
        slots = step.slots[step.slots + j < len(tokens)] + j
        guesses = _likeliest(head.weights.lm_head, levels, p[: len(slots)], batch.flat.embeddings[slots])
        yield compared(target_ids[guesses], tokens, slots)


def _likeliest(lm_head: Tensor, levels: HeadLevels, p: Tensor, embeddings: Tensor) -> Tensor:
    """Return the draft ids [r] that a level with state `p` [r, d] predicts after the tokens of `embeddings` [r, d]."""
    shortlist = (levels.normed(p) @ lm_head.t()).topk(min(SHORTLIST, len(lm_head))).indices
    conditioned = levels.conditioned(p, levels.entered(p), levels.of_tokens(embeddings))
    scores = (lm_head[shortlist] @ levels.normed(conditioned)[..., None])[..., 0]
    return shortlist.gather(1, scores.argmax(-1, keepdim=True))[:, 0]


class LevelRun:
    """Trains levels for an exported head and writes them into its folder; `counts` is their held-out acceptance."""

    def __init__(self, head: Path, data: Path, target: Target, settings: LevelSettings) -> None:
        """Raises `ConfigError` if head or data is of another target, `ModelLoadError` for a damaged head."""
        check_data(data, target)
        layer = read_head(head, target)
        torch.manual_seed(settings.seed)
        self.task = LevelTask(layer, target.ends_for(layer.weights.target_ids), settings)
        self.trainer = Trainer(self.task, Dataset(data), settings.training)
        self._folder = head

    @property
    def counts(self) -> Mapping[str, AcceptedCounts]:
        return self.trainer.by_kind

    def steps(self) -> Iterator[TrainingStep]:
        """Train, measure and write the file. Raises `ConfigError` if there is too little text for one step."""
        yield from self.trainer.steps()
        settings = {
            name: v for name, v in asdict(self.task.settings).items() if name not in ("dtype", "workers", "init")
        }
        acceptance = {kind: asdict(counts) for kind, counts in self.counts.items()}
        save_levels(self._folder, self.task.levels.weights, {"settings": settings, "acceptance": acceptance})
