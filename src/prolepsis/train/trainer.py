"""What the trainer trains: a draft head or a draft model, as weights that learn from documents."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.train.acceptance import Counts
from prolepsis.train.batches import Library, anchors_of, groups, read
from prolepsis.train.optimiser import Rates, apply, make_optimisers, set_rate
from prolepsis.train.synthesis import Document
from prolepsis.train.workers import Result


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a training is."""

    step: int
    """Steps done."""
    progress: float
    """Share of all steps, 0 to 1."""


class Student(Protocol):
    """Owns the weights while they are trained."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All weights by name: what a checkpoint holds."""

    @property
    def trained(self) -> Sequence[Tensor]:
        """The weights that training changes."""

    @property
    def token_rows(self) -> Tensor:
        """The weights whose rows are tokens."""

    def learn(self, documents: Sequence[Document], moment: Moment) -> Result:
        """Return loss and gradients of a batch, in the order of `trained`; equal moments give equal results."""

    def measure(self, documents: Iterable[Document]) -> dict[str, Counts]:
        """Return acceptance of greedy drafts by prompt kind, and under "all", of all (`acceptance.measure`)."""


MOST_MEASUREMENTS = 24


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a student is trained."""

    epochs: float = 4.0
    anchors_per_step: int = 768
    rates: Rates = field(default_factory=lambda: Rates(adamw=2.5e-4))
    prompt_epochs: int = 1
    """In so many epochs, prompts are trained on too: most of them are the target's own words."""
    seed: int = 0
    workers: int = 2
    dtype: torch.dtype = torch.float32
    measure_every: int = 60
    """Steps between two measurements of held-out acceptance at least; they are `MOST_MEASUREMENTS` at most."""
    held_out_documents: int = 48
    """Measured at most."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Held-out acceptance after `anchors` trained ones, and the mean loss since the last measurement."""

    step: int
    anchors: int
    loss: float
    rates: list[float]
    """Of drafted positions 1, 2, ... given that those before were accepted."""
    length: float
    """Expected tokens of a step with a chain of 3."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a step came to; `measured` where one was due."""

    step: int
    num_steps: int
    anchors: int
    loss: float
    right: list[float]
    """Share of guesses that are the target's likeliest token, by step of the training-time test."""
    measured: Measured | None = None


class Trainer:
    """Leads a student through the documents of a library."""

    def __init__(self, student: Student, library: Library, settings: TrainSettings, preamble: int = 1) -> None:
        """`preamble` tokens at the front of all prompts are the template's own."""
        self.settings = settings
        self.library = library
        self.history: list[Measured] = []
        self.by_kind: dict[str, Counts] = {}
        """Of the last measurement."""
        self._student = student
        self._preamble = preamble
        self._optimisers = make_optimisers(student.trained, student.token_rows, settings.rates)
        self._held_out = [d for d in read(library.held_out) if d.greedy][: settings.held_out_documents]
        self._step = self._anchors = 0
        self._losses: list[float] = []

    @property
    def num_steps(self) -> int:
        """Steps of the whole training."""
        total, epoch, left = 0.0, 0, self.settings.epochs
        while left > 0:
            first = self._first(epoch)
            total += min(1.0, left) * sum(anchors_of(place, first) for place in self.library.training)
            epoch, left = epoch + 1, left - 1
        return max(1, int(total / self.settings.anchors_per_step))

    def steps(self) -> Iterator[StepDone]:
        """Train to the end, from where the checkpoint left off; yields after every step.

        Raises `ConfigError` where there is too little to train on.
        """
        num_steps, seen = self.num_steps, 0
        if not any(True for _ in groups(self.library.training, self.settings.anchors_per_step)):
            raise ConfigError("there is too little text for one training step; allowed: more tokens", param="tokens")
        epoch = 0
        while self._step < num_steps:
            order, first = self.library.epoch(self.settings.seed, epoch), self._first(epoch)
            for group in groups(order, self.settings.anchors_per_step, first):
                seen += 1
                if seen > self._step:
                    yield self._one(read(group, first), num_steps)
                if self._step >= num_steps:
                    return
            epoch += 1

    def measure(self) -> Measured:
        """Measure held-out acceptance and add it to the history."""
        self.by_kind = self._student.measure(self._held_out)
        counts = self.by_kind.get("all", Counts())
        loss = sum(self._losses) / len(self._losses) if self._losses else float("nan")
        self._losses = []
        self.history.append(Measured(self._step, self._anchors, loss, counts.rates, counts.length()))
        return self.history[-1]

    def save(self, file: Path) -> None:
        """Write a checkpoint from which `load` goes on."""
        part = file.with_suffix(".part")
        state = {
            "weights": {name: tensor.detach() for name, tensor in self._student.tensors.items()},
            "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
            "step": self._step,
            "anchors": self._anchors,
            "history": [asdict(measured) for measured in self.history],
        }
        torch.save(state, part)
        part.replace(file)

    def load(self, file: Path) -> None:
        """Take up a checkpoint; raises `ConfigError` where it is broken or of another student."""
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True)
            with torch.no_grad():
                for name, tensor in self._student.tensors.items():
                    tensor.copy_(state["weights"][name])
            for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
                optimiser.load_state_dict(saved)
        except (OSError, RuntimeError, KeyError, ValueError, UnpicklingError, EOFError) as error:
            raise ConfigError(f"{file} is no checkpoint of this training: {error}", param="resume") from error
        self._step, self._anchors = state["step"], state["anchors"]
        self.history = [Measured(**measured) for measured in state["history"]]

    def _first(self, epoch: int) -> int | None:
        return self._preamble if epoch < self.settings.prompt_epochs else None

    def _one(self, documents: list[Document], num_steps: int) -> StepDone:
        moment = Moment(self._step, self._step / num_steps)
        set_rate(self._optimisers, moment.progress)
        result = self._student.learn(documents, moment)
        apply(self._optimisers, self._student.trained, result.gradients)
        self._step += 1
        self._anchors += result.rows[0]
        self._losses.append(result.loss)
        right = [hit / max(1, rows) for hit, rows in zip(result.right, result.rows, strict=True)]
        every = max(self.settings.measure_every, num_steps // MOST_MEASUREMENTS)
        due = self._step % every == 0 or self._step == num_steps
        measured = self.measure() if due else None
        return StepDone(self._step, num_steps, self._anchors, result.loss, right, measured)
