"""One training from a folder of data to an export with its report, whatever is trained."""

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.train.batches import Library
from prolepsis.train.export import provenance
from prolepsis.train.report import DataFigures, Outcome, Product, draw, write_report, write_result
from prolepsis.train.shards import read_manifest
from prolepsis.train.target import Target
from prolepsis.train.trainer import StepDone, Student, Trainer, TrainSettings
from prolepsis.train.vocabulary import choose_vocabulary, count_tokens, coverage, needed_tokens
from prolepsis.train.workplace import Workplace

COVERAGE_SIZES = (2048, 4096, 8192, 16384)


class Training(ABC):
    """Puts target, data and trainer together; iterate over `steps`, then the folder holds export and report.

    A subclass calls `learn_with` once its student is made.
    """

    trainer: Trainer
    product: Product
    """What is trained, for people to read."""

    def __init__(
        self, workplace: Workplace, target: Target, settings: TrainSettings, max_tokens: int | None = None
    ) -> None:
        """Use `max_tokens` of the data at most. Raises `ConfigError` where the data are of another target, or none."""
        self.workplace = workplace
        self.target = target
        self.settings = settings
        check_data(workplace.data, target)
        self.library = Library(workplace.data, max_tokens)
        if not self.library.training:
            raise ConfigError(f"{workplace.data} holds no text to train on yet", param="tokens")
        self.counts = count_tokens(self.library.response_tokens(), target.shape.vocab)
        self._needed = needed_tokens(target.tokenizer, target.eos_token_ids)

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Weights of what is trained."""

    @property
    @abstractmethod
    def draft_vocab(self) -> int:
        """Tokens that it can draft."""

    @abstractmethod
    def told(self) -> Mapping[str, object]:
        """Return how it is trained beyond `TrainSettings`, for report and provenance: plain JSON values."""

    @abstractmethod
    def export(self, said: dict[str, Any]) -> None:
        """Write it, ready to serve, with `said` as its provenance (`models.provenance`), adding the checksum."""

    def learn_with(self, student: Student) -> None:
        """Train `student`, from the checkpoint where there is one."""
        self.trainer = Trainer(student, self.library, self.settings, self.target.preamble)
        if self.workplace.checkpoint.exists():
            self.trainer.load(self.workplace.checkpoint)

    def steps(self) -> Iterator[StepDone]:
        """Train; at each measurement the checkpoint, the export and the report are renewed."""
        started = time.monotonic()
        for done in self.trainer.steps():
            if done.measured is not None:
                self.trainer.save(self.workplace.checkpoint)
                self._report(time.monotonic() - started)
            yield done

    def frequent_tokens(self, size: int) -> Tensor:  # [size] int64, rising
        """Return the tokens that the text has most often and those that are always needed, as they were at first."""
        file = self.workplace.vocabulary
        if file.exists():
            return torch.tensor(json.loads(file.read_text()))
        ids = choose_vocabulary(self.counts, size, self._needed)
        file.write_text(json.dumps(ids.tolist()))
        return ids

    def _report(self, seconds: float) -> None:
        outcome = self._outcome(seconds)
        said = {
            "data": asdict(outcome.data),
            "settings": dict(outcome.settings),
            "steps": self.trainer.history[-1].step,
        }
        self.export(provenance(self.target, self.trainer.by_kind, said))
        write_result(self.workplace, outcome)
        write_report(self.workplace, outcome, draw(self.workplace, outcome))

    def _outcome(self, seconds: float) -> Outcome:
        places = [*self.library.training, *self.library.held_out]
        settings = self.settings
        return Outcome(
            product=self.product,
            target=self.target.name,
            draft_vocab=self.draft_vocab,
            parameters=self.parameters,
            data=DataFigures(
                documents=len(places),
                tokens=self.library.num_tokens,
                response_tokens=self.library.num_response_tokens,
                held_out_documents=len(self.library.held_out),
                by_kind=dict(Counter(shard.kinds[index] for shard, index in places)),
                coverage=coverage(self.counts, self._sizes(), self._needed),
            ),
            settings={
                "epochs": settings.epochs,
                "anchors_per_step": settings.anchors_per_step,
                "prompt_epochs": settings.prompt_epochs,
                "adamw_rate": settings.rates.adamw,
                "muon_rate": settings.rates.muon,
                **self.told(),
            },
            seconds=seconds,
            history=list(self.trainer.history),
            by_kind=self.trainer.by_kind,
        )

    def _sizes(self) -> Sequence[int]:
        vocab = self.target.shape.vocab
        return sorted({size for size in COVERAGE_SIZES if size <= vocab} | {min(vocab, self.draft_vocab)})


def check_data(folder: Path, target: Target) -> None:
    """Raise `ConfigError` where `folder` holds no data of `target`."""
    manifest = read_manifest(folder)
    if (manifest.fingerprint, manifest.taps) != (target.identity, target.recorded_taps):
        raise ConfigError(f"{folder} holds data of {manifest.target}, not of {target.name}", param="out")
