"""One sample in one call of `ProposerSet.propose`: what it may have, and its best draft so far."""

from dataclasses import dataclass

from prolepsis.spec.draft import Draft
from prolepsis.spec.proposer import SampleView


@dataclass(frozen=True, slots=True)
class Rated:
    """A draft with what is expected of it for one sample."""

    draft: Draft
    survivals: tuple[float, ...]
    """Chance of each node to be accepted with all its ancestors."""
    worth: float
    """Expected accepted tokens, less the price of the rows they take."""


@dataclass(slots=True)
class Turn:
    """A sample while proposers compete for it."""

    sample: SampleView
    limit: int
    """Most draft nodes; 0: none."""
    allowed: tuple[str, ...] | None
    """Proposers that may draft for it; None: all."""
    judged: bool
    """Its drafts are scored against the tokens to come: each sample every few steps where there are many."""
    forced: bool = False
    """Its draft is verified whole, whatever it is worth."""
    best: Rated | None = None

    @property
    def draft(self) -> Draft | None:
        return self.best.draft if self.best else None

    @property
    def survivals(self) -> tuple[float, ...]:
        return self.best.survivals if self.best else ()

    @property
    def worth(self) -> float:
        return self.best.worth if self.best else 0.0
