"""Training of a head's levels (`models.head_levels`): the head stays as it is, drafted tokens are the document's.

Level i of anchor a sees the head's state at slot a and the token at slot a + i, and learns the target's distribution
over the token after that.

Legend: r anchors, d hidden size.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.models.heads.base import SHORTLIST
from prolepsis.models.heads.lean import HeadLayer
from prolepsis.models.heads.levels import HeadLevels, LevelWeights, save_levels
from prolepsis.train.acceptance import Counts, Drafted, compared, measure
from prolepsis.train.batches import Batch, Library, TargetEnds, groups, lay_flat, read
from prolepsis.train.head_training import given_head
from prolepsis.train.losses import draw
from prolepsis.train.optimiser import Rates, apply, make_optimisers, set_rate
from prolepsis.train.synthesis import Document
from prolepsis.train.target import Target
from prolepsis.train.training import check_data
from prolepsis.train.unroll import unroll
from prolepsis.train.workers import GradientWorkers, Result


@dataclass(frozen=True, slots=True)
class LevelSettings:
    """How levels are made and trained."""

    count: int = 3
    width: int = 256
    max_anchors: int = 400_000
    """Training ends after so many; more text than that is not read, less is read again."""
    anchors_per_step: int = 512
    rate: float = 1e-3
    """Peak rate of AdamW."""
    level_decay: float = 0.8
    """Weight of level i is level_decay ** (i - 1)."""
    untold_weight: float = 0.3
    """Of what a level expects before it is told the drafted token, beside what it expects then."""
    drawn: int = 1024
    """Tokens drawn for each batch beside the likely ones (`train.drawn`)."""
    seed: int = 0
    workers: int = 2
    dtype: torch.dtype = torch.float32
    held_out_documents: int = 48


@dataclass(frozen=True, slots=True)
class LevelStep:
    """What a step came to."""

    step: int
    num_steps: int
    loss: float
    """Cross entropy of an anchor, summed over the levels with their weights."""


class LevelTraining:
    """Owns the weights of the levels while they are trained."""

    def __init__(self, head: HeadLayer, ends: TargetEnds, library: Library, settings: LevelSettings) -> None:
        """Raises `ConfigError` where there is too little text for one step."""
        if not any(True for _ in groups(library.training, settings.anchors_per_step)):
            raise ConfigError("there is too little text for one training step; allowed: more tokens", param="tokens")
        self.settings = settings
        weights = first_levels(settings, head.config.shape.hidden)
        self.levels = HeadLevels(weights, head.weights.norm, head.config.shape.eps)
        self._head, self._ends, self._library = head, ends, library
        self._trained = list(weights.tensors().values())
        for tensor in self._trained:
            tensor.requires_grad_(True)
        self._optimisers = make_optimisers(self._trained, head.weights.lm_head, Rates(adamw=settings.rate))
        self._workers = GradientWorkers(settings.workers)

    @property
    def num_steps(self) -> int:
        return max(1, self.settings.max_anchors // self.settings.anchors_per_step)

    def steps(self) -> Iterator[LevelStep]:
        """Train to the end; yields after every step."""
        settings = self.settings
        torch.manual_seed(settings.seed)
        for step, documents in enumerate(self._documents()):
            set_rate(self._optimisers, step / self.num_steps)
            result = self._workers.run(self._part, documents)
            apply(self._optimisers, self._trained, result.gradients)
            yield LevelStep(step + 1, self.num_steps, result.loss)
            if step + 1 == self.num_steps:
                return

    def measure(self) -> dict[str, Counts]:
        """Return held-out acceptance of chains by kind of prompt and, under "all", of all."""
        held_out = [d for d in read(self._library.held_out) if d.greedy][: self.settings.held_out_documents]
        levels = HeadLevels(self.levels.weights.to(torch.float32), self.levels.norm, self.levels.eps)
        return measure(held_out, lambda document: drafted_ahead(self._head, levels, document, self._ends))

    def _documents(self) -> Iterator[list[Document]]:
        epoch = 0
        while True:
            for group in groups(self._library.epoch(self.settings.seed, epoch), self.settings.anchors_per_step):
                yield read(group)
            epoch += 1

    def _part(self, documents: Sequence[Document]) -> Result:
        dtype = self.settings.dtype
        batch = lay_flat(documents, self._ends, len(self._head.config.taps))
        with torch.autocast(batch.tokens.device.type, dtype, enabled=dtype != torch.float32):
            loss = level_loss(self._head, self.levels, batch, self._ends, self.settings)
        return Result(float(loss.detach()), [], [], list(torch.autograd.grad(loss, self._trained)))


def level_loss(head: HeadLayer, levels: HeadLevels, batch: Batch, ends: TargetEnds, settings: LevelSettings) -> Tensor:
    """Return the loss summed over anchors and levels."""
    passages = batch.flat.passages
    with torch.no_grad():
        [first] = unroll(head, batch.flat, 1)
        part = draw(batch.probabilities(ends), head.weights.lm_head, settings.drawn)
        t2d = head.weights.t2d
        counts = (batch.covered(t2d) & t2d[batch.tokens]).float()
    end_of = torch.cat([torch.full((p.end - p.first,), p.end) for p in passages])
    loss = torch.zeros(())
    for i, p in enumerate(levels.ahead(first.hidden), 1):
        inside = (first.slots + i < end_of).nonzero()[:, 0]
        slots = first.slots[inside] + i
        weights, rows = counts[slots] * settings.level_decay ** (i - 1), batch.row_of[slots]
        untold = p[inside]
        told = levels.told(untold, levels.entered(untold), levels.of_tokens(batch.flat.embeddings[slots]))
        loss = loss + part.loss(levels.normed(told), rows, weights)
        loss = loss + settings.untold_weight * part.loss(levels.normed(untold), rows, weights)
    return loss


def first_levels(settings: LevelSettings, hidden: int) -> LevelWeights:
    """Return weights with which every level expects what the head expects of the first drafted token."""
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


class LevelRun:
    """Iterate over `steps`, then the folder holds the levels and `counts` their held-out acceptance."""

    def __init__(self, head: Path, data: Path, target: Target, settings: LevelSettings) -> None:
        """Raises `ConfigError` where head or data are of another target, `ModelLoadError` for a damaged head."""
        check_data(data, target)
        layer = given_head(head, target)
        library = Library(data)
        self.training = LevelTraining(layer, target.ends_for(layer.weights.target_ids), library, settings)
        self.counts: Mapping[str, Counts] = {}
        self._folder = head

    def steps(self) -> Iterator[LevelStep]:
        """Train, measure and write the file."""
        yield from self.training.steps()
        self.counts = self.training.measure()
        save_levels(self._folder, self.training.levels.weights, self._report())

    def _report(self) -> dict[str, Any]:
        said = {name: v for name, v in asdict(self.training.settings).items() if name not in ("dtype", "workers")}
        return {"settings": said, "acceptance": {kind: asdict(counts) for kind, counts in self.counts.items()}}
