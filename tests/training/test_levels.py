"""Levels are learned from documents, and measured as chains are drafted."""

import dataclasses
from pathlib import Path

import pytest
import torch

from prolepsis.core.errors import ConfigError
from prolepsis.engine.models.heads.levels import HeadLevels
from prolepsis.training.acceptance import measure
from prolepsis.training.batches import lay_flat
from prolepsis.training.data import Dataset
from prolepsis.training.levels import LevelTask, drafted_ahead, initial_levels, level_loss
from prolepsis.training.losses import SampledSoftmax, soft_cross_entropy
from prolepsis.training.settings import LevelSettings
from prolepsis.training.trainer import Trainer
from prolepsis.training.unroll import unroll
from tests.engine.models.random_heads import random_levels
from tests.training.documents import HIDDEN, random_document, tiny_ends, tiny_head
from tests.training.test_data import few_documents

SETTINGS = LevelSettings(count=2, width=32, anchors_per_step=30, max_anchors=3000, rate=1e-2, workers=2)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return few_documents(tmp_path / "data")


def _training(dataset: Dataset, settings: LevelSettings = SETTINGS) -> tuple[LevelTask, Trainer]:
    head = tiny_head()
    ends = tiny_ends(head)
    head.weights.lm_head = ends.head.clone()
    head.weights.t2d = torch.ones_like(head.weights.t2d)
    torch.manual_seed(settings.seed)
    task = LevelTask(head, ends, settings)
    return task, Trainer(task, dataset, settings.training)


def test_a_few_documents_are_learnt_by_heart(dataset: Dataset) -> None:
    dataset.training = dataset.training[:3]
    _, trainer = _training(dataset)
    steps = list(trainer.steps())
    assert len(steps) == trainer.num_steps == 100
    assert steps[-1].loss < 0.5 * steps[0].loss


def test_the_head_is_not_changed_and_all_levels_are(dataset: Dataset) -> None:
    task, trainer = _training(dataset, dataclasses.replace(SETTINGS, max_anchors=150))
    before = task.levels.norm.clone()
    list(trainer.steps())
    first = initial_levels(task.settings, HIDDEN).tensors()
    assert torch.equal(task.levels.norm, before)
    for name, tensor in task.levels.weights.tensors().items():
        assert not torch.equal(tensor, first[name])


def test_too_little_text_is_refused(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="too little text"):
        next(_training(dataset, dataclasses.replace(SETTINGS, anchors_per_step=10_000))[1].steps())


def test_the_loss_of_one_anchor_written_out() -> None:
    head = tiny_head()
    ends = tiny_ends(head)
    head.weights.t2d = torch.ones_like(head.weights.t2d)
    document = random_document(9, 7)
    batch = lay_flat([document], ends, 3)
    levels = HeadLevels(random_levels(HIDDEN, 2).to(torch.float32), head.weights.norm, head.config.shape.eps)
    settings = dataclasses.replace(SETTINGS, num_sampled=1000)
    found = level_loss(head, levels, batch, ends, settings)

    [step] = unroll(head, batch.flat, 1)
    wanted = torch.softmax(batch.states @ ends.head.t(), -1)
    expected = 0.0
    for anchor in range(3):  # slots 6, 7, 8
        for level in (1, 2):
            slot = 6 + anchor + level
            if slot > 8:
                continue
            p = levels.ahead(step.hidden[anchor : anchor + 1])[level - 1]
            e = ends.embedding[int(document.tokens[slot])][None]
            conditioned = levels.conditioned(p, levels.entered(p), levels.of_tokens(e))
            for state, weight in ((conditioned, 1.0), (p, 0.3)):
                out = levels.normed(state)
                ones = torch.ones(1)
                loss, _ = soft_cross_entropy(out, head.weights.lm_head, wanted[slot - 6][None], ones)
                expected += weight * 0.8 ** (level - 1) * float(loss)
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_a_sampled_softmax_stands_for_the_whole_vocabulary() -> None:
    generator = torch.Generator().manual_seed(0)
    head, out = torch.randn(2000, 8, generator=generator), 0.3 * torch.randn(1, 8, generator=generator)
    wanted = torch.zeros(1, 2000)
    wanted[0, 5], wanted[0, 7] = 0.75, 0.25
    whole, _ = soft_cross_entropy(out, head, wanted, torch.ones(1))
    torch.manual_seed(1)
    found = [float(SampledSoftmax.of(wanted, head, 200).loss(out, torch.tensor([0]), torch.ones(1))) for _ in range(40)]
    assert sum(found) / len(found) == pytest.approx(float(whole), abs=0.03)
    assert SampledSoftmax.of(wanted, head, 200).head.shape == (204, 9)


def test_chains_are_counted_as_they_are_drafted() -> None:
    head = tiny_head()
    ends = tiny_ends(head)
    levels = HeadLevels(random_levels(HIDDEN, 2).to(torch.float32), head.weights.norm, head.config.shape.eps)
    document = random_document(12, 4)
    batch = lay_flat([document], ends, 3)
    [step] = unroll(head, batch.flat, 1)
    ids = head.weights.target_ids
    tokens = document.tokens.clone()
    for anchor, level in ((2, 0), (2, 1), (2, 2), (5, 0), (5, 1)):  # the draft there becomes the target's text
        slot = 3 + anchor + level
        if level == 0:
            guess = int(ids[(head.weights.lm_head @ step.out[anchor]).argmax()])
        else:
            p = levels.ahead(step.hidden[anchor : anchor + 1])[level - 1]
            e = ends.embedding[int(tokens[slot])][None]
            state = levels.normed(levels.conditioned(p, levels.entered(p), levels.of_tokens(e)))[0]
            guess = int(ids[(head.weights.lm_head @ state).argmax()])
        tokens[slot + 1] = guess
        step = next(iter(unroll(head, lay_flat([dataclasses.replace(document, tokens=tokens)], ends, 3).flat, 1)))
    counts = measure([dataclasses.replace(document, tokens=tokens)], lambda d: drafted_ahead(head, levels, d, ends))[
        "all"
    ]
    assert counts.trials[0] == 8
    assert counts.hits[0] >= 2
    assert all(later <= hits for later, hits in zip(counts.trials[1:], counts.hits, strict=False))
