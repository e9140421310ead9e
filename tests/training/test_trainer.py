"""Training learns, resumes as if never interrupted, and measures what greedy drafting would get."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.engine.models.heads.lean import HeadLayer
from prolepsis.training.acceptance import AcceptedCounts, measure
from prolepsis.training.batches import TargetEnds
from prolepsis.training.data import Dataset, TrainingDocument
from prolepsis.training.head import HeadTask, drafted
from prolepsis.training.optimiser import apply, make_optimisers
from prolepsis.training.settings import LossSettings, Rates, TrainSettings
from prolepsis.training.trainer import Trainer
from tests.training.documents import random_document, tiny_ends, tiny_head
from tests.training.test_data import few_documents

OBJECTIVE = LossSettings()


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return few_documents(tmp_path / "data")


def _head() -> HeadLayer:
    head = tiny_head()
    head.weights.lm_head = tiny_ends(head).head.clone()
    head.weights.t2d = torch.ones_like(head.weights.t2d)  # no row is left out because of its random token
    return head


def _trainer(dataset: Dataset, head: HeadLayer, objective: LossSettings = OBJECTIVE, **settings: object) -> Trainer:
    recipe = TrainSettings(anchors_per_step=30, measure_every=20, **settings)  # type: ignore[arg-type]
    return Trainer(HeadTask(head, tiny_ends(head), objective, workers=2), dataset, recipe)


@pytest.mark.parametrize("muon", [0.0, 5e-3])
def test_a_few_documents_are_learnt_by_heart(dataset: Dataset, muon: float) -> None:
    dataset.training = dataset.training[:3]
    rates = Rates(adamw=1e-2, muon=muon)
    trainer = _trainer(dataset, _head(), LossSettings(num_steps=2), epochs=100.0, rates=rates)
    steps = list(trainer.steps())
    assert len(steps[0].right) == 1
    assert steps[0].right[0] < 0.3
    assert min(steps[-1].right) > 0.8
    assert len(steps[-1].right) == 2
    assert steps[-1].step == trainer.num_steps
    assert [measured.step for measured in trainer.history[:2]] == [20, 40]


def test_a_resumed_training_ends_as_one_that_ran_through(dataset: Dataset, tmp_path: Path) -> None:
    whole, in_parts = _head(), _head()
    through = _trainer(dataset, whole, epochs=4.0)
    list(through.steps())
    interrupted = _trainer(dataset, _head(), epochs=4.0)
    for done in interrupted.steps():
        if done.step == 7:
            break
    interrupted.save(tmp_path / "checkpoint.pt")
    resumed = _trainer(dataset, in_parts, epochs=4.0)
    resumed.load(tmp_path / "checkpoint.pt")
    list(resumed.steps())
    torch.testing.assert_close(in_parts.weights.fc, whole.weights.fc)
    assert resumed.history[-1].anchors == through.history[-1].anchors


def test_a_broken_checkpoint_is_named(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"checkpoint\.pt"):
        _trainer(dataset, _head()).load(tmp_path / "checkpoint.pt")


def test_too_little_text_is_refused(dataset: Dataset) -> None:
    head = tiny_head()
    task = HeadTask(head, tiny_ends(head), LossSettings())
    trainer = Trainer(task, dataset, TrainSettings(anchors_per_step=10_000))
    with pytest.raises(ConfigError, match="too little text"):
        list(trainer.steps())


def test_the_output_head_stays_the_targets(dataset: Dataset) -> None:
    head = _head()
    trainer = _trainer(dataset, head, epochs=2.0)
    before = head.weights.lm_head.clone(), head.weights.fc.detach().clone()
    list(trainer.steps())
    assert torch.equal(before[0], head.weights.lm_head)
    assert not torch.equal(before[1], head.weights.fc)


def test_rates_and_length_of_counts() -> None:
    counts = AcceptedCounts(hits=[6, 3, 1, 0, 0], trials=[10, 6, 2, 1, 0])
    assert counts.rates == [0.6, 0.5, 0.5, 0.0, 0.0]
    assert counts.length() == pytest.approx(1 + 0.6 + 0.3 + 0.15)


def test_measured_acceptance_counts_prefixes_of_right_guesses() -> None:
    head = tiny_head()
    ends = tiny_ends(head)
    document = random_document(20, 6)
    counts = measure([document], lambda d: drafted(head, d, ends))["all"]
    assert counts.trials[0] == 20 - 6  # the token after the last slot is unknown
    assert all(later <= hits for later, hits in zip(counts.trials[1:], counts.hits, strict=False))
    assert measure([_sampled(document)], lambda d: drafted(head, d, ends)) == {}


def _sampled(document: TrainingDocument) -> TrainingDocument:
    return TrainingDocument(document.number, document.kind, False, document.tokens, 6, document.features)


def test_ends_are_cut_to_the_draft_vocabulary() -> None:
    head = tiny_head()
    ends: TargetEnds = tiny_ends(head)
    assert torch.equal(ends.head, ends.embedding[head.weights.target_ids])


def test_the_order_of_a_gradient_in_memory_does_not_matter() -> None:
    first = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(10, 6, generator=torch.Generator().manual_seed(1)).t()
    assert not gradient.is_contiguous()
    results = []
    for given in (gradient.clone(), gradient.contiguous()):
        tensor = first.clone().requires_grad_(True)
        optimisers = make_optimisers([tensor], Rates(adamw=0.1))
        apply(optimisers, [tensor], [given])
        results.append(tensor.detach())
    as_it_lies, contiguous = results
    assert torch.allclose(as_it_lies, contiguous)
    assert not torch.equal(contiguous, first)


def test_matrices_of_a_stack_step_as_if_each_were_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    stack, gradient = torch.randn(3, 6, 10, generator=generator), torch.randn(3, 6, 10, generator=generator)
    gradient *= torch.tensor([0.1, 1.0, 10.0])[:, None, None]

    def stepped(first: Tensor, given: Tensor) -> Tensor:
        tensor = first.clone().requires_grad_(True)
        apply(make_optimisers([tensor], Rates(muon=0.1)), [tensor], [given.clone()])
        return tensor.detach()

    alone = torch.stack([stepped(m, g) for m, g in zip(stack, gradient, strict=True)])
    assert torch.allclose(stepped(stack, gradient), alone, atol=1e-5)
