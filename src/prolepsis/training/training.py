"""A training from a directory with data to an export with its report; a subclass says what is trained."""

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.training.data import Dataset, read_manifest
from prolepsis.training.report import DataFigures, Product, TrainingOutcome, draw, write_report, write_result
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import DraftModelRecipe, HeadRecipe
from prolepsis.training.target import Target, choose_vocabulary, count_tokens, coverage
from prolepsis.training.trainer import Trainer, TrainingStep, TrainTask

Recipe = TypeVar("Recipe", bound=HeadRecipe | DraftModelRecipe)
COVERAGE_SIZES = (2048, 4096, 8192, 16384)


class Training(ABC, Generic[Recipe]):
    """Connects target, data and trainer; once `steps` is exhausted, the directory holds export and report."""

    product: Product

    def __init__(self, directory: RunDirectory, target: Target, recipe: Recipe) -> None:
        """Start, or continue from the checkpoint; raises `ConfigError` for no data, or data of another target."""
        self.directory = directory
        self.target = target
        self.recipe = recipe
        check_data(directory.data, target)
        self.dataset = Dataset(directory.data, recipe.max_tokens)
        if not self.dataset.training:
            raise ConfigError(f"{directory.data} holds no text to train on yet", param="tokens")
        self.counts = count_tokens(self.dataset.response_tokens(), target.shape.vocab)
        self._needed = target.needed_tokens
        self.trainer = Trainer(self.begin(), self.dataset, recipe.training, target.preamble)
        if directory.checkpoint.exists():
            self.trainer.load(directory.checkpoint)

    @abstractmethod
    def begin(self) -> TrainTask:
        """Make the weights, and return the task that trains them."""

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Number of weights, without the target's."""

    @property
    @abstractmethod
    def draft_vocab(self) -> int:
        """Number of tokens that can be drafted."""

    @abstractmethod
    def hparams(self) -> Mapping[str, object]:
        """Return the hyperparameters beyond `TrainSettings`, for report and provenance: plain JSON values."""

    @abstractmethod
    def export(self, provenance: dict[str, Any]) -> None:
        """Write the export, ready to serve, with `provenance` (`engine.models.provenance`) and a checksum added."""

    def steps(self) -> Iterator[TrainingStep]:
        """Train; each measurement renews the checkpoint, the export and the report."""
        started = time.monotonic()
        for done in self.trainer.steps():
            if done.measured is not None:
                self.trainer.save(self.directory.checkpoint)
                self._write(self._outcome(time.monotonic() - started))
            yield done

    def frequent_tokens(self, size: int) -> Tensor:  # [size] int64, rising
        """Return the most frequent tokens of the text and those always needed, as chosen when the training began."""
        file = self.directory.vocabulary
        if file.exists():
            return torch.tensor(json.loads(file.read_text()))
        ids = choose_vocabulary(self.counts, size, self._needed)
        file.write_text(json.dumps(ids.tolist()))
        return ids

    def _write(self, outcome: TrainingOutcome) -> None:
        self.export(
            {
                "version": 1,
                "target": self.target.name,
                "target_fingerprint": self.target.identity,
                "tokenizer_fingerprint": self.target.tokenizer.fingerprint,
                "acceptance": {kind: asdict(counts) for kind, counts in outcome.by_kind.items()},
                "data": asdict(outcome.data),
                "settings": dict(outcome.settings),
                "steps": outcome.history[-1].step,
            }
        )
        write_result(self.directory, outcome)
        write_report(self.directory, outcome, draw(self.directory, outcome))

    def _outcome(self, seconds: float) -> TrainingOutcome:
        documents = [*self.dataset.training, *self.dataset.held_out]
        settings = self.recipe.training
        return TrainingOutcome(
            product=self.product,
            target=self.target.name,
            draft_vocab=self.draft_vocab,
            parameters=self.parameters,
            data=DataFigures(
                documents=len(documents),
                tokens=self.dataset.num_tokens,
                response_tokens=self.dataset.num_response_tokens,
                held_out_documents=len(self.dataset.held_out),
                by_kind=dict(Counter(ref.kind for ref in documents)),
                coverage=coverage(self.counts, self._sizes(), self._needed),
            ),
            settings={
                "epochs": settings.epochs,
                "anchors_per_step": settings.anchors_per_step,
                "prompt_epochs": settings.prompt_epochs,
                "adamw_rate": settings.rates.adamw,
                "muon_rate": settings.rates.muon,
                **self.hparams(),
            },
            seconds=seconds,
            history=list(self.trainer.history),
            by_kind=self.trainer.by_kind,
        )

    def _sizes(self) -> Sequence[int]:
        vocab = self.target.shape.vocab
        return sorted({size for size in COVERAGE_SIZES if size <= vocab} | {min(vocab, self.draft_vocab)})


def check_data(folder: Path, target: Target) -> None:
    """Raise `ConfigError` if `folder` does not hold data of `target`."""
    manifest = read_manifest(folder)
    if (manifest.fingerprint, manifest.aux_layers) != (target.identity, target.recorded_layers):
        found, wanted = f"{manifest.target} ({manifest.fingerprint})", f"{target.name} ({target.identity})"
        raise ConfigError(f"{folder} holds data of {found}, not of {wanted}", param="out")
