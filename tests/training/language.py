"""A tiny target, text of a deterministic language, and small trainings of draft models on it."""

from pathlib import Path

import torch

from prolepsis.training.data import DataManifest, ShardWriter, TrainingDocument
from prolepsis.training.run_directory import MODEL, RunDirectory
from prolepsis.training.settings import (
    DraftModelRecipe,
    DraftModelSize,
    LossVocabularySize,
    Rates,
    TrainSettings,
)
from prolepsis.training.target import Target

FIRST, LETTERS = 10, 60
"""The language's tokens: `LETTERS` of them from `FIRST` on."""


def next_token(token: int) -> int:
    """Return the only token that follows `token` in the language."""
    return FIRST + (7 * (token - FIRST) + 3) % LETTERS


def language_document(target: Target, number: int, length: int = 24, response_start: int = 6) -> TrainingDocument:
    """Return a document of the language, with hidden states from which the target's head says the next token."""
    token = FIRST + number % LETTERS
    tokens = [token]
    for _ in range(length):
        tokens.append(next_token(tokens[-1]))
    hidden = target.shape.hidden
    features = torch.zeros(length, 4 * hidden)
    rows = target.ends.embedding.float()[torch.tensor(tokens[1:])]
    features[:, 3 * hidden :] = rows / target.ends.final_norm.float().clamp_min(0.1)
    return TrainingDocument(
        number, "chat", True, torch.tensor(tokens[:-1], dtype=torch.int32), response_start, features.bfloat16()
    )


def language_run(target: Target, root: Path, documents: int = 45) -> RunDirectory:
    """Return the folder of a draft model's training, with `documents` of the language as data."""
    place = RunDirectory(root, MODEL)
    place.create(resume=False)
    manifest = DataManifest(
        target.name, target.identity, target.recorded_layers, target.shape.hidden, target.shape.vocab
    )
    writer = ShardWriter(place.data, manifest, tokens_per_shard=500)
    for number in range(documents):
        writer.add(language_document(target, number))
    writer.flush()
    return place


def tiny_recipe(
    epochs: float = 4.0, frequent: int = 200, sampled: int = 20, measure_every: int = 100
) -> DraftModelRecipe:
    """Return a training of one narrow layer."""
    settings = TrainSettings(
        epochs=epochs,
        anchors_per_step=120,
        rates=Rates(adamw=1e-2),
        prompt_epochs=100,
        workers=1,
        measure_every=measure_every,
    )
    return DraftModelRecipe(
        DraftModelSize(layers=1, hidden=32), LossVocabularySize(frequent, sampled), training=settings
    )
