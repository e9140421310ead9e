"""What the trainer trains: a draft head or a draft model, as weights that learn from documents."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from prolepsis.train.acceptance import Counts
from prolepsis.train.documents import Document
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
