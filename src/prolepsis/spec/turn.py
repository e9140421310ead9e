"""One sample in one call of `ProposerSet.propose`: what it may have, and its best draft so far."""

from dataclasses import dataclass

from prolepsis.core.stats import PlainReason
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
    shadow: bool = False
    """Its draft is compared, never verified."""
    best: Rated | None = None
    asked: bool = False
    """Some proposer was asked for it."""
    spared: bool = False
    """A costly proposer was not, since that was not worth its time."""
    rested: bool = False
    """A proposer that may draft for it rests."""

    def allows(self, proposer: str) -> bool:
        return self.limit > 0 and (self.allowed is None or proposer in self.allowed)

    def plain(self, draft: Draft | None, *, weighed: bool) -> PlainReason | None:
        """Return why the sample is decoded plainly where `draft`, what is verified of its best, is None.

        `weighed`: drafts are verified where they are worth it; else only for want of room they are not.
        """
        if draft is not None:
            return None
        if self.best is not None:
            return "not_worth_it" if weighed and not self.forced else "no_room"
        if self.limit <= 0:
            return "no_room"
        if self.spared:
            return "too_costly"
        return "resting" if self.rested and not self.asked else "no_draft"

    @property
    def draft(self) -> Draft | None:
        return self.best.draft if self.best else None

    @property
    def survivals(self) -> tuple[float, ...]:
        return self.best.survivals if self.best else ()

    @property
    def worth(self) -> float:
        return self.best.worth if self.best else 0.0
