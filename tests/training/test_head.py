"""From data to an exported head with report, end to end, on a tiny target."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.engine.models.files.stored import Q8_0, quantise
from prolepsis.engine.models.heads.format import HeadStorage, head_fault, load_head
from prolepsis.engine.models.heads.levels import load_levels
from prolepsis.engine.models.heads.registry import find_head
from prolepsis.engine.models.targets.lean_weights import output_rows
from prolepsis.training.batches import lay_flat
from prolepsis.training.data import DataManifest, ShardWriter
from prolepsis.training.estimate import predict, prediction_check, small_run
from prolepsis.training.head import HeadTask, LossRows, loss_of
from prolepsis.training.levels import LevelRun
from prolepsis.training.losses import LossVocabulary
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import (
    HeadRecipe,
    HeadSize,
    LevelSettings,
    LossSettings,
    LossVocabularySize,
    StatedStepCost,
    TrainSettings,
)
from prolepsis.training.target import Target, open_target
from prolepsis.training.trainer import TrainingProgress
from prolepsis.training.training import HeadTraining
from tests.engine.models.random_heads import DRAFT_VOCAB, levels_report
from tests.training.documents import random_document, tiny_ends, tiny_head
from tests.training.targets import save_target

SETTINGS = TrainSettings(epochs=2.0, anchors_per_step=60, workers=1, measure_every=1000)  # measured at the end only


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return open_target(str(save_target(tmp_path_factory.mktemp("target"))))


def _with_data(root: Path, target: Target, tokens: Callable[[int], Tensor] | None = None) -> RunDirectory:
    """`tokens`: of each document, by its number; None: random ones."""
    directory = RunDirectory(root)
    directory.create(resume=False)
    hidden, vocab = target.shape.hidden, target.shape.vocab
    manifest = DataManifest(target.name, target.identity, target.recorded_layers, hidden, vocab)
    writer = ShardWriter(directory.data, manifest, tokens_per_shard=500)
    for number in range(0, 45):
        features = torch.randn(20, 4 * hidden, generator=torch.Generator().manual_seed(number)).bfloat16()
        document = replace(random_document(20, 5, number=number), features=features)
        writer.add(document if tokens is None else replace(document, tokens=tokens(number)))
    writer.flush()
    return directory


@pytest.fixture
def directory(target: Target, tmp_path: Path) -> RunDirectory:
    return _with_data(tmp_path / "out", target)


@pytest.fixture(scope="module")
def trained(target: Target, tmp_path_factory: pytest.TempPathFactory) -> HeadTraining:
    directory = _with_data(tmp_path_factory.mktemp("root") / "out", target)
    training = HeadTraining(directory, target, HeadRecipe(draft_vocab=96, training=SETTINGS))
    assert list(training.steps())[-1].measured is not None
    return training


def test_a_training_leaves_a_head_that_serves_and_a_report(trained: HeadTraining, target: Target) -> None:
    directory = trained.directory
    config, weights = load_head(directory.exported, partial(output_rows, target.ends))
    assert config.draft_vocab == 96
    assert head_fault(config, target.shape, len(target.shape.layers)) is None
    assert config.storage == HeadStorage("q8_0", "target")
    trained_fc = trained.head.weights.fc.detach()
    torch.testing.assert_close(weights.fc, quantise(trained_fc, Q8_0).values())
    torch.testing.assert_close(weights.lm_head.float(), trained.head.weights.lm_head)
    entry = find_head(str(directory.exported))
    assert entry.target_fingerprint == target.identity
    assert entry.provenance.acceptance["all"].trials[0] > 0
    assert "Held-out acceptance" in directory.report.read_text()
    assert "Draft head" in (directory.exported / "README.md").read_text()
    result = json.loads(directory.result.read_text())
    assert result["history"][-1]["step"] == trained.trainer.num_steps
    assert result["data"]["documents"] == 45


def test_training_goes_on_from_its_checkpoint_and_from_a_given_head(directory: RunDirectory, target: Target) -> None:
    recipe = HeadRecipe(draft_vocab=96, training=replace(SETTINGS, measure_every=4))
    training = HeadTraining(directory, target, recipe)
    for done in training.steps():
        if done.measured is not None:
            break
    resumed = HeadTraining(directory, target, recipe)
    assert next(resumed.steps()).step == done.step + 1
    directory.checkpoint.unlink()
    given = HeadTraining(directory, target, HeadRecipe(init=directory.exported, training=SETTINGS))
    _, stored = load_head(directory.exported, partial(output_rows, target.ends))
    torch.testing.assert_close(given.head.weights.q.detach(), stored.q.float())


@pytest.mark.parametrize(("numbers", "is_chosen"), [(range(0), False), (range(1, 40), False), (range(45), True)])
def test_a_vocabulary_is_chosen_again_where_it_covers_more_of_the_answers_held_out(
    target: Target, trained: HeadTraining, tmp_path: Path, numbers: range, *, is_chosen: bool
) -> None:
    """Answers of some `numbers` have two tokens that the head before cannot draft; 0 and 40 are held out."""
    before = trained.head.weights
    outside = (~before.t2d).nonzero()[-2:, 0]

    def tokens(number: int) -> Tensor:
        return torch.cat([before.target_ids[:18], outside if number in numbers else before.target_ids[:2]]).int()

    recipe = HeadRecipe(init=trained.directory.exported, training=SETTINGS)
    training = HeadTraining(_with_data(tmp_path / "again", target, tokens), target, recipe)
    after = training.head.weights
    assert torch.equal(after.d2t, before.d2t) != is_chosen
    assert after.t2d[outside].tolist() == [is_chosen] * 2
    assert len(after.d2t) == len(before.d2t) == int(after.t2d.sum())
    torch.testing.assert_close(after.lm_head, output_rows(target.ends, after.target_ids).float())
    assert training.hparams()["held_out_answers_covered"] == 1.0
    torch.testing.assert_close(
        after.q.detach(), load_head(trained.directory.exported, partial(output_rows, target.ends))[1].q.float()
    )


def test_the_loss_mixes_acceptance_with_cross_entropy_at_every_step() -> None:
    head = tiny_head()
    ends = tiny_ends(head)
    batch = lay_flat([random_document(9, 3)], ends, 3)
    entropy, mixed, missed = (
        loss_of(head, batch, LossRows.of(head, ends), LossSettings(num_steps=2, acceptance_share=share))[0]
        for share in (0.0, 0.5, 1.0)
    )
    torch.testing.assert_close(mixed, (entropy + missed) / 2)
    anchors = 7 + 0.8 * 6
    assert 0.0 < missed <= anchors < entropy


def _gradients(num_sampled: int, step: int = 0, **changes: Any) -> list[torch.Tensor]:
    """Return the gradients of a task whose loss always has the first 40 of 64 draft ids."""
    head = tiny_head()
    vocabulary = LossVocabulary.of(torch.arange(40), DRAFT_VOCAB, num_sampled=num_sampled) if num_sampled else None
    task = HeadTask(head, tiny_ends(head), LossSettings(num_steps=2, **changes), vocabulary=vocabulary)
    return task.gradients([random_document(9, 3)], TrainingProgress(step, 0.5)).gradients


def test_a_sample_of_all_other_tokens_gives_the_gradients_of_the_whole_vocabulary() -> None:
    for whole, found in zip(_gradients(0), _gradients(DRAFT_VOCAB - 40), strict=True):
        torch.testing.assert_close(found, whole)


def test_each_step_has_a_sample_of_its_own() -> None:
    first, again, second = _gradients(8), _gradients(8), _gradients(8, step=1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_head_has_the_sizes_and_the_layers_that_are_asked_for(directory: RunDirectory, target: Target) -> None:
    size = HeadSize(heads=6, kv_heads=2, intermediate=64, taps=2)
    recipe = HeadRecipe(draft_vocab=96, size=size, loss_size=LossVocabularySize(64, 16), training=SETTINGS)
    training = HeadTraining(directory, target, recipe)
    list(training.steps())
    config, weights = load_head(directory.exported, partial(output_rows, target.ends))
    assert (config.shape.heads, config.shape.kv_heads, config.shape.intermediate) == (6, 2, 64)
    assert config.shape.head_dim == target.shape.head_dim
    assert config.aux_layers == target.aux_layers[1:]
    assert weights.o.shape == (target.shape.hidden, 6 * target.shape.head_dim)
    assert training.hparams()["tokens_in_every_loss"] == 64
    own = (getattr(weights, f.name) for f in fields(weights) if f.name not in {"lm_head", "d2t", "t2d"})
    numel = sum(tensor.numel() for tensor in own if tensor is not None)
    assert directory.read_result()["parameters"] == numel
    levels = LevelSettings(count=1, width=32, max_anchors=60, anchors_per_step=60, workers=1)
    list(LevelRun(directory.exported, directory.data, target, levels).steps())
    assert load_levels(directory.exported, target.shape.hidden) is not None
    with pytest.raises(ConfigError, match="sizes are given"):
        HeadTraining(directory, target, replace(recipe, init=directory.exported))


def test_query_heads_share_the_other_heads_evenly(target: Target) -> None:
    with pytest.raises(ConfigError, match="heads is 5; allowed: multiples of the 2"):
        target.head_config(64, HeadSize(heads=5, kv_heads=2))


def test_data_of_another_target_are_refused(directory: RunDirectory, target: Target, tmp_path: Path) -> None:
    manifest = json.loads((directory.data / "manifest.json").read_text())
    (directory.data / "manifest.json").write_text(json.dumps({**manifest, "fingerprint": "other"}))
    with pytest.raises(ConfigError, match="not of"):
        HeadTraining(directory, target, HeadRecipe(training=SETTINGS))


def test_a_folder_in_use_is_only_resumed_when_asked(directory: RunDirectory) -> None:
    with pytest.raises(ConfigError, match="--resume"):
        directory.create(resume=False)
    directory.create(resume=True)


def test_small_runs_predict_larger_ones(directory: RunDirectory, target: Target) -> None:
    runs = []
    for size in (300, 600):
        small, recipe = small_run(directory, size, 2.0)
        recipe = HeadRecipe(draft_vocab=96, max_tokens=recipe.max_tokens, training=SETTINGS)
        list(HeadTraining(small, target, recipe).steps())
        runs.append(small.read_result())
    assert runs[0]["data"]["tokens"] < runs[1]["data"]["tokens"]
    [prediction] = predict(runs, [10_000], StatedStepCost(17.0, 0.3, 0.6, 0.1))
    assert len(prediction.rates) == 4
    assert 1.0 <= prediction.length <= 4.0
    assert prediction_check(runs, runs[1])["tokens"] == runs[1]["data"]["tokens"]


def test_a_trained_head_gets_levels_that_are_loaded_with_it(trained: HeadTraining, target: Target) -> None:
    directory = trained.directory
    settings = LevelSettings(count=2, width=32, max_anchors=240, anchors_per_step=60, workers=1)
    run = LevelRun(directory.exported, directory.data, target, settings)
    assert [done.step for done in run.steps()] == [1, 2, 3, 4]
    found = load_levels(directory.exported, target.shape.hidden)
    assert found is not None
    torch.testing.assert_close(found.out, quantise(run.task.levels.weights.out.detach(), Q8_0).values())
    report = levels_report(directory.exported)
    assert report["settings"]["count"] == 2
    assert report["acceptance"]["all"]["trials"][0] > 0
