"""The training loop: groups of documents, gradients, optimiser steps, measurements and checkpoints."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import replacing
from prolepsis.training.acceptance import AcceptedCounts
from prolepsis.training.batches import BatchGradients, GradientWorkers, TargetEnds
from prolepsis.training.data import Dataset, TrainingDocument, groups, read
from prolepsis.training.optimiser import apply, make_optimisers, set_rate
from prolepsis.training.settings import Dtype, TrainSettings

MOST_MEASUREMENTS = 24


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of a training."""

    step: int  # completed steps
    fraction: float  # share of all steps that are done, 0 to 1


class TrainTask(ABC):
    """The weights of a draft head or of its levels, and how they learn from documents."""

    def __init__(self, trained: Sequence[Tensor], ends: TargetEnds, workers: int, dtype: Dtype) -> None:
        """`trained`: the weights that training changes."""
        self.trained = trained
        for tensor in trained:
            tensor.requires_grad_(True)
        self._ends = ends
        self._workers = GradientWorkers(workers)
        self._dtype = dtype

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, Tensor]:
        """All weights by name, for the checkpoint."""

    @abstractmethod
    def compute(self, progress: TrainingProgress) -> Callable[[Sequence[TrainingDocument]], BatchGradients]:
        """Return what computes loss and gradients of some documents, in the order of `trained`."""

    def gradients(self, documents: Sequence[TrainingDocument], progress: TrainingProgress) -> BatchGradients:
        """Return loss and gradients of a batch; the same call gives the same result."""
        return self._workers.run(self.compute(progress), documents)

    @abstractmethod
    def measure(self, documents: Iterable[TrainingDocument]) -> dict[str, AcceptedCounts]:
        """Return the acceptance of greedy drafts by prompt kind, and under "all" of all (`acceptance.measure`)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Held-out acceptance after training on `anchors`, and the mean loss since the last measurement."""

    step: int
    anchors: int
    loss: float
    rates: list[float]
    """Acceptance rate of drafted positions 1, 2, ... if those before were accepted."""
    length: float  # expected tokens of a step with a chain of 3


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """The result of a step, with a measurement if one was due."""

    step: int
    num_steps: int
    anchors: int
    loss: float
    right: list[float]
    """Share of guesses that are the target's likeliest token, by step of the training-time test."""
    measured: Measured | None = None


class Trainer:
    """Trains a task on the documents of a dataset."""

    def __init__(self, task: TrainTask, dataset: Dataset, settings: TrainSettings, preamble: int = 1) -> None:
        """`preamble` is the number of tokens of the chat template at the start of every prompt."""
        self.settings = settings
        self.dataset = dataset
        self.history: list[Measured] = []
        self.by_kind: dict[str, AcceptedCounts] = {}
        """Counts of the last measurement."""
        self._task = task
        self._preamble = preamble
        self._optimisers = make_optimisers(task.trained, settings.rates)
        self._held_out = dataset.read_held_out(settings.held_out_documents)
        self._step = self._anchors = 0
        self._losses: list[float] = []

    @property
    def num_steps(self) -> int:
        """Steps of the whole training."""
        if self.settings.max_anchors is not None:
            return max(1, self.settings.max_anchors // self.settings.anchors_per_step)
        total, epoch, left = 0.0, 0, self.settings.epochs
        while left > 0:
            first = self._first(epoch)
            total += min(1.0, left) * sum(ref.num_anchors(first) for ref in self.dataset.training)
            epoch, left = epoch + 1, left - 1
        return max(1, int(total / self.settings.anchors_per_step))

    def steps(self) -> Iterator[TrainingStep]:
        """Train to the end, from the checkpoint on if one was loaded; yields after every step.

        Raises `ConfigError` if there is too little text.
        """
        num_steps, seen = self.num_steps, 0
        self.dataset.check_fills_a_step(self.settings.anchors_per_step)
        epoch = 0
        while self._step < num_steps:
            order, first = self.dataset.epoch(self.settings.seed, epoch), self._first(epoch)
            for group in groups(order, self.settings.anchors_per_step, first):
                seen += 1
                if seen > self._step:
                    yield self._train_step(read(group, first), num_steps)
                if self._step >= num_steps:
                    return
            epoch += 1

    def measure(self) -> Measured:
        """Measure held-out acceptance and add it to the history."""
        self.by_kind = self._task.measure(self._held_out)
        counts = self.by_kind.get("all", AcceptedCounts())
        loss = sum(self._losses) / len(self._losses) if self._losses else float("nan")
        self._losses = []
        self.history.append(Measured(self._step, self._anchors, loss, counts.rates, counts.length()))
        return self.history[-1]

    def save(self, file: Path) -> None:
        """Write a checkpoint for `load`."""
        state = {
            "weights": {name: tensor.detach() for name, tensor in self._task.tensors.items()},
            "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
            "step": self._step,
            "anchors": self._anchors,
            "history": [asdict(measured) for measured in self.history],
        }
        with replacing(file) as part:
            torch.save(state, part)

    def load(self, file: Path) -> None:
        """Continue from a checkpoint; raises `ConfigError` if it is damaged or belongs to another task."""
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True)
            with torch.no_grad():
                for name, tensor in self._task.tensors.items():
                    tensor.copy_(state["weights"][name])
            for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
                optimiser.load_state_dict(saved)
        except (OSError, RuntimeError, KeyError, ValueError, UnpicklingError, EOFError) as error:
            raise ConfigError(f"{file} is not a checkpoint of this training: {error}", param="resume") from error
        self._step, self._anchors = state["step"], state["anchors"]
        self.history = [Measured(**measured) for measured in state["history"]]

    def _first(self, epoch: int) -> int | None:
        """Return the first token that is trained on in `epoch`; None: the first of the response."""
        return self._preamble if epoch < self.settings.prompt_epochs else None

    def _train_step(self, documents: list[TrainingDocument], num_steps: int) -> TrainingStep:
        progress = TrainingProgress(self._step, self._step / num_steps)
        set_rate(self._optimisers, progress.fraction)
        result = self._task.gradients(documents, progress)
        apply(self._optimisers, self._task.trained, result.gradients)
        self._step += 1
        self._anchors += sum(result.rows[:1])
        self._losses.append(result.loss)
        right = [hits / max(1, rows) for hits, rows in zip(result.right, result.rows, strict=True)]
        every = max(self.settings.measure_every, num_steps // MOST_MEASUREMENTS)
        due = self._step % every == 0 or self._step == num_steps
        measured = self.measure() if due else None
        return TrainingStep(self._step, num_steps, self._anchors, result.loss, right, measured)
